# Do the tests notice when they test nothing? Programs that break what test.h promises must fail.
# usage: [CC=COMPILER] [CXX=COMPILER] self.sh OUTDIR, in the root of the repository
suite=self out=${1:?usage: self.sh OUTDIR}
cc=${CC:-cc} cxx=${CXX:-c++}
. tests/lib.sh

# lib.sh does not judge itself: what a script prints in which everything fails once.
says() { printf '%s\n' "$@"; }
(unset DEAD_LOG
suite=a out=$out/lib
. tests/lib.sh
try one true
try two false
refuses three line says line
refuses four word false
lines five says 'ok   x: y' 'FAIL x: z' '     why' '1 passed, 1 failed, 1 skipped'
lines six sh -c 'echo "1 passed, 0 failed"; exit 3'
lines seven says 'ok   x: y'
finish) > "$out/told"
echo "status $?" >> "$out/told"
cat > "$out/expected" <<'END'
ok   a/one
FAIL a/two
FAIL a/three
     line
FAIL a/four
ok   a/five/x: y
FAIL a/five/x: z
     why
FAIL a/six: ended with status 3
     1 passed, 0 failed
ok   a/seven/x: y
FAIL a/seven: ended with status 0
     ok   x: y
3 passed, 6 failed, 1 skipped
status 1
END
if ! cmp -s "$out/told" "$out/expected"; then
    echo 'FAIL self/lib.sh: what failed is not told as failed'
    diff "$out/told" "$out/expected" | sed 's/^/     /'
    echo '0 passed, 1 failed'
    exit 1
fi
ok 'lib.sh tells and counts what failed'

# Is there a check that cannot fail, and does dead.sh find one? Some of many kinds are planted in copies of a script and
# of a test; then all scripts and tests are tried.
planted() { # planted FILE NAME: dead.sh tells of each line in it that is marked so, and of no other, under that name
    sed -n "s#^dead: $2:\([0-9:]*:\)*\([0-9]*\): .*#\2#p" "$out/found" | sort -nu > "$out/at"
    grep -n planted "$1" | cut -d : -f 1 > "$out/where"
    diff "$out/where" "$out/at" > "$out/log" 2>&1 && [ "$(grep -c . "$out/where")" -ge 5 ] && return
    cat "$out/found" >> "$out/log"
    return 1
}
if have bash && have timeout; then
    mkdir -p "$out/planted/tests/trainers"
    sed '/^finish$/d' tests/trainers/pages.sh > "$out/planted/tests/trainers/pages.sh"
    cat tests/faults/planted/script.sh >> "$out/planted/tests/trainers/pages.sh"
    sh tests/faults/dead.sh "$out/dead" "$out/planted/tests/trainers/pages.sh" tests/faults/planted/test.c > "$out/found" 2>&1
    planted "$out/planted/tests/trainers/pages.sh" tests/trainers/pages.sh
    check "dead.sh finds what cannot fail in a script, by its $(grep -c . "$out/where") lines, and nothing else" $?
    planted tests/faults/planted/test.c tests/faults/planted/test.c
    check "and the $(grep -c . "$out/where") checks in C that cannot fail" $?
    sh tests/faults/dead.sh "$out/dead" > "$out/log" 2>&1 && ! grep -q '^dead' "$out/log"
    dead=$? met=$(sed -n 's/^# \([0-9]*\) places.*/\1/p' "$out/log")
    [ $dead = 0 ] && [ "${met:-0}" -ge 300 ]
    check "no check is dead: each of ${met:-no} places fails where nothing works" $?
else
    skip dead 'no bash, or no timeout'
fi

# make check plants faults by sed; lines that a fault no longer finds are told here, before.
for name in model tier; do
    PLANT_ONLY=1 sh "tests/faults/${name}_self.sh" "$out/plant" > "$out/log" 2>&1
    check "${name}_self.sh finds each line that its faults change" $?
done

cat > "$out/complete.c" <<'END'
#include "test.h"
TEST(one, "passes") { CHECK(1 + 1 == 2); }
TEST(crashes, "says so before") { CHECK(1 + 1 == 4); abort(); }
TEST(unequal, "fails once by each check") {
    CHECK(1 + 1 == 3);
    CHECK_EQ_U32(1, 2);
    CHECK_EQ_U64(1, 1 | UINT64_C(1) << 32);
    CHECK_EQ_INT(-1, 1);
    CHECK_EQ_F32(-0.0f, 0.0f);
    CHECK_EQ_F64(-0.0, 0.0);
    CHECK_MEM("ab", "ac", 2);
}
TEST(two, "is skipped on purpose") { SKIP("not here"); }
TEST(nothing, "has a check that it does not meet") {
    int i;
    for (i = 0; i < test_state.failures; i++) CHECK(i == 0);
    CHECK_MEM("ab", "ac", 0);
}
int main(int argc, char **argv) {
    test_begin(argc, argv);
    if (getenv("OUTSIDE") != NULL) CHECK(1 + 1 == 3);
    if (getenv("CRASH") != NULL) RUN(crashes);
    if (getenv("UNEQUAL") != NULL) RUN(unequal);
    if (getenv("NOTHING") != NULL) RUN(nothing);
    RUN(one);
    RUN(two);
    return test_end();
}
END
sed '/RUN(two)/d' "$out/complete.c" > "$out/forgotten.c"
for extension in cpp cu; do
    cp "$out/complete.c" "$out/complete.$extension"
    cp "$out/forgotten.c" "$out/forgotten.$extension"
done

for build in "$cc -std=c99" "clang -std=c99" "$cxx -std=c++14" "clang++ -std=c++14" \
    "${NVCC:-nvcc} -std=c++14"; do
    case $build in *nvcc*) extension=cu ;; *++*) extension=cpp ;; *) extension=c ;; esac
    have "$build" || { skip "${build%% *}" 'not found'; continue; }
    $build -Itests/support -c "$out/complete.$extension" -o "$out/complete.o" > "$out/log" 2>&1 &&
        ! $build -Itests/support -c "$out/forgotten.$extension" -o "$out/forgotten.o" > "$out/log" 2>&1 &&
        grep -q test_two "$out/log"
    check "a TEST without its RUN does not compile: ${build%% *}" $?
done

have "$cc" && $cc -std=c99 -Itests/support "$out/complete.c" -o "$out/complete" > "$out/log" 2>&1 || {
    skip programs "$cc not found"
    finish
}

# ends STATUS LAST-LINE PATTERN ARGUMENTS...: how the program ends; PATTERN is one of its lines
ends() {
    status=$1 last=$2 pattern=$3
    shift 3
    "$out/complete" "$@" > "$out/log" 2>&1
    [ $? = "$status" ] && [ "$(tail -n 1 "$out/log")" = "$last" ] && grep -qx "$pattern" "$out/log"
}
ends 0 '1 passed, 0 failed, 1 skipped' 'skip two: not here'
check "a program with a test that passed and one that is skipped passes" $?
ends 1 '0 passed, 1 failed' 'FAIL main: no test ran of those named nothing' --filter nothing
check "a filter that matches no test fails" $?
ends 1 '0 passed, 1 failed, 1 skipped' 'FAIL main: all tests were skipped' --filter two
check "a program all of whose tests are skipped fails" $?
(export OUTSIDE=1; ends 1 '1 passed, 1 failed, 1 skipped' 'FAIL main: a check outside the tests')
check "a check that fails outside the tests fails" $?
(export UNEQUAL=1; ends 1 '1 passed, 1 failed, 1 skipped' 'FAIL unequal: fails once by each check') &&
    [ "$(grep -c "^     $out/complete.c:" "$out/log")" = 7 ]
check "each of the seven checks fails where it should" $?
(export NOTHING=1; ends 1 '1 passed, 1 failed, 1 skipped' 'FAIL nothing: has a check that it does not meet') &&
    grep -q 'it has checked nothing$' "$out/log"
check "a test that checks nothing fails" $?
CRASH=1 AMP_TEST_NAMES=1 "$out/complete" > "$out/log" 2> "$out/shell"
[ $? = 134 ] && grep -qx '# crashes begins' "$out/log" &&
    grep -qx "     $out/complete.c:3: CHECK(1 + 1 == 4)" "$out/log"
check "of a test that crashes the name and the checks that failed are told" $?

for part in 1of2 2of2; do AMP_TEST_PART=$part "$out/complete"; done > "$out/log" 2>&1
[ "$(grep -c '^ok   one' "$out/log")" = 1 ] && [ "$(grep -c '^skip two' "$out/log")" = 1 ]
check "AMP_TEST_PART: two halves have each test once" $?

# one.sh: a program that ends with a status of its own. `true` compiles it, sh runs it.
one() { # one STATUS LAST-LINE
    printf 'echo "1 passed, 0 failed"; exit %s\n' "$1" > "$out/program"
    chmod +x "$out/program"
    RUNNER=sh sh tests/one.sh config scaler true '' "$out/program" > "$out/log" 2>&1
    [ "$(tail -n 1 "$out/log")" = "$2" ]
}
one 0 '1 passed, 0 failed' && one 3 '0 passed, 1 failed' && grep -qx 'FAIL config/scaler: ended with status 3' "$out/log"
check "a program whose last line looks right, but not its status, has failed" $?

# mingw.sh counts what one.sh tells, and a test of which it tells nothing has failed.
mkdir -p "$out/mingw/tests/host"
cp tests/host/mingw.sh "$out/mingw/tests/host/"
: > "$out/mingw/tests/one.sh"
: > "$out/mingw/tests/amp.c"
! (cd "$out/mingw" && sh tests/host/mingw.sh out scaler gemm) > "$out/log" 2>&1 &&
    [ "$(tail -n 1 "$out/log")" = '0 passed, 1 failed' ] &&
    grep -qx 'FAIL mingw: results of 0 tests, of 2 asked for' "$out/log"
check "mingw.sh without results has failed" $?

# .github: each make target and each file that the workflow and the texts name is there; GitHub's schemas take its files.
# Files look as .editorconfig says.
not_there() { # not_there DIRECTORY: what its files name and the repository has not; named has all that they name
    cat "$1"/*.md "$1"/*/*.yml | grep -oE 'make [a-z-]+|(tests|examples|[.]ci|[.]github)/[A-Za-z0-9_./-]*[A-Za-z0-9_]' |
        sort -u > "$out/named"
    while read -r name; do
        case $name in make*) grep -q "^${name#make }:" Makefile ;; *) [ -e "$name" ] ;; esac || echo "$name"
    done < "$out/named"
}
not_there .github > "$out/log" && [ ! -s "$out/log" ] && [ "$(grep -c . "$out/named")" -ge 10 ]
check '.github: targets and files that it names are there' $?
rm -rf "$out/github"
cp -R .github "$out/github" && sed 's#make test$#make tset#; s#host/msvc[.]sh b#host/mvsc.sh b#; s/runs-on/run-on/' \
    .github/workflows/ci.yml > "$out/github/workflows/ci.yml"
[ "$(not_there "$out/github" | sed 's#.*/##' | tr '\n' ' ')" = 'make tset mvsc.sh ' ]
check 'and others are told' $?
accepts() { # accepts SCHEMA FILE...
    schema=$1
    shift
    check-jsonschema --builtin-schema "vendor.github-$schema" "$@" > "$out/log" 2>&1
}
if have check-jsonschema; then
    accepts workflows .github/workflows/*.yml && accepts issue-forms .github/ISSUE_TEMPLATE/*.yml
    check "GitHub's schemas take the workflow and the issue forms" $?
    sed 's/label:/lable:/' .github/ISSUE_TEMPLATE/gpu.yml > "$out/github/gpu.yml"
    ! accepts workflows "$out/github/workflows/ci.yml" && grep -q runs-on "$out/log" &&
        ! accepts issue-forms "$out/github/gpu.yml" && grep -q "label" "$out/log"
    check 'and no key that is none' $?
else
    skip 'schemas of GitHub' 'no check-jsonschema (.ci/run gets it from PyPI)'
fi
asked() { sed -n 's/^    id: //p' ".github/ISSUE_TEMPLATE/$1.yml" | tr '\n' ' '; } # asked FORM: what of
[ "$(asked bug)" = 'what version tier processor compiler gpu tests ' ] && [ "$(asked gpu)" = 'issue report machine ' ]
check 'the issue forms ask for all that they should' $?
form=$(sed -n 's/^name: //p' .github/ISSUE_TEMPLATE/gpu.yml)
for file in tests/README.md tests/gpu/gpu.sh; do grep -q "issue form ['\"]$form['\"]" $file || echo "$file: not $form"; done > "$out/log"
notebook=$(command grep -h '^ *!git clone' .github/ISSUE_TEMPLATE/gpu.yml tests/README.md | sed 's/^ *//' | sort -u)
[ "$form" ] && [ ! -s "$out/log" ] && [ "$(echo "$notebook" | grep -c 'sh tests/gpu/gpu.sh 1 OUT')" = 1 ]
check "what gpu.sh leaves goes into the form '$form', and a notebook's line is the same everywhere" $?
for target in test ci; do command grep -hE "^ +make $target " .github/CONTRIBUTING.md tests/README.md | sort -u; done > "$out/log"
[ "$(grep -c . "$out/log")" = 2 ] &&
    grep -q 'two minutes on two cores' .github/ISSUE_TEMPLATE/bug.yml && grep -qF '`make test` (two minutes) and `make ci` (15)' README.md
check 'how long make test and make ci take is the same in all texts' $?
looks() { # looks FILE...: lines with a tab in the indent, a blank at the end or too many columns; the last newline that is none
    awk '/^ *\t|[ \t\r]$/ || (FILENAME ~ /^amp/ && length > 100) {print FILENAME ":" FNR}' "$@"
    tail -qc 1 "$@" | tr -d '\n'
}
printf ' \tx\ny \nz' > "$out/looks"
[ -s amp.h ] && looks $(find .ci .clangd .ctags.d .github .editorconfig amp* README.md examples tests \( -name '*.gz' -o -name '*.state' -o \
    -name '*.pyc' -o -name '*.mk' \) -prune -o -type f -print) > "$out/log" && [ ! -s "$out/log" ] &&
    [ "$(looks "$out/looks" | tr '\n' ' ')" = "$out/looks:1 $out/looks:2 z" ]
check 'all files look as .editorconfig says, and one that does not is told' $?

# What make test prints: of a suite that fails the command that runs it again; one that left no log.
rm -rf "$out/suites"
for text in '3 passed, 0 failed' '1 passed, 0 failed, 2 skipped' 'FAIL x: why
4 passed, 1 failed'; do
    sh tests/suite.sh "$out/suites" "$out/suites/$(printf %.1s "$text").log" echo "$text" > "$out/log"
done
again() { # again LAST-LINE COMMANDS LOG...: how run.sh ends, and how many commands it tells
    last=$1 told=$2
    shift 2
    for log; do shift; set -- "$@" "$out/suites/$log"; done
    JOBS=1 MAKE=true AGAIN=make sh tests/run.sh test "$out/suites" "$@" > "$out/log" 2>&1
    [ $? = "$told" ] && [ "$(grep -c '^  [a-z ]*: make ' "$out/log")" = "$told" ] &&
        [ "$(tail -n 1 "$out/log")" = "$last" ]
}
again '4 passed, 0 failed, 2 skipped' 0 3.log 1.log && ! grep -q 'last time' "$out/log"
check "make test adds up its suites" $?
again '3 passed, 0 failed, 0 skipped' 0 3.log && grep -q '^make test: 1 suites, [0-9]* s last time here: 3$' "$out/log"
check "its first line says how long it took last time" $?
again '5 passed, 1 failed, 2 skipped' 1 1.log F.log && grep -q "^  again: make .*/F.log$" "$out/log" &&
    [ "$out/suites/1.log" -nt "$out/suites/F.log" ]
check "of a failed one it says the command that runs it again, and it is out of date" $?
again '3 passed, 1 failed, 0 skipped' 1 3.log none.log && grep -q '^  not run: make .*/none.log$' "$out/log"
check "one that left no log has failed" $?

# bench-compare: a version is as fast as itself, and a delay in amp_cast is told by its rows' names.
sed 's/^    if (n) ampi_cast_all(dst, dst_type, src, src_type, n);/    { volatile size_t i = 8 * n; while (i) i--; }\n&/' \
    amp.h > "$out/slow.h"
compare() { # NEW STATUS PATTERN: of all casts, checks and unscales of 100000 numbers in plain C
    CC="$cc" CFLAGS=-O0 sh tests/bench/compare.sh "$out/compare" "$1" amp.h c 100000 > "$out/log" 2>&1
    [ $? = "$2" ] && grep -qx "$3" "$out/log"
}
compare amp.h 0 '10 rows, 0 slower'
check "bench-compare: no row of equal versions is slower" $?
# Its check may be slower, too: the delay moves it to other addresses.
compare "$out/slow.h" 1 '10 rows, [4-6] slower' && [ "$(grep -c '^SLOWER c cast .* 100000$' "$out/log")" = 4 ]
check "bench-compare: a delay in amp_cast is seen in its four rows" $?

# make bench-trainers: of a toy, whose loss is what it counts to; and of one whose diff is of another version.
toy=$out/trainers/toy
rm -rf "$out/trainers" && mkdir -p "$toy/source"
printf '%s\n' '#include <stdio.h>' 'int main(void) {' '    const int steps = 9;' \
    '    return printf("step %d\n%d.5 %d.25\n", steps, steps, steps) < 0;' '}' > "$toy/source/toy.c"
echo '"$CC" toy.c -o toy && grep -q "v[0-9]" "$AMP/amp.h"' > "$toy/build"
echo './toy' > "$toy/run"
replaces() { # replaces FILE OLD NEW
    printf '%s\n' '--- a/toy.c' '+++ b/toy.c' '@@ -3,1 +3,2 @@' "-    const int steps = $2;" \
        "+    /* lines */" "+    const int steps = $3;" > "$toy/$1.diff"
}
trainers() { # trainers STATUS LINE
    CC="$cc" sh tests/bench/trainers.sh "$out/trainers" 2 > "$out/log" 2>&1
    [ $? = "$1" ] && grep -qFx "$2" "$out/log"
}
replaces own 9 8 && replaces bf16 8 2 && trainers 0 '| toy, bf16 | 2 | 8.5 | 2.5 | 3.40 | 8.25 | 2.25 |'
check "trainers: a variant's row has lines, seconds, their ratio, both losses" $?
replaces bf16 7 2 && trainers 1 'FAIL toy: bf16 does not build' && ! grep -q '^| toy' "$out/log"
check "trainers: lines of another version are told, and give no row" $?
CC="$cc" sh tests/bench/trainers.sh "$toy" > "$out/log" 2>&1
[ $? = 2 ] && grep -q ': no folder in it has a checkout named source; see ' "$out/log"
check "trainers: a folder without any is told" $?

# bench-peers: a rival that is 20 times slower in a type is a line of it. torch is a stand-in, slow in fp16.
if have python3; then
    mkdir -p "$out/peers"
    cat > "$out/peers/torch.py" <<'END'
import sys, time
float32, float16, bfloat16 = 'torch.float32', 'torch.float16', 'torch.bfloat16'
class Array:
    def __init__(self, type): self.type = type
    def to(self, type): return Array(type)
    def t(self): return self
    def data_ptr(self): return 0
def set_num_threads(count): pass
def randn(*shape): return Array(float32)
def empty(*shape, dtype): return Array(dtype)
def mm(a, b, out):
    time.sleep(0.05 if a.type == float16 else 0.001)
    sys.stderr.write(a.type + '\n')
END
    printf '%s\n' '#include <unistd.h>' 'int amp_gemm(void) { return usleep(500); }' > "$out/peers/amp.c"
    $cc -fPIC -shared "$out/peers/amp.c" -o "$out/peers/amp.so" > "$out/log" 2>&1 &&
        PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$out/peers" python3 tests/bench/peers.py "$out/peers/amp.so" 1 \
            > "$out/log" 2> "$out/calls" &&
        [ "$(grep -c '^gemm bfloat16 / torch .* ratio=[0-9.]* ' "$out/log")" = 8 ] &&
        [ "$(grep -c '^gemm float16 / torch .*: over 20 times slower, other sizes left out$' "$out/log")" = 1 ] &&
        [ "$(grep -c . "$out/log")" = 9 ] &&
        [ "$(grep -cx torch.float16 "$out/calls")" = 2 ]
    check "bench-peers: torch's slow fp16 is one line, after two calls" $?
else
    skip bench-peers 'no python3'
fi

finish
