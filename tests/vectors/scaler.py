"""scaler.py - a loss scaler, written from README.md's section 1 alone: its tables, row by row."""
import numpy as np

#       system                       grows     refill   round     what is different
ROWS = {'torch':                     ('equal',  '',      'fp32',   'no inf'),
        'apex':                      ('equal',  '',      'double', 'clamped'),
        'apex_hysteresis':           ('equal',  'any',   'fp32',   'no inf'),
        'megatron':                  ('equal',  'grows', 'fp32',   'factors'),
        'deepspeed':                 ('modulo', 'grows', 'double', ''),
        'deepspeed_consecutive':     ('modulo', 'any',   'double', ''),
        'deepspeed_0.17':            ('late',   'grows', 'double', ''),
        'deepspeed_0.17_consecutive': ('late',  'any',   'double', ''),
        'deepspeed_fused':           ('late',   '',      'double', ''),
        'flax':                      ('before', '',      'fp32',   'factors'),
        'jmp':                       ('wrap',   '',      'fp32',   'no inf'),
        'keras':                     ('equal',  '',      'fp32',   ''),
        'tf_keras':                  ('reach',  '',      'fp32',   'no inf'),
        'mxnet':                     ('equal',  '',      'double', 'delayed'),
        'static':                    ('never',  '',      'fp32',   'products'),
        'default':                   ('equal',  'any',   'fp32',   'products, bounds'),
        'fairseq':                   ('modulo', '',      'double', 'above'),
        'marian':                    ('equal',  '',      'fp32',   'factors, sanitizes'),
        'flashlight':                ('scale',  '',      'double', ''),
        'tiny-cuda-nn':              ('never',  '',      'fp32',   'blind')}
SAVED = 's', 'next', 'good', 'left', 'n', 'updates', 'overflows'
LARGEST = np.finfo(np.float32).max


class Scaler:
    scale = property(lambda self: np.float32(self.s))

    def start(self, system, c):
        if system not in ROWS:
            return False
        self.system, self.config = system, c
        self.grows, self.refill, wide, self.note = ROWS[system]
        self.round = np.float64 if wide == 'double' else lambda x: np.float64(np.float32(x))
        factor = np.float32 if 'factors' in self.note else np.float64
        self.g, self.b = (x and np.float64(factor(x)) for x in (c.get('growth_factor'), c.get('backoff_factor')))
        self.n, self.min, self.max = c.get('growth_interval', 0), c.get('min_scale', 0.0), c.get('max_scale', np.inf)
        self.s = self.round(min(c['init_scale'], self.max) if self.note == 'clamped' else c['init_scale'])
        self.next, self.found, self.stage, self.good = self.s, False, 'ready', 0
        self.tolerated = c.get('hysteresis', 1) - 1 if self.refill else 0
        self.left, self.tolerance, self.updates, self.overflows = self.tolerated, c.get('tolerance', 0.0), 0, 0
        return True

    def unscale(self, x):
        if self.stage != 'ready':
            return 'refused'
        if self.note.endswith('sanitizes'):
            x[np.isinf(x)] = np.copysign(LARGEST, x[np.isinf(x)])
            x[np.isnan(x)] = 0 if self.s == self.min else np.nan
        finite = np.isfinite(x)
        x[finite] *= np.float32(1.0 / np.float64(self.scale))
        looked = np.isfinite(x).all() if 'products' in self.note else finite.all()
        self.found, self.stage = self.found or not looked, 'unscaled'
        return 'ok'

    def step(self):
        if self.stage != 'unscaled':
            return 'refused'
        self.stage = 'stepped'
        return 'skipped' if self.found and self.note != 'blind' else 'taken'

    def backoff(self, s):
        lower = self.round(s * self.b if self.b else s / self.g)
        if self.note == 'above':  # it raises
            return s if lower <= self.min else lower
        if self.note.endswith('sanitizes'):
            return lower if s > self.min else s
        return max(lower, self.min)

    def growth(self, s):
        count, self.good = self.good + 1, self.good + 1
        grows = {'equal': count == self.n, 'reach': count >= self.n, 'before': count - 1 == self.n,
                 'wrap': count == self.n, 'modulo': self.n and count % self.n == 0,
                 'late': self.n and count > 1 and (count - 1) % self.n == 0,
                 'scale': s < self.max and s == self.n}.get(self.grows, False)
        if grows and self.grows not in ('modulo', 'late'):
            self.good = 0
        if self.grows == 'wrap':
            self.good = count % self.n
        if self.refill == 'any' or self.refill == 'grows' and grows:
            self.left = self.tolerated
        if not grows:
            return s + 2.0 if self.grows == 'scale' and s < self.max else s
        self.updates = 0
        larger = min(self.round(s * self.g), self.round(self.max)) if self.grows != 'scale' else s * self.g
        return s if np.isinf(np.float32(larger)) and self.note == 'no inf' else larger

    def update(self):
        if self.stage == 'ready' and not self.found:
            return 'refused'
        s, self.updates = self.next, self.updates + 1
        if self.found and self.note != 'blind':
            self.good, self.overflows = 0, self.overflows + 1
            if self.left > 0:
                self.left -= 1
            elif self.grows != 'never' and self.overflows / self.updates >= self.tolerance:
                s, self.updates, self.overflows = self.backoff(s), 0, 0
        else:
            s = self.growth(s)
        self.s, self.next = self.next if self.note == 'delayed' else s, s
        self.found, self.stage = False, 'ready'
        return 'ok'

    def set(self, what, x):
        if what == 'scale':
            if 'bounds' in self.note and not self.min <= x <= self.max:
                return 'refused'
            self.s = self.next = self.round(x)
        elif what == 'growth_interval':
            self.n = x
        elif what == 'found_inf':
            self.found = x != 0
        else:  # resume: save, forget, load
            state = {k: self.__dict__[k] for k in SAVED}
            self.start(self.system, self.config)
            self.__dict__.update(state)
        return 'ok'
