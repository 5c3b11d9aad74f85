#!/usr/bin/env python3
"""run.py [FILE.json...] - the vectors on scaler.py, model.py and state.py, and on PyTorch's GradScaler if torch is there."""
import importlib, json, pathlib, sys
import numpy as np

NAN = {'fp16': (0x7c00, 0x7fff, 0x7e00), 'bf16': (0x7f80, 0x7fff, 0x7fc0), 'fp32': (0x7f800000, 0x7fffffff, 0x7fc00000)}


def number(x):
    return x if not isinstance(x, str) else float(x) if x == 'inf' else float.fromhex(x)


def words(hexa, kind=np.uint32, n=None):
    return np.resize(np.array([int(x, 16) for x in hexa]).astype(kind), n or len(hexa))


def trace(s, event, count, scale, good, left, taken):
    answer = None
    if event in 'RSI':
        s.set({'R': 'resume', 'S': 'scale', 'I': 'growth_interval'}[event], number(count))
    for _ in range(0 if event in 'RSI' else count):
        if event == 'H':
            s.set('found_inf', 2)
        s.unscale(np.float32([1, {'X': np.inf, 'N': np.nan}.get(event, 1), 0]))
        answer = int(s.step() == 'taken')
        s.update()
    return s.scale == np.float32(number(scale)) and good in (None, s.good) and (s.left, answer) == (left, taken)


def call(s, buffer, name, argument, answer, gradients, scale, good, left):
    if name == 'backward':
        buffer[:] = words(argument).view(np.float32)
    got = {'backward': lambda: 'ok', 'unscale': lambda: s.unscale(buffer), 'step': s.step, 'update': s.update,
           'scale': lambda: s.set('scale', number(argument)), 'found': lambda: s.set('found_inf', number(argument))}[name]()
    same = gradients is None or (buffer.view(np.uint32) == words(gradients)).all()
    return got == answer and same and s.scale == np.float32(number(scale)) and (s.good, s.left) == (good, left)


def rows(case, s):
    if not s.start(case['system'], {k: number(v) for k, v in case['config'].items()}):
        return None
    buffer = np.zeros(3, np.float32)
    return all(trace(s, *row) if len(row) == 6 else call(s, buffer, *row) for row in case['rows'])


def skip(case, model):
    c = case['config']
    kind, arrays = model.TYPES[c['dtype']], [words(c[k], n=c['n']).view(np.float32) for k in ('weight', 'm', 'v')]
    o = model.AdamW(c, *arrays, number(c['scale']))
    shown = lambda: [x.view(kind if i == 3 else np.uint32).astype(np.int64) for i, x in enumerate((o.w, o.m, o.v, o.copy))]
    for gradient, bad, answer, *after, steps, scale in case['rows']:
        g, before = words(gradient, kind, c['n']), shown()
        if bad:
            g[bad[0]] = int(bad[1], 16)
        if (o.step(g), o.steps, o.scale) != (answer, steps, number(scale)):
            return False
        for i, (x, old, new) in enumerate(zip(shown(), before, after)):
            near = c['ulp'] if answer == 'taken' and (i < 3 or kind == np.uint32) else 0
            if (abs(x - (old if new is None else words(new, np.int64, c['n']))) > near).any():
                return False
    return True


def clip(case, module):
    c = {k: number(x) if k in ('scale', 'max_norm') else x for k, x in case['config'].items()}
    if case['system'] not in module.Clip.systems:
        return None
    s, kind = module.Clip(case['system'], c), {'fp32': np.uint32}.get(c['dtype'], np.uint16)
    near = lambda x, bits: (abs(x.view(np.uint32).astype(np.int64) - bits) <= c['ulp']).all()
    for gradients, bad, answer, norm, factor, after, scale in case['rows']:
        arrays = [words(g, kind, n) for g, n in zip(gradients, c['n'], strict=True)]
        if bad:
            arrays[bad[0]][bad[1]] = int(bad[2], 16)
        if (s.step(arrays), s.scale) != (answer, number(scale)):
            return False
        if answer == 'taken':
            same = [near(x, words(bits, np.int64, len(x))) for x, bits in zip(s.after, after, strict=True)]
            same += [near(s.factor, int(factor, 16))] if s.factor is not None else []
            single = lambda x: np.float32(x).view(np.uint32).astype(np.int64)
            same += [near(np.float32(s.norm), single(number(norm))) if c['ulp'] else s.norm == number(norm)]
            if not all(same):
                return False
    return True


def convert(case, model):
    of, to = case['config']['from'], case['config']['to']
    inf, size, one = NAN[to]
    plain = lambda y: y if case['demand'] == 'may' else np.where(y & size > inf, one, y)
    if 'pairs' in case:
        x, y = (words([pair[i] for pair in case['pairs']], model.TYPES[kind]) for i, kind in enumerate((of, to)))
        return (plain(model.convert(x, of, to)) == plain(y)).all()
    d = case['digest']
    if of == 'fp32' and d['step'] == 1:
        return None
    i = np.arange(0, 2**32 if of == 'fp32' else 2**16, d['step'], dtype=np.uint64)
    y = plain(model.convert(i.astype(model.TYPES[of]), of, to)).astype(np.uint64)
    return '0x%016x' % ((2 * i + 1) * (y + np.uint64(1))).sum(dtype=np.uint64) == d['sum']


def store(case, model):
    return all(model.STORE[case['system']](*map(int, a, [16] * len(a))) == [int(x, 16) for x in b] for a, b in case['pairs'])


def state(case, reader):
    c = case['config']
    numbers, tensors = reader.load(str(pathlib.Path(__file__).parent / c['file']))
    same = all(numbers[k] == number(x) for k, x in c['numbers'].items())
    same &= numbers['kind'] == c['kind'] and numbers.get('seed', 0) == c['seed']
    for t, x in zip(tensors, case['tensors'], strict=True):
        bits = lambda k: None if k not in t else ['0x%08x' % u for u in np.array(t[k], np.float32).view(np.uint32)]
        same &= all(t[k] == x[k] for k in ('name', 'n')) and all(bits(k) == x[k] for k in ('master', 'm', 'v'))
    return same


FAMILIES = dict(scale=rows, order=rows, skip=skip, clip=clip, convert=convert, store=store, state=state)
MODULES = {rows: ['scaler.Scaler', 'torch_subject.GradScaler'], state: ['state'],
           clip: ['model', 'torch_subject']}


def main(paths):
    bad = False
    for path in paths:
        family = json.load(open(path))
        run = FAMILIES[family['family']]
        for name in MODULES.get(run, ['model']):
            module, *what = name.split('.')
            try:
                subject = importlib.import_module(module)
            except ImportError:
                print('skip %s, %s: torch is not installed' % (family['family'], name))
                continue
            answers = [(c, run(c, getattr(subject, *what)() if what else subject)) for c in family['cases']]
            failed, others = ([c['id'] for c, a in answers if a is not None and not a and c['demand'] == demand]
                              for demand in ('must', 'may'))
            print('FAIL' if failed else 'ok  ', '%s, %s: %d passed, %d failed, %d absent, %d that may be so are not' % (
                family['family'], name, sum(bool(a) for _, a in answers), len(failed),
                sum(a is None for _, a in answers), len(others)), *failed)
            bad |= bool(failed)
    return bad


np.seterr(all='ignore')
if __name__ == '__main__':
    sys.exit(main(sys.argv[1:] or sorted(pathlib.Path(__file__).parent.glob('*.json'))))
