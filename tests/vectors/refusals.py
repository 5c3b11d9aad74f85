#!/usr/bin/env python3
"""refusals.py PROGRAM DIR - do amp.h (PROGRAM is golden.c) and state.py refuse the same files? They are state/fp32.state and
state/report.state, cut short, with one bit changed, or with other numbers, versions and flags under right sums. No number is
judged, so that most of the latter are taken. Files go to DIR."""
import os, pathlib, struct, subprocess, sys
import state

VALUES = [0, 1, 15, 777, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 0x7f800000, 0x7fc00000, 0xff800000, 2047 << 52,
          2047 << 52 | 1 << 51, 4095 << 52]

def sealed(body, version=1, flags=0, size=None):
    head = struct.pack('<8sIIQ', b'AMPSTATE', version, flags, len(body) if size is None else size)
    return head + struct.pack('<Q', state.checksum(head)) + bytes(body) + struct.pack('<Q', state.checksum(body))

def changed(whole, word, x):
    data = bytearray(whole)
    data[8 * word:8 * word + 8] = struct.pack('<Q', x)
    return sealed(data[32:-8], flags=data[12])

def files(whole):
    """Is it taken, what it is, its bytes."""
    body, flags = whole[32:-8], whole[12]
    count = 2 + len(state.NUMBERS)
    preset = 4 + 2 + state.NUMBERS.index('preset:u')
    yield True, 'as it is', whole
    words = [preset] if flags else [*range(6, 4 + count), 4 + count + 4, 4 + count + 5]  # with lr_scale and weight_decay
    for word in words:
        for x in VALUES + [len(state.PRESETS) - 1, len(state.PRESETS)]:
            taken = word != preset or x % 2**32 < len(state.PRESETS)
            yield taken, 'word %d: %#x' % (word, x), changed(whole, word, x)
    if flags & state.REPORT:
        word = len(whole) // 8 - 1 - sum(-(-n // 8) for n in (148, 12, 8, 74)) - 3 * 4 - 256 * 6
        for row, at, most in [(row, *y) for row in (0, 1, 5, 255) for y in ((4, 2), (5, 2))]:  # 1 and 5 have been; skip and tensor
            for x in VALUES + [most, most + 1, 2**32 - 2]:
                taken = row in (0, 255) or x % 2**32 <= most or (at == 5 and x % 2**32 == 2**32 - 1)
                yield taken, 'report, iteration %d, word %d: %#x' % (row, at, x), changed(whole, word + 6 * row + at, x)
    for at in range(0, len(whole), 97 if flags else 1):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        yield False, 'bit %d of byte %d' % (at % 8, at), bytes(data)
        yield False, 'of %d bytes' % at, whole[:at]
    for more in (b'1', bytes(8)):
        yield False, '%d bytes more' % len(more), whole + more
    for size in (0, 8, len(body) - 8, len(body) + 8, len(body) + 1, 2**63, 2**64 - 8, 2**64 - 1):
        yield False, 'a length of %d' % size, sealed(body, flags=flags, size=size)
    for less in (8, len(body) - 16, len(body)):
        yield False, '%d bytes less of the body' % less, sealed(body[:-less], flags=flags)
    yield False, '8 bytes more of the body', sealed(body + bytes(8), flags=flags)
    yield False, 'a byte more of the body', sealed(body, flags=flags)[:-8] + b'1' + whole[-8:]
    for version in (0, 2, 3, 6, 256, 2**32 - 1):
        yield False, 'version %d' % version, sealed(body, version, flags)
    for other in [x for x in range(64) if x != flags] + [2**31, 2**31 + flags]:
        yield False, 'flags %d' % other, sealed(body, flags=other)
    for word, x in ((4, 4), (4, 2**32 + 1), (5, 0), (5, 2), (5, 4), (5, 2**32 + 3), (5, 2**63)):
        yield False, 'word %d: %#x' % (word, x), changed(whole, word, x)
    for word in (4 + count, 4 + count + 1, 4 + count + 2, 4 + count + 6):  # n, has, moments, length of the name
        for x in (24, 777, 2**32, 2**63, 2**64 - 8, 2**64 - 1):
            yield False, 'word %d: %#x' % (word, x), changed(whole, word, x)

def ours(path):
    try:
        state.load(path)
        return True
    except SystemExit:
        return False

def main(program, folder):
    os.makedirs(folder, exist_ok=True)
    total = took = differ = 0
    for name in ('fp32', 'report'):
        cases = list(files((pathlib.Path(__file__).parent / ('state/%s.state' % name)).read_bytes()))
        paths = [os.path.join(folder, '%s-%d.state' % (name, i)) for i in range(len(cases))]
        for path, (_, _, data) in zip(paths, cases):
            open(path, 'wb').write(data)
        output = subprocess.run([program, 'load', name], input='\n'.join(paths + ['']).encode(), capture_output=True, check=True)
        lines = output.stdout.decode('utf-8', 'replace').split('\n')[:-1]
        for path, line, (taken, what, _) in zip(paths, lines, cases, strict=True):
            theirs, mine = line.split()[0] == '0', ours(path)
            total, took = total + 1, took + taken
            if not theirs == mine == taken:
                differ += 1
                differ < 9 and print('FAIL %s, %s: amp.h: %s; state.py: %s' % (name, what, line, 'taken' if mine else 'refused'))
    fails = differ or not 500 < took < total - 500
    print('%s amp.h and state.py take the same %d of %d files' % ('FAIL' if fails else 'ok  ', took, total))
    return fails > 0

if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
