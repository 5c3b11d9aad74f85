#!/usr/bin/env python3
"""schema.py [FILE.json...] - the vectors match schema/, and what they say about themselves is true.

It understands the part of JSON Schema that schema/ uses; any validator of draft 2020-12 does as well.
"""
import json, pathlib, re, sys

HERE = pathlib.Path(__file__).parent
TYPES = {'object': dict, 'array': list, 'string': str, 'null': type(None), 'integer': int, 'number': (int, float)}
KNOWN = {'$schema', '$defs', '$ref', 'allOf', 'anyOf', 'type', 'enum', 'const', 'pattern', 'minimum', 'required', 'properties',
         'additionalProperties', 'items', 'prefixItems', 'minItems', 'maxItems'}
documents = {}


def document(name):
    if name not in documents:
        documents[name] = json.load(open(HERE / 'schema' / name))
    return documents[name]


def faults(x, schema, at, name):
    """What is wrong with x, each as a line."""
    if isinstance(schema, bool):
        return [] if schema else [at + ': not allowed']
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    out = []
    if '$ref' in schema:
        file, path = schema['$ref'].split('#')
        target = document(file or name)
        for key in path.strip('/').split('/'):
            target = target[key]
        out += faults(x, target, at, file or name)
    for part in schema.get('allOf', []):
        out += faults(x, part, at, name)
    if 'anyOf' in schema and all(faults(x, part, at, name) for part in schema['anyOf']):
        out.append('%s: %r is none of these' % (at, x))
    kind = TYPES[schema['type']] if 'type' in schema else object
    if not isinstance(x, kind) or isinstance(x, bool):
        return out + ['%s: %r is no %s' % (at, x, schema.get('type'))]
    if 'enum' in schema and x not in schema['enum'] or 'const' in schema and x != schema['const']:
        out.append('%s: %r' % (at, x))
    if isinstance(x, str) and not re.search(schema.get('pattern', ''), x) or x != x:
        out.append('%s: %r is not as %s' % (at, x, schema['pattern']))
    if isinstance(x, (int, float)) and x < schema.get('minimum', x):
        out.append('%s: %r is too small' % (at, x))
    if isinstance(x, dict):
        out += ['%s: no %s' % (at, k) for k in schema.get('required', []) if k not in x]
        for k, y in x.items():
            part = schema.get('properties', {}).get(k, schema.get('additionalProperties', True))
            out += faults(y, part, at + '.' + k, name)
    if isinstance(x, list):
        if not schema.get('minItems', 0) <= len(x) <= schema.get('maxItems', len(x)):
            out.append('%s: %d elements' % (at, len(x)))
        first = schema.get('prefixItems', [])
        for i, y in enumerate(x):
            out += faults(y, first[i] if i < len(first) else schema.get('items', True), '%s[%d]' % (at, i), name)
    return out


def main(paths):
    bad = False
    for path in paths:
        file, name = json.load(open(path)), pathlib.Path(path).name
        out, cases = faults(file, document(name), name, name), file['cases']
        ids = [c['id'] for c in cases]
        out += ['%s: twice' % i for i in sorted(set(ids)) if ids.count(i) > 1]
        out += ['%s: not of %s' % (i, file['family']) for i in ids if not i.startswith(file['family'] + '/')]
        out += ['%s: no tag %s' % (c['id'], t) for c in cases for t in c['tags'] if t not in file['tags']]
        out += ['%s: no source %s' % (c['id'], c['source']) for c in cases if c['source'] not in file['sources']]
        out += ['%s: no case has tag %s' % (name, t) for t in file['tags'] if not any(t in c['tags'] for c in cases)]
        if file['tests'] != len(cases) or file['$schema'] != 'schema/' + name:
            out.append('%s: %d tests, %s' % (name, len(cases), file['$schema']))
        print('FAIL' if out else 'ok  ', 'schema, %s: %d cases' % (name, len(cases)), *out[:5], sep=' ')
        bad |= bool(out)
    return bad


sys.exit(main(sys.argv[1:] or sorted(HERE.glob('*.json'))))
