# Build one test in one configuration, run it, and leave its lines in a log that always closes with
# "N passed, N failed[, N skipped]", also when it crashed or its compiler is missing. A test that
# does not include amp.c is linked with amp.o, which lies beside the log.
# Its object file stays: tier.sh links it with another amp.o.
# usage: [RUNNER=PROGRAM] one.sh CONFIG TEST COMPILER FLAGS LOG
config=$1 test=$2 compiler=$3 flags=$4 log=$5
program=${log%.log}
mkdir -p "$(dirname "$log")"

finish() { # the lines so far, with the configuration in front
    awk -v config="$config" '/^(ok|FAIL|skip) / {sub(/ +/, " " config "/")} {print}' "$log.part" \
        | tee "$log"
    rm -f "$log.part"
}
skip() {
    printf 'skip %s: %s\n0 passed, 0 failed, 1 skipped\n' "$test" "$1" > "$log.part"
    finish
    exit 0
}

command -v "${compiler%% *}" > /dev/null 2>&1 || skip "$compiler not found"
[ -z "${RUNNER-}" ] || command -v "$RUNNER" > /dev/null 2>&1 || skip "$RUNNER not found"
case $config in sanitize)
    echo 'int main(void) { return 0; }' > "$program.c"
    $compiler -fsanitize=address,undefined "$program.c" -o "$program" 2> /dev/null ||
        skip "$compiler has no address and undefined-behaviour sanitizers"
esac
object=$(dirname "$log")/amp.o
grep -q '^#include "amp.c"' "tests/test_$test.c" && object=
grep -q '^#include <pthread.h>' "tests/test_$test.c" && flags="$flags -pthread"
fails() { # fails WHY: it does, with what the compiler said
    [ -z "$object" ] || cat "$object.log" >> "$log.part"
    printf 'FAIL %s: %s\n0 passed, 1 failed\n' "$test" "$1" >> "$log.part"
    finish
    exit 0
}
$compiler -std=c99 $flags -I. -c "tests/test_$test.c" -o "$program.o" > "$log.part" 2>&1 &&
    $compiler $flags "$program.o" $object -o "$program" -lm > "$log.part" 2>&1 ||
    fails 'does not compile'
[ -z "$object" ] || [ ! -s "$object.log" ] || fails 'amp.h compiles with warnings'
${RUNNER-} "$program" > "$log.part" 2>&1
status=$?
if ! tail -n 1 "$log.part" | grep -Eq '^[0-9]+ passed, [0-9]+ failed'; then
    printf 'FAIL %s: ended with status %d\n0 passed, 1 failed\n' "$test" "$status" >> "$log.part"
fi
finish
