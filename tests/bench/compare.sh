# Compare the speed of two versions of amp.h, each a file or a commit, in one program. compare.c says what it
# prints and when it fails. With TIERS, sweep.c runs in each of them, and REF may be empty.
# usage: [CC=...] [CFLAGS=...] [TIERS=...] compare.sh DIRECTORY NEW REF [WORDS...]    in the repository's root
dir=$1 new=$2 ref=$3
[ -n "$ref$TIERS" ] || { echo 'usage: make bench-compare REF=commit [ARGS="words of rows"]' >&2; exit 2; }
shift 3
# -I finds <amp.h>, which includes itself by the same name. Aligned, equal functions are equally fast.
side() { # NAME VERSION
    mkdir -p "$dir/$1" || exit 2
    if [ -f "$2" ]; then cp "$2" "$dir/$1/amp.h"; else git show "$2:amp.h" > "$dir/$1/amp.h"; fi || exit 2
    grep -q amp_gemm_ex "$dir/$1/amp.h" && gemm=amp_gemm_ex || gemm=amp_gemm
    ${CC:-cc} -std=c99 ${CFLAGS:--O3} -falign-functions=64 -w -I"$dir/$1" -DSIDE="side_$1" -DGEMM=$gemm \
        -c tests/bench/compare_side.c -o "$dir/$1.o" || exit 2
}
side new "$new"
[ -z "$ref" ] || side ref "$ref"
if [ -n "$TIERS" ]; then
    [ -n "$ref" ] && ref=$dir/ref.o || ref=-DALONE
    ${CC:-cc} -std=c99 -O3 -march=native -ffp-contract=fast tests/bench/sweep.c "$dir/new.o" "$ref" -o "$dir/sweep" -lm -ldl || exit 2
    for tier in $TIERS; do "$dir/sweep" $tier "$@" || exit; done
    exit
fi
${CC:-cc} -std=c99 -O2 tests/bench/compare.c "$dir/new.o" "$dir/ref.o" -o "$dir/compare" -lm || exit 2
"$dir/compare" "$@"
