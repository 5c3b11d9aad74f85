#!/usr/bin/env python3
"""golden.py - do the files in state/ hold what state-file.md says of them, and what golden.h has put there?
golden.py --write - writes them anew, by golden.c, natively (CC) and on s390x (s390x-linux-gnu-gcc, qemu-s390x), whose byte order
is the other one. Both must write the same bytes. Their numbers in state-file.md are written, too."""
import os, pathlib, re, struct, subprocess, sys, tempfile
import state

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NAMES = 'fp32 split-bf16 sr-8bit report first-step'.split()
TENSORS = ('layer.weight', 37), ('layer.bias', 3), ('', 2)
WRITERS = [[os.environ.get('CC', 'cc')], []], [['s390x-linux-gnu-gcc', '-static'], ['qemu-s390x']]

def golden_bits(tensor, i, gradient):
    """As golden.h has it."""
    x = (tensor << 16 | i << 1 | gradient) + 1
    x = (x ^ x >> 16) * 0x7feb352d % 2**32
    x = (x ^ x >> 15) * 0x846ca68b % 2**32
    x = x ^ x >> 16
    return x & (0x807f0000 if gradient else 0x807fffff) | (127 if gradient else 124) + (x >> 23 & 3) << 23

def real(bits):
    return struct.unpack('<f', struct.pack('<I', bits))[0]

def hexa(x):
    return ' '.join('0x%08x' % struct.unpack('<I', struct.pack('<f', y)) for y in x)

def write():
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for compiler, runner in WRITERS:
            program, out = folder + '/golden', pathlib.Path(folder, str(len(made)))
            out.mkdir()
            sources = '-I%s %s/tests/amp.c %s/golden.c' % (ROOT, ROOT, HERE)
            subprocess.run(compiler + ['-std=c99', '-O1'] + sources.split() + ['-o', program, '-lm'], check=True)
            subprocess.run(runner + [program, str(out)], check=True)
            made.append([(out / (name + '.state')).read_bytes() for name in NAMES])
    assert made[0] == made[1], 'two byte orders write different bytes'
    for name, data in zip(NAMES, made[0]):
        (HERE / ('state/%s.state' % name)).write_bytes(data)

def page():
    """state-file.md with the bytes of today."""
    data, out = (HERE / 'state/fp32.state').read_bytes(), []
    _, (rounded, *_), _ = state.load(HERE / 'state/sr-8bit.state')
    for line in (HERE / 'state-file.md').read_text().splitlines(keepends=True):
        example, row = re.match(r' +(\d+)  ((?:[0-9a-f]{2} )+)( +\S.*\n)', line), re.match(r'\| `(state/.*)` \|', line)
        if example:
            at, size = int(example[1]), len(example[2]) // 3
            line = '%8d  %s %s' % (at, data[at:at + size].hex(' '), example[3])
        if row:
            head = (HERE / row[1]).read_bytes()
            _, (first, t, _), _ = state.load(HERE / row[1])
            line = '| `%s` | %d | %d | %s | %s | %s |\n' % (
                row[1], len(head), head[12], state.FORMATS[first['masters']].replace('fp32', 'fp32 or split'),
                state.FORMATS[first['moments']], '; '.join(hexa(t[x]) for x in ('master', 'm', 'v') if x in t))
        out.append(re.sub(r'\d+ stochastic rounding', '%d stochastic rounding' % rounded['masters'], line))
    return ''.join(out)

def trained(name):
    """Are masters and moments those of golden.h, where no random bits have rounded them?"""
    numbers, tensors, report = state.load(HERE / ('state/%s.state' % name))
    for k, t in enumerate(tensors):
        weights, g = ([real(golden_bits(k, i, x)) for i in range(t['n'])] for x in (0, 1))
        if name == 'first-step' and k == 0:
            same = list(t['m']) == g and list(t['v']) == [abs(x) for x in g]
        elif name == 'first-step' and k == 1:
            same = t['has'] == 11 and not any(t['m']) and not any(t['v'])
        else:
            m, v = [x / 2**11 for x in g], [x * x / 2**22 for x in g]
            same = k == 2 or list(t['m']) == m and list(t['v']) == v
        if not (same and list(t['master']) == weights and (t['name'], t['n']) == TENSORS[k]):
            return False
    return len(tensors) == 3

def tolerated():
    numbers, _, _ = state.load(HERE / 'state/split-bf16.state')
    return [numbers[x] for x in ('hysteresis', 'hysteresis_tracker', 'backoffs', 'step.skipped')] == [3, 2, 0, 1]

def reported():
    """Every number, by its name."""
    numbers, tensors, report = state.load(HERE / 'state/report.state')
    clip = report['history'][5]['clip_factor']
    wanted = dict(kind='sgd', scale=256.0, next_scale=128.0, found_inf=0, checked=0, stuck=0, good=2, skipped=3,
                  skipped_in_a_row=1, growths=0, backoffs=3, growth_factor=2.0, backoff_factor=0.5, growth_interval=77,
                  growth_tracker=0, hysteresis=1, hysteresis_tracker=1, min_scale=0.0, max_scale=2.0**24, preset=14, disabled=0,
                  missed_updates=0, skip=1, inv_scale=clip / 256, norm=report['history'][5]['norm'], clip_factor=clip,
                  did_step=0, has_lr=1, lr=0.5, beta1=0.5, beta2=0.75, eps=0.125, momentum=0.875, nesterov=1,
                  max_norm=2.0**-7, seed=2**64 - 5)
    wanted.update({'step.taken': 2, 'step.skipped': 3, 'step.skipped_in_a_row': 1, 'step.found_inf': 1})
    history = [(x['iteration'], state.SKIPS[x['skip']], x['tensor'], x['loss_scale']) for x in report['history'] if x['iteration']]
    return numbers == wanted and [t['has'] for t in tensors] == [1, 4, 0] and \
        (tensors[0]['lr_scale'], tensors[0]['weight_decay']) == (0.75, 0.125) and \
        [report[x] for x in ('overflows', 'asked')] == [2, 1] and \
        report['tensors'][1] == dict(overflows=2, nans=0, first=1, last=5) and \
        history == [(1, 'overflow', 1, 1024.0), (2, 'taken', -1, 1024.0), (3, 'asked', -1, 512.0), (4, 'taken', -1, 512.0),
                    (5, 'overflow', 1, 256.0)]

def main(*args):
    if args == ('--write',):
        write()
        (HERE / 'state-file.md').write_text(page())
    formats = [[state.FORMATS[t[x]] for x in ('masters', 'moments')] for t in state.load(HERE / 'state/sr-8bit.state')[1][:2]]
    checks = [('state-file.md has the bytes of state/', page() == (HERE / 'state-file.md').read_text()),
              ('fp32.state has the weights and moments of its run', trained('fp32')),
              ('first-step.state has those that were set', trained('first-step')),
              ('split-bf16.state has an overflow that was tolerated', tolerated()),
              ('sr-8bit.state has the formats of its name', formats == [['sr', '8bit']] * 2),
              ('report.state has its five steps', reported())]
    for text, ok in checks:
        print('ok  ' if ok else 'FAIL', text)
    return not all(ok for _, ok in checks)

if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
