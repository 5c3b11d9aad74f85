#!/usr/bin/env python3
"""Do the tests see a fault? One at a time is planted in amp.h (core and implementation) or amp_kernels.cu, as many in each
room: another operator, a constant one off, a condition turned, a statement less. It meets the tests of o2 and of the
emulator that enter its function (traced once, each test alone), first those that saw most in the least time. If none
sees it and it changes the object code, it meets them under sanitizers, in other tiers, in models, then all tests that
are left, and threads; a fault in kernels meets the emulator under sanitizers.
A fault that lives and is not in mutants.txt (which lists faults without effect, with the reason) is a hole. OUTDIR/log
keeps the verdicts: a seen fault is not judged again, one that lived is if amp.h or a test has changed since.
usage: mutants.py OUTDIR N SEED [I/P], in the repository's root; CC, CXX and CLANG may be set; I/P: number I (from 0)
of P processes that share the faults, each with an OUTDIR; their logs in one OUTDIR are those of a run"""
import collections, functools, hashlib, json, os, random, re, resource, shutil, signal, subprocess, sys, time

out, count, seed = os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
share, parts = map(int, (sys.argv[4:] or ['0/1'])[0].split('/'))
source = os.path.join(out, 'source')
TESTS = ('recipes alloc errors policy vectors sparse scaler cache state optimizer report gemm storage zero bits numbers '
         'processors model').split()
PRODUCTS = 'gemm cache policy recipes state sparse'.split()
CUT = dict(zero=2, state=2, numbers=2, gemm=4, storage=4)  # of these make test has each second, or fourth, test under sanitizers

# The look of -O0 by clang takes a tenth of the time of cc -O1, which says whether the object code is the same.
cc, cxx = os.environ.get('CC', 'cc').split(), os.environ.get('CXX', 'c++').split()
clang = os.environ.get('CLANG', 'clang')
quick = ([clang], [clang + '++']) if shutil.which(clang) and shutil.which(clang + '++') else (cc, cxx)
C = '-std=c99 -w -I.'.split()
EMULATED = ('-std=c++14 -w -ffp-contract=off -fno-strict-aliasing -I. -Itests/gpu/emu -Itests/gpu/emu/fake '
            '-include tests/gpu/emu/cuda_emu.h -DAMPI_GRIDS -x c++').split()
SANITIZE = '-g1 -fsanitize=address,undefined -fno-sanitize-recover=all'.split()
TRACED = '-fsanitize-coverage=' + ('func,trace-pc' if quick[0] == [clang] else 'trace-pc')
KINDS = {'plain': ['-O0'], 'model': ['-O0', '-DTEST_MODEL', '-Wno-psabi'], 'sanitize': ['-O0'] + SANITIZE,
         'usual': ['-O1'], 'threads': ['-O1', '-fopenmp'],
         'emulated': ['-Og', '-DEMU_PLAIN_SHARED'] + SANITIZE + ['-fno-sanitize=null']}
REACHED = 'conversions arithmetic formulas loops numbers gemm capability autocast session tiers products kernels ' \
          'vectors processors'.split()  # rooms in which products differ between tiers
KINDS.update({f'planted-{k}': v for k, v in KINDS.items()}, **{
    f'trace-{k}': v + ['-g1', '-gdwarf-4', TRACED] for k, v in KINDS.items()})
UNITS = {'cuda': 'tests/unit/test_cuda.cpp', 'kernels': 'amp_kernels.cu', 'emu': 'tests/gpu/emu/cuda_emu.cpp',
         'amp': 'tests/amp.c', 'sgemm': 'tests/unit/test_sgemm.cpp'}
SUPPORT = {'cuda': ['cuda', 'kernels', 'emu', 'amp'], 'sgemm': ['sgemm', 'kernels', 'emu']}

# What one operator becomes; a condition is turned as a whole.
FAULTS = [(r' < ', (' <= ', ' > ')), (r' <= ', (' < ',)), (r' > ', (' >= ', ' < ')), (r' >= ', (' > ',)),
          (r' == ', (' != ',)), (r' != ', (' == ',)), (r' \+ ', (' - ',)), (r' - ', (' + ',)), (r' \* ', (' + ',)),
          (r' / ', (' * ',)), (r' && ', (' || ',)), (r' \|\| ', (' && ',)), (r' \| ', (' & ',)), (r' & ', (' | ',)),
          (r' << ', (' >> ',)), (r' >> ', (' << ',)), (r'\+\+', ('--',)), (r' \+= ', (' -= ', ' = ')),
          (r' -= ', (' += ',)), (r'(?<![\w.])0(?![\w.])', ('1',)), (r'(?<![\w.])1(?![\w.])', ('0', '2')),
          (r'(?<![\w.])2(?![\w.])', ('1', '3')), (r'!(?=[\w(])', ('',)), (r'\bif \(', ('if (0 && ', 'if (1 || '))]
STATEMENT = r'^\s+[\w\->.\[\]()*&]+\s*([+\-*|&]?=[^=].*|\(.*\)|\+\+);\s*$'
TRACE = r'''
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
extern const char __ehdr_start[];
static char *entered;
enum { ROOM = 1 << 24 };
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("MUTANTS_TRACE");
    int file = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, ROOM)) return;
    entered = (char *)mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (entered == (char *)MAP_FAILED) entered = NULL;
}
void __sanitizer_cov_trace_pc(void) {
    const size_t at = (size_t)((const char *)__builtin_return_address(0) - __ehdr_start);
    if (entered && at < ROOM) entered[at] = 1;
}
'''

ALL = float('inf')
ENOUGH = 30  # seconds of tests for a fault in one look; the last of make test's takes all
Fault = collections.namedtuple('Fault', 'id room file line change planted')


@functools.lru_cache(None)
def compiled_lines():
    """(file, line) of what the preprocessor leaves of amp.h and the kernels."""
    left = set()
    for command in (quick[0] + C + ['-E', 'tests/amp.c'], quick[1] + EMULATED + ['-E', 'amp_kernels.cu']):
        text = subprocess.run(command, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        for line in text.decode(errors='replace').split('\n'):
            marker = re.match(r'# (\d+) "(?:.*/)?(.*?)"', line)
            if marker: number, file = int(marker.group(1)), marker.group(2)
            else:
                if line.strip(): left.add((file, number))
                number += 1
    return left


def candidates(name):
    """The faults of a file by room, one for each line of code, in an order that does not depend on other rooms. None
    of the public part, of other machines or of macros."""
    lines = open(os.path.join(source, name)).read().split('\n')
    begin = next(i for i, line in enumerate(lines) if name != 'amp.h' or re.match(r'/\* [-=]+ >>core', line))
    comment, found, room, seen = False, {}, None, collections.Counter()
    here = compiled_lines()
    for i, line in enumerate(lines):
        banner = re.match(r'/\* -{9,} (?:>>(?:core|impl)  )?(.*?)\s*(\*/)?$', line)
        if banner and i > begin: room = ('cuda: ' if name != 'amp.h' else '') + banner.group(1)
        opens = line.lstrip().startswith('/*')
        if comment or opens:
            comment = '*/' not in line
            continue
        if not room or (name, i + 1) not in here or line.startswith('#') or line.endswith('\\') or '__asm__' in line or \
                'ASSERT' in line or line.strip().startswith(('X(', '//')): continue
        seen[room, line.strip()] += 1
        key = f'{seed} {room} {line.strip()} {seen[room, line.strip()]}'
        planted = fault(random.Random(key), line)
        if planted is None: continue
        name_of = hashlib.sha1(key.encode()).hexdigest()[:10]
        change = f'{line.strip()} => {planted.strip()}'
        found.setdefault(room, []).append(Fault(name_of, room, name, i + 1, change, planted))
    return {room: sorted(faults) for room, faults in found.items()}


def fault(rng, line):
    """The line with a fault, or None."""
    code = re.sub(r'/\*.*?\*/|//.*|"(\\.|[^"\\])*"', lambda m: ' ' * len(m.group()), line)
    if rng.random() < 0.2 and re.match(STATEMENT, code): return re.sub(r'\S.*$', ';', line)
    sites = [(m, new) for old, news in FAULTS for m in re.finditer(old, code) for new in news]
    if not sites: return None
    m, new = rng.choice(sites)
    return line[:m.start()] + new + line[m.end():]


def quiet(command):
    return subprocess.run(command, cwd=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def path(kind, name): return os.path.join(out, kind, name)


def compilers(kind): return (cc, cxx) if re.search('usual|threads|emulated', kind) else quick


def compiled(kind, name):
    """DIR/NAME.o of amp, kernels, emu or a test as it reads now, or False."""
    flags, (c, cpp) = KINDS[kind], compilers(kind)
    unit = UNITS.get(name, f'tests/unit/test_{name}.c')
    emulator = [x for x in EMULATED if not x.endswith('cuda_emu.h') and x != '-include'] + ['-O2']
    if name == 'emu': command = cpp + emulator + (flags + ['-DEMU_ASAN'] if 'emulated' in kind else [])
    else: command = (c + C if unit.endswith('.c') else cpp + EMULATED) + flags
    return quiet(command + ['-c', unit, '-o', path(kind, name + '.o')])


def linked(kind, name, into, fresh, more=()):
    """Program of a test; objects in fresh are of the directory into, the others of kind."""
    objects = [path(into if o in fresh else kind, o + '.o') for o in SUPPORT.get(name, [name, 'amp'])]
    flags = SANITIZE if kind in ('sanitize', 'emulated') else KINDS[kind] if kind == 'threads' else []
    program = path(into, name)
    command = compilers(kind)[1] + flags + objects + list(more)
    return program if quiet(command + ['-o', program, '-lm', '-lpthread']) else None


def run(program, test, env, cpu=None, clock=600):
    """(passes, seconds of the processor, why not) of one test, which ends at its first failure."""
    def limits():
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 32, 1 << 32))
        # Of addresses as many as test_cuda's huge_arrays asks for, which touches few of them: with less it is skipped.
        # A fault that takes all memory is ended first, before other programs.
        if not re.search('sanitize|emulated', program): resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))
        if os.path.exists('/proc/self/oom_score_adj'): open('/proc/self/oom_score_adj', 'w').write('1000')
        if cpu: resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 1))
    before, why = resource.getrusage(resource.RUSAGE_CHILDREN), ''
    child = subprocess.Popen([program] + (['--filter', test] if test else []), cwd=source, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, preexec_fn=limits, env=dict(os.environ, TMPDIR=out, **env))
    def late(*_): raise TimeoutError
    signal.signal(signal.SIGALRM, late)
    signal.alarm(int(clock) + 1)
    try:
        for line in child.stdout:
            if line.startswith(b'FAIL'):
                why = line.decode(errors='replace').strip()
                break
        else: child.wait()
    except TimeoutError: why = 'no end'
    signal.alarm(0)
    try: os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError: pass
    child.stdout.close()
    status = child.wait()
    if not why and status: why = f'status {status}'
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return not why, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, why


class Suite:
    """Programs of one kind with one environment; its tests, and which functions each of them enters."""

    def __init__(self, name, kind, programs, env, ci=False, like=None):
        self.name, self.kind, self.programs, self.env, self.ci, self.like = name, kind, programs, env, ci, like
        self.tests = None

    def traced(self):
        """Tests, as [program, name, seconds, first lines of functions by file, of make ci only]; kept in OUTDIR."""
        if self.tests is not None: return self.tests
        if self.like:  # the same tests enter the same functions, under sanitizers in more time
            slower = 6 if self.kind in ('sanitize', 'emulated') else 1
            objects = {o for p in self.programs for o in SUPPORT.get(p, [p, 'amp'])}
            if not all(compiled(self.kind, o) for o in sorted(objects)):  # a compiler without OpenMP
                print(f'# {self.name} left out: it does not compile', flush=True)
                self.tests = []
                return self.tests
            number = collections.Counter()
            self.tests = []
            for program, name, seconds, functions, _ in self.like.traced():
                if program not in self.programs: continue
                rest = self.kind == 'sanitize' and number[program] % CUT.get(program, 1)
                number[program] += 1
                self.tests.append([program, name, slower * seconds, functions, self.ci or bool(rest)])
            return self.tests
        cache = path('.', f'{self.name}.json')
        if os.path.exists(cache):
            self.tests = json.load(open(cache))
            return self.tests
        self.tests = [[program] + t + [self.ci] for program in self.programs for t in self.traces(program)]
        return self.tests

    def traces(self, program):
        """Of each test of a program: name, seconds, first lines of the functions it enters, by file."""
        cache, kind = path('.', f'{self.name}-{program}.json'), 'trace-' + self.kind
        if os.path.exists(cache): return json.load(open(cache))
        for k in kind, self.kind:
            for o in SUPPORT.get(program, [program, 'amp']):
                if not os.path.exists(path(k, o + '.o')): assert compiled(k, o), (k, o)
        open(path(kind, 'trace.c'), 'w').write(TRACE)
        assert quiet(quick[0] + ['-O1', '-c', path(kind, 'trace.c'), '-o', path(kind, 'trace.o')])
        assert linked(self.kind, program, self.kind, ())
        exe, trace = linked(kind, program, kind, (), [path(kind, 'trace.o')]), path(kind, program + '.entered')
        code, tests = open(os.path.join(source, UNITS.get(program, f'tests/unit/test_{program}.c'))).read(), []
        for name in re.findall(r'^ +RUN\w*\((\w+)\)', code, re.M):
            if os.path.exists(trace): os.remove(trace)
            passes, seconds, why = run(exe, name, dict(self.env, MUTANTS_TRACE=trace))
            if passes and os.path.exists(trace):
                tests.append([name, seconds, [m.start() for m in re.finditer(b'\1', open(trace, 'rb').read())]])
            elif ' ran' not in why and 'skipped' not in why:
                print(f'# fails without a fault, left out: {self.name}/{program}/{name}: {why}', flush=True)
        addresses, where = sorted({a for t in tests for a in t[2]}), {}
        told = subprocess.run(['addr2line', '-e', exe] + [hex(a) for a in addresses], stdout=subprocess.PIPE)
        for a, line in zip(addresses, told.stdout.decode().split('\n')):
            m = re.search(r'/(amp\.h|amp_kernels\.cu):(\d+)', line)
            if m: where[a] = m.groups()
        for t in tests:
            functions = {}
            for file, line in {where[a] for a in t[2] if a in where}: functions.setdefault(file, []).append(int(line))
            t[2] = functions
        json.dump(tests, open(cache, 'w'))
        return tests


FIRST = [Suite('o2', 'plain', TESTS, {'AMP_QUICK': '1'}), Suite('cuda', 'plain', ['cuda', 'sgemm'], {'AMP_QUICK': '1'})]
SANITIZED = Suite('sanitize', 'sanitize', TESTS, {'AMP_QUICK': '1'}, like=FIRST[0])
LAST = Suite('last', 'usual', TESTS, {'AMP_QUICK': '1'}, like=FIRST[0])
CHECKED = Suite('cuda-sanitize', 'emulated', ['cuda'], {'AMP_QUICK': '1'}, True, FIRST[1])
THREADS = Suite('threads', 'threads', TESTS, {'AMP_QUICK': '1', 'OMP_NUM_THREADS': '3', 'OMP_WAIT_POLICY': 'passive'},
                True, FIRST[0])
TIERS = [Suite('tier-' + t, 'plain', PRODUCTS, {'AMP_QUICK': '2', 'AMP_TEST_TIER': t})
         for t in ('c', 'avx2', 'avx512', 'pairs')] + \
        [Suite('model-' + t, 'model', PRODUCTS + ['tiles', 'processors'] * (t == 'amx'),
              {'AMP_QUICK': '2', 'AMP_TEST_TIER': t}, t != 'amx') for t in ('amx', 'pairs', 'neon_bf16')]
kills, tries, usual = collections.Counter(), collections.Counter(), {}


@functools.lru_cache(None)
def text_of(file):
    """Lines of a file; of each the last '}' in column 0, and the last line there that begins something."""
    lines, ended, above, head = originals[file].split('\n'), [], 0, 0
    heads = []
    for i, line in enumerate(lines):
        if re.match(r'[}\w#]', line): head = i + 1
        if line[:1] == '}': above = i + 1
        ended.append(above)
        heads.append(head)
    return lines, ended, heads


def plant(f):
    """Write the fault; with None in place of it, the files as they were."""
    for file, text in originals.items():
        lines = text_of(file)[0]
        if f and file == f.file: text = '\n'.join(lines[:f.line - 1] + [f.planted] + lines[f.line:])
        open(os.path.join(source, file), 'w').write(text)


def functions_of(file, line, starts, met):
    """First lines of the functions, of those entered, that a line is in; if it is in a table, a type, a macro or a
    function that is always inline, of those that use its names."""
    lines, ended, heads = text_of(file)
    above, ended = heads[line - 1], ended[line - 1]
    start, head = max((s for n, s in starts if n == file and s <= line), default=0), lines[above - 1]
    macro = re.match(r'#\s*define (\w+)', head) if above == line or lines[line - 2].endswith('\\') else None
    if start > ended and not macro: return {(file, start)}
    own = re.search(r'struct (\w+)', head) or (re.search(r'AMPI_\((\w+)\)\(|(\w+)\(', head.split('=')[0]))
    names = {macro.group(1)} if macro else {own.group(1) or own.group(own.lastindex)} if own else set(
        re.findall(r'(\w+)(?:\[[^\]]*\])*\s*=', head + ' ' + lines[line - 1]) +
        re.findall(r'(\w+)[;,]', lines[line - 1] if re.match('(typedef )?enum', head) else ''))
    names -= met
    met |= names
    return set().union(*(functions_of(other, i, starts, met) for name in names for other, i in users_of(name)
                         if (other, i) != (file, line)))


@functools.lru_cache(None)
def users_of(name):
    return [(file, i + 1) for file in originals for i, line in enumerate(text_of(file)[0])
            if name in line and re.search(rf'\b{name}\b', line)]


def entering(suites, f):
    """(suite, test) of those that enter a function that the fault is in."""
    for suite in suites:
        if suite.tests is None:
            plant(None)
            suite.traced()
            plant(f)
        tests = suite.tests
        found = functions_of(f.file, f.line, {(file, l) for t in tests for file in t[3] for l in t[3][file]}, set())
        for t in tests:
            if any(l in t[3].get(file, ()) for file, l in found) or not found and f.file != 'amp.h': yield suite, t


def built(suite, program, f, objects):
    """Program with the fault, linked with those of its objects that have it; None if one does not compile."""
    core, into = f.file == 'amp.h' and f.line < implementation, 'planted-' + suite.kind
    changed = [o for o in SUPPORT.get(program, [program, 'amp']) if o != 'emu' and
               (core and o in including or o in (('amp', 'sgemm') if f.file == 'amp.h' else ('kernels',)))]
    for o in changed:
        if (into, o) not in objects: objects[into, o] = compiled(into, o)
    return linked(suite.kind, program, into, changed) if all(objects[into, o] for o in changed) else None


def seen(suites, f, objects, enough=ENOUGH):
    """The first test that sees the fault, as (name, of make ci only), or None."""
    def worth(pair):
        suite, (program, name, seconds, _, ci) = pair
        key = f.room, suite.kind, program, name
        return ci, -(kills[key] + 0.3) / (tries[key] + 1) / (seconds + 0.03)
    programs, spent = {}, 0
    for suite, (program, name, seconds, _, ci) in sorted(entering(suites, f), key=worth):
        key, limits = (f.room, suite.kind, program, name), (3 + 8 * seconds, 60 + 40 * seconds)
        if key[1:3] not in programs: programs[key[1:3]] = built(suite, program, f, objects)
        spent += seconds
        if not programs[key[1:3]] or spent > enough: continue
        tries[key] += 1
        if run(programs[key[1:3]], name, suite.env, *limits)[0]: continue
        if suite.like and key[1:] not in usual:  # it must pass without the fault, too
            usual[key[1:]] = run(linked(suite.kind, program, suite.kind, ()), name, suite.env, *limits)[0]
        if not usual.get(key[1:], True): continue
        kills[key] += 1
        return f'{suite.name}/{program}/{name}', ci
    return None


def same(f):
    """Does it compile to the same object code? Of the core, in amp.o and in the kernels."""
    for o in ['amp'] * (f.file == 'amp.h') + ['kernels'] * (f.file != 'amp.h' or f.line < implementation):
        if not os.path.exists(path('usual', o + '.o')):
            plant(None)
            assert compiled('usual', o)
            plant(f)
        if not compiled('planted-usual', o): return True
        a, b = (open(path(k, o + '.o'), 'rb').read() for k in ('usual', 'planted-usual'))
        if a != b: return False
    return True


def judged(f, equal):
    """(verdict, who saw it)"""
    first = 'amp' if f.file == 'amp.h' else 'kernels'
    plant(f)
    try:
        objects = {('planted-plain', first): compiled('planted-plain', first)}
        if not objects['planted-plain', first]: return 'dropped', 'does not compile'
        compiled_to = [open(path(k, first + '.o'), 'rb').read() for k in ('plain', 'planted-plain')]
        core = f.file == 'amp.h' and f.line < implementation
        if compiled_to[0] == compiled_to[1] and not core: return 'dropped', 'the same object code'
        killer = seen(FIRST, f, objects) if f.file == 'amp.h' else seen(FIRST[1:], f, objects, ALL)
        if killer: return 'seen', killer[0]
        if same(f): return 'dropped', 'the same object code'
        if f.change in equal: return 'equal', ''
        looks = [([SANITIZED], ENOUGH), (TIERS * (f.room in REACHED), ALL), ([LAST], ALL), ([THREADS], ENOUGH)]
        if f.file != 'amp.h': looks = [([CHECKED], ALL)]
        killer = next(filter(None, (seen(suites, f, objects, most) for suites, most in looks)), None)
        return ('seen-ci' if killer[1] else 'seen', killer[0]) if killer else ('LIVES', '')
    finally: plant(None)


def main():
    global originals, implementation, including
    names = ('amp.h', 'amp_kernels.cu', 'tests', 'examples')
    files = [os.path.join(at, n) for top in names for at, _, inside in
             (os.walk(top) if os.path.isdir(top) else [('.', 0, [top])]) for n in inside]
    files = [n for n in sorted(files) if not n.endswith(('.py', '.pyc', '.txt', '.md'))]
    digest = hashlib.sha1(b''.join(open(n, 'rb').read() for n in files)).hexdigest()[:10]
    if not os.path.exists(path('.', digest)):
        for name in os.listdir(out) if os.path.isdir(out) else ():
            if name != 'log': (shutil.rmtree if os.path.isdir(path('.', name)) else os.remove)(path('.', name))
        os.makedirs(source)
        for name in names:
            (shutil.copytree if os.path.isdir(name) else shutil.copy)(name, os.path.join(source, name))
        open(path('.', digest), 'w').close()
    originals = {n: open(n).read() for n in ('amp.h', 'amp_kernels.cu')}
    plant(None)
    implementation = 1 + next(i for i, l in enumerate(originals['amp.h'].split('\n')) if re.match(r'/\* -+ >>impl', l))
    including = {'cuda', 'kernels', 'amp'} | {
        t for t in TESTS + ['tiles'] if '\n#define AMP_KERNELS' in open(f'tests/unit/test_{t}.c').read()}
    for k in KINDS: os.makedirs(path(k, ''), exist_ok=True)
    for suite in FIRST: suite.traced()
    equal = {line.split('  # ')[0].strip() for line in open('tests/faults/mutants.txt') if '  # ' in line}

    told = {}
    if os.path.exists(path('.', 'log')):
        for line in open(path('.', 'log')):
            part = line.rstrip('\n').split('  ')
            if len(part) < 6: continue
            if part[1] not in ('LIVES', 'equal') or part[2] == digest: told[part[0]] = part[1]
            if part[1].startswith('seen'):
                suite, program, test = part[4].split('/')
                kills[part[5], 'plain', program, test] += 1
                tries[part[5], 'plain', program, test] += 1
    rooms = {}
    for name in ('amp.h', 'amp_kernels.cu'):
        for room, faults in candidates(name).items(): rooms.setdefault(room, []).extend(faults)
    order = [f for i in range(max(map(len, rooms.values()))) for r in rooms for f in rooms[r][i:i + 1]]
    table, log = collections.Counter(), open(path('.', 'log'), 'a')
    for f in order:
        if sum(n for (_, v), n in table.items() if v != 'dropped') >= count: break
        verdict = told.get(f.id)
        if verdict == 'LIVES' and f.change in equal: verdict = 'equal'
        if not verdict and int(f.id, 16) % parts != share: verdict = 'left'
        if not verdict:
            began = time.time()
            verdict, who = judged(f, equal)
            spent = f'{time.time() - began:.1f}'
            line = '  '.join((f.id, verdict, digest, spent, who, f.room, f'{f.file}:{f.line}: {f.change}'))
            print(line, file=log, flush=True)
            if verdict == 'LIVES': print(line, flush=True)
        table[f.room, verdict] += 1
    verdicts = ['dropped', 'seen', 'seen-ci', 'equal', 'LIVES'] + ['left'] * (parts > 1)
    print(f'{"room":32}' + ''.join(f'{v:>9}' for v in verdicts))
    for room in list(rooms) + ['all']:
        row = [sum(n for (r, w), n in table.items() if w == v and room in (r, 'all')) for v in verdicts]
        if any(row): print(f'{room:32}' + ''.join(f'{n:9}' for n in row))
    planted = max(1, sum(row[1:]))
    print(f'of {planted} planted: {100 * row[3] / planted:.1f} % equal, {100 * (row[2] + row[4]) / planted:.1f} % live '
          f'after make test, {100 * row[4] / planted:.1f} % after what of make ci was run')
    return row[4] > 0.04 * planted


if __name__ == '__main__': sys.exit(main())
