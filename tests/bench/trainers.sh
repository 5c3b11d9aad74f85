# Trainers of others without and with amp.h: rows of the table in examples/README.md.
# usage: [CC=...] [CXX=...] trainers.sh DIR [ROUNDS]    run where amp.h is
# DIR lies outside of the tree, and no line of it is committed. For each trainer it has a folder NAME:
#     source      the checkout
#     build       sh, run in a copy of it; AMP is where amp.h is, and CC and CXX are set
#     run         sh, run there. Its last line is SECONDS LOSS, or LOSS alone: then its processor time counts
#     own.diff    what every variant needs, such as fewer steps; it may be missing
#     *.diff      a variant each: the lines that make the trainer call amp.h
# Variants run in turns, ROUNDS times, and the fastest run of each counts.
dir=$(cd "${1:?usage: make bench-trainers DIR=folder-of-trainers [ROUNDS=3]}" && pwd) rounds=${2:-3} failed=0
[ -n "$dir" ] || exit 2
if ! ls -d "$dir"/*/source > /dev/null 2>&1; then
    echo "$dir: no folder in it has a checkout named source; see tests/bench/trainers.sh" >&2
    exit 2
fi
export AMP="$PWD" CC="${CC:-cc}" CXX="${CXX:-c++}" OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

complain() { # complain TRAINER WHAT LOG
    echo "FAIL $1: $2" && tail -n 5 "$3" | sed 's/^/     /'
    failed=1
}
build() { # build TRAINER VARIANT
    rm -rf "${dir:?}/$1/$2" && cp -R "$dir/$1/source" "$dir/$1/$2" && cd "$dir/$1/$2" || return
    for diff in own "$2"; do
        [ ! -s "../$diff.diff" ] || patch -f -p1 < "../$diff.diff" || return
        [ "$2" != own ] || break
    done
    sh ../build
}
run() { # run TRAINER VARIANT: SECONDS LOSS, behind those of earlier runs
    cd "$dir/$1/$2" && { sh ../run && times; } > "../$2.log" 2>&1 || return
    tail -n 3 "../$2.log" | awk '
        NR == 1 { n = NF; first = $1; last = $NF }
        NR == 3 { split($1, part, /[ms]/)
            seconds = n > 1 ? first : 60 * part[1] + part[2]
            if (n > 2 || seconds !~ /^[0-9.]+$/ || last !~ /^[-+0-9.e]+$/) exit 1
            print seconds, last }' >> "../$2.times"
}
sed -n 's/^model name[^:]*: */# /p;T;q' /proc/cpuinfo 2> /dev/null
echo "# $("$CC" --version | head -n 1); amp.h $(sed -n 's/^.* amp.h - v\([^ ]*\).*/\1/p;q' amp.h)"
echo '| trainer, variant | lines | its own, s | variant, s | times as fast | loss, its own | loss |'
echo '|---|---|---|---|---|---|---|'
for trainer in $(cd "$dir" && ls); do
    [ -d "$dir/$trainer/source" ] || continue
    variants=own
    for diff in "$dir/$trainer"/*.diff; do
        variant=$(basename "$diff" .diff)
        [ "$variant" = own ] || [ ! -f "$diff" ] || variants="$variants $variant"
    done
    for variant in $variants; do
        log=$dir/$trainer/$variant.log
        : > "$dir/$trainer/$variant.times"
        (build "$trainer" "$variant") > "$log" 2>&1 || complain "$trainer" "$variant does not build" "$log"
    done
    for round in $(seq "$rounds"); do
        for variant in $variants; do
            (run "$trainer" "$variant") ||
                complain "$trainer" "$variant, round $round: no seconds and loss" "$dir/$trainer/$variant.log"
        done
    done
    for variant in ${variants#own}; do
        sort -n "$dir/$trainer/own.times" | head -n 1 > "$dir/$trainer/best"
        sort -n "$dir/$trainer/$variant.times" | head -n 1 >> "$dir/$trainer/best"
        awk -v name="$trainer, $variant" -v lines="$(grep -c '^+[^+]' "$dir/$trainer/$variant.diff")" '
            { seconds[NR] = $1; loss[NR] = $2 }
            END {
                if (NR != 2 || !seconds[2]) exit 1
                printf "| %s | %d | %.3g | %.3g | %.2f | %s | %s |\n", name, lines, seconds[1], seconds[2],
                    seconds[1] / seconds[2], loss[1], loss[2]
            }' "$dir/$trainer/best" || failed=1
    done
done
exit $failed
