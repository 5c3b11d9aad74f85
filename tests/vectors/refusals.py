#!/usr/bin/env python3
"""refusals.py PROGRAM DIR - do amp.h (PROGRAM is load_state.c) and state.py refuse the same files? They are state/fp32.state
with one or a few numbers changed, also with right checksums; with other padding, versions, flags; with bytes after the end. Both
say in the same words that a file is older than 0.6.0. Files go to DIR."""
import os, pathlib, random, struct, subprocess, sys
import state

WORDS = {x[:-2]: 6 + i for i, x in enumerate(state.NUMBERS)}  # where they are, in words of 8 bytes; and of the first tensor
WORDS.update(lr_scale=53, weight_decay=54)
FLOATS = [0, 1, 0x00800000, 0x38800000, 0x3f000000, 0x3f800000, 0x3f800001, 0x44800000, 0x4b800000, 0x7e800000, 0x7f7fffff,
          0x7f800000, 0x7f800001, 0x7fc00000, 0x80000000, 0x80000001, 0xbf800000, 0xff800000, 0xffc00000]
VALUES = FLOATS + [struct.unpack('<Q', struct.pack('<d', x))[0] for x in (
    -0.0, 5e-324, 2.0**-140, 2.0**-126, 0.5, 1 - 2.0**-53, 1.0, 1 + 2.0**-52, 2.0, 1024.0, 1024 + 2.0**-30, 2.0**24, 3.5e38,
    1.8e308, -1.0, float('inf'), float('-inf'), float('nan'))] + [
    2, 3, 13, 14, 15, 16, 777, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**62 - 1, 2**62, 2**63, 3 * (2**62 - 1),
    3 * (2**62 - 1) + 1, 2**64 - 1] + [r for x in state.RULES for r in (x, x | 512)]

def sealed(body, head=None):
    head = head or struct.pack('<8sIIQ', b'AMPSTATE', 6, 0, len(body))
    return head + struct.pack('<Q', state.checksum(head)) + bytes(body) + struct.pack('<Q', state.checksum(body))

def changed(whole, edits):
    data = bytearray(whole)
    for word, x in edits:
        data[8 * word:8 * word + 8] = struct.pack('<Q', x)
    return sealed(data[32:-8])

def files():
    whole = (pathlib.Path(__file__).parent / 'state/fp32.state').read_bytes()
    body, dice = whole[32:-8], random.Random(54)
    is_at = lambda word: struct.unpack_from('<Q', whole, 8 * word)[0]
    yield 'as it is', whole
    for name, word in WORDS.items():
        for x in set(VALUES + [is_at(word) + y for y in (2**32, 2**63)]):
            yield '%s %#x' % (name, x), changed(whole, [(word, x)])
    for preset, rules in enumerate(state.RULES):  # with what goes with it, and does not
        for tolerance in (0, 1023 << 52):
            for name, x in dict(backoff_factor=0, scale=0, next_scale=2047 << 52, min_scale=0, rules=rules | 512).items():
                edits = [(WORDS['preset'], preset), (WORDS['rules'], rules), (WORDS['tolerance'], tolerance), (WORDS[name], x)]
                yield 'preset %d, tolerance %#x, %s %#x' % (preset, tolerance, name, x), changed(whole, edits)
    for norm in (2047 << 52, 4095 << 51, 1):
        for inv in (255 << 23, 511 << 22, 1):
            for clip in (0, 127 << 23, 63 << 24):
                edits = [(WORDS['norm'], norm), (WORDS['gate.inv_scale'], inv), (WORDS['clip_factor'], clip)]
                yield 'norm %#x, factor %#x, clip %#x' % (norm, inv, clip), changed(whole, edits)
    for k in range(1500):
        edits = [(dice.choice(list(WORDS.values())), dice.choice(VALUES)) for _ in range(dice.randint(2, 3))]
        yield 'edits %d' % k, changed(whole, edits)
    arrays = len(whole) - 8 - 512  # 37 and 3 elements in three arrays, 2 in one
    for pad in (463, arrays + 148, arrays + 456 + 15):
        data = bytearray(whole)
        data[pad] = 1
        yield 'bad: byte %d pads' % pad, sealed(data[32:-8])
    yield 'bad: eight bytes more', whole + bytes(8)
    yield 'bad: a byte more', whole + b'1'
    yield 'bad: a byte less', whole[:-1]
    for version in (0, 7, 256, 512, 6 + (2 << 32), 6 + (16 << 32), 6 + (32 << 32), 1 + (4 << 32), 1024 + 2):
        yield 'bad: version %d' % version, sealed(body, struct.pack('<8sQQ', b'AMPSTATE', version, len(body)))
    for version in (1, 2, 3, 258, 514, 770, 259, 515):
        yield 'old: version %d' % version, sealed(body, struct.pack('<8sQQ', b'AMPSTATE', version, len(body)))

def ours(path):
    ours.why = ''
    try:
        state.load(path)
        return True
    except SystemExit as why:
        ours.why = why
        return False

def main(program, folder):
    os.makedirs(folder, exist_ok=True)
    cases = list(files())
    paths = [os.path.join(folder, '%d.state' % i) for i in range(len(cases))]
    for path, (_, data) in zip(paths, cases):
        open(path, 'wb').write(data)
    lines = subprocess.run([program, 'tests/vectors/state.json'], input='\n'.join(paths) + '\n', capture_output=True, text=True,
                           check=True).stdout.splitlines()
    taken = differ = 0
    for path, line, (name, _) in zip(paths, lines, cases, strict=True):
        result, mine = int(line.split()[0]), ours(path)
        taken += mine
        told = line == '4 ' + state.TOO_OLD and str(ours.why).endswith(state.TOO_OLD)  # AMP_ERROR_UNSUPPORTED
        if (result == 0) != mine or (mine and name.startswith('bad')) or told != name.startswith('old'):
            differ += 1
            differ < 9 and print('FAIL %s: amp.h: %s; state.py: %s' % (name, line, 'taken' if mine else ours.why))
    fails = differ or not 500 < taken < len(cases) - 500
    print('%s amp.h and state.py take the same %d of %d files' % ('FAIL' if fails else 'ok  ', taken, len(cases)))
    return fails > 0

if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
