#!/usr/bin/env python3
"""Writes scaler_traces.txt: the loss scale after each update, in thirteen systems and held static.

Each function below was written from the source of the system in its name (the comment beside it
sums that up), not from amp.h, so the two can disagree. Run it in this directory:

    python3 make_traces.py > scaler_traces.txt
"""
import math
import struct

FLT_MAX = 3.4028234663852886e38
FLT_MIN = 1.1754943508222875e-38


def f32(x):
    """Round to nearest even to fp32; too large is inf."""
    try:
        return struct.unpack('<f', struct.pack('<f', x))[0]
    except OverflowError:
        return float('inf')


def finite(x):
    return abs(x) != float('inf')


def torch(s, interval, hysteresis):  # torch/amp/grad_scaler.py, AmpKernels.cu: a float on device
    tracker = 0
    while True:
        bad = yield s
        if bad:
            s, tracker = f32(s * 0.5), 0
            continue
        tracker += 1
        if tracker == interval:
            if finite(f32(s * 2.0)):
                s = f32(s * 2.0)
            tracker = 0


def default(s, interval, hysteresis):  # torch's schedule in [2^-14, 2^24], hysteresis as apex has
    tracker, left = 0, hysteresis
    while True:
        bad = yield s
        if bad:
            tracker = 0
            left -= 1
            if left <= 0:
                left = 1
                s = max(f32(s * 0.5), 2.0 ** -14)
        else:
            left = hysteresis
            tracker += 1
            if tracker == interval:
                tracker = 0
                s = min(f32(s * 2.0), 2.0 ** 24)


def apex(s, interval, hysteresis):  # apex/amp/scaler.py: a Python float, min None, max 2^24
    unskipped = 0
    while True:
        bad = yield s
        if bad:
            s /= 2.0
            unskipped = 0
        else:
            unskipped += 1
        if unskipped == interval:
            s = min(2.0 ** 24, s * 2.0)
            unskipped = 0


def apex_hysteresis(s, interval, hysteresis):  # csrc/update_scale_hysteresis.cu
    growth, left = 0, hysteresis
    while True:
        bad = yield s
        if bad:
            left -= 1
            growth = 0
            if left > 0:
                continue
            s = f32(s * 0.5)
        else:
            growth += 1
            if growth == interval:
                if finite(f32(s * 2.0)):
                    s = f32(s * 2.0)
                growth = 0
            left = hysteresis


def megatron(s, interval, hysteresis):  # megatron/core/optimizer/grad_scaler.py, min_scale 1
    growth, left = 0, hysteresis
    while True:
        bad = yield s
        if bad:
            growth = 0
            left -= 1
            if left <= 0:
                s = max(f32(s * 0.5), 1.0)
        else:
            growth += 1
            if growth == interval:
                growth, left = 0, hysteresis
                s = f32(s * 2.0)


def deepspeed_dynamic(s, interval, delayed_shift, consecutive):  # DynamicLossScaler, min_scale 1
    i, last, left = 0, -1, delayed_shift
    while True:
        bad = yield s
        if bad:
            if delayed_shift == 1 or left == 1:
                s = max(s / 2.0, 1.0)  # at 1.0 it would raise
            else:
                left -= 1
            last = i
        else:
            if consecutive:
                left = delayed_shift
            if (i - last) % interval == 0:
                if not consecutive:
                    left = delayed_shift
                s *= 2.0
        i += 1


def deepspeed(s, interval, hysteresis):
    return deepspeed_dynamic(s, interval, hysteresis, False)


def deepspeed_consecutive(s, interval, hysteresis):
    return deepspeed_dynamic(s, interval, hysteresis, True)


def deepspeed_fused(s, interval, hysteresis):  # fused_optimizer.py FP16_Optimizer, min 1
    i, last = 0, -1
    while True:
        bad = yield s
        if bad:
            s = max(s / 2.0, 1.0)
            last = i
        else:
            stable = (i - last) - 1
            if stable > 0 and stable % interval == 0:
                s *= 2.0
        i += 1


def flax(s, interval, hysteresis):  # flax/training/dynamic_scale.py
    fin_steps = 0
    while True:
        bad = yield s
        if bad:
            s, fin_steps = max(f32(s * 0.5), FLT_MIN), 0
        elif fin_steps == interval:
            s, fin_steps = min(f32(s * 2.0), FLT_MAX), 0
        else:
            fin_steps += 1


def jmp(s, period, hysteresis):  # jmp/_src/loss_scale.py, min_loss_scale 1
    counter = 0
    while True:
        bad = yield s
        if bad:
            s = max(1.0, f32(s / 2.0))
        elif counter == period - 1 and finite(f32(s * 2.0)):
            s = f32(s * 2.0)
        counter = ((counter + 1) % period) * (0 if bad else 1)


def keras(s, steps, hysteresis):  # keras/src/optimizers/loss_scale_optimizer.py
    counter = 0
    while True:
        bad = yield s
        if bad:
            s, counter = f32(s * 0.5), 0
        elif counter == steps - 1:
            s, counter = f32(s * 2.0), 0
        else:
            counter += 1


def tf_keras(s, steps, hysteresis):  # mixed_precision/loss_scale_optimizer.py
    counter = 0
    while True:
        bad = yield s
        if bad:
            s, counter = max(f32(s / 2.0), 1.0), 0
        elif counter + 1 >= steps:
            if finite(f32(s * 2.0)):
                s = f32(s * 2.0)
            counter = 0
        else:
            counter += 1


def mxnet(s, seq, hysteresis):  # python/mxnet/amp/loss_scaler.py
    following, unskipped = s, 0
    while True:
        bad = yield s
        s = following
        if bad:
            following, unskipped = s / 2.0, 0
        else:
            unskipped += 1
        if unskipped == seq:
            unskipped, following = 0, min(2.0 ** 24, s * 2.0)


def static(s, interval, hysteresis):
    while True:
        yield s


def trace(system, pattern, init=65536.0, interval=4, hysteresis=2):
    run = system(init, interval, hysteresis)
    next(run)
    return [run.send(c == 'X') for c in pattern]


# Pattern and rows as published with the design (log2 of the scale), to check the functions above.
SHORT = 'XX....X....X.XX.........X...'
ROWS = [
    ((torch, apex, jmp, tf_keras, keras),
     '15 14 14 14 14 15 14 14 14 14 15 14 14 13 12 12 12 12 13 13 13 13 14 14 13 13 13 13'),
    ((apex_hysteresis, deepspeed_consecutive, default),
     '16 15 15 15 15 16 16 16 16 16 17 17 17 17 16 16 16 16 17 17 17 17 18 18 18 18 18 18'),
    ((megatron, deepspeed),
     '16 15 15 15 15 16 16 16 16 16 17 17 17 16 15 15 15 15 16 16 16 16 17 17 17 17 17 17'),
    ((deepspeed_fused,),
     '15 14 14 14 14 14 13 13 13 13 13 12 12 11 10 10 10 10 10 11 11 11 11 12 11 11 11 11'),
    ((flax,),
     '15 14 14 14 14 14 13 13 13 13 13 12 12 11 10 10 10 10 10 11 11 11 11 11 10 10 10 10'),
    ((mxnet,),
     '16 15 14 14 14 14 15 14 14 14 14 15 14 14 13 12 12 12 12 13 13 13 13 14 14 13 13 13'),
]
for systems, row in ROWS:
    for system in systems:
        assert trace(system, SHORT) == [2.0 ** int(e) for e in row.split()], system.__name__

# Down to the floors, up to the caps, and a mixture.
LONG = 'X' * 40 + '.' * 250 + 'X.' * 8 + '.X...XX......X.....X' * 5 + 'XX.' * 12
SYSTEMS = [default, torch, apex, apex_hysteresis, megatron, deepspeed, deepspeed_consecutive,
           deepspeed_fused, flax, jmp, keras, tf_keras, mxnet, static]

print('# Written by make_traces.py: log2 of the loss scale after each step; X overflowed.')
for system in SYSTEMS:
    for pattern, interval, hysteresis in ((SHORT, 4, 2), (SHORT, 2, 1), (LONG, 4, 2)):
        scales = [f32(s) for s in trace(system, pattern, 65536.0, interval, hysteresis)]
        assert all(math.frexp(s)[0] == 0.5 for s in scales)
        print('trace %s init 65536 interval %d hysteresis %d steps %d'
              % (system.__name__, interval, hysteresis, len(pattern)))
        for i in range(0, len(scales), 20):
            print(pattern[i:i + 20], *(math.frexp(s)[1] - 1 for s in scales[i:i + 20]))
