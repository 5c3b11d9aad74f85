# The fuzzers of tests/fuzz: replay their corpora, or look for new cases that violate a property.
# usage: [CC=cc] [CLANG=clang] [NAMES="state policy ..."] fuzz.sh replay|SECONDS DIR
#     replay    every case of tests/fuzz/NAME.txt, and of DIR/NAME.cases if a run has left some
#     SECONDS   that long for each fuzzer, by libFuzzer where clang has it, else by driver.c. The
#               cases that were found stay in DIR/NAME.cases; the next run goes on from them.
# Sanitizers are used where the compiler has them.
mode=$1 dir=$2
: "${CC:=cc}" "${CLANG:=clang}" "${NAMES:=state policy env calls}"
passed=0 failed=0 skipped=0
warn='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow'
export ASAN_OPTIONS=abort_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1
mkdir -p "$dir"

pass() { passed=$((passed + 1)); echo "ok   fuzz/$*"; }
fail() { failed=$((failed + 1)); echo "FAIL fuzz/$*"; }
skip() { skipped=$((skipped + 1)); echo "skip fuzz/$*"; }

links() { # can a program be linked with these flags?
    echo 'int main(void) { return 0; }' > "$dir/links.c"
    echo 'int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void) { return 0; }' \
        > "$dir/fuzzes.c"
    source=$dir/links.c
    case $* in *=fuzzer*) source=$dir/fuzzes.c ;; esac
    "$@" "$source" -o "$dir/links.$$" 2> /dev/null && rm -f "$dir/links.$$"
}

build() { # PROGRAM COMPILER FLAGS SOURCES: the fuzzer $name; 1 if it does not compile
    built=$1
    shift
    "$@" -std=c99 -O1 -g $warn -I. "tests/fuzz/fuzz_$name.c" -o "$built" -lm \
        > "$built.log" 2>&1 && return
    cat "$built.log"
    fail "$name: does not compile"
    return 1
}

report() { # NAME PROGRAM WHAT: one line for a run, from what it has printed
    log=$2.log
    runs=$(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$log")
    if [ -n "$runs" ] && ! grep -q '^Test unit written' "$log"; then
        pass "$1: $runs $3"
        return
    fi
    why=$(sed -n -e 's/^property violated: //p' -e 's/.*\(runtime error: .*\)/\1/p' \
        -e 's/^.*ERROR: \([A-Za-z]*Sanitizer: .*\)/\1/p' -e 's/^ALARM: //p' "$log" | head -n 1)
    unit=$(sed -n 's/.*Test unit written to //p' "$log" | head -n 1)
    from=$(sed -n 's/^case: //p' "$log" | head -n 1)
    why=${why:-ended without a result, see $log}${from:+; case $from}${unit:+; kept as $unit}
    fail "$1: $why; replay: $dir/$1 ${unit:-tests/fuzz/$1.txt}"
}

sanitize=
links "$CC" -fsanitize=address,undefined && sanitize='-fsanitize=address,undefined
    -fno-sanitize-recover=all'
[ -n "$sanitize" ] || skip "sanitizers: $CC has none, the fuzzers run without"
libfuzzer=
[ "$mode" != replay ] && links "$CLANG" -fsanitize=fuzzer,address,undefined && libfuzzer=1

for name in $NAMES; do
    program=$dir/$name cases=$dir/$name.cases
    build "$program" "$CC" $sanitize tests/fuzz/driver.c || continue
    mkdir -p "$cases"
    if [ "$mode" = replay ]; then
        "$program" --out "$dir" "tests/fuzz/$name.txt" "$cases" > "$program.log" 2>&1
        report "$name" "$program" "cases of its corpus hold all properties"
    elif [ -z "$libfuzzer" ]; then
        "$program" --out "$dir" --seconds "$mode" --seed "$(date +%s)" \
            "tests/fuzz/$name.txt" "$cases" > "$program.log" 2>&1
        report "$name" "$program" "cases made in $mode s hold all properties"
    elif build "$program-libfuzzer" "$CLANG" \
        -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all; then
        "$program" --export "$cases" "tests/fuzz/$name.txt" &&
            "$program-libfuzzer" -max_total_time="$mode" -timeout=20 -print_final_stats=1 \
                -artifact_prefix="$dir/$name-" "$cases" > "$program-libfuzzer.log" 2>&1
        report "$name" "$program-libfuzzer" "cases of libFuzzer, $mode s, hold all properties"
    fi
done

printf '%d passed, %d failed' "$passed" "$failed"
[ "$skipped" -eq 0 ] || printf ', %d skipped' "$skipped"
echo
[ "$failed" -eq 0 ]
