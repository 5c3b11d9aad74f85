# Print each goal of tests/proof/README.md, and whether it was proved: make prove; part of make check.
# usage: [CC=COMPILER] [FRAMA_C=COMMAND] prove.sh OUTDIR
suite=prove out=${1:?usage: prove.sh OUTDIR}
cc=${CC:-cc} frama_c=${FRAMA_C:-frama-c}
. tests/lib.sh
warn='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror'
sanitize='-fsanitize=address,undefined -fno-sanitize-recover=all'
length=8 # of Eva's texts
tokens=4 # of the texts that are all tried

compiles() { # compiles PROGRAM FLAGS...
    program=$1
    shift
    $cc -std=c99 $warn -I. -DAMP_NO_VECTORS "$@" "tests/proof/${program%-*}.c" -o "$out/$program" -lm > "$out/log" 2>&1 &&
        return
    fail "$program: does not compile"
    return 1
}

if ! have "$cc"; then
    skip scale "$cc not found"
else
    compiles scale-fast -O2 && lines scale "$out/scale-fast"
    if ! works "$cc" "$sanitize"; then
        skip 'scale, texts: no undefined behaviour' "$cc has no sanitizers"
    else
        compiles scale-safe -O1 $sanitize &&
            try 'scale: no undefined behaviour in one table row of 41' "$out/scale-safe" 41
        compiles texts-safe -O1 $sanitize && lines texts "$out/texts-safe" $tokens
    fi
fi

# Eva answers for every value at once. Without __GNUC__ amp.h is plain C; inf is a value like others.
eva() { # eva FUNCTION PRECISION WHAT: no alarm in what tests/proof/readers.c calls there
    $frama_c -cpp-extra-args="-I. -std=c99 -U__GNUC__ -U__unix__ -U__linux__ -DAMP_NO_VECTORS -DLENGTH=$length" \
        -machdep gcc_x86_64 tests/proof/readers.c -main "$1" -eva -eva-precision "$2" -warn-special-float none \
        > "$out/$1.log" 2>&1
    status=$?
    reached=$(sed -n 's/.*, \([0-9]* statements reached (out of [0-9]*)\).*/\1/p' "$out/$1.log")
    [ $status = 0 ] && [ -n "$reached" ] && grep -q '^  0 alarms generated' "$out/$1.log"
    status=$?
    grep -A 1 'eva:alarm\|[Ee]rror: ' "$out/$1.log" > "$out/log"
    check "eva: $3: no run-time error; $reached" $status
}
if have "$frama_c"; then
    eva word 6 "ampi_find_type of 0 to $length bytes of any value"
    eva next_word 9 "ampi_word of any text below $((length + 1)) bytes"
    eva header 6 "ampi_read_header of any 32 bytes, or fewer"
else
    skip eva "$frama_c not found"
fi
finish
