#!/usr/bin/env python3
"""state.py FILE [OUT.npz] - print what is in a state file of amp.h, by state-file.md. OUT.npz gets masters and moments of each
tensor as NAME.master, NAME.m, NAME.v (only this needs numpy)."""
import array, struct, sys

REPORT, SEED, HISTORY, GROUP = 1, 2, 256, 32
KINDS, FORMATS = ['own', 'adamw', 'sgd', 'lion'], ['fp32', 'bf16', '8bit', 'split', 'sr']
PRESETS = '''default static none torch apex apex_hysteresis megatron deepspeed deepspeed_consecutive deepspeed_fused flax jmp
    keras tf_keras mxnet'''.split()
SKIPS = ['taken', 'overflow', 'asked']
# The numbers of a body, in their order: i a u64, u a u32, s an i32, f a float, d a double.
NUMBERS = '''scale:f next_scale:d found_inf:u checked:u stuck:u good:i skipped:i skipped_in_a_row:i growths:i backoffs:i
    growth_factor:d backoff_factor:d growth_interval:u growth_tracker:u hysteresis:u hysteresis_tracker:u min_scale:f max_scale:f
    preset:u disabled:u step.taken:i step.skipped:i step.skipped_in_a_row:i missed_updates:i skip:u inv_scale:f norm:d
    clip_factor:f step.found_inf:u did_step:u has_lr:u lr:f beta1:d beta2:d eps:f momentum:f nesterov:u max_norm:f'''.split()
RUN = 'overflows:i asked:i'.split()
ITERATION = 'iteration:i norm:d loss_scale:f clip_factor:f skip:u tensor:s'.split()
OVERFLOWS = 'overflows:i nans:i first:i last:i'.split()

def check(ok, text):
    ok or sys.exit('state.py: ' + text)

def checksum(data):
    h = 0
    for (x,) in struct.iter_unpack('<Q', data):
        h = (h ^ x) * 0x9e3779b97f4a7c15 & 0xffffffffffffffff
        h ^= h >> 32
    return h

def value(x, code, exponent):
    """Of a moment of 8 bits."""
    least, steps = (0x3c000000, code & 127) if x == 'm' else (0x38000000, code)
    real = lambda bits: struct.unpack('<f', struct.pack('<I', bits))[0]
    size = (real(least + (steps << 19)) - real(least)) * 2.0**(min(max(exponent, 1), 253) - 127)
    return float('nan') if exponent == 255 else -size if x == 'm' and code > 127 else size

class File:
    def __init__(self, data):
        check(data[:8] == b'AMPSTATE', 'no state file of amp.h')
        check(len(data) >= 40, 'cut short')
        version, self.flags, size, total = struct.unpack('<IIQQ', data[8:32])
        check(total == checksum(data[:24]), 'the header has changed')
        check(version <= 1 and self.flags <= REPORT + SEED, 'of a newer amp.h')
        check(version == 1 and size % 8 == 0, 'no version 1, or no whole number of 8 bytes')
        check(len(data) == 40 + size, 'cut short, or longer than it says')
        self.body, self.at = data[32:-8], 0
        check(checksum(self.body) == struct.unpack('<Q', data[-8:])[0], 'the body has changed')

    def take(self, size):
        begin, self.at = self.at, self.at + -(-size // 8) * 8
        check(self.at <= len(self.body), 'the body is too short')
        return self.body[begin:begin + size]

    def number(self, kind='i'):
        return struct.unpack('<' + {'i': 'Q', 'u': 'Ixxxx', 's': 'ixxxx', 'f': 'fxxxx', 'd': 'd'}[kind], self.take(8))[0]

    def numbers(self, names):
        return {x[:-2]: self.number(x[-1]) for x in names}

    def array(self, code, n):
        x = array.array(code, self.take(n * struct.calcsize(code)))
        if sys.byteorder == 'big':
            x.byteswap()
        return x

    def tensor(self):
        t = dict(n=self.number(), has=self.number(), moments=self.number(), masters=self.number(), lr_scale=self.number('f'),
                 weight_decay=self.number('f'), name=self.take(self.number()).decode('utf-8', 'replace'))
        check(t['has'] & ~8 < 5 and t['moments'] < 3, '"%s": moments that are not read here' % t['name'])
        return t

    def report(self, count):
        report = self.numbers(RUN)
        report['history'] = [self.numbers(ITERATION) for _ in range(HISTORY)]
        report['tensors'] = [self.numbers(OVERFLOWS) for _ in range(count)]
        check(all(x['skip'] < len(SKIPS) and -1 <= x['tensor'] < count for x in report['history'] if x['iteration']),
              'its report names a tensor that is not there')
        return report

    def arrays(self, t):
        has = [x for i, x in enumerate('mv') if t['has'] >> i & 1]
        parts = {'master': self.array('I', t['n'])} | {x: self.array('IHB'[t['moments']], t['n']) for x in has}
        for x in has if t['moments'] == 2 else []:
            scale = self.array('B', -(-t['n'] // GROUP))
            parts[x] = array.array('f', (value(x, code, scale[i // GROUP]) for i, code in enumerate(parts[x])))
        for x, u in parts.items():
            u = array.array('I', (code << 16 for code in u)) if u.typecode == 'H' else u
            t[x] = array.array('f', u.tobytes())

def load(path):
    """Numbers, tensors, and the report or None."""
    file = File(open(path, 'rb').read())
    kind, count = file.number(), file.number()
    check(kind < len(KINDS) and count <= len(file.body) // 56, 'a kind that is not read here, or too many tensors')
    numbers = dict(kind=KINDS[kind], **file.numbers(NUMBERS))
    check(numbers['preset'] < len(PRESETS), 'a preset that is not known here')
    tensors = [file.tensor() for _ in range(count)]
    numbers.update({'seed': file.number()} if file.flags & SEED else {})
    report = file.report(count) if file.flags & REPORT else None
    for t in tensors:
        file.arrays(t)
    check(file.at == len(file.body), 'the body is too long')
    return numbers, tensors, report

def main(path, out=None):
    numbers, tensors, report = load(path)
    numbers['preset'] = PRESETS[numbers['preset']]
    print(*('%s %r' % x for x in numbers.items()), sep='\n')
    for i, t in enumerate(tensors):
        masters = FORMATS[t['masters']] if t['masters'] < len(FORMATS) else 'of a format that is not known here'
        moments = 'own' if t['has'] & 4 else FORMATS[t['moments']] if t['has'] & 3 else 'none'
        print('tensor %d "%s": %d elements, masters %s, moments %s%s, lr_scale %r, weight_decay %r' % (
            i, t['name'], t['n'], masters, moments, ' that were not set' if t['has'] & 8 else '', t['lr_scale'],
            t['weight_decay']))
    history = [x for x in report['history'] if x['iteration']] if report else []
    for x in sorted(history, key=lambda x: x['iteration']):
        print(*('%s %s' % y for y in (x | {'skip': SKIPS[x['skip']]}).items()))
    for i, x in enumerate(report['tensors'] if report else []):
        x['overflows'] and print('tensor %d overflowed: %r' % (i, x))
    if out:
        import numpy
        numpy.savez(out, **{'%s.%s' % (t['name'] or i, x): numpy.array(t[x]) for i, t in enumerate(tensors)
                            for x in ('master', 'm', 'v') if x in t})

if __name__ == '__main__':
    check(len(sys.argv) in (2, 3), __doc__)
    main(*sys.argv[1:])
