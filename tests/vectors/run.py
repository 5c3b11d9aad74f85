#!/usr/bin/env python3
"""run.py [FILE.json...] - the vectors on scaler.py, on PyTorch's GradScaler where torch is, and on numpy's fp16."""
import importlib, json, pathlib, sys
import numpy as np


def number(x):
    return x if not isinstance(x, str) else float(x) if x == 'inf' else float.fromhex(x)


def floats(bits):
    return np.array([int(b, 16) for b in bits], np.uint32).view(np.float32)


def trace(s, event, count, scale, good, left, taken):
    answer = None
    if event in 'RSI':
        s.set(*{'R': ('resume', 0), 'S': ('scale', number(scale)), 'I': ('growth_interval', count)}[event])
    for _ in range(0 if event in 'RSI' else count):
        if event == 'H':
            s.set('found_inf', 2)
        s.unscale(np.float32([1, {'X': np.inf, 'N': np.nan}.get(event, 1), 0]))
        answer = int(s.step() == 'taken')
        s.update()
    return s.scale == np.float32(number(scale)) and good in (None, s.good) and (s.left, answer) == (left, taken)


def call(s, buffer, name, argument, answer, gradients, scale):
    if name == 'backward':
        buffer[:] = floats(argument)
    got = {'backward': lambda: 'ok', 'unscale': lambda: s.unscale(buffer), 'step': s.step, 'update': s.update,
           'scale': lambda: s.set('scale', number(argument))}[name]()
    same = gradients is None or (buffer.view(np.uint32) == floats(gradients).view(np.uint32)).all()
    return got == answer and same and s.scale == np.float32(number(scale))


def rows(case, s):
    if not s.start(case['system'], {k: number(v) for k, v in case['config'].items()}):
        return None
    buffer = np.zeros(3, np.float32)
    return all(trace(s, *row) if len(row) == 6 else call(s, buffer, *row) for row in case['rows'])


def convert(case, s):
    kinds = [{'fp16': np.float16, 'fp32': np.float32}.get(case['config'].get(k)) for k in ('from', 'to')]
    if None in kinds or 'pairs' not in case or 'nan-payload' in case['tags']:
        return None
    x, y = (np.array([int(pair[i], 16) for pair in case['pairs']]).astype('u%d' % kind().itemsize).view(kind)
            for i, kind in enumerate(kinds))
    same = (x.astype(kinds[1]) == y) & (np.signbit(x) == np.signbit(y))
    return (same | np.isnan(x) & np.isnan(y)).all()


def main(paths):
    bad = False
    for path in paths:
        family = json.load(open(path))
        run = dict(scale=rows, order=rows, convert=convert).get(family['family'], lambda case, s: None)
        for module, name in [('scaler', 'Scaler'), ('torch_subject', 'GradScaler')]:
            try:
                subject = getattr(importlib.import_module(module), name)
            except ImportError:
                print('skip %s, %s: torch is not installed' % (family['family'], name))
                continue
            answers = [run(case, subject()) for case in family['cases']]
            if run == rows or name == 'Scaler' and any(a is not None for a in answers):
                failed = [c['id'] for c, a in zip(family['cases'], answers) if a is not None and not a]
                print('FAIL' if failed else 'ok  ', '%s, %s: %d passed, %d failed, %d absent' % (
                    family['family'], name if run == rows else 'numpy', sum(map(bool, answers)), len(failed),
                    answers.count(None)), *failed)
                bad |= bool(failed)
    return bad


np.seterr(all='ignore')
sys.exit(main(sys.argv[1:] or sorted(pathlib.Path(__file__).parent.glob('*.json'))))
