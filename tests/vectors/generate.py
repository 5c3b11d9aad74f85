#!/usr/bin/env python3
"""Writes the vectors: NAME.json of each family, with the originals' answers.

    python3 -m venv V; V/bin/pip install torch jax flax jmp keras tensorflow-cpu tf-keras
    V/bin/python generate.py SOURCES [OUTDIR] [FAMILY...]

SOURCES holds what pip does not run as it is: deepspeed-0.16.9 and deepspeed-0.19.8 (unpacked sdists),
apex (apex/amp at cb65b8ed^, csrc at 6424da3b), Megatron-LM, mxnet, fairseq (clones, at the commits
named below). A file of theirs is run alone, with its imports stubbed and a CPU for its GPU; apex's
kernel is compiled by c++ as a function. What cannot run without a GPU or a build is written here by its
source's rules, and its cases say "read", not "run". amp.h is not opened.
"""
import ast, copy, ctypes, dataclasses, hashlib, importlib.metadata as metadata, json, math, os, pathlib, re, struct
import subprocess, sys, tempfile, types

os.environ.update(TF_CPP_MIN_LOG_LEVEL='3', KERAS_BACKEND='tensorflow', CUDA_VISIBLE_DEVICES='')
import numpy as np
import torch

SOURCES = pathlib.Path(sys.argv[1])
OUT = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent)
INF, NAN = float('inf'), float('nan')
VERSION = '2.1.0'  # of the data; README.md has what changed


def version(name):
    return name + ' ' + metadata.version(name)


def f32(x):
    with np.errstate(all='ignore'):
        return float(np.float32(x))


def hexa(x):
    """The shortest hex float: 0x1.8p+3, and inf as the C library reads it."""
    if math.isinf(x) or x != x:
        return str(x)
    head, power = float(x).hex().split('p')
    return (head.rstrip('0').rstrip('.') if '.' in head else head) + 'p' + power


def stub(name, **members):
    """A module that is there for an import alone."""
    module = types.ModuleType(name)
    module.__dict__.update(members)
    module.__path__ = []
    sys.modules[name] = module
    return module


def run_file(path, name, package='', **names):
    text = (SOURCES / path).read_text().replace("device='cuda'", "device='cpu'")
    module = types.ModuleType(name)
    module.__package__ = package
    module.__dict__.update(names)
    sys.modules[name] = module
    exec(compile(text, str(path), 'exec'), module.__dict__)
    return module


def function_of(path, name):
    """One function of a file, alone."""
    text = (SOURCES / path).read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            space = {'logger': types.SimpleNamespace(info=lambda *a: None)}
            exec(compile(ast.Module([node], []), str(path), 'exec'), space)
            return space[name]


# ------------------------------------------------------------------------- scalers
# One class each: iterate(event) with '.' finite, X inf, N NaN, H found_inf written by hand; scale, good
# (its count towards growth) and left (overflows that it still tolerates); whether the step was taken.

class System:
    how, source, has = 'run', '', '.XN'
    good = left = 0

    def __init__(self, c):
        self.c = c

    def gradient(self, event):
        return {'.': 1.0, 'X': INF, 'N': NAN, 'H': 1.0}[event]

    def resume(self):  # where the original saves no state of its own: a copy
        if hasattr(self, 's'):
            self.s = copy.copy(self.s)


class Torch(System):
    source, has = version('torch') + ', torch/amp/grad_scaler.py', '.XNHRSI'

    def __init__(self, c):
        super().__init__(c)
        self.s = torch.amp.GradScaler('cpu', c['init_scale'], c['growth_factor'], c['backoff_factor'],
                                      c['growth_interval'])
        self.p = torch.zeros(3, requires_grad=True)
        self.o = torch.optim.SGD([self.p], lr=0.0)
        self.s.scale(self.p.sum())

    def iterate(self, event):
        moved = []
        self.p.grad = torch.tensor([1.0, self.gradient(event), 1.0])
        self.s.unscale_(self.o)
        if event == 'H':  # as a sum over two ranks leaves it
            self.s._per_optimizer_states[id(self.o)]['found_inf_per_device'] = {
                self.p.device: torch.tensor(2.0)}
        self.o.step = lambda *a, **k: moved.append(1)
        self.s.step(self.o)
        self.s.update()
        return bool(moved)

    def set_scale(self, x):
        self.s.unscale_(self.o)
        self.s.update(x)

    def set_interval(self, n):
        self.s.set_growth_interval(n)

    def resume(self):
        state = self.s.state_dict()
        self.__init__(self.c)
        self.s.load_state_dict(state)

    scale = property(lambda self: self.s._scale.item())
    good = property(lambda self: self.s._growth_tracker.item())


class Flax(System):
    source, has = 'flax ' + metadata.version('flax') + ', flax/training/dynamic_scale.py', '.XNRSI'

    def __init__(self, c):
        import jax, flax.training.dynamic_scale as d
        super().__init__(c)
        self.s = d.DynamicScale(growth_factor=c['growth_factor'], backoff_factor=c['backoff_factor'],
                                growth_interval=c['growth_interval'], fin_steps=0,
                                scale=jax.numpy.float32(c['init_scale']), minimum_scale=c['min_scale'])
        self.step = jax.jit(lambda s, g: s.value_and_grad(lambda x: x * g)(jax.numpy.float32(1)))

    def iterate(self, event):
        self.s, finite, _, _ = self.step(self.s, self.gradient(event))
        return bool(finite)

    def set_scale(self, x):
        self.s = self.s.replace(scale=np.float32(x))

    def set_interval(self, n):
        self.s = self.s.replace(growth_interval=n)

    def resume(self):
        import flax.serialization as z
        state = z.to_bytes(self.s)
        interval = self.s.growth_interval
        self.__init__(self.c)
        self.s = z.from_bytes(self.s, state).replace(growth_interval=interval)

    scale = property(lambda self: float(self.s.scale))
    good = property(lambda self: int(self.s.fin_steps))


class Jmp(System):
    source, has = 'jmp ' + metadata.version('jmp') + ', jmp/_src/loss_scale.py', '.XNRSI'

    def __init__(self, c):
        import jax.numpy as jnp, jmp
        super().__init__(c)
        self.jmp, self.jnp = jmp, jnp
        self.s = jmp.DynamicLossScale(jnp.float32(c['init_scale']), jnp.int32(0), c['growth_interval'],
                                      int(c['growth_factor']), jnp.float32(c['min_scale']))

    def iterate(self, event):
        finite = self.jmp.all_finite({'w': self.jnp.array([1.0, self.gradient(event)])})
        self.s = self.s.adjust(finite)
        return bool(finite)

    def set_scale(self, x):
        self.s = dataclasses.replace(self.s, loss_scale=self.jnp.float32(x))

    def set_interval(self, n):
        self.s = dataclasses.replace(self.s, period=n)

    scale = property(lambda self: float(self.s.loss_scale))
    good = property(lambda self: int(self.s.counter))


class JmpStatic(Jmp):
    has = '.XNR'

    def __init__(self, c):
        super().__init__(dict(c, growth_interval=1, growth_factor=2.0, min_scale=1.0))
        self.s = self.jmp.StaticLossScale(self.jnp.float32(c['init_scale']))

    good = None


class Keras(System):
    source = 'keras ' + metadata.version('keras') + ', keras/src/optimizers/loss_scale_optimizer.py'
    has = '.XNRSI'

    def __init__(self, c):
        import keras
        super().__init__(c)
        self.v = keras.Variable(np.float32([1.0]))
        self.o = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=c['init_scale'],
                                                     dynamic_growth_steps=c['growth_interval'])
        self.o.build([self.v])

    def iterate(self, event):
        before = int(self.o.inner_optimizer.iterations.numpy())
        self.o.apply([np.float32([self.gradient(event)])], [self.v])
        return int(self.o.inner_optimizer.iterations.numpy()) != before

    def set_scale(self, x):
        self.o.dynamic_scale.assign(x)

    def set_interval(self, n):
        self.o.dynamic_growth_steps = n

    def resume(self):
        state, steps = [v.numpy() for v in self.o.variables], self.o.dynamic_growth_steps
        self.__init__(self.c)
        self.o.dynamic_growth_steps = steps
        for v, x in zip(self.o.variables, state):
            v.assign(x)

    scale = property(lambda self: float(self.o.dynamic_scale.numpy()))
    good = property(lambda self: int(self.o.step_counter.numpy()))


class TfKeras(System):
    source = ('tf_keras ' + metadata.version('tf_keras') +
              ', tf_keras/src/mixed_precision/loss_scale_optimizer.py')
    has = '.XNRSI'

    def __init__(self, c):
        import tensorflow as tf, tf_keras
        super().__init__(c)
        self.tf = tf
        self.v = tf.Variable([1.0])
        self.o = tf_keras.mixed_precision.LossScaleOptimizer(
            tf_keras.optimizers.SGD(0.5), initial_scale=c['init_scale'],
            dynamic_growth_steps=c['growth_interval'])
        self.o._loss_scale._multiplier = c['growth_factor']

    def iterate(self, event):
        before = self.v.numpy()[0]  # iterations counts skipped steps, too
        self.o.apply_gradients([(self.tf.constant([self.gradient(event)]), self.v)])
        return self.v.numpy()[0] != before

    def set_scale(self, x):
        self.o._loss_scale.current_loss_scale.assign(x)

    def set_interval(self, n):
        self.o._loss_scale._growth_steps = n

    def resume(self):
        steps, scaler = self.o._loss_scale._growth_steps, self.o._loss_scale
        state = scaler.current_loss_scale.numpy(), scaler.counter.numpy()
        self.__init__(self.c)
        self.o._loss_scale.current_loss_scale.assign(state[0])
        self.o._loss_scale.counter.assign(state[1])
        self.o._loss_scale._growth_steps = steps

    scale = property(lambda self: float(self.o.loss_scale))
    good = property(lambda self: int(self.o.dynamic_counter))


def deepspeed_stubs():
    quiet = types.SimpleNamespace(info=lambda *a: None, warning=lambda *a: None)
    stub('deepspeed', comm=stub('deepspeed.comm', get_rank=lambda: 0))
    stub('deepspeed.runtime')
    stub('deepspeed.runtime.config_utils', DeepSpeedConfigObject=object)
    stub('deepspeed.utils', logger=quiet, log_dist=lambda *a, **k: None)
    stub('deepspeed.runtime.utils', has_inf_or_nan=None)


class DeepSpeed(System):
    directory, consecutive, has = 'deepspeed-0.16.9', False, '.XNRSI'

    def __init__(self, c):
        super().__init__(c)
        deepspeed_stubs()
        self.s = run_file(self.directory + '/deepspeed/runtime/fp16/loss_scaler.py', 'ds').DynamicLossScaler(
            init_scale=c['init_scale'], scale_window=c['growth_interval'], min_scale=c['min_scale'],
            delayed_shift=c['hysteresis'], consecutive_hysteresis=self.consecutive,
            raise_error_at_min_scale=False, dtype=None)
        self.s.scale_factor = c['growth_factor']

    def iterate(self, event):
        self.s.update_scale(event != '.')
        return event == '.'

    def set_scale(self, x):
        self.s.cur_scale = x

    def set_interval(self, n):
        self.s.scale_window = n

    scale = property(lambda self: f32(self.s.cur_scale))
    good = property(lambda self: self.s.cur_iter - self.s.last_overflow_iter - 1)
    left = property(lambda self: self.s.cur_hysteresis - 1)

    source = 'DeepSpeed 0.16.9 (the rule to 0.17.0), deepspeed/runtime/fp16/loss_scaler.py'


class DeepSpeedConsecutive(DeepSpeed):
    consecutive = True


class DeepSpeed019(DeepSpeed):
    source = 'DeepSpeed 0.19.8 (the rule from 0.17.1), deepspeed/runtime/fp16/loss_scaler.py'
    directory = 'deepspeed-0.19.8'


class DeepSpeed019Consecutive(DeepSpeed019):
    consecutive = True


class DeepSpeedFused(System):
    has = '.XNRSI'
    source = 'DeepSpeed 0.19.8, deepspeed/runtime/fp16/fused_optimizer.py, FP16_Optimizer._update_scale'

    def __init__(self, c):
        super().__init__(c)
        self.move = function_of('deepspeed-0.19.8/deepspeed/runtime/fp16/fused_optimizer.py', '_update_scale')
        self.s = types.SimpleNamespace(
            dynamic_loss_scale=True, cur_iter=0, last_overflow_iter=-1, cur_scale=c['init_scale'],
            scale_factor=c['growth_factor'], scale_window=c['growth_interval'], min_loss_scale=c['min_scale'])

    def iterate(self, event):
        self.move(types.SimpleNamespace(loss_scale_config=self.s, verbose=False), event != '.')
        return event == '.'

    set_scale, set_interval = DeepSpeed.set_scale, DeepSpeed.set_interval

    scale = property(lambda self: f32(self.s.cur_scale))
    good = property(lambda self: self.s.cur_iter - self.s.last_overflow_iter - 1)


class Apex(System):
    source, has = 'apex before cb65b8ed, apex/amp/scaler.py, update_scale', '.XNRSI'

    def __init__(self, c):
        super().__init__(c)
        torch.cuda.IntTensor = torch.IntTensor
        stub('apex')
        stub('apex.multi_tensor_apply',
             multi_tensor_applier=types.SimpleNamespace(available=False, import_err=''))
        stub('apex.amp')
        stub('apex.amp._amp_state', _amp_state=None, master_params=None, maybe_print=lambda *a: None)
        self.s = run_file('apex/apex/amp/scaler.py', 'apex.amp.scaler', 'apex.amp').LossScaler(
            'dynamic', c['init_scale'], c['growth_factor'], c['growth_interval'], c['min_scale'],
            c['max_scale'])

    def iterate(self, event):
        self.s.clear_overflow_state()
        gradients = [torch.tensor([1.0, self.gradient(event)])]
        self.s.unscale(gradients, [torch.zeros(2)], None)
        return not self.s.update_scale()

    def set_scale(self, x):
        self.s._loss_scale = x

    def set_interval(self, n):
        self.s._scale_seq_len = n

    scale = property(lambda self: f32(self.s._loss_scale))
    good = property(lambda self: self.s._unskipped)


class ApexHysteresis(System):
    source, has = 'apex 6424da3b, csrc/update_scale_hysteresis.cu, compiled by c++', '.XNHRSI'
    kernel = None

    def __init__(self, c):
        super().__init__(dict(c))
        if not self.kernel:
            text = (SOURCES / 'apex/csrc/update_scale_hysteresis.cu').read_text()
            text = text[text.index('__global__'):text.index('at::Tensor')]
            with tempfile.TemporaryDirectory() as d:
                with open(d + '/k.cpp', 'w') as file:
                    file.write('#include <cmath>\nusing std::isfinite;\n#define __global__ extern "C"\n' + text)
                subprocess.run(['c++', '-O1', '-shared', '-fPIC', d + '/k.cpp', '-o', d + '/k.so'], check=True)
                ApexHysteresis.kernel = ctypes.CDLL(d + '/k.so').update_scale_hysteresis_cuda_kernel
        self.s = ctypes.c_float(c['init_scale'])
        self.n, self.h = ctypes.c_int(0), ctypes.c_int(c['hysteresis'])

    def iterate(self, event):
        c, by = self.c, ctypes.byref
        self.kernel(by(self.s), by(self.n), by(self.h), by(ctypes.c_float(2 * (event != '.'))),
                    ctypes.c_double(c['growth_factor']), ctypes.c_double(c['backoff_factor']),
                    c['growth_interval'], c['hysteresis'])
        return event == '.'

    def resume(self):
        self.s, self.n, self.h = (type(x)(x.value) for x in (self.s, self.n, self.h))

    def set_scale(self, x):
        self.s = ctypes.c_float(x)

    def set_interval(self, n):
        self.c['growth_interval'] = n

    scale = property(lambda self: self.s.value)
    good = property(lambda self: self.n.value)
    left = property(lambda self: max(self.h.value - 1, 0))


class Megatron(System):
    source, has = 'Megatron-LM 0.20.0 (d98e8a64), megatron/core/optimizer/grad_scaler.py', '.XNHRSI'

    def __init__(self, c):
        super().__init__(c)
        torch.Tensor.cuda = lambda self, *a: self
        torch.cuda.current_device = lambda: 0
        self.s = run_file('Megatron-LM/megatron/core/optimizer/grad_scaler.py', 'megatron').DynamicGradScaler(
            c['init_scale'], c['min_scale'], c['growth_factor'], c['backoff_factor'], c['growth_interval'],
            c['hysteresis'])

    def iterate(self, event):
        self.s.update(2.0 * (event != '.'))
        return event == '.'

    def set_scale(self, x):
        self.s._scale = torch.tensor([x], dtype=torch.float)

    def set_interval(self, n):
        self.s.growth_interval = n

    def resume(self):
        state, interval = self.s.state_dict(), self.s.growth_interval
        self.__init__(self.c)
        self.s.load_state_dict(state)
        self.s.growth_interval = interval

    scale = property(lambda self: self.s.scale.item())
    good = property(lambda self: self.s._growth_tracker)
    left = property(lambda self: max(self.s._hysteresis_tracker - 1, 0))


class Mxnet(System):
    source = 'MXNet 2.0.0 (b84609d3), python/mxnet/amp/loss_scaler.py; its check of finite is stubbed'
    has = '.XNRSI'

    def __init__(self, c):
        super().__init__(c)
        stub('mxnet', autograd=types.SimpleNamespace(pause=lambda: torch.no_grad()),
             ndarray=types.SimpleNamespace(ones=lambda *a, **k: self, multi_all_finite=self.check))
        stub('mxnet.amp')
        stub('mxnet.util', is_np_array=lambda: False)
        self.s = run_file('mxnet/python/mxnet/amp/loss_scaler.py', 'mxnet.amp.s', 'mxnet.amp').LossScaler()
        self.s._loss_scale = self.s._next_loss_scale = c['init_scale']
        self.s._max_loss_scale, self.s._scale_seq_len = c['max_scale'], c['growth_interval']

    def check(self, *arrays, **names):
        self.asnumpy = lambda: all(np.isfinite(a.data).all() for a in arrays)

    def iterate(self, event):
        import logging
        logging.disable(logging.INFO)
        g = types.SimpleNamespace(data=np.array([self.gradient(event)]), context=None)
        return not self.s.has_overflow([types.SimpleNamespace(_grad=[g])])

    def set_scale(self, x):  # none is waiting: both members
        self.s._loss_scale = self.s._next_loss_scale = x

    def set_interval(self, n):
        self.s._scale_seq_len = n

    scale = property(lambda self: f32(self.s.loss_scale))
    good = property(lambda self: self.s._unskipped)


class Fairseq(System):
    source, has = 'fairseq 0.12.2 (3d262bb2), fairseq/optim/dynamic_loss_scaler.py', '.XNRSI'
    raised = False

    def __init__(self, c):
        super().__init__(c)
        self.s = run_file('fairseq/fairseq/optim/dynamic_loss_scaler.py', 'fairseq').DynamicLossScaler(
            c['init_scale'], c['growth_factor'], c['growth_interval'], c['tolerance'], None, c['min_scale'])

    def iterate(self, event):
        assert not self.raised  # the run has ended
        try:
            self.s.check_overflow(self.gradient(event))
        except OverflowError:
            return False
        except FloatingPointError:
            self.raised = True
            return False
        self.s.update()
        return True

    def set_scale(self, x):
        self.s.loss_scale = x

    def set_interval(self, n):
        self.s.scale_window = n

    scale = property(lambda self: f32(self.s.loss_scale))
    good = property(lambda self: None if self.raised else self.s._iter - self.s._last_overflow_iter - 1)


class Marian(System):
    source = 'Marian 1.12.43 (c9f287db), src/training/graph_group.cpp, tensors/gpu/tensor_operators.cu'
    how, has = 'read', '.XNRSI'

    def __init__(self, c):
        super().__init__(dict(c))
        self.scale, self.good = f32(c['init_scale']), 0

    def set_scale(self, x):
        self.scale = f32(x)

    def set_interval(self, n):
        self.c['growth_interval'] = n

    def iterate(self, event):  # inf is clipped to the largest finite value, NaN at the minimum set to 0
        if event == 'N' and self.scale != self.c['min_scale']:
            if self.scale > self.c['min_scale']:
                self.scale = f32(self.scale / f32(self.c['growth_factor']))
            self.good = 0
            return False
        self.good += 1
        if self.good % self.c['growth_interval'] == 0:
            self.scale, self.good = f32(self.scale * f32(self.c['growth_factor'])), 0
        return True


class Flashlight(System):
    source, how = 'flashlight f5f717f3, flashlight/pkg/runtime/amp/DynamicScaler.cpp', 'read'

    def __init__(self, c):
        super().__init__(c)
        self.scale, self.good = c['init_scale'], 0

    def iterate(self, event):
        if event != '.':
            self.scale, self.good = self.scale / 2.0, 0
            return False
        self.good += 1
        if self.scale < self.c['max_scale']:
            if self.scale == self.c['growth_interval']:  # the scale, where the counter was meant
                self.scale, self.good = self.scale * 2.0, 0
            else:
                self.scale += 2.0
        return True


class TinyCudaNN(System):
    source, how = 'tiny-cuda-nn 6ee3546, include/tiny-cuda-nn/common.h, trainer.h', 'read'
    good = None

    def __init__(self, c):
        super().__init__(c)
        self.scale = c['init_scale']

    def iterate(self, event):
        return True  # nothing is checked


class Own(System):
    """amp.h's own schedule, by the rules of README.md: torch's, in a range, with hysteresis."""
    source, how, has = 'README.md, the schedule "default"', 'read', '.XNHRSI'

    def __init__(self, c):
        super().__init__(dict(c))
        self.scale, self.good, self.left = f32(c['init_scale']), 0, c['hysteresis'] - 1

    def iterate(self, event):
        c = self.c
        if event != '.':
            self.good = 0
            if self.left:
                self.left -= 1
            else:
                self.scale = max(f32(self.scale * c['backoff_factor']), c['min_scale'])
            return False
        self.left = c['hysteresis'] - 1
        self.good += 1
        if self.good == c['growth_interval']:
            self.scale, self.good = min(f32(self.scale * c['growth_factor']), c['max_scale']), 0
        return True

    def set_scale(self, x):
        self.scale = f32(x)

    def set_interval(self, n):
        self.c['growth_interval'] = n


SYSTEMS = {
    'default': (Own, dict(min_scale=2.0**-14, max_scale=2.0**24, hysteresis=1)),
    'torch': (Torch, {}),
    'apex': (Apex, dict(backoff_factor=None, max_scale=2.0**24)),
    'apex_hysteresis': (ApexHysteresis, dict(hysteresis=2)),
    'megatron': (Megatron, dict(init_scale=2.0**32, growth_interval=1000, min_scale=1.0, hysteresis=2)),
    'deepspeed': (DeepSpeed, dict(growth_interval=1000, backoff_factor=None, min_scale=1.0, hysteresis=2)),
    'deepspeed_consecutive': (DeepSpeedConsecutive, dict(growth_interval=1000, backoff_factor=None,
                                                         min_scale=1.0, hysteresis=2)),
    'deepspeed_0.17': (DeepSpeed019, dict(growth_interval=1000, backoff_factor=None, min_scale=1.0,
                                          hysteresis=2)),
    'deepspeed_0.17_consecutive': (DeepSpeed019Consecutive, dict(
        growth_interval=1000, backoff_factor=None, min_scale=1.0, hysteresis=2)),
    'deepspeed_fused': (DeepSpeedFused, dict(init_scale=2.0**32, growth_interval=1000, backoff_factor=None,
                                             min_scale=1.0)),
    'flax': (Flax, dict(min_scale=2.0**-126, max_scale=float(np.finfo(np.float32).max))),
    'jmp': (Jmp, dict(backoff_factor=None, min_scale=1.0)),
    'keras': (Keras, dict(init_scale=2.0**15)),
    'tf_keras': (TfKeras, dict(init_scale=2.0**15, backoff_factor=None, min_scale=1.0)),
    'mxnet': (Mxnet, dict(backoff_factor=None, max_scale=2.0**24)),
    'static': (JmpStatic, dict(growth_factor=None, backoff_factor=None, growth_interval=None)),
    'fairseq': (Fairseq, dict(init_scale=2.0**15, backoff_factor=None, min_scale=1e-4, tolerance=0.0)),
    'marian': (Marian, dict(init_scale=256.0, growth_interval=1000, backoff_factor=None, min_scale=1.0)),
    'flashlight': (Flashlight, dict(init_scale=4096.0, growth_interval=2000, max_scale=32000.0)),
    'tiny-cuda-nn': (TinyCudaNN, dict(init_scale=128.0, growth_factor=None, backoff_factor=None,
                                      growth_interval=None)),
}
CONFIG = dict(init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000,
              hysteresis=None, min_scale=None, max_scale=None, tolerance=None)

TAGS = {
    'growth-by-scale': ('growth looks at the count of good steps, not at the scale',
                        ['flashlight: DynamicScaler.cpp, scaleFactor_ == updateInterval_']),
    'off-by-one': ('growth after interval good steps, or after one more, as the system has it', []),
    'reset': ('an overflow sets the count of good steps to 0', []),
    'backoff': ('one overflow, one backoff', []),
    'refill': ('when tolerated overflows are given back: by any good step, by growth, never', []),
    'delayed': ('a new scale acts at once, or one update later', ['MXNet: loss_scaler.py']),
    'floor': ('backing off ends at min_scale; without one at 0', ['jmp: loss_scale.py, tree_flatten']),
    'cap': ('growth ends at max_scale; without one at the last finite scale, or at inf',
            ['torch before pull request 98876']),
    'resume': ('saved and loaded in the middle, all goes on as if it had not been',
               ['Marian: graph_group.h saves neither scale nor count', 'fairseq: saves the scale alone',
                'MXNet: saves nothing']),
    'nan': ('NaN is an overflow as inf is, and becomes neither inf nor zero in a conversion',
            ['llm.c: train_gpt2.cu:1844', 'PufferLib', 'InfiniTrain: 0x7fffffff becomes -0, 0x7f800001 inf']),
    'by-hand': ('a found_inf that other ranks wrote, as a sum over them: 2, not 1',
                ['torch: fused kernels test == 1, ShardedGradScaler sums over ranks']),
    'set-scale': ('a scale that is set leaves the count of good steps', []),
    'interval-lowered': ('an interval lowered below the count: == never grows, >= at once', []),
    'default-schedule': ('the numbers of a scaler that nothing was told', []),
    'rounding': ('scale and factors are fp32 or double, and are multiplied or divided', []),
    'mixture': ('many overflows', []),
    'clip': ('inf is clipped and the step taken', ['Marian: tensor_operators.cu, gSanitizeGradient']),
    'prune': ('NaN at the minimum becomes 0 and the step is taken', ['Marian: graph_group.cpp']),
    'tolerance': ('the scale falls once overflows since the last change reach a fraction', ['fairseq']),
    'legal': ('what a loop does: backward, unscale, step, update', []),
    'old-scale': ('gradients are divided by the scale of their backward, also where it grows or falls',
                  ['DeepSpeed: fused_optimizer.py updates the scale before it unscales (issue 8588)']),
    'skip': ('no step after an overflow, and the next iteration is whole', []),
    'unscale-twice': ('unscaled twice is refused, and gradients stay', ['slime: issue 1842', 'Relax: issue 44']),
    'unscale-after-step': ('unscaling after the step is refused', []),
    'step-twice': ('a second step before update is refused', []),
    'update-unchecked': ('an update with nothing checked is refused, and nothing moves', []),
    'update-without-step': ('a step that was not wanted hinders nothing', []),
    'accumulate': ('gradients of several backwards are unscaled once', ['Swin-Transformer: issue 311']),
    'reciprocal': ('gradient times fp32(1 / scale), rounded each', []),
    'finite-sum': ('finite gradients whose sum overflows are no overflow',
                   ['DeepSpeed 0.16: loss_scaler.py, _has_inf_or_nan', 'apex: scaler.py']),
    'subnormal': ('subnormal numbers are kept', ['torch built with -ftz']),
    'inf': ('inf skips, and the weights, moments and count stay', ['DeepSpeed: issue 8035', 'PufferLib']),
    'position': ('wherever it stands: first, last, at the ends of vectors and chunks', ['surogate: cpu_adamw.cpp']),
    'step-count': ('the step count, and with it bias correction, leaves skipped steps out',
                   ['tf_keras: loss_scale_optimizer.py counts them']),
    'decay': ('a skipped step decays no weight', []),
    'moments': ('moments are as before the skipped step', ['DeepSpeed: issue 8035', 'flaxchat: issue 6']),
    'ties': ('halfway cases go to even', []),
    'overflow': ('what rounds past the largest finite is inf, what does not is it', []),
    'zero-inf': ('zeros and infinities', []),
    'sign': ('the sign stays', []),
    'nan-payload': ('NaN is made quiet and its upper payload and sign are kept', []),
    'exact': ('16-bit types to fp32 are exact', []),
    'digest': ('every step-th of all numbers', []),
    'raises': ('where the original raises, the scale stays, and the run ends', ['fairseq: dynamic_loss_scaler.py']),
    'zeros': ('zeros are finite gradients, and are checked', []),
    'product': ('a gradient is finite, and is not when it is unscaled', ['torch: looks at what arrives']),
    'eps': ('where eps is added', []),
    'long': ('counts of more than 16 bits', []),
    'as-it-is': ('what the system does, right or not', []),
    'unchecked': ('no gradient is looked at', ['tiny-cuda-nn: trainer.h, adam.h']),
    'norm': ('the norm is the root of the sum of squares of all gradients', ['a trainer: compares norm^2 with max_norm',
             'another: takes norm^4']),
    'norm-nan': ('a norm of NaN or inf is never compared: the step is skipped', ['a trainer: norm > max_norm, which no NaN is']),
    'factor': ('max_norm / (norm + 1e-6) where that is below 1, else 1', []),
    'denominator': ('1e-6 is added to the norm', []),
    'clip-unscaled': ('the norm is that of gradients that are unscaled', ['Pytorch-UNet: issue 468', 'apex: issue 1512']),
    'norm-overflow': ('squares overflow fp32, the norm does not', ['torch: the factor is 0, and so are the gradients']),
    'norm-underflow': ('squares are 0 in fp32, the norm is not', ['torch: the norm is 0']),
    'norm-order': ('the norm is summed in one order, to the bit', []),
    'max-norm-0': ('no clipping, or a factor of 0', ['torch: all gradients become 0']),
    'vanishes': ('a factor that is 0 is an overflow: the step would be one of zeros', []),
}


def mixture(n, seed=1):
    text = ''
    for _ in range(n):
        seed = (seed * 1103515245 + 12345) % 2**31
        text += 'X' if seed >> 16 & 3 == 0 else '.'
    return text


SHORT = 'XX....X....X.XX.........X...'
LONG_DIVISION = float.fromhex('0x1.9c2516p+16')  # 31 times / 1.9, and times 1 / 1.9, are different floats
DOUBLES = 'apex', 'deepspeed', 'deepspeed_consecutive', 'deepspeed_fused', 'mxnet', 'fairseq'


def scripts(name, d):
    """What each system goes through: a name, tags, a comment, changes of its config, events."""
    odd = (dict(growth_factor=4 / 3, backoff_factor=0.7) if name in ('torch', 'apex_hysteresis', 'default', 'megatron', 'flax')
           else dict(growth_factor=3.0) if name in ('jmp', 'tf_keras') else dict(growth_factor=1.9)
           if name.startswith('deepspeed') or name == 'fairseq' else {})  # apex, keras and mxnet know 2 alone
    low = d['min_scale'] or {'torch': 2.0**-147, 'apex_hysteresis': 2.0**-147}.get(name, 1.0)
    yield ('short', ['off-by-one', 'growth-by-scale', 'reset', 'backoff', 'refill', 'delayed'],
           'overflows and growths of an interval of 4, every update', dict(growth_interval=4), SHORT)
    yield ('interval-1', ['off-by-one'], 'an interval of 1', dict(growth_interval=1), '...X..XX....')
    yield 'interval-2', ['off-by-one', 'refill'], 'an interval of 2', dict(growth_interval=2), SHORT[:18]
    if d['hysteresis']:
        for hysteresis in 1, 3:
            yield ('hysteresis-%d' % hysteresis, ['refill', 'backoff'],
                   '%d of the overflows in a row are tolerated; what refills them' % (hysteresis - 1),
                   dict(growth_interval=3, hysteresis=hysteresis), 'X.X.XX..XXX...XXXX....X.X.X......XXXXX..')
    yield ('floor', ['floor', 'backoff'], 'the scale falls as far as it may, and grows again',
           dict(growth_interval=3, init_scale=low * 4), 'XXXXXX........X.XX')
    if d['min_scale']:
        own = dict(init_scale=3.0) if name == 'tf_keras' else dict(min_scale=3.0, init_scale=16.0)
        yield ('floor-passed', ['floor', 'rounding'], 'the floor is no backoff of the scale: it is passed, not met',
               dict(growth_interval=2, **own), 'XXXXXXXX..X..XXX')
    yield 'cap', ['cap'], 'growth past 2^24', dict(growth_interval=1, init_scale=2.0**22), '......X...'
    yield ('cap-passed', ['cap'], 'growth past 2^24, not through it',
           dict(growth_interval=1, init_scale=2.0**22 * 1.5), '...X.X..')
    if not d['max_scale'] or d['max_scale'] > 2.0**24:
        yield ('cap-of-fp32', ['cap'], 'growth past the largest float', dict(growth_interval=2, init_scale=2.0**125),
               '..........X.XX....')
    yield ('resume', ['resume'], 'saved and loaded at any point: as if it had not been', dict(growth_interval=3),
           'R.R..R.R.X.RXR...R..RXXR.XR...R')
    if d['hysteresis']:
        yield ('resume-hysteresis', ['resume', 'refill'], 'what is left of hysteresis is saved',
               dict(growth_interval=3, hysteresis=4), 'XR.XRXXRX...RXRX.RXXXXRX')
    yield 'nan', ['nan', 'backoff', 'reset'], 'NaN is an overflow as inf is', dict(growth_interval=3), '..N...N.NN...X.N....'
    yield ('thousand', ['rounding'], 'a scale that is no power of two', dict(growth_interval=2, init_scale=1000.0),
           '......XXXX..X....')
    yield 'mixture', ['mixture'], 'a quarter of 40 updates are overflows', dict(growth_interval=3), mixture(40)
    n = d['growth_interval']
    yield ('default', ['default-schedule'], 'the numbers of a scaler that was told nothing', {},
           [('.', n - 1), '.', '.', 'X', 'X', ('.', n - 1), '.', '.', 'N', ('.', n), ('.', n)])
    yield ('found', ['by-hand'], 'ranks summed found up to 2', dict(growth_interval=4), '..H....H.HH....H....')
    yield ('set', ['set-scale'], 'the scale is set: good, left and what is counted stay', dict(growth_interval=4),
           ['.', '.', ('S', 4096.0), '.', '.', '.', 'X', ('S', 512.0)] + ['.'] * 5 + ['X', ('S', 48.0), 'X', '.'])
    if odd:
        yield ('set-rounded', ['set-scale', 'rounding'], 'the scale is set to what no float is: rounded to one, or a double',
               dict(odd, growth_interval=1), [('S', 1e5 / 7)] + list('.X.....X') + [('S', 1e5 / 11)] + list('XXX...'))
    if (d['min_scale'] or d['max_scale']) and name not in ('default', 'flax', 'fairseq'):
        low, high = (d['min_scale'] or 1.0) / 4, (d['max_scale'] or 2.0**24) * 2
        yield ('set-outside', ['set-scale', 'floor', 'cap'], 'the scale is set below min_scale, above max_scale: it is '
               'clamped when it moves', dict(growth_interval=1),
               [('S', low), 'X', 'X', ('S', high), '.', '.', ('S', high), 'X', 'X'])
    yield ('interval-lowered', ['interval-lowered'], 'the interval is lowered below the count', dict(growth_interval=9),
           ['.'] * 6 + [('I', 4)] + ['.'] * 6 + ['X'] + ['.'] * 5 + [('I', 5)] + ['.'] * 6)
    if 'backoff_factor' in odd:
        yield ('factors', ['rounding'], 'factors that no float is', dict(odd, growth_interval=2, init_scale=1000.0),
               '....XX..X..XX....XXX..X......XX')
    if name in ('jmp', 'tf_keras'):
        yield ('factor-3', ['rounding'], 'divided by 3, not multiplied by a third', dict(
               growth_interval=2, growth_factor=3.0, init_scale=1000.0), 'XX.XX..X....XXX')
    if name.startswith('deepspeed') or name == 'fairseq':
        own = {} if d['hysteresis'] is None else dict(hysteresis=1)
        yield ('factor-1.9', ['rounding', 'resume'], 's is a double, and is saved as one', dict(
               own, growth_interval=2, growth_factor=1.9, init_scale=1000.0), '....R..XXRX..R....XXXR......')
        yield ('divided', ['rounding'], 'divided by 1.9, not multiplied by a reciprocal', dict(
               own, growth_factor=1.9, init_scale=LONG_DIVISION, min_scale=2.0**-100), [('X', 30), 'X', '.'])
        yield ('init-double', ['rounding'], 'init_scale is a double', dict(
               own, growth_factor=1.9, init_scale=1e5 / 7, growth_interval=1), '.' * 6 + 'XXX')
    elif name in DOUBLES:
        yield ('double', ['rounding', 'resume', 'floor'], 's is a double, and is saved as one: it comes back from what '
               'is 0 in fp32', dict(growth_interval=1, init_scale=2.0**-146 * 1.25), 'XXXRXXXXR..R........')
    elif odd:
        yield ('init-rounded', ['rounding'], 'init_scale is rounded to fp32',
               dict(odd, init_scale=1e5 / 7, growth_interval=1), '.' * 6 + 'XXX')
    if name in ('apex', 'mxnet'):
        yield ('init-above', ['cap'], 'init_scale is above max_scale: apex begins at max_scale, others where they are told',
               dict(growth_interval=2, init_scale=2.0**26), '....X..')
    if name in ('default', 'deepspeed'):
        yield ('long', ['off-by-one', 'long'], 'counts of more than 16 bits', dict(growth_interval=70000),
               [('.', 65535), '.', '.', ('.', 70000 - 65538), '.', '.', 'X'])


SPECIAL = {
    'static': [('short', ['backoff', 'nan'], 'overflows are skipped, and move nothing', {}, '..XX.N....')],
    'tiny-cuda-nn': [('short', ['unchecked', 'nan'], 'nothing is looked at', {}, '..XX.N....')],
    'marian': [('short', ['clip', 'nan', 'off-by-one'], 'inf is clipped: the step is taken', dict(growth_interval=3),
                '..X..N...NN.X.X.X..N'),
               ('floor', ['prune', 'floor'], 'NaN at min_scale is set to 0: the step is taken',
                dict(growth_interval=3, init_scale=8.0), 'NNNNNN..N...NNN.....'),
               ('floor-passed', ['prune', 'floor'], 'the last division may pass min_scale; NaN is an overflow below it',
                dict(growth_interval=9, init_scale=6.0), 'NNNNN.N'),
               ('resume', ['resume'], 'as if it had been saved, which Marian does not', dict(growth_interval=3),
                'R..R.NRX.R..R.'),
               ('factor-3', ['rounding'], 'divided by 3, not multiplied by a third', dict(
                growth_interval=2, growth_factor=3.0, init_scale=1000.0), 'NN.NN..N....NNN'),
               ('factor-1.9', ['rounding'], 'the factor is fp32', dict(
                growth_interval=2, growth_factor=1.9, init_scale=1000.0), 'NN.NN..N....NNN'),
               ('set', ['set-scale'], 'the scale is set', dict(growth_interval=3),
                ['.', '.', ('S', 1e5 / 7), '.', 'N', ('S', 0.5), 'N', ('S', 1.0), 'N', '.'])],
    'flashlight': [('short', ['as-it-is'], 'the scale is compared with the interval', dict(growth_interval=4), '....X....X.'),
                   ('near', ['as-it-is'], 'the scale meets the interval', dict(growth_interval=64, init_scale=60.0),
                    '.....X..X....'),
                   ('cap', ['cap', 'backoff'], 'growth ends', dict(init_scale=31996.0), '.....X..')],
    'fairseq': [('short', ['off-by-one', 'reset', 'backoff'], 'overflows and growths of an interval of 4',
                 dict(growth_interval=4), SHORT),
                ('tolerance-quarter', ['tolerance'], 'a quarter of the updates may overflow',
                 dict(growth_interval=4, tolerance=0.25), SHORT + mixture(60)),
                ('tolerance-half', ['tolerance'], 'half of the updates may overflow',
                 dict(growth_interval=3, tolerance=0.5), 'XX..X.XXX....X...X.XX.' + mixture(60)),
                ('tolerance-growth', ['tolerance'], 'a growth sets the updates to 0 and leaves the overflows',
                 dict(growth_interval=3, tolerance=0.4), '.....X.....X..X.....X...X..X....X'),
                ('tolerance-resume', ['tolerance', 'resume'], 'both counts are saved, which fairseq does not do',
                 dict(growth_interval=3, tolerance=0.4), '...R..XR...R..RX.R..X.R....RX..RX.R'),
                ('tolerance-set', ['tolerance', 'set-scale'], 'the scale is set: both counts stay',
                 dict(growth_interval=5, tolerance=0.5), ['.', '.', ('S', 1024.0), 'X', '.', ('S', 4096.0), '.', 'X',
                                                          ('S', 512.0), 'X', '.', '.', 'X', 'X']),
                ('floor', ['floor', 'raises'], 'it would fall to min_scale: it stays, and raises',
                 dict(min_scale=4.0, init_scale=16.0), 'XX'),
                ('floor-passed', ['floor', 'raises'], 'it would fall below min_scale: it stays, and raises',
                 dict(min_scale=3.0, init_scale=16.0), 'XXX'),
                ('floor-tolerance', ['floor', 'raises', 'tolerance'], 'not before tolerance is used up',
                 dict(min_scale=4.0, init_scale=8.0, tolerance=0.5), '...X.X.X'),
                ('thousand', ['rounding'], 'a scale that is no power of two', dict(growth_interval=2, init_scale=1000.0),
                 '......XXXX..X....'),
                ('mixture', ['mixture'], 'a quarter of 40 updates are overflows', dict(growth_interval=3), mixture(40)),
                ('default', ['default-schedule'], 'the numbers of a scaler that was told nothing', {},
                 [('.', 1998), '.', '.', '.', 'X', ('.', 1999), '.', '.', 'N'])],
}
SPECIAL['fairseq'] += [x for x in scripts('fairseq', dict(CONFIG, min_scale=1e-4, max_scale=2.0**24))
                       if x[0] in ('set', 'set-rounded', 'interval-lowered', 'resume', 'factor-1.9',
                                   'divided', 'init-double', 'nan')]


def shown(config):
    return {k: hexa(v) if isinstance(v, float) else v for k, v in config.items() if v is not None}


def scale_rows(system, config, events):
    s, rows = system(config), []
    for event in events:
        event, n = event if isinstance(event, tuple) else (event, 1)
        taken = None
        if event == 'R':
            before = s.scale, s.good, s.left
            s.resume()
            assert before == (s.scale, s.good, s.left)
        elif event == 'S':
            s.set_scale(n)
        elif event == 'I':
            s.set_interval(n)
        else:
            for _ in range(n):
                taken = s.iterate(event)
        rows.append([event, hexa(n) if event == 'S' else n, hexa(s.scale), s.good, s.left,
                     None if taken is None else int(taken)])
        if getattr(s, 'raised', False):
            break
    return rows


def scale_family():
    for name, (system, own) in SYSTEMS.items():
        defaults = dict(CONFIG, **own)
        for what, tags, comment, changes, events in SPECIAL.get(name) or scripts(name, defaults):
            needed = {e[0] for e in events} - set('.XNR')
            if not needed <= set(system.has):
                continue
            config = dict(defaults, **changes)
            yield dict(id=name + '/' + what, system=name, source=system.source, original=system.how, demand='must',
                       comment=comment, tags=tags,
                       config=shown(config),
                       rows=scale_rows(system, config, events))

# -------------------------------------------------------------------------- order
# Rows: the call, its argument (of backward: what the buffer of gradients then holds), the answer, the
# gradients after it (null: whatever), and scale, good and left after it.

def bits32(x):
    return '0x%08x' % struct.unpack('<I', struct.pack('<f', x))[0]


def float_of(bits):
    return struct.unpack('<f', struct.pack('<I', int(bits, 16)))[0]


def all_finite(numbers):
    return all(map(math.isfinite, numbers))


def order_rows(system, config, calls):
    """torch answers; where the system is amp.h's own, its rules move the scale in place of torch's."""
    t, own, rows, stepped, said = Torch(config), Own(config) if system == 'default' else None, [], [], 0.0
    t.p.grad = None
    t.o.step = lambda *a, **k: stepped.append(1)

    def found(x):
        t.s._per_optimizer_states[id(t.o)]['found_inf_per_device'] = {t.p.device: torch.tensor(x)}

    for call in calls:
        call, argument = call if isinstance(call, tuple) else (call, None)
        answer, bad = 'ok', False
        try:
            if call == 'backward':
                t.p.grad = torch.tensor(argument)
            elif call == 'unscale':
                finite = all_finite(t.p.grad.tolist())
                t.s.unscale_(t.o)
                if own and (said or finite and not all_finite(t.p.grad.tolist())):
                    found(said or 1.0)
                    finite = False
            elif call == 'step':
                before = len(stepped)
                t.s.step(t.o)
                answer = 'taken' if len(stepped) > before else 'skipped'
            elif call == 'update':
                bad = any(v.item() for s in t.s._per_optimizer_states.values()
                          for v in s['found_inf_per_device'].values())
                t.s.update()
                said = 0.0
                if own:
                    own.iterate('X' if bad else '.')
                    t.s._scale.fill_(own.scale)
            elif call == 'found':
                said = argument
                if t.s._per_optimizer_states[id(t.o)]['found_inf_per_device']:  # unscaled
                    found(argument)
                else:
                    assert own, 'unscale_ would take it back'
            elif own and not config['min_scale'] <= argument <= config['max_scale']:
                answer = 'refused'
            else:
                t.s._scale.fill_(argument)
                if own:
                    own.set_scale(argument)
        except (RuntimeError, AssertionError):
            answer = 'refused'
        gradient = t.p.grad.tolist() if t.p.grad is not None else None
        if call == 'backward':
            finite = all_finite(argument)
        shown = call == 'backward' or gradient and finite
        good, left = (own.good, own.left) if own else (t.good, 0)
        rows.append([call, hexa(argument) if isinstance(argument, float) else
                     argument and [bits32(x) for x in argument], answer,
                     [bits32(x) for x in gradient] if shown else None, hexa(t.scale), good, left])
    return rows


def added(*gradients):
    return sum(map(torch.tensor, gradients)).tolist()


def order_family():
    g, h = [65536.0, -3.0, 1e-3], [1.0, 0.5, -7.0]
    unscaled = [('backward', g), 'unscale']
    iteration = unscaled + ['step', 'update']
    infinite = [('backward', [1.0, INF, 2.0]), 'unscale']
    bad = infinite + ['step', 'update']
    loop = ['unscale', 'step', 'update']
    own = dict(min_scale=2.0**-14, max_scale=2.0**24, hysteresis=3, growth_interval=4)
    cases = [
        ('legal', ['legal'], 'three iterations', {}, iteration * 3),
        ('growth', ['old-scale'], 'the scale grows at every update', dict(growth_interval=1), iteration * 4),
        ('overflow', ['old-scale', 'skip'], 'overflows in between', dict(growth_interval=2), bad + iteration * 3 + bad +
         iteration),
        ('unscale-twice', ['unscale-twice'], 'refused: gradients stay', {}, unscaled + ['unscale', 'step', 'update'] +
         iteration),
        ('unscale-after-step', ['unscale-after-step'], 'refused: gradients stay', {},
         unscaled + ['step', 'unscale', 'update'] + iteration),
        ('step-twice', ['step-twice'], 'refused: one step an iteration', {}, unscaled + ['step', 'step', 'update'] +
         iteration),
        ('update-unchecked', ['update-unchecked'], 'refused: scale and count stay', {}, ['update'] + iteration +
         ['update'] + iteration),
        ('update-without-step', ['update-without-step'], 'no step was wanted', {}, unscaled + ['update'] + iteration),
        ('accumulate', ['accumulate'], 'three backwards, one unscale', {},
         [('backward', g), ('backward', added(g, h)), ('backward', added(g, h, h))] + loop),
        ('set', ['set-scale'], 'the scale is set between iterations', {}, iteration + [('scale', 1024.0)] + iteration),
        ('set-rounded', ['set-scale', 'rounding'], 'to what no float is', {}, iteration + [('scale', 1e5 / 7)] + iteration),
        ('reciprocal', ['reciprocal'], 'no power of two: times fp32(1 / s), not divided by s', dict(init_scale=1000.0),
         iteration * 3),
        ('reciprocal-small', ['reciprocal'], 'of a scale below 1', dict(init_scale=3e-5), [('backward', h)] + loop),
        ('finite-sum', ['finite-sum'], 'the sum is inf, no gradient is', {}, [('backward', [3e38, 3e38, 3e38])] + loop +
         iteration),
        ('nan', ['skip', 'nan'], 'a NaN', {}, [('backward', [NAN, 1.0, 1.0])] + loop + iteration),
        ('subnormal', ['subnormal'], 'they become subnormal', {},
         [('backward', [2.0**-126, 2.0**-120 * 1.25, -2.0**-149])] + loop),
        ('subnormal-small', ['subnormal'], 'they are subnormal', dict(init_scale=2.0**-3),
         [('backward', [2.0**-149, -2.0**-130, 0.0])] + loop),
        ('subnormal-reciprocal', ['subnormal', 'reciprocal'], '1 / s is subnormal', dict(init_scale=2.0**127 * 1.5),
         [('backward', [3e38, -2.0**127, 1.0])] + loop + iteration),
        ('zeros', ['zeros', 'sign'], 'zeros are finite, are counted, and keep their sign', {},
         ([('backward', [0.0, -0.0, 0.0])] + loop) * 4),
        ('last', ['position'], 'inf is the last', {}, [('backward', [1.0, 2.0, -INF])] + loop + iteration),
        ('cancels', ['finite-sum', 'nan'], 'inf and -inf', {}, [('backward', [INF, -INF, 1.0])] + loop + iteration),
        ('product', ['product', 'finite-sum'], 'gradients are finite, gradients times 1 / s are not: torch looks at what '
         'arrives', dict(init_scale=2.0**-10), [('backward', [3e38, -3e38, 1.0])] + loop + iteration),
        ('refused-found', ['unscale-twice', 'nan'], 'what is refused looks at nothing', {}, unscaled +
         [('backward', [NAN, INF, 1.0]), 'unscale', 'step', 'update'] + iteration),
        ('backward-between', ['unscale-twice', 'accumulate'], 'a backward between two unscales', {}, unscaled +
         [('backward', h), 'unscale', 'step', 'update'] + iteration),
        ('skipped-twice', ['step-twice', 'skip'], 'a skipped step is one, too', {}, infinite + ['step', 'step', 'update'] +
         iteration),
        ('skipped-unscale', ['unscale-after-step', 'skip'], 'after a skipped step, too', {},
         infinite + ['step', ('backward', g), 'unscale', 'update'] + iteration),
        ('all-refused', ['unscale-twice', 'unscale-after-step', 'step-twice', 'update-unchecked'],
         'what is refused changes neither good nor what comes', dict(growth_interval=3),
         iteration + ['update', 'update'] + unscaled + ['unscale', 'unscale', 'step', 'step', 'unscale', 'step', 'update',
                                                        'update'] + iteration * 2),
        ('found', ['by-hand'], 'another rank found one: said after unscale', {}, unscaled + [('found', 2.0), 'step', 'update'] +
         iteration + unscaled + [('found', 0.5), 'update'] + iteration),
        ('unscaled-backward', ['accumulate', 'nan'], 'a backward after unscale: neither unscaled nor looked at', {},
         unscaled + [('backward', [1.0, INF, 2.0]), 'step', 'update'] + iteration),
    ]
    may = [('step-alone', ['legal'], "torch's step unscales first, where nobody has; what cannot reach the gradients refuses",
            {}, [('backward', g), 'step', 'update'] + iteration)]
    mine = [
        ('refused', ['update-unchecked', 'unscale-twice', 'refill'], 'what is refused leaves good, left and the scale', own,
         iteration * 2 + bad + ['update'] + infinite + ['unscale', 'step', 'step', 'update', 'update'] + bad * 2 + ['update'] +
         iteration * 2 + ['update'] + bad + iteration),
        ('set-outside', ['set-scale', 'cap', 'floor'], 'refused: outside min_scale and max_scale', own, iteration + bad +
         [('scale', 2.0**25), ('scale', 2.0**-15), ('scale', INF), ('scale', 2.0**24)] + iteration),
        ('found-first', ['by-hand'], 'another rank found one: said before unscale, which does not take it back', own,
         [('backward', g), ('found', 1.0)] + loop + iteration + [('backward', g), ('found', 3.0)] + loop),
        ('product', ['product'], 'gradients are finite, gradients times 1 / s are not: an overflow',
         dict(own, init_scale=2.0**-10), [('backward', [3e38, -3e38, 1.0])] + loop + iteration),
    ]
    for system, demand, group in ('torch', 'must', cases), ('torch', 'may', may), ('default', 'must', mine):
        for what, tags, comment, changes, calls in group:
            config = dict(CONFIG, growth_interval=3) | changes
            yield dict(id=system + '/' + what, system=system, source=Torch.source if system == 'torch' else Own.source,
                       original='run' if system == 'torch' else 'read', demand=demand, comment=comment, tags=tags,
                       config=shown(config),
                       rows=order_rows(system, config, calls))


# --------------------------------------------------------------------------- skip
# Arrays of n elements, which repeat five numbers. Rows: the gradients, which of them is bad (null: none), the
# answer and, where the step was taken, what stands after it.

HALF = {'fp16': torch.float16, 'bf16': torch.bfloat16, 'fp32': torch.float32}
WEIGHT, M, V = [0.75, -1.5, 0.1, -0.003, 2.0], [0.5, -0.25, 0.01, 0.0, -1.0], [0.25, 1.0, 1e-4, 0.09, 4.0]
GRADIENTS = [[3.0, -2.0, 0.5, -0.25, 7.0], [-1.0, 0.125, -9.0, 4.0, 0.0]]
ULP = 4


def half_bits(x, dtype):
    t = torch.tensor([x], dtype=torch.float32).to(HALF[dtype])
    if dtype == 'fp32':
        return bits32(x)
    return '0x%04x' % (int(t.view(torch.int16)[0]) & 0xffff)


def copy_bits(x, dtype):
    """The model copy: the same for all weights that are allowed."""
    near = {half_bits(float_of('0x%08x' % (int(bits32(x), 16) + d)), dtype) for d in range(-ULP, ULP + 1)}
    assert dtype == 'fp32' or len(near) == 1, (x, dtype)
    return half_bits(x, dtype)


def skip_case(dtype, n, at, bad, what, tags, comment, lr=0.01, betas=(0.9, 0.999), eps=1e-8, decay=0.1, steps=10, weight=WEIGHT,
              m=M, v=V, gradients=GRADIENTS, scale=1024.0):
    number = {'inf': INF, '-inf': -INF, 'nan': NAN, '-nan': -NAN, 'signaling': NAN}[bad]
    length = min(n, len(weight))
    fill = lambda x: torch.tensor((x * n)[:n])
    bits = lambda x: [bits32(y) for y in x[:length]]
    w = fill(weight).requires_grad_()
    o = torch.optim.AdamW([w], lr=lr, betas=betas, eps=eps, weight_decay=decay, foreach=False)
    w.grad = torch.zeros(n)
    o.step()
    state = o.state[w]
    with torch.no_grad():
        w.copy_(fill(weight))
        state['exp_avg'].copy_(fill(m))
        state['exp_avg_sq'].copy_(fill(v))
        state['step'].fill_(steps)
    s = torch.amp.GradScaler('cpu', init_scale=scale)
    s.scale(w.sum())
    word = dict(inf=(0x7c00, 0x7f80, 0x7f800000), nan=(0x7fff, 0x7fff, 0x7fffffff),
                signaling=(0x7c01, 0x7f81, 0x7f800001))[bad.strip('-')][list(HALF).index(dtype)]
    word |= (bad[0] == '-') << (31 if dtype == 'fp32' else 15)
    rows = []
    for k, gradient in [(None, gradients[0])] + list(enumerate(gradients)):
        g = fill(gradient).to(HALF[dtype])
        before = [x.clone() for x in (w, state['exp_avg'], state['exp_avg_sq'], state['step'])]
        if k is None:
            g[at] = number
        w.grad = g.float()
        s.step(o)
        s.update()
        after = w, state['exp_avg'], state['exp_avg_sq'], state['step']
        row = [[half_bits(x, dtype) for x in gradient[:length]], None if k is not None else
               [at, ('0x%08x' if dtype == 'fp32' else '0x%04x') % word], 'skipped' if k is None else 'taken']
        if k is None:
            assert all((x == y).all() for x, y in zip(before, after)) and s.get_scale() == scale / 2
            row += [None] * 4
        else:
            assert all((x == fill(x[:length].tolist())).all() for x in after[:3])
            row += [bits(x.tolist()) for x in after[:3]] + [[copy_bits(x, dtype) for x in w[:length].tolist()]]
        rows.append(row + [int(state['step']), hexa(s.get_scale())])
    return dict(
        id='%s/%s' % (dtype, what), system='adamw', source=version('torch') + ', torch/optim/adamw.py, torch/amp/grad_scaler.py',
        original='run', demand='must', comment=comment, tags=tags,
        config=dict(dtype=dtype, n=n, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=decay, scale=hexa(scale),
                    steps=steps, ulp=ULP, weight=bits(weight), m=bits(m), v=bits(v)),
        rows=rows)


def skip_family():
    for dtype in HALF:
        for n, at in (1, 0), (7, 0), (7, 3), (7, 6), (33, 16), (257, 256), (16385, 16383), (16385, 16384):
            yield skip_case(dtype, n, at, 'inf', '%d-of-%d' % (at, n), ['inf', 'position'], 'inf at %d of %d' % (at, n),
                            gradients=GRADIENTS[:1])
        for bad in '-inf', 'nan', '-nan', 'signaling':
            yield skip_case(dtype, 7, 3, bad, bad.replace('-', 'minus-'), ['nan' if 'inf' not in bad else 'inf'],
                            'a gradient is ' + bad)
        yield skip_case(dtype, 7, 3, 'inf', 'second', ['step-count'], 'the second step', steps=1, m=[0.1] * 5)
        yield skip_case(dtype, 7, 3, 'nan', 'first', ['step-count', 'nan'], 'the first step: no moments', steps=0, m=[0.0] * 5,
                        v=[0.0] * 5, weight=[0.75, -1.5, 3.0, -0.5, 2.0])
        yield skip_case(dtype, 7, 3, 'inf', 'decay', ['decay'], 'a skipped step decays no weight', decay=1.0, lr=0.25,
                        weight=[0.75, -1.5, 3.0, -0.5, 2.0])
        yield skip_case(dtype, 7, 3, 'inf', 'no-decay', ['decay'], 'weight_decay is 0', decay=0.0)
        yield skip_case(dtype, 7, 3, 'inf', 'moments', ['moments'], 'small moments', v=[2.0**-10] * 5, m=[2.0**-6] * 5)
        yield skip_case(dtype, 7, 3, 'inf', 'eps', ['eps'], 'eps counts: it is added behind the root and the correction',
                        eps=0.01, v=[1e-6, 2e-7, 1e-4, 0.0, 1e-3], m=[1e-3, -2e-3, 5e-3, 1e-4, -1e-2], steps=2)
        yield skip_case(dtype, 7, 3, 'inf', 'long', ['step-count', 'long'], 'a count of more than 16 bits', steps=65540,
                        betas=(0.9, 0.99999))
        yield skip_case(dtype, 7, 3, 'inf', 'thousand', ['reciprocal'], 'the scale is no power of two', scale=1000.0)

# --------------------------------------------------------------------------- clip
# Gradients of several tensors, each of which repeats a few numbers over its elements. Rows: the gradients, which of
# them is bad (null: none), the answer and, where the step was taken, norm, factor and the gradients after it.

CLIP = version('torch') + ', torch/nn/utils/clip_grad.py, torch/amp/grad_scaler.py'
SEVEN = [3.0, -2.0, 0.5, -0.25, 7.0]


class TorchClip:
    """GradScaler's unscale_, clip_grad_norm_, step, update."""

    def __init__(self, c):
        self.p = [torch.zeros(n, requires_grad=True) for n in c['n']]
        self.o = torch.optim.SGD(self.p, lr=0.0)
        self.s = torch.amp.GradScaler('cpu', init_scale=c['scale'])
        self.s.scale(self.p[0].sum())
        self.max_norm = c['max_norm']

    def step(self, gradients):
        taken = []
        self.o.step = lambda: taken.append(1)
        for p, g in zip(self.p, gradients):
            p.grad = g.float().clone()
        self.s.unscale_(self.o)
        norm = torch.nn.utils.clip_grad_norm_(self.p, self.max_norm, foreach=False)
        factor = torch.clamp(self.max_norm / (norm + 1e-6), max=1.0)
        self.s.step(self.o)
        self.s.update()
        return bool(taken), float(norm), float(factor), [p.grad for p in self.p], self.s.get_scale()


class OwnClip:
    """By README.md's rules: element by element."""

    def __init__(self, c):
        self.scale, self.max_norm = c['scale'], c['max_norm']

    def lanes(self, x, rescale):
        lanes = [np.float32(0.0)] * 256
        for i, y in enumerate(x):
            t = y * np.float32(rescale)
            lanes[i % 256] = lanes[i % 256] + t * t
        return self.fold(lanes)

    def fold(self, lanes):
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [lanes[i] + lanes[half + i] for i in range(half)]
        return lanes[0]

    def chunk(self, x):
        square = self.lanes(x, 1.0)
        if np.isinf(square):
            return np.float64(self.lanes(x, 2.0**-96)) * 2.0**192
        if square < 2.0**-100 and x.any():
            return np.float64(self.lanes(x, 2.0**96)) * 2.0**-192
        return np.float64(square)

    def step(self, gradients):
        arrays, total = [g.float().numpy() for g in gradients], [np.float64(0.0)] * 256
        chunks = [x[i:i + 16384] for x in arrays for i in range(0, len(x), 16384)]
        inv = np.float32(1.0 / self.scale)
        if all(np.isfinite(x).all() for x in arrays):
            for i, x in enumerate(chunks):
                total[i % 256] += self.chunk(x)
            norm = float(np.sqrt(self.fold(total)) * np.float64(inv))
            factor = min(self.max_norm / (norm + 1e-6), 1.0) if self.max_norm else 1.0
            combined = inv * np.float32(factor)
            if combined and all(np.isfinite(x * inv).all() for x in arrays):
                return True, norm, factor, [torch.from_numpy(x * combined) for x in arrays], self.scale
        self.scale /= 2.0
        return False, None, None, None, self.scale


def clip_case(system, what, tags, comment, gradients, max_norm, n=(5,), dtype='fp32', scale=1.0, bad=(None,), ulp=None, demand='must'):
    """An iteration for each of `bad`: [tensor, index, number] of what is not finite there, or None."""
    ulp = (0 if system == 'default' else 4) if ulp is None else ulp
    subject = (OwnClip if system == 'default' else TorchClip)(dict(n=n, scale=scale, max_norm=f32(max_norm)))
    repeat, rows, now = [min(k, len(g)) for k, g in zip(n, gradients)], [], scale
    for at in bad:
        arrays = [torch.tensor((g * (k // len(g) + 1))[:k], dtype=torch.float32).to(HALF[dtype]) for g, k in zip(gradients, n)]
        row = [[[half_bits(y, dtype) for y in g[:k]] for g, k in zip(gradients, repeat)], None]
        if at:
            arrays[at[0]][at[1]] = at[2]
            row[1] = [at[0], at[1], half_bits(at[2], dtype)]
        was = now
        taken, norm, factor, after, now = subject.step(arrays)
        row += ['taken' if taken else 'skipped'] + [None] * 3
        if taken:
            exact = math.sqrt(math.fsum(float(y)**2 for x in arrays for y in x)) / was
            assert system == 'torch' or abs(norm - exact) <= 1e-6 * exact, (what, norm, exact)
            row[3:] = [hexa(norm), bits32(f32(factor)), [[bits32(float(y)) for y in x[:k]] for x, k in zip(after, repeat)]]
        rows.append(row + [hexa(now)])
    return dict(
        id='%s/%s' % (system, what), system=system, source='README.md, clipping' if system == 'default' else CLIP,
        original='read' if system == 'default' else 'run', demand=demand, comment=comment, tags=tags,
        config=dict(dtype=dtype, n=list(n), max_norm=hexa(f32(max_norm)), scale=hexa(scale), ulp=ulp), rows=rows)


def clip_family():
    three, sizes = [[0.5, -1.5, 0.25], [2.0], [-0.125, 1.0, 3.0, -0.75, 0.375]], (33, 1, 257)
    both = lambda *a, **k: (clip_case(system, *a, **k) for system in ('any', 'default'))
    yield from both('above', ['norm', 'factor'], 'norm^2 and norm are above max_norm', [SEVEN], 1.0)
    yield from both('below', ['factor'], 'the norm is below max_norm: gradients stay', [SEVEN], 100.0)
    yield from both('between', ['norm'], 'the norm is below max_norm, its square is not', [SEVEN], 10.0)
    yield from both('small', ['norm'], 'the norm is above max_norm, its square is not', [[0.3, -0.2, 0.1]], 0.25, (3,))
    yield from both('fourth', ['norm'], 'norm^2 is below max_norm, norm^4 is not', [[1.5, 0.5]], 4.0, (2,))
    yield from both('one', ['norm', 'factor'], 'one gradient', [[-3.0]], 0.5, (1,))
    yield from both('three', ['norm'], 'the norm of three tensors together', three, 1.0, sizes)
    yield from both('last', ['norm'], 'the last element has most of the norm', [[0.001], [0.001] * 6 + [5.0]], 1.0, (300, 7))
    yield from both('zero', ['factor', 'zeros'], 'gradients are zeros: a factor of 1, and no 0 / 0', [[0.0, -0.0]], 1.0, (5,))
    yield from both('zeros-beside', ['zeros', 'norm'], 'a tensor of zeros beside another', [[0.0], SEVEN], 1.0, (40, 5))
    yield from both('equal', ['denominator'], 'the norm is max_norm: the factor is below 1 all the same', [[3.0, 4.0]], 5.0, (2,))
    yield from both('just-below', ['denominator'], 'norm < max_norm < norm + 1e-6', [[1.0 - 2.0**-21]], 1.0, (1,))
    yield from both('tiny-norm', ['denominator'], '1e-6 halves the factor', [[6e-7, -8e-7]], 2e-7, (2,))
    yield from both('tiny-max', ['denominator'], 'max_norm and norm are below 1e-6', [[1e-7, -3e-7]], 1e-8, (2,))
    yield from both('scaled', ['clip-unscaled'], 'the scaled norm is above max_norm, the unscaled one is not', [SEVEN], 1.0,
                    scale=1024.0)
    yield from both('scaled-above', ['clip-unscaled', 'denominator'], 'unscaled first, then clipped', [[2e3, -3e3, 900.0]], 1.0, (3,),
                    scale=1024.0)
    yield from both('scaled-tiny', ['clip-unscaled', 'denominator'], '1e-6 is added to the unscaled norm',
                    [[2e-3, -3e-3]], 1e-6, (2,), scale=1024.0)
    yield from both('thousand', ['clip-unscaled', 'reciprocal'], 'the scale is no power of two', [SEVEN], 0.001, scale=1000.0)
    yield from both('below-one', ['clip-unscaled'], 'a scale below 1', [[0.25, -0.5]], 1.0, (2,), scale=2.0**-4)
    yield from both('fp16', ['norm', 'clip-unscaled'], 'gradients are fp16, and squares of them are not', [[6e4, -5e4], [300.0]], 8.0,
                    (7, 33), 'fp16', 2.0**12)
    yield from both('bf16', ['norm', 'clip-unscaled'], 'gradients are bf16, and squares of them are not', [[1.0, 3.015625], [-0.5]],
                    0.5, (9, 65), 'bf16', 64.0)
    for dtype in HALF:
        for name, x, tag in ('inf', INF, 'inf'), ('minus-inf', -INF, 'inf'), ('nan', NAN, 'norm-nan'):
            yield from both('%s-%s' % (name, dtype), sorted({tag, 'skip', 'norm-nan'}),
                            'a gradient is %s: skipped; the next iteration is clipped' % name, three, 1.0, sizes, dtype, 256.0,
                            ((1, 0, x), None))
    yield from both('nan-unclipped', ['norm-nan', 'skip'], 'a NaN where the norm is below max_norm else', [SEVEN], 100.0,
                    bad=((0, 4, NAN), None))
    yield from both('skips', ['skip', 'position'], 'two in a row, in the last tensor and the first', three, 0.5, sizes, scale=1024.0,
                    bad=(None, (2, 256, INF), (0, 0, NAN), None))
    yield from both('subnormal', ['subnormal'], 'what is clipped becomes subnormal', [[1.0, 2.0**-123, -2.0**-120 * 1.25]],
                    2.0**-10, (3,))
    yield clip_case('torch', 'overflow', ['norm-overflow', 'as-it-is'], 'norm^2 is inf in fp32: so is the norm, and gradients become 0',
                    [[1e30, -3e29]], 1.0, (2,))
    yield clip_case('torch', 'underflow', ['norm-underflow', 'as-it-is'], 'norm^2 is 0 in fp32: so is the norm', [[1e-30, -3e-31]],
                    1e-25, (2,))
    yield clip_case('torch', 'all-subnormal', ['subnormal', 'norm-underflow', 'as-it-is'], 'subnormal gradients: a factor of 1',
                    [[2.0**-149, -2.0**-130]], 1.0, (2,))
    yield clip_case('torch', 'max-norm-0', ['max-norm-0', 'as-it-is'], 'max_norm is 0: gradients become 0', [SEVEN], 0.0)
    yield clip_case('default', 'overflow', ['norm-overflow'], 'norm^2 overflows fp32, the norm does not', [[1e30, -3e29]], 1.0, (2,))
    yield clip_case('default', 'overflow-beside', ['norm-overflow'], 'one of three tensors: norm^2 overflows', [[1.0], [3e38], [2.0]],
                    0.5, (7, 257, 3))
    yield clip_case('default', 'overflow-sum', ['norm-overflow'], 'each square is finite, their sum is not', [[1.5e19]], 1.0, (300,))
    yield clip_case('default', 'overflow-unclipped', ['norm-overflow', 'factor'], 'the norm is large, max_norm larger', [[1e30]], 1e38,
                    (3,))
    yield clip_case('default', 'underflow', ['norm-underflow'], 'norm^2 is 0 in fp32, the norm is not', [[1e-30, -3e-31]], 1e-25,
                    (2,))
    yield clip_case('default', 'all-subnormal', ['subnormal', 'norm-underflow'], 'subnormal gradients: a factor of 1',
                    [[2.0**-149, -2.0**-130]], 1.0, (2,))
    yield clip_case('default', 'max-norm-0', ['max-norm-0'], 'max_norm is 0: no clipping', [SEVEN], 0.0)
    yield clip_case('default', 'vanishes', ['vanishes', 'skip'], 'the factor is 0 in fp32: skipped', [[3e38]], 1e-30, (2,),
                    bad=(None, None))
    yield clip_case('default', 'product', ['product', 'skip'], 'gradients are finite, gradients times 1 / s are not', [[3e38]], 1.0,
                    (2,), scale=2.0**-8)
    mixed = [0.1, -0.7, 0.013, 1.9, -3.3, 0.00021, 0.55]
    for n in (255,), (256,), (257,), (513,), (4000,), (16383,), (16384,), (16385,), (300, 16385, 1), (16385, 16385, 16385):
        yield clip_case('default', 'order-' + '-'.join(map(str, n)), ['norm-order'], 'chunks of 16384, in them 256 lanes',
                        [mixed, mixed[2:], mixed[::-1]][:len(n)], 0.5, n)
    yield clip_case('any', 'many', ['norm'], 'more than one chunk: near, in any order', [mixed, mixed[2:]], 0.5, (16385, 300), ulp=32)

# ------------------------------------------------------------------------ convert
# x86's instructions are the original of NaNs (VCVTPS2PH, VCVTNEPS2BF16), torch of all else.

HARDWARE = """
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#pragma GCC target("avx512f,avx512bf16,avx512vl,f16c")
void fp16(const uint32_t *x, uint16_t *y, size_t n) {
    for (size_t i = 0; i < n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps((const float *)(x + i)), 0));
}
void wide(const uint16_t *x, uint32_t *y, size_t n) {
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps((float *)(y + i), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
}
void bf16(const uint32_t *x, uint16_t *y, size_t n) {
    for (size_t i = 0; i < n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i), (__m128i)_mm256_cvtneps_pbh(_mm256_loadu_ps((const float *)(x + i))));
}
"""
hardware = None


def by_hardware(x, dtype):
    global hardware
    if not hardware:
        with tempfile.TemporaryDirectory() as d:
            with open(d + '/h.c', 'w') as file:
                file.write(HARDWARE.replace('#pragma', '//'))
            subprocess.run(['cc', '-O2', '-mf16c', '-mavx512f', '-mavx512vl', '-mavx512bf16', '-shared', '-fPIC',
                            d + '/h.c', '-o', d + '/h.so'], check=True)
            hardware = ctypes.CDLL(d + '/h.so')
    n = len(x)
    x = np.concatenate([x, np.zeros(-n % 8, x.dtype)])
    y = np.empty(len(x), np.uint32 if dtype == 'wide' else np.uint16)
    getattr(hardware, dtype)(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p),
                             ctypes.c_size_t(len(x)))
    return y[:n]


def narrow(x, dtype):
    """Of uint32 bits: torch's, and the hardware's where that is NaN; they agree elsewhere, but for what
    VCVTNEPS2BF16 flushes. NumPy agrees, too."""
    y = torch.from_numpy(x.view(np.float32)).to(HALF[dtype]).view(torch.int16).numpy().view(np.uint16)
    nan = (x & 0x7fffffff) > 0x7f800000
    hard = by_hardware(x, dtype)
    flushed = (x & 0x7f800000) == 0 if dtype == 'bf16' else np.zeros(len(x), bool)
    assert (y == hard)[~nan & ~flushed].all()
    if dtype == 'fp16':
        with np.errstate(all='ignore'):
            assert (y == x.view(np.float32).astype(np.float16).view(np.uint16))[~nan].all()
    return np.where(nan, hard, y)


def widen(y, dtype):
    """All of it exact; a NaN that signals is made quiet by VCVTPH2PS; bf16's are bits that are shifted."""
    t = torch.from_numpy(y.view(np.int16)).view(HALF[dtype]).float().view(torch.int32).numpy().view(np.uint32)
    if dtype == 'bf16':
        return y.astype(np.uint32) << 16
    nan, hard = (y & 0x7fff) > 0x7c00, by_hardware(y, 'wide')
    assert (t == hard)[~nan].all() and (y.view(np.float16).astype(np.float32).view(np.uint32) == t)[~nan].all()
    return np.where(nan, hard, t)


def digest(i, y):
    """The sum of (2 i + 1) * (y + 1), mod 2^64: no single fault leaves it."""
    with np.errstate(over='ignore'):
        return int(((2 * i.astype(np.uint64) + 1) * (y.astype(np.uint64) + 1)).sum(dtype=np.uint64))


NAN_OF = {'fp16': 0x7e00, 'bf16': 0x7fc0, 'fp32': 0x7fc00000}


def digest_over(of, to, step, payload):
    """Of all floats, or all 2^16 of a 16-bit type; without payload any NaN is the type's quiet one, positive."""
    total, sha, end = 0, hashlib.sha256(), 2**32 if of == 'fp32' else 2**16
    for begin in range(0, end, 2**24 * step):
        i = np.arange(begin, min(begin + 2**24 * step, end), step, dtype=np.uint64)
        y = narrow(i.astype(np.uint32), to) if of == 'fp32' else widen(i.astype(np.uint16), of)
        if not payload:
            y = np.where(y.astype(np.uint32) & (0x7fffffff if to == 'fp32' else 0x7fff) > {
                'fp16': 0x7c00, 'bf16': 0x7f80, 'fp32': 0x7f800000}[to], NAN_OF[to], y)
        total = (total + digest(i, y)) % 2**64
        sha.update(y.astype('<u4' if to == 'fp32' else '<u2').tobytes())
    return dict(step=step, nan='kept' if payload else 'one', sum='0x%016x' % total, sha256=sha.hexdigest())


def boundaries(dtype):
    """Every half and what lies around the middle between it and the next, of the halves that matter."""
    top = {'fp16': 0x7c00, 'bf16': 0x7f80}[dtype]
    some = {0, 1, 2, 3, top - 2, top - 1, 0x3c00, 0x3c01, 0x3f80, 0x3f81}
    some |= {1 << k for k in range(4, 14)} | {(1 << k) - 1 for k in range(4, 14)}
    shift = 13 if dtype == 'fp16' else 16
    out = set()
    for h in some:
        if h >= top:
            continue
        a, b = (int(widen(np.array([x], np.uint16), dtype)[0]) for x in (h, h + 1))
        if h + 1 == top:
            b = a + (1 << shift)
        middle = float_of('0x%08x' % a) / 2 + float_of('0x%08x' % b) / 2
        m = struct.unpack('<I', struct.pack('<f', middle))[0]
        out |= {a, a + 1, m - 1, m, m + 1, b - 1, b}
    return sorted(x for x in out if 0 <= x < 0x7f800000)


def convert_case(what, comment, tags, dtype, inputs, to='narrow', demand='must'):
    if to == 'narrow':
        x = np.array(inputs, np.uint32)
        pairs = [['0x%08x' % a, '0x%04x' % b] for a, b in zip(x, narrow(x, dtype))]
        config = {'from': 'fp32', 'to': dtype}
    else:
        x = np.array(inputs, np.uint16)
        pairs = [['0x%04x' % a, '0x%08x' % b] for a, b in zip(x, widen(x, dtype))]
        config = {'from': dtype, 'to': 'fp32'}
    source = version('torch') + ', numpy ' + np.__version__
    if tags[0].startswith('nan'):
        source = 'x86 ' + {'fp16': 'VCVTPS2PH', 'bf16': 'VCVTNEPS2BF16'}[dtype] if to == 'narrow' else (
            'x86 VCVTPH2PS' if dtype == 'fp16' else 'bits that are shifted')
    return dict(id='%s-%s/%s' % (config['from'], config['to'], what), system='convert', source=source,
                original='read' if source.startswith('bits') else 'run', demand=demand, comment=comment, tags=tags,
                config=config, pairs=pairs)


def convert_family():
    nans = [0x7fffffff, 0xffffffff, 0x7f800001, 0xff800001, 0x7fc00000, 0xffc00000, 0x7fbfffff, 0x7f80ffff,
            0x7f810000, 0x7fc12345, 0x7f8fffff, 0x7fa00000, 0xffbfe000, 0x7fff8000, 0x7fffe000]
    for dtype in 'fp16', 'bf16':
        near = boundaries(dtype)
        normal = 0x38800000 if dtype == 'fp16' else 0x00800000
        top = 0x477fe000 if dtype == 'fp16' else 0x7f7f0000
        yield convert_case('ties', 'halfway between two, and beside it', ['ties', 'rounding'], dtype,
                           [x for x in near if normal <= x < top])
        yield convert_case('subnormal', 'the result is subnormal, or 0', ['subnormal', 'rounding'], dtype,
                           [x for x in near if x < normal] + [1, 0x007fffff, 0x33000000, 0x33000001, 0x33800000, 0x32ffffff,
                                                              0x387fffff, 0x387fe000])
        yield convert_case('overflow', 'the largest finite value, and what rounds past it', ['overflow'], dtype,
                           [x for x in near if x >= top] + [0x477fefff, 0x477ff000, 0x47800000, 0x7f7f7fff, 0x7f7f8000,
                                                            0x7f7fffff])
        yield convert_case('signs', 'zeros, infinities, negative numbers', ['zero-inf', 'sign'], dtype,
                           [0, 0x80000000, 0x7f800000, 0xff800000, 0x80000001, 0xbf800000, 0xc77fe000, 0xff7fffff,
                            0xb3000000, 0xb3000001])
        yield convert_case('nan', 'NaN becomes NaN', ['nan'], dtype, nans)
        yield convert_case('nan-payload', "x86's: upper bits are kept, the quiet bit is set", ['nan-payload'], dtype, nans,
                           demand='may')
        yield convert_case('exact', 'no rounding', ['exact'], dtype, sorted(
            {0, 1, 0x3ff, 0x400, 0x7bff, 0x7c00, 0x8000, 0x8001, 0xfc00, 0x3c00, 0x7f, 0x80, 0x7f7f, 0x7f80, 0xff80, 0x3f80} -
            ({0x7f7f, 0x7f80, 0xff80} if dtype == 'fp16' else set())), 'widen')
        some = [0x7c01, 0x7dff, 0x7e00, 0x7fff, 0xfc01, 0xfe55] if dtype == 'fp16' else [
            0x7f81, 0x7fbf, 0x7fc0, 0x7fff, 0xff81, 0xffd5]
        yield convert_case('nan', 'NaN becomes NaN', ['nan'], dtype, some, 'widen')
        yield convert_case('nan-payload', {
            'fp16': "x86's: all bits are kept, the quiet bit is set", 'bf16': 'bits that are shifted: a NaN that signals does so '
            'as fp32'}[dtype], ['nan-payload'], dtype, some, 'widen', demand='may')
        for of, to, step, payload in ('fp32', dtype, 65537, 0), ('fp32', dtype, 65537, 1), ('fp32', dtype, 1, 0), \
                (dtype, 'fp32', 1, 0), (dtype, 'fp32', 1, 1):
            yield dict(id='%s-%s/all%s%s' % (of, to, '-65537th' if step > 1 else '', '-payload' if payload else ''),
                       system='convert', source=version('torch') + (', x86 for NaN' if payload else ''), original='run',
                       demand='may' if payload else 'must', tags=['digest'] + ['nan-payload'] * payload,
                       comment=('all 2^32 floats' if step == 1 and of == 'fp32' else 'all 2^16 numbers' if step == 1 else
                                'every 65537th float') + (', with the payloads of NaN' if payload else ''),
                       config={'from': of, 'to': to}, digest=digest_over(of, to, step, payload))


FAMILIES = {'scale': scale_family, 'order': order_family, 'skip': skip_family, 'clip': clip_family,
            'convert': convert_family}


def write(family, cases):
    used = {t for c in cases for t in c['tags']}
    tags = {t: dict(finds=f, seen=seen) for t, (f, seen) in TAGS.items() if t in used}
    sources = {}  # by a short name: the project's, and a number
    for c in cases:
        own, k = dict(text=c['source'], original=c.pop('original')), 1
        name = c['source'] = re.split('[ ,;]', own['text'].lower())[0]
        while sources.setdefault(c['source'], own) != own:
            k += 1
            c['source'] = '%s-%d' % (name, k)
    line = lambda x: json.dumps(x, separators=(',', ':'))
    ids = [c['id'] for c in cases]
    assert len(set(ids)) == len(ids)
    with open(OUT / (family + '.json'), 'w') as file:
        file.write('{"$schema": "schema/%s.json", "schema": "amp-vectors-2", "version": "%s", "license": "LICENSE",\n' % (
            family, VERSION))
        file.write(' "family": "%s", "tests": %d,\n "sources": {\n' % (family, len(cases)))
        file.write(',\n'.join('  %s: %s' % (line(t), line(x)) for t, x in sources.items()))
        file.write('},\n "tags": {\n')
        file.write(',\n'.join('  %s: %s' % (line(t), line(x)) for t, x in tags.items()))
        file.write('},\n "cases": [\n')
        file.write(',\n'.join('  ' + line(c) for c in cases))
        file.write(']}\n')
    print('%s: %d cases, %d originals run' % (family, len(cases), sum(x['original'] == 'run' for x in sources.values())),
          file=sys.stderr)


for family in sys.argv[3:] or FAMILIES:
    write(family, [dict(c, id='%s/%s' % (family, c['id'])) for c in FAMILIES[family]()])
