# Build one test in one configuration and run it. The last line is "N passed, N failed[, N skipped]",
# even if the test crashed or its compiler is missing. A test that does not include amp.c is linked
# with the amp.o beside the program. Its object file stays: tier.sh links it with another amp.o.
# TEST-1of2 is the first half of TEST, every second test in it; TEST-1of4 a quarter.
# usage: [RUNNER=PROGRAM] one.sh CONFIG TEST COMPILER FLAGS PROGRAM
config=$1 test=${2%%-*} compiler=$3 flags=$4 program=$5
part=${2#"$test"}
[ -z "$part" ] || export AMP_TEST_PART="${part#-}"

with_config() { sed -E "s#^(ok|FAIL|skip) +#&$config/#"; } # in front of each name
skip() {
    printf 'skip %s: %s\n0 passed, 0 failed, 1 skipped\n' "$test" "$1" | with_config
    exit 0
}

command -v "${compiler%% *}" > /dev/null 2>&1 || skip "$compiler not found"
[ -z "${RUNNER-}" ] || command -v "$RUNNER" > /dev/null 2>&1 || skip "$RUNNER not found"
case $config in sanitize)
    echo 'int main(void) { return 0; }' > "$program.c"
    $compiler -fsanitize=address,undefined "$program.c" -o "$program" 2> /dev/null ||
        skip "$compiler has no address and undefined-behaviour sanitizers"
esac
object=$(dirname "$program")/amp.o
grep -q '^#include "../amp.c"' "tests/unit/test_$test.c" && object=
grep -q '^#include <pthread.h>' "tests/unit/test_$test.c" && flags="$flags -pthread"
fails() { # fails WHY: it does, with what the compiler said
    { cat ${object:+"$object.log"} "$program.out"
      printf 'FAIL %s: %s\n0 passed, 1 failed\n' "$test" "$1"; } | with_config
    exit 0
}
$compiler -std=c99 $flags -I. -c "tests/unit/test_$test.c" -o "$program.o" > "$program.out" 2>&1 &&
    $compiler $flags "$program.o" $object -o "$program" -lm > "$program.out" 2>&1 ||
    fails 'does not compile'
[ -z "$object" ] || [ ! -s "$object.log" ] || fails 'amp.h compiles with warnings'
${RUNNER-} "$program" > "$program.out" 2>&1
status=$?
if ! tail -n 1 "$program.out" | grep -Eq '^[0-9]+ passed, [0-9]+ failed' ||
    { [ $status != 0 ] && ! grep -q '^FAIL' "$program.out"; }; then
    printf 'FAIL %s: ended with status %d\n0 passed, 1 failed\n' "$test" "$status" >> "$program.out"
fi
with_config < "$program.out"
