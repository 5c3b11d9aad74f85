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
import ast, copy, ctypes, hashlib, importlib.metadata as metadata, json, math, os, pathlib, struct, subprocess
import sys, tempfile, types

os.environ.update(TF_CPP_MIN_LOG_LEVEL='3', KERAS_BACKEND='tensorflow', CUDA_VISIBLE_DEVICES='')
import numpy as np
import torch

SOURCES = pathlib.Path(sys.argv[1])
OUT = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent)
INF, NAN = float('inf'), float('nan')


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
    source, has = 'flax ' + metadata.version('flax') + ', flax/training/dynamic_scale.py', '.XNRI'

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
    source = 'jmp ' + metadata.version('jmp') + ', jmp/_src/loss_scale.py'

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

    scale = property(lambda self: float(self.s.loss_scale))
    good = property(lambda self: int(self.s.counter))


class JmpStatic(Jmp):
    def __init__(self, c):
        super().__init__(dict(c, growth_interval=1, growth_factor=2.0, min_scale=1.0))
        self.s = self.jmp.StaticLossScale(self.jnp.float32(c['init_scale']))

    good = None


class Keras(System):
    source = 'keras ' + metadata.version('keras') + ', keras/src/optimizers/loss_scale_optimizer.py'

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

    def resume(self):
        state = [v.numpy() for v in self.o.variables]
        self.__init__(self.c)
        for v, x in zip(self.o.variables, state):
            v.assign(x)

    scale = property(lambda self: float(self.o.dynamic_scale.numpy()))
    good = property(lambda self: int(self.o.step_counter.numpy()))


class TfKeras(System):
    source = ('tf_keras ' + metadata.version('tf_keras') +
              ', tf_keras/src/mixed_precision/loss_scale_optimizer.py')
    has = '.XNRI'

    def __init__(self, c):
        import tensorflow as tf, tf_keras
        super().__init__(c)
        self.tf = tf
        self.v = tf.Variable([1.0])
        self.o = tf_keras.mixed_precision.LossScaleOptimizer(
            tf_keras.optimizers.SGD(0.5), initial_scale=c['init_scale'],
            dynamic_growth_steps=c['growth_interval'])

    def iterate(self, event):
        before = self.v.numpy()[0]  # iterations counts skipped steps, too
        self.o.apply_gradients([(self.tf.constant([self.gradient(event)]), self.v)])
        return self.v.numpy()[0] != before

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
    directory, consecutive = 'deepspeed-0.16.9', False

    def __init__(self, c):
        super().__init__(c)
        deepspeed_stubs()
        self.s = run_file(self.directory + '/deepspeed/runtime/fp16/loss_scaler.py', 'ds').DynamicLossScaler(
            init_scale=c['init_scale'], scale_window=c['growth_interval'], min_scale=c['min_scale'],
            delayed_shift=c['hysteresis'], consecutive_hysteresis=self.consecutive,
            raise_error_at_min_scale=False, dtype=None)

    def iterate(self, event):
        self.s.update_scale(event != '.')
        return event == '.'

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

    scale = property(lambda self: f32(self.s.cur_scale))
    good = property(lambda self: self.s.cur_iter - self.s.last_overflow_iter - 1)


class Apex(System):
    source = 'apex before cb65b8ed, apex/amp/scaler.py, update_scale'

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

    scale = property(lambda self: f32(self.s._loss_scale))
    good = property(lambda self: self.s._unskipped)


class ApexHysteresis(System):
    source = 'apex 6424da3b, csrc/update_scale_hysteresis.cu, compiled by c++'
    kernel = None

    def __init__(self, c):
        super().__init__(c)
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
        self.kernel(by(self.s), by(self.n), by(self.h), by(ctypes.c_float(event != '.')),
                    ctypes.c_double(c['growth_factor']), ctypes.c_double(c['backoff_factor']),
                    c['growth_interval'], c['hysteresis'])
        return event == '.'

    def resume(self):
        self.s, self.n, self.h = (type(x)(x.value) for x in (self.s, self.n, self.h))

    scale = property(lambda self: self.s.value)
    good = property(lambda self: self.n.value)
    left = property(lambda self: max(self.h.value - 1, 0))


class Megatron(System):
    source, has = 'Megatron-LM 0.20.0 (d98e8a64), megatron/core/optimizer/grad_scaler.py', '.XNRI'

    def __init__(self, c):
        super().__init__(c)
        torch.Tensor.cuda = lambda self, *a: self
        torch.cuda.current_device = lambda: 0
        self.s = run_file('Megatron-LM/megatron/core/optimizer/grad_scaler.py', 'megatron').DynamicGradScaler(
            c['init_scale'], c['min_scale'], c['growth_factor'], c['backoff_factor'], c['growth_interval'],
            c['hysteresis'])

    def iterate(self, event):
        self.s.update(event != '.')
        return event == '.'

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

    scale = property(lambda self: f32(self.s.loss_scale))
    good = property(lambda self: self.s._unskipped)


class Fairseq(System):
    source = 'fairseq 0.12.2 (3d262bb2), fairseq/optim/dynamic_loss_scaler.py'

    def __init__(self, c):
        super().__init__(c)
        self.s = run_file('fairseq/fairseq/optim/dynamic_loss_scaler.py', 'fairseq').DynamicLossScaler(
            c['init_scale'], c['growth_factor'], c['growth_interval'], c['tolerance'], None, c['min_scale'])

    def iterate(self, event):
        try:
            self.s.check_overflow(self.gradient(event))
        except OverflowError:
            return False
        self.s.update()
        return True

    scale = property(lambda self: f32(self.s.loss_scale))
    good = property(lambda self: self.s._iter - self.s._last_overflow_iter - 1)


class Marian(System):
    source = 'Marian 1.12.43 (c9f287db), src/training/graph_group.cpp, tensors/gpu/tensor_operators.cu'
    how = 'read'

    def __init__(self, c):
        super().__init__(c)
        self.scale, self.good = f32(c['init_scale']), 0

    def iterate(self, event):  # inf is clipped to the largest finite value, NaN at the minimum set to 0
        if event == 'N' and self.scale != self.c['min_scale']:
            if self.scale > self.c['min_scale']:
                self.scale = f32(self.scale / self.c['growth_factor'])
            self.good = 0
            return False
        self.good += 1
        if self.good % self.c['growth_interval'] == 0:
            self.scale, self.good = f32(self.scale * self.c['growth_factor']), 0
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
        self.scale, self.good, self.left = c['init_scale'], 0, c['hysteresis'] - 1

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
        self.scale = x

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
    'exact': ('halves to fp32 are exact', []),
    'digest': ('every step-th of all 2^32 floats', []),
    'counter': ('random bits of a counter: seed, tensor, step, element, array; no order of work, no block size',
                ['llm.c: adamw.cuh draws by block and thread']),
    'split': ('fp32 as bf16 and 16 bits more comes back whole, and its model is the nearest', []),
    'stochastic': ('up with the probability of the distance; none becomes inf; inf and NaN stay',
                   ['torchao: quant_utils.py, an overflow of inf and NaN']),
    'group': ('the power of two of 32 moments, with room to be rounded up', []),
    '8-bit': ('codes of moments: a float with 4 bits behind the point, v never 0', []),
    'as-it-is': ('what the system does, right or not', []),
    'unchecked': ('no gradient is looked at', ['tiny-cuda-nn: trainer.h, adam.h']),
}


def mixture(n, seed=1):
    text = ''
    for _ in range(n):
        seed = (seed * 1103515245 + 12345) % 2**31
        text += 'X' if seed >> 16 & 3 == 0 else '.'
    return text


SHORT = 'XX....X....X.XX.........X...'


def scripts(name, d):
    """What each system goes through: tags, changes of its config, events."""
    held = f32 if name in ('megatron', 'flax') else float  # what they make of a factor
    low = d['min_scale'] or {'torch': 2.0**-147, 'apex_hysteresis': 2.0**-147}.get(name, 1.0)
    yield (['off-by-one', 'growth-by-scale', 'reset', 'backoff', 'refill', 'delayed'],
           dict(growth_interval=4), SHORT)
    yield ['off-by-one'], dict(growth_interval=1), '...X..XX....'
    yield ['off-by-one', 'refill'], dict(growth_interval=2), SHORT
    if d['hysteresis']:
        for hysteresis in 1, 3:
            yield (['refill', 'backoff'], dict(growth_interval=3, hysteresis=hysteresis),
                   'X.X.XX..XXX...XXXX....X.X.X......XXXXX..')
    yield ['floor', 'backoff'], dict(growth_interval=3, init_scale=low * 4), 'XXXXXX........X.XX'
    yield ['cap'], dict(growth_interval=1, init_scale=2.0**22), '......X...'
    yield ['cap'], dict(growth_interval=1, init_scale=2.0**22 * 1.5), '...X.X..'
    if not d['max_scale'] or d['max_scale'] > 2.0**24:
        yield ['cap'], dict(growth_interval=2, init_scale=2.0**125), '..........X.XX....'
    yield ['resume'], dict(growth_interval=3), 'R.R..R.R.X.RXR...R..RXXR.XR...R'
    yield ['nan', 'backoff', 'reset'], dict(growth_interval=3), '..N...N.NN...X.N....'
    yield ['rounding'], dict(growth_interval=2, init_scale=1000.0), '......XXXX..X....'
    yield ['mixture'], dict(growth_interval=3), mixture(120)
    n = d['growth_interval']
    yield (['default-schedule'], {},
           [('.', n - 1), '.', '.', 'X', 'X', ('.', n - 1), '.', '.', 'N', ('.', n), ('.', n)])
    yield ['by-hand'], dict(growth_interval=4), '..H....H.HH....H....'
    yield ['set-scale'], dict(growth_interval=4), ['.', '.', ('S', 4096.0), '.', '.', '.', 'X', ('S', 512.0)] + ['.'] * 5
    yield (['interval-lowered'], dict(growth_interval=9),
           ['.'] * 6 + [('I', 4)] + ['.'] * 6 + ['X'] + ['.'] * 5 + [('I', 5)] + ['.'] * 6)
    if name in ('torch', 'apex_hysteresis', 'default', 'megatron', 'flax'):
        yield (['rounding'], dict(growth_interval=2, growth_factor=held(4 / 3), backoff_factor=held(0.7)),
               '....XX..X......XX')


SPECIAL = {
    'static': [(['backoff', 'nan'], {}, '..XX.N....')],
    'tiny-cuda-nn': [(['unchecked', 'nan'], {}, '..XX.N....')],
    'marian': [(['clip', 'nan', 'off-by-one'], dict(growth_interval=3), '..X..N...NN.X.X.X..N'),
               (['prune', 'floor'], dict(growth_interval=3, init_scale=8.0), 'NNNNNN..N...NNN.....'),
               (['prune', 'floor'], dict(growth_interval=9, init_scale=6.0), 'NNNNN.N'),
               (['resume'], dict(growth_interval=3), 'R..R.NRX.R..R.')],
    'flashlight': [(['as-it-is'], dict(growth_interval=4), '....X....X.'),
                   (['as-it-is'], dict(growth_interval=64, init_scale=60.0), '.....X..X....'),
                   (['cap', 'backoff'], dict(init_scale=31996.0), '.....X..')],
    'fairseq': [(['off-by-one', 'reset', 'backoff'], dict(growth_interval=4), SHORT),
                (['tolerance'], dict(growth_interval=4, tolerance=0.25), SHORT + mixture(60)),
                (['tolerance'], dict(growth_interval=3, tolerance=0.5), 'XX..X.XXX....X...X.XX.' + mixture(60)),
                (['rounding'], dict(growth_interval=2, init_scale=1000.0), '......XXXX..X....'),
                (['mixture'], dict(growth_interval=3), mixture(120)),
                (['default-schedule'], {}, [('.', 1998), '.', '.', '.', 'X', ('.', 1999), '.', '.', 'N'])],
}


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
            n = 1
        elif event == 'I':
            s.set_interval(n)
        else:
            for _ in range(n):
                taken = s.iterate(event)
        rows.append([event, n, hexa(s.scale), s.good, s.left,
                     None if taken is None else int(taken)])
    return rows


def scale_family():
    for name, (system, own) in SYSTEMS.items():
        defaults = dict(CONFIG, **own)
        for tags, changes, events in SPECIAL.get(name) or scripts(name, defaults):
            needed = {e[0] for e in events} - set('.XNR')
            if not needed <= set(system.has):
                continue
            config = dict(defaults, **changes)
            yield dict(system=name, source=system.source, original=system.how, tags=tags,
                       config={k: hexa(v) if isinstance(v, float) else v for k, v in config.items()},
                       rows=scale_rows(system, config, events))

# -------------------------------------------------------------------------- order
# Rows: the call, its argument (of backward: what the buffer of gradients then holds), the answer, the
# gradients after it (null: whatever), the scale after it.

def bits32(x):
    return '0x%08x' % struct.unpack('<I', struct.pack('<f', x))[0]


def float_of(bits):
    return struct.unpack('<f', struct.pack('<I', int(bits, 16)))[0]


def order_rows(config, calls):
    t, rows, stepped = Torch(config), [], []
    t.p.grad = None
    t.o.step = lambda *a, **k: stepped.append(1)
    for call in calls:
        call, argument = call if isinstance(call, tuple) else (call, None)
        answer = 'ok'
        try:
            if call == 'backward':
                t.p.grad = torch.tensor(argument)
            elif call == 'unscale':
                t.s.unscale_(t.o)
            elif call == 'step':
                before = len(stepped)
                t.s.step(t.o)
                answer = 'taken' if len(stepped) > before else 'skipped'
            elif call == 'update':
                t.s.update()
            else:
                t.s._scale.fill_(argument)
        except (RuntimeError, AssertionError):
            answer = 'refused'
        gradient = t.p.grad.tolist() if t.p.grad is not None else None
        if gradient and not all(map(math.isfinite, gradient)) and call != 'backward':
            gradient = None
        rows.append([call, hexa(argument) if isinstance(argument, float) else
                     argument and [bits32(x) for x in argument], answer,
                     gradient and [bits32(x) for x in gradient], hexa(t.scale)])
    return rows


def added(*gradients):
    return sum(map(torch.tensor, gradients)).tolist()


def order_family():
    g, h = [65536.0, -3.0, 1e-3], [1.0, 0.5, -7.0]
    iteration = [('backward', g), 'unscale', 'step', 'update']
    bad = [('backward', [1.0, INF, 2.0]), 'unscale', 'step', 'update']
    cases = [
        (['legal'], {}, iteration * 3),
        (['old-scale'], dict(growth_interval=1), iteration * 4),
        (['old-scale', 'skip'], dict(growth_interval=2), bad + iteration * 3 + bad + iteration),
        (['unscale-twice'], {}, [('backward', g), 'unscale', 'unscale', 'step', 'update'] + iteration),
        (['unscale-after-step'], {}, [('backward', g), 'unscale', 'step', 'unscale', 'update'] + iteration),
        (['step-twice'], {}, [('backward', g), 'unscale', 'step', 'step', 'update'] + iteration),
        (['update-unchecked'], {}, ['update'] + iteration + ['update'] + iteration),
        (['update-without-step'], {}, [('backward', g), 'unscale', 'update'] + iteration),
        (['accumulate'], {}, [('backward', g), ('backward', added(g, h)), ('backward', added(g, h, h)), 'unscale', 'step', 'update']),
        (['set-scale'], {}, iteration + [('scale', 1024.0)] + iteration),
        (['reciprocal'], dict(init_scale=1000.0), iteration * 3),
        (['reciprocal'], dict(init_scale=3e-5), [('backward', h), 'unscale', 'step', 'update']),
        (['finite-sum'], {}, [('backward', [3e38, 3e38, 3e38]), 'unscale', 'step', 'update'] + iteration),
        (['skip', 'nan'], {}, [('backward', [NAN, 1.0, 1.0]), 'unscale', 'step', 'update'] + iteration),
        (['subnormal'], {}, [('backward', [2.0**-126, 2.0**-120 * 1.25, -2.0**-149]), 'unscale', 'step', 'update']),
        (['subnormal'], dict(init_scale=2.0**-3), [('backward', [2.0**-149, -2.0**-130, 0.0]), 'unscale', 'step', 'update']),
    ]
    for tags, changes, calls in cases:
        config = dict(CONFIG, growth_interval=3, **{}) | changes
        yield dict(system='torch', source=Torch.source, original='run', tags=tags,
                   config={k: hexa(v) if isinstance(v, float) else v for k, v in config.items()},
                   rows=order_rows(config, calls))


# --------------------------------------------------------------------------- skip
# n elements that are all alike, but for one gradient, at `at`.

HALF = {'fp16': torch.float16, 'bf16': torch.bfloat16, 'fp32': torch.float32}


def half_bits(x, dtype):
    t = torch.tensor([x], dtype=torch.float32).to(HALF[dtype])
    if dtype == 'fp32':
        return bits32(x)
    return '0x%04x' % (int(t.view(torch.int16)[0]) & 0xffff)


def skip_case(dtype, n, at, bad, tags, lr=0.01, decay=0.1, steps=10, weight=0.75, m=0.5, v=0.25, gradient=3.0,
              scale=1024.0):
    number = {'inf': INF, '-inf': -INF, 'nan': NAN, '-nan': -NAN, 'signaling': NAN}[bad]
    w = torch.full((n,), weight, requires_grad=True)
    o = torch.optim.AdamW([w], lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay, foreach=False)
    w.grad = torch.zeros(n)
    o.step()
    with torch.no_grad():
        w.fill_(weight)
    state = o.state[w]
    state['exp_avg'].fill_(m)
    state['exp_avg_sq'].fill_(v)
    state['step'].fill_(steps)
    s = torch.amp.GradScaler('cpu', init_scale=scale)
    s.scale(w.sum())
    g = torch.full((n,), gradient).to(HALF[dtype])
    g[at] = number
    w.grad = g.float()
    s.step(o)
    s.update()
    assert (w == weight).all() and (state['exp_avg'] == m).all() and (state['exp_avg_sq'] == v).all()
    assert state['step'] == steps and s.get_scale() == scale / 2
    w.grad = torch.full((n,), gradient).to(HALF[dtype]).float()
    s.step(o)
    s.update()
    assert (w == w[0]).all()
    bits = dict(inf=(0x7c00, 0x7f80, 0x7f800000), nan=(0x7fff, 0x7fff, 0x7fffffff),
                signaling=(0x7c01, 0x7f81, 0x7f800001))[bad.strip('-')][list(HALF).index(dtype)]
    bits |= (bad[0] == '-') << (31 if dtype == 'fp32' else 15)
    return dict(
        system='adamw', source=version('torch') + ', torch/optim/adamw.py, torch/amp/grad_scaler.py',
        original='run', tags=tags,
        config=dict(dtype=dtype, n=n, lr=lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=decay,
                    scale=hexa(scale), steps=steps, weight=bits32(weight), m=bits32(m), v=bits32(v),
                    gradient=half_bits(gradient, dtype), at=at, bad=('0x%08x' if dtype == 'fp32' else '0x%04x') % bits),
        expect=dict(skipped=dict(weight=bits32(weight), m=bits32(m), v=bits32(v), steps=steps,
                                 scale=hexa(scale / 2), copy=half_bits(weight, dtype)),
                    taken=dict(weight=bits32(w[0].item()), m=bits32(state['exp_avg'][0].item()),
                               v=bits32(state['exp_avg_sq'][0].item()), steps=steps + 1, scale=hexa(scale / 2),
                               ulp=4)))


def skip_family():
    for dtype in HALF:
        for n, at in (1, 0), (7, 0), (7, 3), (7, 6), (33, 16), (257, 256), (16385, 16383), (16385, 16384):
            yield skip_case(dtype, n, at, 'inf', ['inf', 'position'])
        for bad in '-inf', 'nan', '-nan', 'signaling':
            yield skip_case(dtype, 7, 3, bad, ['nan' if 'inf' not in bad else 'inf'])
        yield skip_case(dtype, 7, 3, 'inf', ['step-count'], steps=1, m=0.1)
        yield skip_case(dtype, 7, 3, 'nan', ['step-count', 'nan'], steps=1, m=0.1)
        yield skip_case(dtype, 7, 3, 'inf', ['decay'], decay=1.0, lr=0.25)
        yield skip_case(dtype, 7, 3, 'inf', ['moments'], v=2.0**-10, m=2.0**-6)


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
    x = np.concatenate([x, np.zeros(-n % 8, np.uint32)])
    y = np.empty(len(x), np.uint16)
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
        assert (t == y.astype(np.uint32) << 16).all()
    return t


def digest(i, y):
    """The sum of (2 i + 1) * (y + 1), mod 2^64: no single fault leaves it."""
    with np.errstate(over='ignore'):
        return int(((2 * i.astype(np.uint64) + 1) * (y.astype(np.uint64) + 1)).sum(dtype=np.uint64))


def digest_over(dtype, step):
    total, sha = 0, hashlib.sha256()
    for begin in range(0, 2**32, 2**24 * step):
        i = np.arange(begin, min(begin + 2**24 * step, 2**32), step, dtype=np.uint64)
        y = narrow(i.astype(np.uint32), dtype)
        total = (total + digest(i, y)) % 2**64
        sha.update(y.astype('<u2').tobytes())
    return dict(step=step, sum='0x%016x' % total, sha256=sha.hexdigest())


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


def convert_case(tags, dtype, inputs, to='narrow'):
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
        source = 'x86 ' + {'fp16': 'VCVTPS2PH', 'bf16': 'VCVTNEPS2BF16'}[dtype] if to == 'narrow' else source
    return dict(system='convert', source=source, original='run', tags=tags, config=config, pairs=pairs)


def convert_family():
    nans = [0x7fffffff, 0xffffffff, 0x7f800001, 0xff800001, 0x7fc00000, 0xffc00000, 0x7fbfffff, 0x7f80ffff,
            0x7f810000, 0x7fc12345, 0x7f8fffff, 0x7fa00000, 0xffbfe000, 0x7fff8000, 0x7fffe000]
    for dtype in 'fp16', 'bf16':
        near = boundaries(dtype)
        normal = 0x38800000 if dtype == 'fp16' else 0x00800000
        top = 0x477fe000 if dtype == 'fp16' else 0x7f7f0000
        yield convert_case(['ties', 'rounding'], dtype, [x for x in near if normal <= x < top])
        yield convert_case(['subnormal', 'rounding'], dtype, [x for x in near if x < normal] +
                           [1, 0x007fffff, 0x33000000, 0x33000001, 0x33800000, 0x32ffffff, 0x387fffff, 0x387fe000])
        yield convert_case(['overflow'], dtype, [x for x in near if x >= top] +
                           [0x477fefff, 0x477ff000, 0x47800000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff])
        yield convert_case(['zero-inf', 'sign'], dtype, [0, 0x80000000, 0x7f800000, 0xff800000, 0x80000001, 0xbf800000,
                                                         0xc77fe000, 0xff7fffff, 0xb3000000, 0xb3000001])
        yield convert_case(['nan'], dtype, nans)
        yield convert_case(['nan-payload'], dtype, nans)
        yield convert_case(['exact'], dtype, sorted({0, 1, 0x3ff, 0x400, 0x7bff, 0x7c00, 0x8000, 0x8001, 0xfc00, 0x3c00,
                                                     0x7f, 0x80, 0x7f7f, 0x7f80, 0xff80, 0x3f80} -
                                                    ({0x7f7f, 0x7f80, 0xff80} if dtype == 'fp16' else set())), 'widen')
        for step in 65537, 1:
            yield dict(system='convert', source=version('torch') + ', x86 for NaN', original='run', tags=['digest'],
                       config={'from': 'fp32', 'to': dtype}, digest=digest_over(dtype, step))

# -------------------------------------------------------------------------- store
# No original: README.md's section 2 in integers and floats of numpy, which round as fp32 does.

def splitmix(x):
    x = (x + 0x9e3779b97f4a7c15) % 2**64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 % 2**64
    x = (x ^ x >> 27) * 0x94d049bb133111eb % 2**64
    return x ^ x >> 31


def random_bits(seed, tensor, step, element, array):
    key = splitmix(splitmix(splitmix(splitmix(seed) ^ tensor) ^ step) ^ element // 2**24)
    x = (element // 2 % 2**32 * 0x9e3779b9 + key) % 2**32
    x = ((x ^ x >> 16) * 0x7feb352d + (key >> 32)) % 2**32
    x = x ^ x >> 15
    for _ in range(array + 1):
        x = x * 0x846ca68b % 2**32
        x = x ^ x >> 16
    return x >> 16 if element % 2 else x & 0xffff


def stochastic_bf16(u, r):
    inner = u & 0x7fffffff
    return u >> 16 if inner >= 0x7f7f0000 else u + r >> 16


def stochastic_fp16(u, r):
    sign, x = u >> 31 << 15, abs(float_of('0x%08x' % u))
    if x != x:
        return sign | 0x7e00
    if x >= 65504:
        return sign | (0x7c00 if x == INF else 0x7bff)
    exponent = -14 if x < 2.0**-14 else math.frexp(x)[1] - 1
    units = round(math.ldexp(x, 23 - exponent))  # of 2^-37 below 2^-14, to nearest even; else exact
    return sign | (units + (r >> 3) >> 13) + (exponent + 14 << 10)


def split(u):
    """The upper 16 bits of the nearest bf16, of two the one away from zero: the rule of apex and Transformer
    Engine (bf16 is hi, or hi + 1 where int16(low) < 0); and the master again."""
    return (u + 0x8000) >> 16 & 0xffff, u


def group_exponent(largest):
    if largest > 0x7f800000:
        return 255
    return min(max(largest + 0x90000 >> 23, 1), 253)


def code(u, exponent, r, first):
    least = np.float32(2.0**-7 if first else 2.0**-15)
    y = min(np.abs(np.float32(float_of('0x%08x' % u)) * np.float32(2.0**(127 - exponent))), np.float32(1.9296875))
    steps = int(np.float32(y + least).view(np.uint32)) - int(least.view(np.uint32)) + 8 * r >> 19
    return steps | u >> 31 << 7 if first else max(steps, 1)


def value(c, exponent, first):
    least = np.float32(2.0**-7 if first else 2.0**-15)
    bits = ((c & 0x7f if first else c) << 19) + int(least.view(np.uint32))
    y = (np.uint32(bits).view(np.float32) - least) * np.float32(2.0**(exponent - 127))
    return int(y.view(np.uint32)) | (c >> 7 << 31 if first else 0)


def store_family():
    rng = np.random.default_rng(30)
    word = lambda: int(rng.integers(2**32))
    finite = lambda: (lambda u: u ^ 0x40000000 if u & 0x7f800000 == 0x7f800000 else u)(word())
    edges = [0, 0x80000000, 1, 0x807fffff, 0x00800000, 0x3f7fffff, 0x3f800000, 0x3f808000, 0x3f818000, 0x3f807fff,
             0x7f7effff, 0x7f7f0000, 0x7f7f7fff, 0x7f800000, 0xff800000]
    fp16 = [0x33000000, 0x33800000, 0x387fffff, 0x38800000, 0x387fc000, 0x477fdfff, 0x477fe000, 0x477fefff,
            0x477fffff, 0x47800000, 0x2edbe6ff, 0xb8801234]
    near = lambda: word() & 0x807fffff | int(rng.integers(100, 145)) << 23
    def case(what, tags, pairs, source='README.md, section 3'):
        return dict(system=what, source=source, original='read', tags=tags, config={},
                    pairs=[[list(map(hex, a)), list(map(hex, b))] for a, b in pairs])
    inputs = [(1, 0, 1, i, k) for i in (0, 1, 2, 3, 2**24 - 1, 2**24, 2**32 + 5) for k in (0, 1, 2)]
    inputs += [(word() << 32 | word(), word() % 100, word(), word() << 8, word() % 3) for _ in range(20)]
    yield case('random', ['counter'], [([s & 0xffffffff, s >> 32, t, n, i & 0xffffffff, i >> 32, k],
                                        [random_bits(s, t, n, i, k)]) for s, t, n, i, k in inputs])
    yield case('split', ['split'], [([u], split(u)) for u in edges + [finite() for _ in range(40)]],
               'Transformer Engine, transformer_engine/common/multi_tensor/adam.cu; apex, DistributedFusedAdam')
    draws = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff]
    yield case('stochastic-bf16', ['stochastic'], [([u, r], [stochastic_bf16(u, r)]) for u in edges[:11] + edges[12:] +
                                                   [finite() for _ in range(12)] for r in draws])
    yield case('stochastic-fp16', ['stochastic', 'subnormal'], [([u, r], [stochastic_fp16(u, r)]) for u in edges[:2] +
               edges[5:8] + edges[13:] + fp16 + [near() for _ in range(16)] for r in draws + [7, 8, 0xfff8]])
    yield case('exponent', ['group'], [([u], [group_exponent(u)]) for u in (0, 1, 0x3f800000, 0x3ff6ffff, 0x3ff70000,
               0x3fffffff, 0x40000000, 0x7e800000, 0x7f000000, 0x7f7fffff, 0x7f800000, 0x7fc00000, 0x00ffffff)])
    for first in 1, 0:
        pairs = []
        for exponent in 1, 64, 127, 200, 253:
            scale = 2.0**(exponent - 127)
            for y in [0.0, 2.0**-30, 2.0**-16, 2.0**-15, 2.0**-8, 2.0**-7, 0.1, 0.5, 1.0, 1.5, 1.92]:
                x = float(np.float32(y * scale))
                if exponent == 1 and y < 2.0**-8 and y:
                    continue
                for r in draws[::2]:
                    u = int(bits32(-x if first and r & 1 else x), 16)
                    pairs.append(([u, exponent, r], [code(u, exponent, r, first)]))
        yield case('m-code' if first else 'v-code', ['8-bit', 'stochastic'], pairs)
        yield case('m-value' if first else 'v-value', ['8-bit'],
                   [([c, e], [value(c, e, first)]) for e in (1, 127, 253) for c in range(0, 256, 5)])


FAMILIES = {'scale': scale_family, 'order': order_family, 'skip': skip_family, 'convert': convert_family,
            'store': store_family}


def check_golden():
    """tests/golden's traces, which were written from the sources' rules, are the originals'."""
    lines = (pathlib.Path(__file__).parent.parent / 'golden/scaler_traces.txt').read_text().split('trace ')[1:]
    for words in map(str.split, lines):
        name, interval, hysteresis, words = words[0], int(words[4]), int(words[6]), words[9:]
        system, own = SYSTEMS[name]
        s = system(dict(CONFIG, **own) | dict(init_scale=65536.0, growth_interval=interval, hysteresis=hysteresis))
        pattern = ''.join(w for w in words if w[0] in 'X.')
        for event, exponent in zip(pattern, (w for w in words if w[0] not in 'X.'), strict=True):
            s.iterate(event)
            assert s.scale == 2.0**int(exponent), (name, interval)
    print('golden: %d traces are those of the originals' % len(lines), file=sys.stderr)


def write(family):
    cases = list(FAMILIES[family]())
    used = {t for c in cases for t in c['tags']}
    tags = {t: dict(finds=f, seen=seen) for t, (f, seen) in TAGS.items() if t in used}
    line = lambda x: json.dumps(x, separators=(', ', ': '))
    with open(OUT / (family + '.json'), 'w') as file:
        file.write('{"schema": "amp-vectors-1", "family": "%s",\n "tags": {\n' % family)
        file.write(',\n'.join('  %s: %s' % (line(t), line(x)) for t, x in tags.items()))
        file.write('},\n "cases": [\n')
        file.write(',\n'.join('  ' + line(dict(id='%s-%d' % (family, i), **c)) for i, c in enumerate(cases, 1)))
        file.write(']}\n')
    print('%s: %d cases, %d originals run' % (family, len(cases), len(
        {c['source'] for c in cases if c['original'] == 'run'})), file=sys.stderr)


for family in sys.argv[3:] or ['golden', *FAMILIES]:
    check_golden() if family == 'golden' else write(family)
