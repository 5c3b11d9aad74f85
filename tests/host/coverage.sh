# Which lines, branches and conditions of amp.h do the tests of o2 run, in all tiers that this processor has? clang
# and llvm-cov make a table by room; OUTDIR/lines has each line that no test runs; then comes what is not compiled
# on this machine, by its #if. A branch is one outcome of a condition; a condition counts if both are seen.
# usage: [CLANG=clang] coverage.sh OUTDIR TEST...
out=${1:?usage: coverage.sh OUTDIR TEST...}
shift
cc=${CLANG:-clang} version=$(${CLANG:-clang} --version | sed -n '1s/.*version \([0-9]*\).*/-\1/p')
for tool in cov profdata; do
    command -v llvm-$tool"$version" > /dev/null || { echo "coverage: no llvm-$tool$version"; exit 1; }
done
rm -rf "$out"
mkdir -p "$out"
flags='-std=c99 -O1 -Wno-everything -fprofile-instr-generate -fcoverage-mapping -I.'
export AMP_QUICK=${AMP_QUICK:-1} LLVM_PROFILE_FILE="$out/%m.profraw"
$cc $flags -c tests/amp.c -o "$out/amp.o" || exit 1

programs=
for test; do
    object=$out/amp.o
    grep -q '^#include "../amp.c"' "tests/unit/test_$test.c" && object=
    $cc $flags "tests/unit/test_$test.c" $object -o "$out/$test" -lm -pthread || exit 1
    programs="$programs ${programs:+-object }$out/$test"
    for tier in '' c avx2 avx512 pairs neon; do # the best first; of others what products reach
        case $tier-$test in -* | *-gemm | *-cache | *-processors | *-bits) ;; *) continue ;; esac
        AMP_TEST_TIER=$tier "$out/$test" > "$out/log" 2>&1
        [ $? = 77 ] || echo "# $test ${tier:-as it is}: $(tail -n 1 "$out/log")"
    done
done
llvm-profdata"$version" merge "$out"/*.profraw -o "$out/profile" && rm "$out"/*.profraw
llvm-cov"$version" export -format=lcov $programs -instr-profile="$out/profile" "$PWD/amp.h" 2> /dev/null > "$out/lcov"
llvm-cov"$version" export -skip-expansions -skip-functions $programs -instr-profile="$out/profile" "$PWD/amp.h" \
    2> /dev/null | tr ']' '\n' | sed -n '/"branches":/,/"expansions":/s/^[^0-9]*\([0-9,]*\)$/\1/p' > "$out/branches"
$cc -std=c99 -I. -E tests/amp.c > "$out/preprocessed"

awk -F '[:,]' -v missed="$out/lines" '
    FILENAME ~ /branches$/ { # line, column, end, counts of true and false; once for each tier that reads it
        split($0, b, ","); k = b[1] "," b[2] "," b[3] "," b[4]; at[k] = b[1] + 0; t[k] += b[5]; f[k] += b[6]; next
    }
    FILENAME ~ /lcov$/ { if ($1 == "DA") ran[$2 + 0] = $3; next }
    { text[FNR] = $0 }
    match($0, />>(core|impl) +[a-z]/) && /^\/\* -/ {
        name = substr($0, RSTART + 2); sub(/ *(\*\/)? *$/, "", name); gsub(/  +/, " ", name)
        if (!(name in seen)) seen[name] = ++rooms
        names[rooms] = name
    }
    { room[FNR] = name }
    END {
        for (l in ran) { n[room[l]]++; hit[room[l]] += ran[l] > 0 }
        for (l = 1; l in text; l++) if (l in ran && !ran[l]) print l ": " text[l] > missed
        for (k in at) {
            r = room[at[k]]; nb[r] += 2; hb[r] += (t[k] > 0) + (f[k] > 0); nc[r]++; hc[r] += t[k] > 0 && f[k] > 0
            if (!t[k] || !f[k]) print at[k] ": never " (t[k] ? "false" : f[k] ? "true" : "asked") ": " \
                text[at[k]] > (missed ".branches")
        }
        print "| room | lines | run | % | branches | taken | % | conditions | both | % |\n|---|---|---|---|---|---|---|---|---|---|"
        names[rooms + 1] = "all"
        for (i = 1; i <= rooms + 1; i++) {
            r = names[i]
            if (r != "all") {n["all"] += n[r]; hit["all"] += hit[r]; nb["all"] += nb[r]; hb["all"] += hb[r]
                             nc["all"] += nc[r]; hc["all"] += hc[r]}
            if (n[r]) printf "| %s | %d | %d | %.1f | %d | %d | %.1f | %d | %d | %.1f |\n", r, n[r], hit[r], \
                100 * hit[r] / n[r], nb[r], hb[r], nb[r] ? 100 * hb[r] / nb[r] : 100, nc[r], hc[r], \
                nc[r] ? 100 * hc[r] / nc[r] : 100
        }
    }' "$out/branches" "$out/lcov" amp.h

# Lines between directives of which the preprocessor leaves nothing.
awk 'FILENAME ~ /preprocessed$/ {
         if (/^# [0-9]+ "/) { line = $2 - 1; mine = $3 ~ /amp\.h"$/; next }
         line++; if (mine && NF) there[line] = 1; next
     }
     /^ *#/ { directive = 1
         if (/^ *# *if/) { depth++; open[depth] = FNR ": " $0 }
         if (/^ *# *(if|elif)/) why[depth] = FNR ": " $0
         if (/^ *# *else/) why[depth] = "else of " open[depth]
         section++; reason[section] = why[depth]
         if (/^ *# *endif/) { depth--; reason[section] = why[depth] }
     }
     comment { if (/\*\//) comment = 0; next }
     /^ *\/\*/ { if (!/\*\//) comment = 1; next }
     directive || continued { continued = /\\$/; directive = 0; next }
     NF { code[section]++; all++; if (FNR in there) compiled[section] = 1 }
     END {
         for (s = 1; s <= section; s++)
             if (code[s] && !compiled[s]) { lines[reason[s]] += code[s]; total += code[s]
                 if (!(reason[s] in order)) { order[reason[s]] = ++kinds; list[kinds] = reason[s] } }
         printf "\nNot compiled on this machine: %d of %d lines (%.1f %%):\n", total, all, 100 * total / all
         for (i = 1; i <= kinds; i++) printf "%5d  %s\n", lines[list[i]], list[i]
     }' "$out/preprocessed" amp.h
