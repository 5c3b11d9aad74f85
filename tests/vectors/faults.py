#!/usr/bin/env python3
"""faults.py [-v] - plants one fault at a time in scaler.py, model.py and state.py: a vector must see each.

A fault replaces one text by another. -v says which case saw it.
"""
import json, pathlib, struct, sys, types
import numpy as np
import run

HERE = pathlib.Path(__file__).parent
S, M, R = 'scaler.py', 'model.py', 'state.py'
SKIPPED = "            self.scale *= 0.5\n"

#       families      what is wrong, what stands there, what stands there then
FAULTS = [
    ('scale', S, 's is kept in fp32 where it is a double', "np.float64 if wide == 'double' else lambda", "lambda"),
    ('scale', S, 's times 1 / g', 's / self.g', 's * (1.0 / self.g)'),
    ('scale', S, 's times fp32(1 / g)', 's / self.g', 's * np.float64(np.float32(1.0 / self.g))'),
    ('scale', S, 'b is fp32 where it is a double', 'self.round(s * self.b if', 'self.round(s * np.float64(np.float32(self.b)) if'),
    ('scale', S, 'g and b are doubles where they are fp32', "np.float32 if 'factors' in self.note else np.float64", 'np.float64'),
    ('scale', S, 'g and b are fp32 where they are doubles', "np.float32 if 'factors' in self.note else np.float64", 'np.float32'),
    ('scale', S, 'init_scale is rounded to fp32 where s is a double', "else c['init_scale'])\n", "else np.float32(c['init_scale']))\n"),
    ('scale', S, 'init_scale is not rounded', "self.s = self.round(min", "self.s = np.float64(min"),
    ('scale', S, 'apex: init_scale is not clamped', "min(c['init_scale'], self.max) if self.note == 'clamped' else c", "c"),
    ('scale', S, 'init_scale is clamped everywhere', "if self.note == 'clamped' else c['init_scale']", ''),
    ('scale', S, 'a scale of double is saved as fp32', 'for k in SAVED}', "for k in SAVED}\n            state['s'] = "
     "state['next'] = np.float64(np.float32(self.next))"),
    ('scale', S, 's is not saved', "'s', 'next', ", "'next', "),
    ('scale', S, 'the scale that waits is not saved', "'s', 'next', ", "'s', "),
    ('scale', S, 'good is not saved', "'good', ", ''),
    ('scale', S, 'left is not saved', "'left', ", ''),
    ('scale', S, "fairseq's updates are not saved", "'updates', ", ''),
    ('scale', S, "fairseq's overflows are not saved", ", 'overflows'\n", '\n'),
    ('scale', S, 'a floor that would be passed is not reached', 'return max(lower, self.min)', 'return lower if lower >= self.min else s'),
    ('scale', S, 'no floor', 'return max(lower, self.min)', 'return lower'),
    ('scale', S, 'fairseq: falls to its floor', 'if lower <= self.min else lower\n        if', 'if lower < self.min else lower\n        if'),
    ('scale', S, 'fairseq: has a floor as others have', "if self.note == 'above'", 'if False'),
    ('scale', S, 'fairseq: growth clears the overflows', 'self.updates = 0\n', 'self.updates = self.overflows = 0\n'),
    ('scale', S, 'fairseq: growth leaves the updates', 'self.updates = 0\n', 'pass\n'),
    ('scale', S, 'fairseq: a good step clears the overflows', 'count, self.good = ', 'self.overflows, count, self.good = 0, '),
    ('scale', S, 'fairseq: more than tolerance', '/ self.updates >= self', '/ self.updates > self'),
    ('scale', S, 'fairseq: this update is not counted', '/ self.updates >=', '/ max(self.updates - 1, 1) >='),
    ('scale', S, 'a scale that is set is not rounded', 'self.next = self.round(x)', 'self.next = np.float64(x)'),
    ('scale', S, 'a scale that is set is rounded to fp32 where s is a double', 'self.round(x)', 'np.float64(np.float32(x))'),
    ('scale', S, 'a scale that is set is clamped', 'self.round(x)', 'self.round(min(max(x, self.min), self.max))'),
    ('scale', S, 'a scale that is set clears good', 'self.s = self.next = self.round(x)', 'self.s, self.good = self.round(x), 0\n'
     '            self.next = self.s'),
    ('scale', S, 'a scale that is set refills left', 'self.s = self.next = self.round(x)',
     'self.s, self.left = self.round(x), self.tolerated\n            self.next = self.s'),
    ('scale', S, "a scale that is set clears fairseq's counts", 'self.s = self.next = self.round(x)',
     'self.s, self.updates, self.overflows = self.round(x), 0, 0\n            self.next = self.s'),
    ('scale', S, 'mxnet: a scale that is set is replaced by the one that waits', 'self.s = self.next = self.round(x)',
     'self.s = self.round(x)\n            self.next = self.next if self.note == "delayed" else self.s'),
    ('order', S, 'default: a scale outside its bounds is taken', "if 'bounds' in self.note and", 'if False and'),
    ('order', S, 'unscale takes found back', 'self.found or not looked', 'not looked'),
    ('scale', S, 'found is compared with 1', 'self.found = x != 0', 'self.found = x == 1'),
    ('order', S, 'found is made an integer', 'self.found = x != 0', 'self.found = int(x) != 0'),
    ('scale', S, 'found is not cleared', "self.found, self.stage = False, 'ready'\n        return", "self.stage = 'ready'\n        return"),
    ('order', S, 'default: products are not looked at', "np.isfinite(x).all() if 'products' in self.note else", ''),
    ('order', S, 'torch: products are looked at', "if 'products' in self.note else finite.all()", ''),
    ('order', S, '1 / s is flushed to 0 where it is subnormal', 'x[finite] *= np.float32(1.0 / np.float64(self.scale))',
     'inv = np.float32(1.0 / np.float64(self.scale))\n        x[finite] *= inv if inv >= 2.0**-126 else np.float32(0)'),
    ('order', S, 'gradients are flushed to 0 where they are subnormal', '        looked =',
     '        x[abs(x) < 2.0**-126] = 0\n        looked ='),
    ('order', S, 'divided by s', 'x[finite] *= np.float32(1.0 / np.float64(self.scale))', 'x[finite] /= self.scale'),
    ('order', S, 'times 1 / s in double', 'x[finite] *= np.float32(1.0 / np.float64(self.scale))',
     'x[finite] = x[finite] * (1.0 / np.float64(self.scale))'),
    ('order', S, 'zeros are nothing checked', "self.found or not looked, 'unscaled'", "self.found or not looked, 'unscaled' "
     "if x.any() else 'ready'"),
    ('order', S, '-0 becomes 0', '        looked =', '        x += np.float32(0)\n        looked ='),
    ('order', S, 'the sum is looked at', 'else finite.all()', 'else np.isfinite(x.sum(dtype=np.float32))'),
    ('order', S, 'the last gradient is not looked at', 'else finite.all()', 'else finite[:-1].all()'),
    ('scale', S, 'NaN is not seen', 'else finite.all()', 'else not np.isinf(x).any()'),
    ('scale', S, 'inf is not seen', 'else finite.all()', 'else not np.isnan(x).any()'),
    ('order', S, '-inf is not seen', 'else finite.all()', 'else finite[x != -np.inf].all()'),
    ('order', S, 'unscale twice', "if self.stage != 'ready'", "if self.stage == 'stepped'"),
    ('order', S, 'unscale after step', "if self.stage != 'ready'", "if self.stage == 'unscaled'"),
    ('order', S, 'a refused unscale looks at gradients', "        if self.stage != 'ready':\n", "        if self.stage != 'ready':\n"
     "            self.found = self.found or not np.isfinite(x).all()\n"),
    ('order', S, 'a refused unscale changes gradients', "        if self.stage != 'ready':\n", "        if self.stage != 'ready':\n"
     "            x *= np.float32(0.5)\n"),
    ('order', S, 'step twice', "if self.stage != 'unscaled'", "if self.stage == 'ready'"),
    ('order', S, 'a skipped step twice', "self.stage = 'stepped'\n", "self.stage = 'unscaled' if self.found else 'stepped'\n"),
    ('order', S, 'a refused step clears good', "!= 'unscaled':\n", "!= 'unscaled':\n            self.good = 0\n"),
    ('order', S, 'an update with nothing checked', "self.stage == 'ready' and not self.found", 'False'),
    ('order', S, 'a refused update counts', "and not self.found:\n", "and not self.found:\n            self.good += 1\n"),
    ('order', S, 'a refused update refills left', "and not self.found:\n", "and not self.found:\n            self.left = self.tolerated\n"),
    ('order', S, 'an update without a step is refused', "self.stage == 'ready' and not", "self.stage != 'stepped' and not"),
    ('scale', S, 'growth one step late', 'count == self.n, \'reach\'', "count == self.n + 1, 'reach'"),
    ('scale', S, 'flax: growth one step early', "'before': count - 1 == self.n", "'before': count == self.n"),
    ('scale', S, 'growth where == is >=', "'equal': count == self.n", "'equal': count >= self.n"),
    ('scale', S, 'tf_keras: growth where >= is ==', "'reach': count >= self.n", "'reach': count == self.n"),
    ('scale', S, 'jmp: good is not taken modulo N', "self.good = count % self.n\n", "self.good = self.good\n"),
    ('scale', S, 'deepspeed: good is cleared by growth', "not in ('modulo', 'late')", "not in ('late',)"),
    ('scale', S, 'deepspeed_fused: grows at the first good step', 'count > 1 and ', ''),
    ('scale', S, 'flashlight: the count is compared, as was meant', 'self.max and s == self.n', 'self.max and count == self.n'),
    ('scale', S, 'good has 16 bits', 'self.good + 1, self.good + 1', 'self.good + 1 & 0xffff, self.good + 1 & 0xffff'),
    ('scale', S, 'an overflow leaves good', 'self.good, self.overflows = 0, self', 'self.overflows = self'),
    ('scale', S, 'a tolerated overflow leaves good', 'self.good, self.overflows = 0, self',
     'self.good, self.overflows = self.good if self.left else 0, self'),
    ('scale', S, 'H tolerates H overflows', "c.get('hysteresis', 1) - 1 if", "c.get('hysteresis', 0) if"),
    ('scale', S, 'left is refilled by growth alone', "if self.refill == 'any' or", "if self.refill == 'any' and grows or"),
    ('scale', S, 'left is refilled by any good step', "self.refill == 'grows' and grows", "self.refill == 'grows'"),
    ('scale', S, 'left is refilled by a backoff', 's, self.updates, self.overflows = self.backoff(s), 0, 0',
     's, self.updates, self.overflows, self.left = self.backoff(s), 0, 0, self.tolerated'),
    ('scale', S, 'torch: grows to inf', "and self.note == 'no inf' else", "and False else"),
    ('scale', S, 'keras: does not grow to inf', "and self.note == 'no inf' else", 'else'),
    ('scale', S, 'a cap that would be passed is not reached', 'return s if np.isinf(np.float32(larger)) and',
     'return s if s * self.g > self.max or np.isinf(np.float32(larger)) and'),
    ('scale', S, 'no cap', 'min(self.round(s * self.g), self.round(self.max))', 'self.round(s * self.g)'),
    ('scale', S, 'mxnet: a new scale acts at once', "self.next if self.note == 'delayed' else s", 's'),
    ('scale', S, 'static: the scale moves', "self.grows != 'never' and ", ''),
    ('scale', S, 'static: no step is skipped', "self.note != 'blind' else 'taken'", "self.grows != 'never' else 'taken'"),
    ('scale', S, 'marian: inf is an overflow', '        if self.note.endswith(\'sanitizes\'):\n            x[np.isinf',
     '        if False:\n            x[np.isinf'),
    ('scale', S, 'marian: NaN is never pruned', 'x[np.isnan(x)] = 0 if self.s == self.min else np.nan', 'pass'),
    ('scale', S, 'marian: NaN is pruned below min_scale, too', 'if self.s == self.min else', 'if self.s <= self.min else'),
    ('scale', S, 'marian: the floor is that of others', "return lower if s > self.min else s", 'return max(lower, self.min)'),

    ('convert', M, 'bf16: ties away from zero', 'a + 0x7fff + (a >> 16 & 1)', 'a + 0x8000'),
    ('convert', M, 'bf16: cut off', 'a + 0x7fff + (a >> 16 & 1) >> 16', 'a >> 16'),
    ('convert', M, 'bf16: NaN is rounded as a number is', 'np.where(a > 0x7f800000, a >> 16 | 0x40, y)\n', 'y\n'),
    ('convert', M, 'bf16: NaN is cut off, and may become inf', 'a >> 16 | 0x40', 'a >> 16'),
    ('convert', M, 'bf16: subnormals are flushed', 'y = a + 0x7fff', 'y = a * (a >= 1 << 23) + 0x7fff'),
    ('convert', M, 'fp16: ties away from zero', '(1 << shift - 1) - 1 + (m >> shift & 1) >> shift', '(1 << shift - 1) >> shift'),
    ('convert', M, 'fp16: cut off', '(1 << shift - 1) - 1 + (m >> shift & 1) >> shift', '0 >> shift'),
    ('convert', M, 'fp16: subnormals are flushed', 'np.minimum(y, 0x7c00), y)', 'np.minimum(y, 0x7c00), 0)'),
    ('convert', M, 'fp16: subnormals are cut off', 'np.minimum(y, 0x7c00), y)', 'np.minimum(y, 0x7c00), m >> shift)'),
    ('convert', M, 'fp16: overflow is the largest finite value', 'np.minimum(y, 0x7c00)', 'np.where(a < 0x7f800000, '
     'np.minimum(y, 0x7bff), 0x7c00)'),
    ('convert', M, 'fp16: above 65504 is inf', 'np.minimum(y, 0x7c00)', 'np.where(a > 0x477fe000, 0x7c00, y)'),
    ('convert', M, 'fp16: NaN becomes inf', '0x7e00 | a >> 13 & 0x3ff', '0x7c00'),
    ('convert', M, 'fp16: the sign is lost', "    return sign | np.where(a > 0x7f800000, 0x7e00", "    return np.where(a > 0x7f800000, 0x7e00"),
    ('convert', M, 'fp16: -0 becomes 0', "    return sign | np.where(a > 0x7f800000, 0x7e00",
     "    return sign * (a > 0) | np.where(a > 0x7f800000, 0x7e00"),
    ('convert', M, 'from fp16: subnormals are flushed', 'np.where(a < 0x400, tiny,', 'np.where(a < 0x400, 0,'),
    ('convert', M, 'from fp16: NaN becomes inf', "| (a & 0x3ff) << 13, y))\n    return sign | np.where(a > 0x7c00, y | 0x400000, y)",
     ', y))\n    return sign | y'),
    ('convert', M, 'from fp16: inf is 65536', 'np.where(a >= 0x7c00,', 'np.where(a > 0x7c00,'),
    ('convert', M, 'from fp16: one number of 65,536 is wrong', '(a << 13) + (112 << 23)\n', '(a << 13) + (112 << 23) + (h == 0x9a5b)\n'),
    ('convert', M, 'from bf16: subnormals are flushed', 'return h << 16', 'return (h << 16) * ((h & 0x7f80) > 0)'),
    ('convert', M, 'from bf16: NaN becomes inf', 'return h << 16', 'return np.where((h & 0x7fff) > 0x7f80, 0x7f800000, h << 16)'),
    ('convert', M, 'the payload of NaN is lost (may)', '0x7e00 | a >> 13 & 0x3ff', '0x7e00'),

    ('skip', M, 'a skipped step is counted', SKIPPED, SKIPPED + '            self.steps += 1\n'),
    ('skip', M, 'a skipped step decays weights', SKIPPED, SKIPPED + "            self.w = self.w * np.float32(1 - "
     "self.c['lr'] * self.c['weight_decay'])\n"),
    ('skip', M, 'a skipped step decays moments', SKIPPED, SKIPPED + "            self.m = self.m * np.float32(0.9)\n"),
    ('skip', M, 'an inf gets into the moments', SKIPPED, SKIPPED + "            self.v = self.v + g * g\n"),
    ('skip', M, 'a skipped step leaves the scale', SKIPPED, ''),
    ('skip', M, 'NaN is not seen', 'not np.isfinite(g).all()', 'np.isinf(g).any()'),
    ('skip', M, 'the first 16,384 are looked at', 'np.isfinite(g).all()', 'np.isfinite(g[:16384]).all()'),
    ('skip', M, 'whole vectors are looked at', 'np.isfinite(g).all()', 'np.isfinite(g[:max(len(g) // 8 * 8, 1)]).all()'),
    ('skip', M, 'the copy is not written after a step', '        self.publish()\n        return', '        return'),
    ('skip', M, 'the copy is cut off', "convert(u, 'fp32', self.c['dtype'])\n\n    def step",
     "(u >> 16 if self.c['dtype'] == 'bf16' else convert(u & 0xffffe000, 'fp32', 'fp16')).astype(np.uint16)\n\n    def step"),
    ('skip', M, 'no unscale', 'g = g * one(1.0 / self.scale)', 'g = g * one(1.0)'),
    ('skip', M, 'no bias correction of m', "one(c['lr'] / correct1)", "one(c['lr'])"),
    ('skip', M, 'no bias correction of v', '/ one(np.sqrt(correct2))', '/ one(1)'),
    ('skip', M, 'bias correction by the count before', '** self.steps for', '** (self.steps - 1 or 1) for'),
    ('skip', M, 'the count has 16 bits', '** self.steps for', '** (self.steps & 0xffff) for'),
    ('skip', M, 'eps under the root', "np.sqrt(self.v) / one(np.sqrt(correct2)) + one(c['eps'])",
     "np.sqrt(self.v / one(correct2) + one(c['eps']))"),
    ('skip', M, 'eps before the correction', "np.sqrt(self.v) / one(np.sqrt(correct2)) + one(c['eps'])",
     "(np.sqrt(self.v) + one(c['eps'])) / one(np.sqrt(correct2))"),
    ('skip', M, 'no eps', " + one(c['eps'])", ''),
    ('skip', M, 'no decay', "one(1.0 - c['lr'] * c['weight_decay'])", 'one(1)'),
    ('skip', M, 'decay as a gradient', "        self.steps += 1\n", "        self.steps += 1\n        g = g + one(c['weight_decay']) * self.w\n"),
    ('skip', M, 'decay without the learning rate', "c['lr'] * c['weight_decay']", "0.01 * c['weight_decay']"),
    ('skip', M, 'decay after the step', "self.w = self.w - one(c['lr'] / correct1) * self.m / under",
     "self.w = self.w - one(c['lr'] / correct1) * self.m / under * one(1.0 - c['lr'] * c['weight_decay'])"),
    ('skip', M, 'the sign of gradients is lost', 'g = g * one(1.0 / self.scale)', 'g = abs(g) * one(1.0 / self.scale)'),
    ('skip', M, 'one gradient serves all', 'g = g * one(1.0 / self.scale)', 'g = g[:1] * one(1.0 / self.scale)'),
    ('skip', M, 'v takes g, not g * g', "c['beta2']) * g * g", "c['beta2']) * abs(g)"),
    ('skip', M, 'the betas are swapped', "one(1.0 - c['beta1'])) * (g", "one(1.0 - c['beta2'])) * (g"),

    ('clip', M, 'norm^2 is compared with max_norm', 'min(self.max_norm / (self.norm + 1e-6), 1.0)',
     'self.max_norm / (self.norm + 1e-6) if self.norm**2 > self.max_norm else 1.0'),
    ('clip', M, 'norm^2 in the denominator', '(self.norm + 1e-6)', '(self.norm**2 + 1e-6)'),
    ('clip', M, 'norm^4: squares of squares', '(x * np.float32(2.0**power))**2', '(x * np.float32(2.0**power))**4'),
    ('clip', M, 'a NaN norm passes: it is not above max_norm', 'not all(np.isfinite(x if self.torch else x * inv).all()',
     'any(np.isinf(x).any()'),
    ('clip', M, 'an inf norm passes', 'not all(np.isfinite(x if self.torch else x * inv).all()',
     'any(np.isnan(x).any()'),
    ('clip', M, 'no 1e-6', '(self.norm + 1e-6)', 'self.norm'),
    ('clip', M, '1e-8 for 1e-6', '1e-6', '1e-8'),
    ('clip', M, '1e-6 in place of a norm that is below it', '(self.norm + 1e-6)', 'max(self.norm, 1e-6)'),
    ('clip', M, '1e-6 is added to norm^2', '(self.norm + 1e-6)', 'np.sqrt(self.norm**2 + 1e-6)'),
    ('clip', M, 'clips only a norm that is above max_norm', 'if clips else 1.0)', 'if clips and self.norm > self.max_norm else 1.0)'),
    ('clip', M, 'gradients grow to max_norm', 'min(self.max_norm / (self.norm + 1e-6), 1.0)', 'self.max_norm / (self.norm + 1e-6)'),
    ('clip', M, 'no clipping', 'if clips else 1.0)', 'if False else 1.0)'),
    ('clip', M, 'a norm of each tensor', 'np.sqrt(in_lanes(chunks, np.zeros(256)))', 'np.sqrt(max(chunks))'),
    ('clip', M, 'norms of tensors are added', 'np.sqrt(in_lanes(chunks, np.zeros(256)))', 'np.sqrt(chunks).sum()'),
    ('clip', M, 'the last tensor is left out', 'for x in arrays for i in', 'for x in arrays[:-1] or arrays for i in'),
    ('clip', M, 'the last element is left out', 'for x in arrays for i in', 'for x in [x[:-1] for x in arrays] for i in'),
    ('clip', M, 'the norm of scaled gradients', '* np.float64(inv)', '* np.float64(1)'),
    ('clip', M, 'max_norm is scaled, too', 'self.max_norm / (', 'self.max_norm * self.scale / ('),
    ('clip', M, 'gradients are clipped and stay scaled', 'combined = inv * self.factor', 'combined = self.factor'),
    ('clip', M, 'gradients are unscaled and not clipped', 'combined = inv * self.factor', 'combined = inv'),
    ('clip', M, 'clipped twice', 'combined = inv * self.factor', 'combined = inv * self.factor * self.factor'),
    ('clip', M, 'the first tensor is clipped alone', '[x * combined for x in arrays]', '[x * (combined if x is arrays[0] else inv) '
     'for x in arrays]'),
    ('clip', M, 'the sign is lost', '[x * combined for x in arrays]', '[abs(x) * combined for x in arrays]'),
    ('clip', M, 'subnormal gradients are flushed to 0', '[x * combined for x in arrays]',
     '[x * combined * np.float32(abs(x * combined) >= 2.0**-126) for x in arrays]'),
    ('clip', M, 'squares overflow fp32', 'power = -96 if np.isinf(plain) else 96 if', 'power = 96 if'),
    ('clip', M, 'squares are lost below fp32', '96 if plain < 2.0**-100 and x.any() else 0', '0'),
    ('clip', M, 'max_norm 0 is a factor of 0', 'clips = self.torch or self.max_norm > 0', 'clips = True'),
    ('clip', M, 'torch: max_norm 0 is no clipping', 'clips = self.torch or self', 'clips = self'),
    ('clip', M, 'torch: a norm that does not overflow', 'if self.torch:\n            return', 'if False:\n            return'),
    ('clip', M, 'a factor of 0 is a step of zeros', 'bad |= combined == 0 and not self.torch', 'pass'),
    ('clip', M, 'products are not looked at', 'x if self.torch else x * inv', 'x'),
    ('clip', M, 'the mean of squares', "np.sqrt(in_lanes(chunks, np.zeros(256)))", "np.sqrt(in_lanes(chunks, np.zeros(256)) / "
     "sum(map(len, arrays)))"),
    ('clip', M, 'the sum of magnitudes', "np.sqrt(in_lanes(chunks, np.zeros(256)))", "sum(abs(x).sum() for x in arrays)"),
    ('clip', M, 'the largest magnitude', "np.sqrt(in_lanes(chunks, np.zeros(256)))", "max(abs(x).max() for x in arrays)"),
    ('clip', M, 'squares are added one after another', "        lanes = lanes + row\n    return pairs(lanes)",
     "        for y in row:\n            lanes[0] += y\n    return lanes[0]"),
    ('clip', M, 'neighbours are added in pairs', 'x[:len(x) // 2] + x[len(x) // 2:]', 'x[::2] + x[1::2]'),
    ('clip', M, 'chunks of 8192', 'x[i:i + 16384]) for x in arrays for i in range(0, len(x), 16384)',
     'x[i:i + 8192]) for x in arrays for i in range(0, len(x), 8192)'),
    ('clip', M, "chunks' sums in fp32", 'np.sqrt(in_lanes(chunks, np.zeros(256)))', 'np.sqrt(np.float64(in_lanes('
     'chunks.astype(np.float32), np.zeros(256, np.float32))))'),
    ('clip', M, 'the norm in fp32', 'np.float64(self.norm_of(arrays, inv))', 'np.float64(np.float32(self.norm_of(arrays, inv)))'),
    ('clip', M, 'a skipped step leaves the scale', 'self.scale *= 0.5 if bad else 1.0', 'self.scale *= 1.0'),
    ('clip', M, 'a clipped step lowers the scale', 'self.scale *= 0.5 if bad else 1.0', 'self.scale *= 0.5 if bad or '
     'self.factor < 1 else 1.0'),

    ('store', M, 'random: a constant', '0xbf58476d1ce4e5b9', '0xbf58476d1ce4e5b7'),
    ('store', M, 'random: another constant', '0x846ca68b', '0x846ca68d'),
    ('store', M, 'random: even and odd are swapped', 'x >> 16 if e & 1 else x & 0xffff', 'x & 0xffff if e & 1 else x >> 16'),
    ('store', M, 'random: the step does not count', '^ tensor) ^ step) ^', '^ tensor)) ^'),
    ('store', M, 'random: the tensor does not count', '^ tensor) ^ step)', ') ^ step)'),
    ('store', M, 'random: the upper half of the seed does not count', 'seed | seed_high << 32', 'seed'),
    ('store', M, 'random: the upper half of the element does not count', 'element | element_high << 32', 'element'),
    ('store', M, 'random: the array does not count', 'range(1 + array)', 'range(1)'),
    ('store', M, 'split: ties to even', 'u + 0x8000 >> 16', 'u + 0x7fff + (u >> 16 & 1) >> 16'),
    ('store', M, 'split: the master comes back without the borrow', '(model - (low >> 15) << 16 | low)', '(model << 16 | low)'),
    ('store', M, 'stochastic: a finite number becomes inf', '0x7f7f0000', '0x7f800000'),
    ('store', M, 'stochastic: one step too rarely', '>= 1 << 16', '> 1 << 16'),
    ('store', M, 'stochastic: to nearest', 'u + r >> 16]', 'u + 0x8000 >> 16]'),
    ('store', M, 'stochastic: subnormals are cut off', 'x += rest > half or rest == half and x & 1', 'x += 0'),
    ('store', M, 'exponent: no room to be rounded up', 'u + 0x90000', 'u + 0x80000'),
    ('store', M, 'exponent: up to 254', ', 253)', ', 254)'),
    ('store', M, 'm: the sign is lost', "steps | u >> 31 << 7 if of == 'm'", "steps if of == 'm'"),
    ('store', M, 'v: may be 0', 'max(steps, 1)', 'steps'),
    ('store', M, 'codes run over', 'min(x * np.float32(2.0**(127 - e)), np.float32(1.9296875))', 'x * np.float32(2.0**(127 - e))'),
    ('store', M, 'codes to nearest', '+ 8 * r >> 19', '+ 0x40000 >> 19'),
    ('store', M, 'values: the least one is not subtracted', ".view(np.float32) - LEAST[of]\n    return [bits(x *",
     ".view(np.float32)\n    return [bits(x *"),

    ('state', R, 'the sum is not mixed', 'h ^= h >> 32', 'pass'),
    ('state', R, 'a name is not padded', 'self.at + -(-size // 8) * 8', 'self.at + (size if size == 12 else -(-size // 8) * 8)'),
    ('state', R, 'an empty name takes 8 bytes', 'self.at + -(-size // 8) * 8', 'self.at + max(-(-size // 8), 1) * 8'),
    ('state', R, 'the seed is left out', "numbers.update({'seed': self.number()} if self.flags & SEED else {})", 'pass'),
    ('state', R, 'masters come before moments', 'moments, masters = (self.number()', 'masters, moments = (self.number()'),
    ('state', R, 'bf16 is the lower half', 'c << 16 for c in u', 'c for c in u'),
    ('state', R, 'm is read without its sign', "-size if x == 'm' and code > 127 else size", 'size'),
    ('state', R, 'v is read as m is', "if x == 'm' else (0x38000000, code)", "if x else 0"),
    ('state', R, 'groups of 64', '256, 16384, 32', '256, 16384, 64'),
    ('state', R, 'the second group has the scale of the first', 'scale[i // GROUP]', 'scale[0]'),
    ('state', R, 'scales stand before the second moment', "            parts.update((x, self.array('IHB'[t['moments']], n)) for x in has)\n",
     "            parts.update((x, self.array('IHB'[t['moments']], n)) for x in reversed(has))\n"),
    ('state', R, 'numbers in another order', 'growth_factor:d backoff_factor:d growth_interval:i', 'growth_interval:i '
     'growth_factor:d backoff_factor:d'),
    ('state', R, 'steps are the scaler\'s good ones', 'gate.skip:i gate.inv_scale:f gate.step:i', 'gate.skip:i gate.step:i gate.inv_scale:f'),
    ('state', R, 'a frozen tensor has moments', "[x for i, x in enumerate('mv') if t['has'] >> i & 1]", "['m', 'v']"),
]


def load(file, old='', new=''):
    text = (HERE / file).read_text()
    assert not old or text.count(old) == 1, '%s: %d times: %s' % (file, text.count(old), old)
    module = types.ModuleType(file[:-3])
    exec(compile(text.replace(old, new) if old else text, file, 'exec'), module.__dict__)
    return module


def work(case):  # of a trace: its iterations; short cases first
    return sum(r[1] for r in case['rows'] if r[0] not in 'SI') if case['id'].startswith('scale') else 0


def passes(case, file, module):
    try:
        answer = run.FAMILIES[case['id'].split('/')[0]](case, module.Scaler() if file == S else module)
        return answer if answer is None else bool(answer)
    except (ArithmeticError, ValueError, AttributeError, LookupError, TypeError, SystemExit, struct.error):
        return False


def main(verbose):
    cases = {f: sorted(json.load(open(HERE / (f + '.json')))['cases'], key=work) for f in run.FAMILIES}
    for f, file in [('scale', S), ('order', S), ('skip', M), ('clip', M), ('convert', M), ('store', M), ('state', R)]:
        sound = load(file)
        wrong = [c['id'] for c in cases[f] if c['demand'] == 'must' and passes(c, file, sound) is False]
        assert not wrong, wrong
    missed = 0
    for family, file, what, old, new in FAULTS:
        planted = load(file, old, new)
        seen = next((c for c in cases[family] if passes(c, file, planted) is False and
                     (c['demand'] == 'must' or what.endswith('(may)'))), None)
        missed += seen is None
        if verbose or not seen:
            print('     %s: %s' % (what, seen['id'] if seen else 'NOT SEEN'))
    print('%s %d faults planted, %d seen' % ('FAIL' if missed else 'ok  ', len(FAULTS), len(FAULTS) - missed))
    return missed != 0


np.seterr(all='ignore')
sys.exit(main('-v' in sys.argv))
