# lib.sh - what the scripts here share. A result is a line, "ok", "FAIL" or "skip"; the last line
# counts them. A script sets suite, the name in front of its results, and out, a directory for what
# it makes. The output of the command that a result is about goes to $out/log.
#     suite=compile out=${1:?usage: compile.sh OUTDIR}
#     . tests/lib.sh
passed=0 failed=0 skipped=0
PATH=$PATH:$PWD/$(dirname "${OBJECTS:-build/tests}")/tools/python/bin # where .ci/run puts what PyPI has
mkdir -p "$out" || exit 1

have()  { command -v "${1%% *}" > /dev/null 2>&1; } # have "COMMAND [FLAGS]"
quick() { case ${AMP_QUICK:-0} in 0) return 1 ;; esac; } # true in make test, false in make check

ok() {
    [ ! -e "$out/unread" ] || { fail "$1" "$out/unread"; return; }
    passed=$((passed + 1))
    echo "ok   $suite/$1"
}
skip() { skipped=$((skipped + 1)); echo "skip $suite/$1: $2"; } # skip NAME REASON
fail() { # fail TEXT [LOG]
    failed=$((failed + 1))
    echo "FAIL $suite/$1"
    [ ! -f "${2-$out/log}" ] || head -n 20 "${2-$out/log}" | sed 's/^/     /'
    rm -f "$out/unread"
}

# A file that is missing says neither yes nor no, nor do two files of no byte agree: what is decided so has
# failed, also behind a "!".
unread() { # unread STATUS COMMAND...: 1 is no, 2 that there was nothing to look at
    [ "$1" = 2 ] || return "$1"
    shift
    echo "nothing to look at: $*" >> "$out/unread"
    return 2
}
filled() { for file_; do case $file_ in -*) ;; *) [ -s "$file_" ] || return 2 ;; esac; done; }
grep()   { command grep "$@" || unread $? grep "$@"; }
cmp()    { { filled "$@" && command cmp "$@"; } || unread $? cmp "$@"; }
diff()   { { filled "$@" && command diff "$@"; } || unread $? diff "$@"; }
same()   { [ -n "$1" ] && [ "$1" = "$2" ]; } # what two commands have printed

check() { if [ "$2" = 0 ]; then ok "$1"; else fail "$1"; fi; } # check TEXT STATUS
try() { # try TEXT COMMAND...: it must succeed
    text=$1
    shift
    "$@" > "$out/log" 2>&1
    check "$text" $?
}
refuses() { # refuses TEXT PATTERN COMMAND...: it must fail with one line that matches the pattern
    text=$1 pattern=$2
    shift 2
    "$@" > "$out/log" 2>&1
    status=$?
    [ $status -ne 0 ] && [ $status -lt 126 ] && [ "$(grep -c . "$out/log")" = 1 ] &&
        grep -q -e "$pattern" "$out/log"
    check "$text" $?
}
# Ctrl-C reaches what is started with this, also in the background of a script.
with_interrupt='env --default-signal=INT'
await() { # await FILE PATTERN: until FILE has three such lines
    tries=0 there=0
    while [ "${there:-0}" -lt 3 ] && [ $tries -lt 400 ]; do
        sleep 0.05
        tries=$((tries + 1)) there=$(command grep -c "$2" "$1" 2> /dev/null)
    done
}
interrupt() { # interrupt FILE PATTERN: the last command of the background, as soon as FILE has three such lines
    await "$@"
    kill -INT $! && wait $!
}
block() { # block PAGE WORDS: its block of C with a line that has these words
    awk -v words="$2" '/^```c$/ {on = 1; text = ""; next}
        /^```/ {if (on && index(text, words)) {printf "%s", text; exit} on = 0}
        on {text = text $0 "\n"}' "$1"
}
fast() { awk '/#define AMP_IMPLEMENTATION/ {on = 1} on {print substr($0, 8)} on && /^       }$/ {exit}' amp.h; } # its first program
fast_prints() { printf 'step %2d  loss %s\n' 0 42.71 20 0.13 40 0.01 60 0.00; }
example() { ls "examples/$1" examples/*/"$1" 2> /dev/null; } # example FILE: where it is
works() { # works COMPILER [FLAGS]: a program that is compiled so runs
    have "$1" && echo 'int main(void) { return 0; }' > "$out/works.cpp" &&
        $1 ${2-} "$out/works.cpp" -o "$out/works" > /dev/null 2>&1 && "$out/works" > /dev/null 2>&1
}
lines() { # lines NAME PROGRAM ARGUMENTS...: those of a test program, counted, with NAME in front
    name=$1
    shift
    "$@" > "$out/$name.log" 2>&1
    status=$?
    sed -En "s#^(ok|FAIL|skip) +#&$suite/$name/#; /^(ok|FAIL|skip|    ) /p" "$out/$name.log"
    set -- $(tail -n 1 "$out/$name.log" | sed -En '/^[0-9]+ passed, [0-9]+ failed/s/[^0-9]+/ /gp')
    passed=$((passed + ${1:-0})) failed=$((failed + ${2:-0})) skipped=$((skipped + ${3:-0}))
    [ $# -ge 2 ] && { [ $status = 0 ] || [ "$2" != 0 ]; } && return
    tail -n 12 "$out/$name.log" > "$out/log"
    fail "$name: ended with status $status"
}
finish() { # the last line, and the end
    printf '%d passed, %d failed' $passed $failed
    [ $skipped = 0 ] || printf ', %d skipped' $skipped
    echo
    [ $failed = 0 ]
    exit
}
rm -f "$out/unread"
[ -z "${DEAD_LOG-}" ] || . tests/faults/world.sh # dead.sh: is there a check that cannot fail?
