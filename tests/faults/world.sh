# world.sh - the rest of lib.sh in a world in which nothing works: dead.sh runs each script in it, by bash. No tool is
# missing and no test is left out, so every check is met. DEAD_LOG has a line for each result: its word, the lines of
# the script that led to it, its text.
have()  { :; }
works() { :; }
quick() { [ "$DEAD_WORLD" = fails-words ]; }
sleep() { :; }
finish() { :; } # what comes behind the first failure, too
tell() { # tell WORD TEXT
    local at= i
    for ((i = 1; i < ${#FUNCNAME[@]}; i++)); do
        case ${BASH_SOURCE[i]} in tests/lib.sh | tests/faults/world.sh) ;; *) at=$at:${BASH_LINENO[i - 1]} ;; esac
    done
    [ $BASH_SUBSHELL = 0 ] || case $1 in ok | FAIL) printf 'lost %s %s\n' "${at#:}" "$2" >> "$DEAD_LOG" ;; esac
    printf '%s %s %s\n' "$1" "${at#:}" "${2//$'\n'/ }" >> "$DEAD_LOG"
}
ok() {
    if [ -e "$out/unread" ]; then fail "$1"; else tell ok "$1"; fi
}
fail() { failed=$((failed + 1)); tell FAIL "$1"; rm -f "$out/unread"; }
skip() { tell skip "$1: $2"; }
eval "program_$(declare -f lines)"
lines() { # a program's own results are one here
    local before=$failed
    program_lines "$@"
    [ "$failed" != "$before" ] || ok "$1"
}
grep() { # one that asks with a pattern that any line fits, an empty one, too
    local word pattern='' options=
    for word; do
        case $word in
        -e) continue ;;
        -*) options="$options $word"; continue ;;
        esac
        pattern=$word
        break
    done
    case $options in
    *v* | *L* | *l* | *o* | *n*) ;;
    *) ! echo | command grep $options -q -e "$pattern" 2> /dev/null || tell vague "grep $*" ;;
    esac
    command grep "$@" || unread $? grep "$@"
}
