# The fuzzers of tests/host/fuzz: replay their corpora, or look for new cases that violate a property.
# usage: [CC=cc] [CLANG=clang] [NAMES="state policy ..."] fuzz.sh replay|SECONDS OUTDIR
#     replay    every case of tests/host/fuzz/NAME.txt, and of OUTDIR/NAME.cases if a run has left some
#     SECONDS   run each fuzzer for so long, by libFuzzer if clang has it, else by driver.c. New cases
#               stay in OUTDIR/NAME.cases; the next run starts from them.
# Sanitizers are used where the compiler has them.
mode=$1
suite=fuzz out=${2:?usage: fuzz.sh replay|SECONDS DIR}
. tests/lib.sh
: "${CC:=cc}" "${CLANG:=clang}" "${NAMES:=state policy env}"
warn='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow'
export ASAN_OPTIONS=abort_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1
links() { # can a program be linked with these flags?
    echo 'int main(void) { return 0; }' > "$out/links.c"
    echo 'int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void) { return 0; }' \
        > "$out/fuzzes.c"
    source=$out/links.c
    case $* in *=fuzzer*) source=$out/fuzzes.c ;; esac
    "$@" "$source" -o "$out/links.$$" 2> /dev/null && rm -f "$out/links.$$"
}

build() { # PROGRAM COMPILER FLAGS SOURCES: the fuzzer $name; 1 if it does not compile
    built=$1
    shift
    case $name in state | policy) ;; *) set -- "$@" "$amp" ;; esac # they look inside their own
    "$@" -std=c99 $level -g $warn -I. "tests/host/fuzz/fuzz_$name.c" -o "$built" -lm \
        > "$built.log" 2>&1 && return
    fail "$name: does not compile" "$built.log"
    return 1
}

report() { # NAME PROGRAM WHAT: one line for a run, from what it has printed
    log=$2.log
    runs=$(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$log")
    if [ -n "$runs" ] && ! grep -q '^Test unit written' "$log"; then
        ok "$1: $runs $3"
        return
    fi
    why=$(sed -n -e 's/^property violated: //p' -e 's/.*\(runtime error: .*\)/\1/p' \
        -e 's/^.*ERROR: \([A-Za-z]*Sanitizer: .*\)/\1/p' -e 's/^ALARM: //p' "$log" | head -n 1)
    unit=$(sed -n 's/.*Test unit written to //p' "$log" | head -n 1)
    from=$(sed -n 's/^case: //p' "$log" | head -n 1)
    why=${why:-ended without a result, see $log}${from:+; case $from}${unit:+; kept as $unit}
    fail "$1: $why; replay: $out/$1 ${unit:-tests/fuzz/$1.txt}"
}

level=-Og
[ "$mode" != replay ] || level=-O0 # takes longer to compile than to run
sanitize=
links "$CC" -fsanitize=address,undefined && sanitize='-fsanitize=address,undefined
    -fno-sanitize-recover=all'
[ -n "$sanitize" ] || skip sanitizers "$CC has none, the fuzzers run without"
libfuzzer=
[ "$mode" != replay ] && links "$CLANG" -fsanitize=fuzzer,address,undefined && libfuzzer=1

# make has compiled amp.h with sanitizers already.
own=tests/amp.c
[ -z "$sanitize" ] || [ ! -s "${OBJECTS-}/sanitize/amp.o" ] || own=$OBJECTS/sanitize/amp.o

for name in $NAMES; do
    amp=$own
    program=$out/$name cases=$out/$name.cases
    build "$program" "$CC" $sanitize tests/host/fuzz/driver.c || continue
    mkdir -p "$cases"
    if [ "$mode" = replay ]; then
        "$program" --out "$out" "tests/host/fuzz/$name.txt" "$cases" > "$program.log" 2>&1
        report "$name" "$program" "cases of its corpus hold all properties"
    elif [ -z "$libfuzzer" ]; then
        "$program" --out "$out" --seconds "$mode" --seed "$(date +%s)" \
            "tests/host/fuzz/$name.txt" "$cases" > "$program.log" 2>&1
        report "$name" "$program" "cases made in $mode s hold all properties"
    elif amp=tests/amp.c && build "$program-libfuzzer" "$CLANG" \
        -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all; then
        "$program" --export "$cases" "tests/host/fuzz/$name.txt" &&
            "$program-libfuzzer" -max_total_time="$mode" -timeout=20 -print_final_stats=1 \
                -artifact_prefix="$out/$name-" "$cases" > "$program-libfuzzer.log" 2>&1
        report "$name" "$program-libfuzzer" "cases of libFuzzer, $mode s, hold all properties"
    fi
done

finish
