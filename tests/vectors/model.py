"""model.py - conversions, clipping, an AdamW step and optimizer state, written from README.md alone, in integers."""
import numpy as np

TYPES = {'fp16': np.uint16, 'bf16': np.uint16, 'fp32': np.uint32}
M64 = (1 << 64) - 1


# --------------------------------------------------------------------- conversions

def narrow(u, to):
    u = u.astype(np.int64)
    sign, a = u >> 31 << 15, u & 0x7fffffff
    if to == 'bf16':
        y = a + 0x7fff + (a >> 16 & 1) >> 16
        return sign | np.where(a > 0x7f800000, a >> 16 | 0x40, y)
    shift = np.clip(126 - (a >> 23), 13, 25)  # of subnormals, whose leading bit stands in the word
    m = np.where(shift > 13, a & 0x7fffff | 0x800000, a - (112 << 23))
    y = m + (1 << shift - 1) - 1 + (m >> shift & 1) >> shift
    y = np.where(a >= 0x38800000, np.minimum(y, 0x7c00), y)
    return sign | np.where(a > 0x7f800000, 0x7e00 | a >> 13 & 0x3ff, y)


def widen(h, of):
    h = h.astype(np.int64)
    if of == 'bf16':
        return h << 16
    sign, a = h >> 15 << 31, h & 0x7fff
    y = (a << 13) + (112 << 23)
    tiny = (a.astype(np.float32) * np.float32(2.0**-24)).view(np.uint32).astype(np.int64)
    y = np.where(a < 0x400, tiny, np.where(a >= 0x7c00, 0x7f800000 | (a & 0x3ff) << 13, y))
    return sign | np.where(a > 0x7c00, y | 0x400000, y)


def convert(x, of, to):
    return (narrow(x, to) if of == 'fp32' else widen(x, of)).astype(TYPES[to])


def as_floats(x, of):
    return x.view(np.float32) if of == 'fp32' else convert(x, of, 'fp32').view(np.float32)


# ------------------------------------------------------------------------ clipping

def pairs(x):
    while len(x) > 1:
        x = x[:len(x) // 2] + x[len(x) // 2:]
    return x[0]


def in_lanes(x, lanes):
    """The sum of x in one order: element i to lane i mod 256, then lanes in pairs."""
    for row in np.append(x, np.zeros(-len(x) % 256, x.dtype)).reshape(-1, 256):
        lanes = lanes + row
    return pairs(lanes)


def squares(x):
    """Of a chunk, in fp32; once more with other powers of two where that overflows or is tiny."""
    total = lambda power: in_lanes((x * np.float32(2.0**power))**2, np.zeros(256, np.float32))
    plain = total(0)
    power = -96 if np.isinf(plain) else 96 if plain < 2.0**-100 and x.any() else 0
    return np.float64(total(power)) * 2.0**(-2 * power)


class Clip:
    """Unscale and clip, between check and step; the scale is halved by an overflow."""
    systems = 'any', 'torch', 'default'

    def __init__(self, system, c):
        self.torch, self.c, self.scale, self.max_norm = system == 'torch', c, c['scale'], c['max_norm']

    def norm_of(self, arrays, inv):
        if self.torch:
            return np.sqrt(sum(((x * inv)**2).sum() for x in arrays))
        chunks = np.array([squares(x[i:i + 16384]) for x in arrays for i in range(0, len(x), 16384)])
        return np.sqrt(in_lanes(chunks, np.zeros(256))) * np.float64(inv)

    def step(self, gradients):
        arrays = [as_floats(x, self.c['dtype']) for x in gradients]
        inv = np.float32(1.0 / self.scale)
        bad = not all(np.isfinite(x if self.torch else x * inv).all() for x in arrays)
        self.norm = np.float64(0) if bad else np.float64(self.norm_of(arrays, inv))
        clips = self.torch or self.max_norm > 0
        self.factor = np.float32(min(self.max_norm / (self.norm + 1e-6), 1.0) if clips else 1.0)
        combined = inv * self.factor
        self.after = [x * combined for x in arrays]
        bad |= combined == 0 and not self.torch
        self.scale *= 0.5 if bad else 1.0
        return 'skipped' if bad else 'taken'


# --------------------------------------------------------------------------- AdamW

class AdamW:
    """Arrays of fp32, a model copy, and torch's scaler around them, which grows after 2000 good steps."""

    def __init__(self, c, w, m, v, scale):
        self.c, self.w, self.m, self.v, self.scale, self.steps = c, w, m, v, scale, c['steps']
        self.publish()

    def publish(self):
        u = self.w.view(np.uint32)
        self.copy = u.copy() if self.c['dtype'] == 'fp32' else convert(u, 'fp32', self.c['dtype'])

    def step(self, gradient):
        g = as_floats(gradient, self.c['dtype'])
        if not np.isfinite(g).all():
            self.scale *= 0.5
            return 'skipped'
        c, one = self.c, np.float32
        g = g * one(1.0 / self.scale)
        self.steps += 1
        correct1, correct2 = (1.0 - c[b] ** self.steps for b in ('beta1', 'beta2'))
        self.w = self.w * one(1.0 - c['lr'] * c['weight_decay'])
        self.m = one(self.m + np.float64(one(1.0 - c['beta1'])) * (g - self.m))  # in double, and rounded once
        self.v = self.v * one(c['beta2']) + one(1.0 - c['beta2']) * g * g
        under = np.sqrt(self.v) / one(np.sqrt(correct2)) + one(c['eps'])
        self.w = self.w - one(c['lr'] / correct1) * self.m / under
        self.publish()
        return 'taken'


# ----------------------------------------------------------------- optimizer state

def mix(x):
    x = x + 0x9e3779b97f4a7c15 & M64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & M64
    x = (x ^ x >> 27) * 0x94d049bb133111eb & M64
    return x ^ x >> 31


def random(seed, seed_high, tensor, step, element, element_high, array):
    e = element | element_high << 32
    key = mix(mix(mix(mix(seed | seed_high << 32) ^ tensor) ^ step) ^ e >> 24)
    a, b = key & 0xffffffff, key >> 32
    x = (e >> 1) * 0x9e3779b9 + a & 0xffffffff
    x = (x ^ x >> 16) * 0x7feb352d + b & 0xffffffff
    x ^= x >> 15
    for _ in range(1 + array):
        x = x * 0x846ca68b & 0xffffffff
        x ^= x >> 16
    return [x >> 16 if e & 1 else x & 0xffff]


def split(u):
    model = u + 0x8000 >> 16 & 0xffff
    low = u & 0xffff
    back = (model - (low >> 15) << 16 | low) & 0xffffffff
    return [model, back]


def stochastic_bf16(u, r):
    a = u & 0x7fffffff
    return [u >> 16 if a >= 0x7f7f0000 else u + r >> 16]


def stochastic_fp16(u, r):
    sign, a = u >> 31 << 15, u & 0x7fffffff
    if a >= 0x477fe000:
        return [sign | (0x7e00 if a > 0x7f800000 else 0x7c00 if a == 0x7f800000 else 0x7bff)]
    if a >= 0x38800000:  # normal: 13 bits are cut off
        cut, kept = a & 0x1fff, (a >> 13) - (112 << 10)
    else:  # in steps of 2^-37, to nearest even
        e = max(a >> 23, 1)
        m = a & 0x7fffff | (0x800000 if a >> 23 else 0)
        down = 113 - e
        x = m >> down if down < 40 else 0
        rest, half = m - (x << down) if down < 40 else m, 1 << down - 1
        x += rest > half or rest == half and x & 1
        cut, kept = x & 0x1fff, x >> 13
    return [sign | kept + (cut * 8 + r >= 1 << 16)]


def exponent(u):
    return [255 if u > 0x7f800000 else min(max(u + 0x90000 >> 23, 1), 253)]


LEAST = {'m': np.float32(2.0**-7), 'v': np.float32(2.0**-15)}


def bits(x):
    return int(np.float32(x).view(np.uint32))


def code(of, u, e, r):
    x = np.uint32(u & 0x7fffffff).view(np.float32)
    y = min(x * np.float32(2.0**(127 - e)), np.float32(1.9296875))
    steps = bits(y + LEAST[of]) - bits(LEAST[of]) + 8 * r >> 19
    return [steps | u >> 31 << 7 if of == 'm' else max(steps, 1)]


def value(of, c, e):
    steps = c & 0x7f if of == 'm' else c
    x = np.uint32(bits(LEAST[of]) + (steps << 19)).view(np.float32) - LEAST[of]
    return [bits(x * np.float32(2.0**(e - 127))) | (c >> 7 << 31 if of == 'm' else 0)]


STORE = {'random': random, 'split': split, 'stochastic-bf16': stochastic_bf16, 'stochastic-fp16': stochastic_fp16,
         'exponent': exponent, 'm-code': lambda *x: code('m', *x), 'v-code': lambda *x: code('v', *x),
         'm-value': lambda *x: value('m', *x), 'v-value': lambda *x: value('v', *x)}
