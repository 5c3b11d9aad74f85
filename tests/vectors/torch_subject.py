"""torch_subject.py - PyTorch's GradScaler and clip_grad_norm_ as subjects of the vectors."""
import torch


class GradScaler:
    left = 0
    scale = property(lambda self: self.s.get_scale())
    good = property(lambda self: self.s._get_growth_tracker())

    def start(self, system, c):
        self.c, self.taken, self.found = c, 0, 0
        if system == 'torch':
            self.s = torch.amp.GradScaler('cpu', c['init_scale'], c['growth_factor'], c['backoff_factor'],
                                          c['growth_interval'])
            self.p = torch.zeros(3, requires_grad=True)
            self.o = torch.optim.SGD([self.p], lr=0.0)
            self.o.step = lambda: setattr(self, 'taken', self.taken + 1)
            self.s.scale(self.p.sum())
        return system == 'torch'

    def ask(self, function, *arguments):
        try:
            function(*arguments)
            return 'ok'
        except (RuntimeError, AssertionError):
            return 'refused'

    def unscale(self, x):
        self.p.grad = torch.from_numpy(x)
        return self.ask(self.s.unscale_, self.o)

    def step(self):
        before = self.taken
        self.say_found()
        answer = self.ask(self.s.step, self.o)
        return answer if answer == 'refused' else 'taken' if self.taken > before else 'skipped'

    def say_found(self):  # what ranks summed up; torch's unscale_ takes back what was said before
        state = self.s._per_optimizer_states[id(self.o)]
        if self.found and state['found_inf_per_device']:
            state['found_inf_per_device'] = {self.p.device: torch.tensor(float(self.found))}
            self.found = 0

    def update(self):
        return self.ask(self.s.update)

    def set(self, what, x):
        if what == 'scale':
            self.s._scale.fill_(x)
        elif what == 'growth_interval':
            self.s.set_growth_interval(x)
        elif what == 'found_inf':
            self.found = x
            self.say_found()
        else:
            state = self.s.state_dict()
            self.start('torch', self.c)
            self.s.load_state_dict(state)
        return 'ok'


class Clip:
    systems, factor = ('any', 'torch'), None  # the factor is not shown

    def __init__(self, system, c):
        self.p, self.c = [torch.zeros(n, requires_grad=True) for n in c['n']], c
        self.o = torch.optim.SGD(self.p, lr=0.0)
        self.s = torch.amp.GradScaler('cpu', c['scale'])
        self.s.scale(self.p[0].sum())

    def step(self, gradients):
        taken, kind = [], dict(fp16=torch.float16, bf16=torch.bfloat16, fp32=torch.float32)[self.c['dtype']]
        for p, g in zip(self.p, gradients):
            p.grad = torch.from_numpy(g.copy()).view(kind).float()
        self.o.step = lambda: taken.append(1)
        self.s.unscale_(self.o)
        self.norm = float(torch.nn.utils.clip_grad_norm_(self.p, self.c['max_norm']))
        self.s.step(self.o)
        self.s.update()
        self.scale, self.after = self.s.get_scale(), [p.grad.numpy() for p in self.p]
        return 'taken' if taken else 'skipped'
