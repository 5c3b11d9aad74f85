#!/usr/bin/env python3
"""state.py FILE [OUT.npz] - print what is in a state file of amp.h, or in a set of ranks', by state-file.md. OUT.npz gets masters
and moments of each tensor as NAME.master, NAME.m, NAME.v (only this needs numpy)."""
import array, struct, sys

SHARD, SET, REPORT, SEED, YOURS, HISTORY, CHUNK, GROUP = 1, 2, 4, 8, 16, 256, 16384, 32
TOO_OLD = 'the file is of an amp.h before 0.6.0: load it with amp.h 0.7.0, and save it anew'
KINDS, MOMENTS, MASTERS = ['own', 'adamw', 'sgd', 'lion'], ['fp32', 'bf16', '8bit'], ['fp32', '24bit', '24bit', 'sr', 'sr']
# The numbers of a body, in their order: i an integer, f a float, d a double.
NUMBERS = '''scale:f growth_tracker:i found_inf:i checked:i hysteresis_tracker:i stuck:i next_scale:d good:i skipped:i growths:i
    backoffs:i growth_factor:d backoff_factor:d growth_interval:i hysteresis:i min_scale:f max_scale:f preset:i rules:i
    gate.skip:i gate.inv_scale:f gate.step:i norm:d clip_factor:f step.found_inf:i did_step:i nesterov:i step.skipped:i beta1:d
    beta2:d eps:f momentum:f max_norm:f lr:f bias1:f bias2:f missed_updates:i has_lr:i skipped_in_a_row:i
    scaler.skipped_in_a_row:i tolerance:d updates_since:i overflows_since:i'''.split()
# What a run can have of each, least and most: of floats their bits, in whose order numbers are that are not negative.
ONE, INF, ONE_64, INF_64, COUNT = 127 << 23, 255 << 23, 1023 << 52, 2047 << 52, 2**62 - 1
LIMITS = {name: limits for limits, names in {
    (0, 1): 'stuck gate.skip step.found_inf did_step nesterov has_lr', (0, 15): 'preset',
    (0, COUNT): 'good skipped growths backoffs step.skipped missed_updates skipped_in_a_row scaler.skipped_in_a_row '
                'updates_since overflows_since', (0, 3 * COUNT): 'gate.step',
    (0, 2**31 - 1): 'growth_tracker', (1, 2**31 - 1): 'growth_interval hysteresis hysteresis_tracker',
    (0, 2**32 - 1): 'found_inf checked rules gate.inv_scale', (0, INF): 'scale', (0, ONE): 'clip_factor',
    (0, INF - 1): 'min_scale max_scale momentum max_norm lr lr_scale weight_decay', (1, INF - 1): 'eps',
    (0, 180 << 23): 'bias1 bias2', (0, INF_64): 'next_scale', (ONE_64, INF_64 - 1): 'growth_factor',
    (0, ONE_64): 'backoff_factor tolerance', (1, ONE_64 - 1): 'beta1 beta2'}.items() for name in names.split()}
OWN = 'found_inf checked has_lr'.split()  # of each rank
MINUS_ZERO = 'momentum max_norm lr lr_scale weight_decay tolerance'.split()  # which may be -0, too
# Of each preset its rules; and those whose original has one factor.
RULES = [265, 33, 65, 41, 17, 84, 76, 69, 6, 35, 1, 34, 193, 256, 1092, 2049]
ONE_FACTOR, DISABLED, SAFE, MXNET, FAIRSEQ = (2, 5, 6, 7, 9, 11, 12, 14, 15), 512, (0, 13), 12, 14

def check(ok, text):
    ok or sys.exit('state.py: ' + text)

def checksum(data):
    h = 0
    for (x,) in struct.iter_unpack('<Q', data):
        h = (h ^ x) * 0x9e3779b97f4a7c15 & 0xffffffffffffffff
        h ^= h >> 32
    return h

def bits(kind, x):
    """Of a float or double; a double as a float is rounded."""
    try:
        return int.from_bytes(struct.pack('<' + kind, x), 'little')
    except OverflowError:
        return INF

def contradicts(x):
    """The first number of a body that goes with no others, or None."""
    preset, off, delayed = x['preset'], x['rules'] & DISABLED, x['preset'] == MXNET
    inv, clip, norm = bits('f', x['gate.inv_scale']), x['clip_factor'], x['norm']
    safe = 2.0**-126 <= x['min_scale'] <= x['scale'] <= x['max_scale'] <= 2.0**126
    wrong = {
        'norm': bits('d', norm) > INF_64 and not (norm != norm and inv == INF and clip == 1),
        'gate.inv_scale': inv > INF and not (inv << 1 & 2**32 - 1 > INF << 1 and bits('d', norm) == INF_64 and clip == 0),
        'momentum': x['nesterov'] and x['momentum'] == 0,
        'rules': x['rules'] & ~DISABLED != RULES[preset],
        'tolerance': x['tolerance'] > 0 and preset != FAIRSEQ,
        'backoff_factor': x['backoff_factor'] == 0 and preset not in ONE_FACTOR,
        'min_scale': 0 < x['max_scale'] < x['min_scale'],
        'hysteresis_tracker': x['hysteresis_tracker'] > x['hysteresis'],
        'scale': x['scale'] != 1 if off else preset in SAFE and not safe,
        'next_scale': not off and not delayed and bits('f', x['scale']) != bits('f', x['next_scale'])}
    return next((name for name in wrong if wrong[name]), None)

def value(x, code, exponent):
    """README.md's m-value and v-value."""
    least, steps = (0x3c000000, code & 127) if x == 'm' else (0x38000000, code)
    real = lambda bits: struct.unpack('<f', struct.pack('<I', bits))[0]
    size = (real(least + (steps << 19)) - real(least)) * 2.0**(min(max(exponent, 1), 253) - 127)
    return float('nan') if exponent == 255 else -size if x == 'm' and code > 127 else size

class File:
    def __init__(self, path):
        data = open(path, 'rb').read()
        check(data[:8] == b'AMPSTATE' and len(data) >= 40, path + ': no state file')
        self.version, self.flags, size, total = struct.unpack('<IIQQ', data[8:32])
        check(total == checksum(data[:24]), path + ': the header has changed')
        if self.version != 6:  # of before flags
            bits, self.version = self.version, self.version & 255
            known = bits < 1024 and not self.flags
            check(not known or self.version not in (1, 2, 3), path + ': ' + TOO_OLD)
            check(known and self.version in (4, 5), path + ': its version is not read here')
            self.flags = (bits & 256 and REPORT) | (bits & 512 and SEED) | (self.version == 5 and SHARD)
            self.flags = SET if self.flags == SHARD and size == 24 else self.flags
        check(self.flags < 32 and len(data) == 40 + size, path + ': of a newer amp.h, cut short or longer')
        named = self.flags == SET and size == (32 if self.version == 6 else 24)
        check(size % 8 == 0 and (named or not self.flags & SET), path + ': its body is of no length that there is')
        self.body, self.at, (self.sum,) = data[32:-8], 0, struct.unpack('<Q', data[-8:])
        check(self.sum == checksum(self.body), path + ': the body has changed')

    def take(self, size):
        begin, self.at = self.at, self.at + -(-size // 8) * 8
        check(self.at <= len(self.body), 'the body is too short')
        check(not any(self.body[begin + size:self.at]), 'what pads a name or an array is not 0')
        return self.body[begin:begin + size]

    def number(self, kind='i', name=''):
        data = self.take(8)
        least, most = LIMITS.get(name, (0, 2**32 - 1 if kind == 'f' else 2**64 - 1))
        here = int.from_bytes(data, 'little')
        zero = name in MINUS_ZERO and here == 1 << (31 if kind == 'f' else 63)
        check(least <= here <= most or zero, 'no run has such a number: %s' % (name or 'a float'))
        return struct.unpack('<' + {'i': 'Q', 'f': 'fxxxx', 'd': 'd'}[kind], data)[0]

    def array(self, code, n):
        x = array.array(code, self.take(n * struct.calcsize(code)))
        if sys.byteorder == 'big':
            x.byteswap()
        return x

    def tables(self):
        kind, count = self.number(), self.number()
        self.rank, self.ranks = (self.number(), self.number()) if self.flags & SHARD else (0, 1)
        check(kind < len(KINDS), 'a kind that is not read here')
        numbers, tensors = dict(kind=KINDS[kind], **{x[:-2]: self.number(x[-1], x[:-2]) for x in NUMBERS}), []
        check(not contradicts(numbers), 'a number contradicts others: %s' % contradicts(numbers))
        for _ in range(count):
            n, has = self.number(), self.number()
            moments, masters = (self.number(), self.number()) if self.version == 6 else (has >> 2 & 3, has >> 4)
            t = dict(n=n, has=has & 3, own=self.version == 6 and has == 4, moments=moments, masters=masters,
                     lr_scale=self.number('f', 'lr_scale'), weight_decay=self.number('f', 'weight_decay'),
                     name=self.take(self.number()).decode('utf-8', 'replace'))
            known = moments < 3 and masters < 5 and (has < 5 or self.version < 6)
            check(known, '"%s": storage formats that are not read here' % t['name'])
            tensors.append(t)
        check(any(t['own'] for t in tensors) == bool(self.flags & YOURS), 'a flag says otherwise which tensors are own')
        numbers.update({'seed': self.number()} if self.flags & SEED else {})
        self.take(8 * (7 + 6 * HISTORY + 4 * count) if self.flags & REPORT else 0)
        return numbers, tensors

    def arrays(self, tensors):
        before = 0  # what a shard has of a tensor is a run of chunks
        for t in tensors:
            chunks, k = -(-t['n'] // CHUNK), (self.rank - -(-before // CHUNK)) % self.ranks
            begin, end = (min((chunks // self.ranks * j + min(j, chunks % self.ranks)) * CHUNK, t['n']) for j in (k, k + 1))
            n, before = end - begin, before + t['n']
            parts, has = dict(master=self.array('I', n)), [x for i, x in enumerate('mv') if t['has'] >> i & 1]
            parts.update((x, self.array('IHB'[t['moments']], n)) for x in has)
            for x in has if t['moments'] == 2 else []:
                scale = self.array('B', -(-n // GROUP))
                parts[x] = array.array('f', (value(x, c, scale[i // GROUP]) for i, c in enumerate(parts[x])))
            for x, u in parts.items():
                u = array.array('I', (c << 16 for c in u)) if u.typecode == 'H' else u
                t.setdefault(x, array.array('f', bytes(4 * t['n'])))[begin:end] = array.array('f', u.tobytes())
        check(self.at == len(self.body), 'the body is too long')

def load(path):
    file = File(path)
    files = [file]
    if file.flags & SET:
        step, edition, ranks = file.number(), file.number(), file.number()
        check(edition <= COUNT and 0 < ranks <= 65536, path + ': no set is so')
        tail = '%d-%d' % (step, edition) if edition else step
        files = [File('%s.%s.%d-of-%d' % (path, tail, rank, ranks)) for rank in range(ranks)]
        content = sum(f.sum for f in files) & 0xffffffffffffffff
        check(file.version < 6 or file.number() == content, path + ': its files are not of one set')
    tables = [f.tables() for f in files]
    numbers, tensors = tables[0]
    check(file.flags & SET or not file.flags & SHARD or file.ranks == 1, path + ': a rank\'s; give the file that names the set')
    for rank, (f, (x, y)) in enumerate(zip(files, tables)):
        alike = y == tables[-1][1] and all(repr(x[k]) == repr(numbers[k]) for k in x if k not in OWN)
        ours = f.version == file.version and f.flags & SHARD and (f.rank, f.ranks) == (rank, len(files)) and \
            x['gate.step'] + x['step.skipped'] == step if file.flags & SET else True
        check(alike and ours, path + ': its files are not of one set')
    for f in files:
        f.arrays(tensors)
    return numbers, tensors

if __name__ == '__main__':
    check(len(sys.argv) in (2, 3), __doc__)
    numbers, tensors = load(sys.argv[1])
    print(*('%s %r' % x for x in numbers.items()), sep='\n')
    for t in tensors:
        moments = MOMENTS[t['moments']] if t['has'] else 'none'
        print('"%s": %d elements, masters %s, moments %s%s' % (t['name'], t['n'], MASTERS[t['masters']], moments,
                                                               ', own' if t['own'] else ''))
    if len(sys.argv) > 2:
        import numpy
        numpy.savez(sys.argv[2], **{'%s.%s' % (t['name'] or i, x): numpy.array(t[x]) for i, t in enumerate(tensors)
                                    for x in ('master', 'm', 'v') if x in t})
