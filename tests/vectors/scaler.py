"""scaler.py - a loss scaler, written from README.md's section 1 alone: its tables, row by row."""
import numpy as np

#       system                grows     refill   round  what is different
ROWS = {'torch':             ('equal',  '',      'fp32',   'no inf'), 'static': ('never', '', 'double', ''),
        'jmp':               ('equal',  '',      'fp32',   'no inf'), 'tf_keras': ('reach', '', 'fp32', 'no inf'),
        'apex':              ('equal',  '',      'double', ''), 'keras': ('equal', '', 'fp32', ''),
        'apex_hysteresis':   ('equal',  'any',   'fp32',   'no inf'), 'default': ('equal', 'any', 'fp32', ''),
        'megatron':          ('equal',  'grows', 'fp32',   'factors'), 'flax': ('before', '', 'fp32', 'factors'),
        'deepspeed':         ('modulo', 'grows', 'double', ''), 'deepspeed_consecutive': ('modulo', 'any', 'double', ''),
        'deepspeed_0.17':    ('late',   'grows', 'double', ''), 'deepspeed_fused': ('late', '', 'double', ''),
        'deepspeed_0.17_consecutive': ('late', 'any', 'double', ''), 'mxnet': ('equal', '', 'double', 'delayed')}


class Scaler:
    scale = property(lambda self: np.float32(self.s))

    def start(self, system, c):
        if system not in ROWS:
            return False
        self.grows, self.refill, wide, self.note = ROWS[system]
        self.round = np.float64 if wide == 'double' else lambda x: np.float64(np.float32(x))
        held = np.float32 if self.note == 'factors' else np.float64
        self.g, self.b = (x and np.float64(held(x)) for x in (c['growth_factor'], c['backoff_factor']))
        self.n, self.min, self.max = c['growth_interval'], c['min_scale'] or 0.0, c['max_scale'] or np.inf
        self.s = self.next = np.float64(c['init_scale'])
        self.good, self.tolerated, self.found, self.stage = 0, (c['hysteresis'] or 1) - 1, False, 'ready'
        self.left = self.tolerated = self.tolerated if self.refill else 0
        return True

    def unscale(self, x):
        if self.stage != 'ready':
            return 'refused'
        finite = np.isfinite(x)
        self.found, self.stage = self.found or not finite.all(), 'unscaled'
        x[finite] *= np.float32(1.0 / np.float64(self.scale))
        return 'ok'

    def step(self):
        before, self.stage = self.stage, 'stepped' if self.stage == 'unscaled' else self.stage
        return 'refused' if before != 'unscaled' else 'skipped' if self.found else 'taken'

    def update(self):
        if self.stage == 'ready':
            return 'refused'
        s, k, self.good = self.next, self.good, 0 if self.found else self.good + 1
        if self.found and self.left:
            self.left -= 1
        elif self.found and self.grows != 'never':
            s = max(self.round(s * self.b if self.b else s / self.g), self.min)
        elif not self.found and self.grows != 'never':
            grow = {'equal': k + 1 == self.n, 'reach': k + 1 >= self.n, 'before': k == self.n,
                    'modulo': (k + 1) % self.n == 0, 'late': k > 0 and k % self.n == 0}[self.grows]
            self.good = 0 if grow and self.grows in ('equal', 'reach', 'before') else self.good
            self.left = self.tolerated if self.refill == 'any' or self.refill and grow else self.left
            larger = self.round(min(s * self.g, self.max)) if grow else s
            s = s if np.isinf(np.float32(larger)) and self.note == 'no inf' else larger
        self.s, self.next, self.found, self.stage = self.next if self.note == 'delayed' else s, s, False, 'ready'
        return 'ok'

    def set(self, what, x):
        self.s, self.next = (np.float64(x), np.float64(x)) if what == 'scale' else (self.s, self.next)
        self.n = x if what == 'growth_interval' else self.n
        self.found = what == 'found_inf' and x != 0
        self.__dict__ = dict(self.__dict__)  # resume: all of it is plain data
        return 'ok'
