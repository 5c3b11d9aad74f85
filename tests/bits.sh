# Law 7: tests/test_bits.c, built by every compiler and set of flags at hand and run with 1 to 4
# threads, must find its one digest everywhere.
# usage: bits.sh DIRECTORY
dir=$1
passed=0 failed=0 skipped=0 builds=0
mkdir -p "$dir"

try() { # try COMPILER FLAGS...
    compiler=$1
    shift
    if ! command -v "$compiler" > /dev/null 2>&1; then
        echo "skip bits/$compiler $*: $compiler not found"
        skipped=$((skipped + 1))
        return
    fi
    program=$dir/bits
    openmp=-fopenmp threads='1 2 3 4'
    if ! "$compiler" "$@" $openmp -I. tests/test_bits.c -o "$program" -lm > /dev/null 2>&1; then
        openmp='' threads=1
        "$compiler" "$@" -I. tests/test_bits.c -o "$program" -lm > "$dir/bits.out" 2>&1
    fi
    result=$?
    for t in $threads; do
        [ $result = 0 ] || break
        OMP_NUM_THREADS=$t "$program" --quick > "$dir/bits.out" 2>&1 || result=1
    done
    tiers=$(sed -n 's/^#    //p' "$dir/bits.out" | tr '\n' ' ')
    if [ $result = 0 ]; then
        echo "ok   bits/$compiler $*: $tiers threads ${threads##* }"
        passed=$((passed + 1)) builds=$((builds + 1))
    else
        echo "FAIL bits/$compiler $*"
        cat "$dir/bits.out"
        failed=$((failed + 1))
    fi
}

for compiler in gcc clang clang-16 clang-19; do
    case $compiler in clang-1*) command -v $compiler > /dev/null 2>&1 || continue ;; esac
    for flags in -O0 -O2 -O3 -Ofast '-Ofast -march=native'; do try $compiler $flags; done
done
try tcc
if command -v nvcc > /dev/null 2>&1; then # the header in somebody's .cu: host code of nvcc
    try nvcc -x cu -O2
    try nvcc -x cu -O2 -Xcompiler -Ofast
fi
echo "#    digests: 1 over $builds builds"
echo "$passed passed, $failed failed, $skipped skipped"
