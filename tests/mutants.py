#!/usr/bin/env python3
"""Do the tests see a fault? One at a time is planted in amp.h (core and implementation) or amp_kernels.cu: another
operator, a constant one off, a condition turned, a statement less. What does not compile, or gives the same object
code, is dropped; the rest meets the tests that can see it, fastest first, in the samples of make test. What lives and
is not in mutants.txt (equal ones, with the reason) is a hole.
usage: mutants.py OUTDIR N SEED, in the repository's root; CC and CXX may be set"""
import os, random, re, shutil, subprocess, sys, time

out, count, seed = os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
source = os.path.join(out, 'source')
cc, cxx = os.environ.get('CC', 'cc').split(), os.environ.get('CXX', 'c++').split()
TESTS = ('recipes alloc policy vectors sparse scaler cache state optimizer report gemm fewer ranks bits numbers '
         'processors model').split()
C = cc + '-std=c99 -O1 -w -I.'.split()
EMULATED = cxx + ('-std=c++14 -O1 -w -ffp-contract=off -fno-strict-aliasing -I. -Itests -Itests/emu -Itests/emu/fake '
                  '-include tests/emu/cuda_emu.h').split()
OBJECTS = {'amp.h': (C + ['-c', 'tests/amp.c', '-o'], 'amp.o'),
           'amp_kernels.cu': (EMULATED + ['-DAMPI_GRIDS', '-x', 'c++', '-c', 'amp_kernels.cu', '-o'], 'kernels.o')}
# What one operator becomes; a condition is turned as a whole.
FAULTS = [(r' < ', (' <= ', ' > ')), (r' <= ', (' < ',)), (r' > ', (' >= ', ' < ')), (r' >= ', (' > ',)),
          (r' == ', (' != ',)), (r' != ', (' == ',)), (r' \+ ', (' - ',)), (r' - ', (' + ',)), (r' \* ', (' + ',)),
          (r' / ', (' * ',)), (r' && ', (' || ',)), (r' \|\| ', (' && ',)), (r' \| ', (' & ',)), (r' & ', (' | ',)),
          (r' << ', (' >> ',)), (r' >> ', (' << ',)), (r'\+\+', ('--',)), (r' \+= ', (' -= ', ' = ')),
          (r' -= ', (' += ',)), (r'(?<![\w.])0(?![\w.])', ('1',)), (r'(?<![\w.])1(?![\w.])', ('0', '2')),
          (r'(?<![\w.])2(?![\w.])', ('1', '3')), (r'!(?=[\w(])', ('',)), (r'\bif \(', ('if (0 && ', 'if (1 || '))]
STATEMENT = r'^\s+[\w\->.\[\]()*&]+\s*([+\-*|&]?=[^=].*|\(.*\)|\+\+);\s*$'
ELSEWHERE = r'NEON|MSC_VER|aarch64|_WIN32|__CUDA|__clang__|__cplusplus|AMP_CBLAS|CUBLAS|i386|AMP_NO_'


def candidates(name):
    """Lines of code, with their numbers: none of the public part, of other machines or of macros."""
    lines = open(os.path.join(source, name)).read().split('\n')
    begin = next(i for i, line in enumerate(lines) if name != 'amp.h' or re.match(r'/\* [-=]+ >>core', line))
    comment, away, found = False, [], []
    for i, line in enumerate(lines):
        if re.match(r'#\s*if', line): away.append(bool(re.search(ELSEWHERE, line)))
        elif re.match(r'#\s*(else|elif)', line) and away: away[-1] = bool(re.search('NEON|_WIN32', line))
        elif re.match(r'#\s*endif', line) and away: away.pop()
        opens = line.lstrip().startswith('/*')
        if comment or opens: comment = '*/' not in line
        elif i > begin and not any(away) and not line.startswith('#') and not line.endswith('\\') and \
                '__asm__' not in line and 'ASSERT' not in line and not line.strip().startswith('X('): found.append(i)
    return lines, found


def fault(rng, line):
    """The line with a fault, or None."""
    code = re.sub(r'/\*.*?\*/|"(\\.|[^"\\])*"', lambda m: ' ' * len(m.group()), line)
    if rng.random() < 0.2 and re.match(STATEMENT, code): return re.sub(r'\S.*$', ';', line)
    sites = [(m, new) for old, news in FAULTS for m in re.finditer(old, code) for new in news]
    if not sites: return None
    m, new = rng.choice(sites)
    return line[:m.start()] + new + line[m.end():]


def run(command, seconds=600):
    """Status and lines of failed tests."""
    env = dict(os.environ, AMP_QUICK='1', TMPDIR=out)
    try:
        done = subprocess.run(command, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                              timeout=seconds)
    except subprocess.TimeoutExpired:
        return 'no end', []
    return done.returncode, [l for l in done.stdout.decode(errors='replace').split('\n') if l.startswith('FAIL')]


def compiled(name):
    """Object code of amp.h or the kernels, or None."""
    command, file = OBJECTS[name]
    if run(command + [file])[0] != 0: return None
    return open(os.path.join(source, file), 'rb').read()


def tested(test, seconds=600):
    link = cxx + ['cuda.o', 'kernels.o', 'emu.o', 'amp.o', '-o', 'cuda', '-lm'] if test == 'cuda' else \
        cc + [test + '.o', 'amp.o', '-o', test, '-lm', '-lpthread']
    return run(link) if run(link)[0] != 0 else run(['./' + test], seconds)


def main():
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(source)
    for name in ('amp.h', 'amp_kernels.cu', 'tests', 'examples'):
        (shutil.copytree if os.path.isdir(name) else shutil.copy)(name, os.path.join(source, name))
    equal = {line.split('  # ')[0].strip() for line in open('tests/mutants.txt') if '  # ' in line}
    for test in TESTS: run(C + ['-c', f'tests/test_{test}.c', '-o', test + '.o'])
    run(EMULATED + ['-c', 'tests/test_cuda.cpp', '-o', 'cuda.o'])
    run(cxx + ['-std=c++14', '-O2', '-w', '-I.', '-Itests/emu', '-Itests/emu/fake', '-c', 'tests/emu/cuda_emu.cpp',
               '-o', 'emu.o'])
    plain = {name: compiled(name) for name in OBJECTS}
    usual, took = {}, {}
    for test in TESTS + ['cuda']:
        began = time.time()
        usual[test] = tested(test)
        took[test] = time.time() - began
    print('# without a fault:', {t: r for t, r in usual.items() if r != (0, [])} or 'all pass', flush=True)
    rng, files = random.Random(seed), {name: candidates(name) for name in OBJECTS}
    places = [(name, i) for name in OBJECTS for i in files[name][1]]
    dead = same = lives = 0
    while dead + same + lives < count:
        name, i = rng.choice(places)
        lines = files[name][0]
        planted = fault(rng, lines[i])
        if planted is None: continue
        path = os.path.join(source, name)
        open(path, 'w').write('\n'.join(lines[:i] + [planted] + lines[i + 1:]))
        code = compiled(name)
        open(path, 'w').write('\n'.join(lines))
        if code is None or code == plain[name]: continue
        tests = sorted(TESTS, key=took.get) + ['cuda'] if name == 'amp.h' else ['cuda']
        killer = next((t for t in tests if tested(t, 30 + 10 * took[t]) != usual[t]), None)
        change = f'{lines[i].strip()} => {planted.strip()}'
        verdict = killer or ('equal' if change in equal else 'LIVES')
        dead, same, lives = dead + bool(killer), same + (verdict == 'equal'), lives + (verdict == 'LIVES')
        print(f'{verdict:10} {name}:{i + 1}: {change}', flush=True)
        open(os.path.join(source, OBJECTS[name][1]), 'wb').write(plain[name])
    print(f'{dead} seen, {same} equal, {lives} live of {count}: {100.0 * lives / max(1, dead + lives):.1f} %')
    return lives > 0.12 * count


if __name__ == '__main__': sys.exit(main())
