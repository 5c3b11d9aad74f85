# Law 7: tests/unit/test_bits.c is built by every compiler and set of flags at hand and run with 1 to 4
# threads. It must find its one digest everywhere. make ci has one build by each compiler (make test
# has test_bits in its configurations, without threads); make check has all builds.
# usage: [CC=COMPILER] bits.sh OUTDIR PART    PART is cc, clang or others
suite=bits out=${1:?usage: bits.sh OUTDIR PART} part=${2:?usage: bits.sh OUTDIR PART}
. tests/lib.sh
builds=0
export OMP_WAIT_POLICY=passive # threads that wait leave the processor to others

build() { # build COMPILER FLAGS...
    compiler=$1
    shift
    have "$compiler" || { skip "$compiler $*" "$compiler not found"; return; }
    openmp='' threads=1
    if works "$compiler" -fopenmp; then openmp=-fopenmp threads='1 2 3 4'; fi
    ! quick || threads=${threads#* * } # 3 and 4
    $compiler "$@" $openmp -I. tests/unit/test_bits.c tests/amp.c -o "$out/bits" -lm > "$out/log" 2>&1
    result=$?
    for t in $threads; do
        [ $result = 0 ] || break
        OMP_NUM_THREADS=$t "$out/bits" --quick > "$out/log" 2>&1 || result=1
    done
    tiers=$(sed -n 's/^#    //p' "$out/log" | tr '\n' ' ')
    check "$compiler $*: ${tiers}threads ${threads##* }" $result
    [ $result != 0 ] || builds=$((builds + 1))
}

calls_nothing() { # the loops of the last build, not edges: a function of the core that is not inlined shows
    objdump -d "$out/bits" > "$out/code" && grep -q '^[0-9a-f]* <main>:' "$out/code" || return
    ! awk '/^[0-9a-f]+ </ {name = $2}
        /call.*<ampi_/ && name ~ /ampi_(kernel|formula_on|get_masters|put_masters|moments_8bit|unscale_from|pack|convert|transpose_rows)/ &&
            name !~ /_(ok|edge)>/ && $NF !~ /<ampi_(pack|put_few|round)/ {
            print name, $NF}' "$out/code" | grep .
}

flags='-Ofast'
quick || flags='-O0 -O2 -O3 -Ofast -Ofast,-march=native'
each() { for f in $flags; do build "$1" $(echo "$f" | tr , ' '); done; } # each COMPILER
case $part in
cc)
    each "${CC:-cc}"
    ! quick || ! have objdump || try "${CC:-cc} -Ofast: kernels call nothing" calls_nothing ;;
clang)
    each clang
    quick || for compiler in clang-16 clang-19; do ! have $compiler || each $compiler; done ;;
others)
    build tcc
    if ! quick && have nvcc; then # the header in somebody's .cu: host code of nvcc
        build nvcc -x cu -O2
        build nvcc -x cu -O2 -Xcompiler -Ofast
    fi ;;
esac
echo "#    digests: 1 over $builds builds"
finish
