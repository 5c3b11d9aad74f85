# What only a GPU can show, in four visits of which each has less than ten minutes and no network:
#
#     sh tests/gpu.sh 1 OUT     under four: quick conformance; the step beside a copy, kernels for
#                                 each of its parts, and PyTorch's
#     sh tests/gpu.sh 2 OUT     10^5 steps in grids of all sizes; all of the conformance suite, with
#                                 --use_fast_math too, and some with a default stream per thread;
#                                 examples
#     sh tests/gpu.sh 3 OUT     compute-sanitizer and Nsight Compute, where the machine lets them
#     sh tests/gpu.sh 4 OUT     under six: a whole network and products, beside PyTorch and cuBLAS
#
# The conformance suite compares every byte with the CPU backend. OUT gets report.txt, with all
# that was said; table.csv: the rows of the benches (bench/gpu.h) as they are measured, the most
# wanted first, what they are of each other, the machine, and the seconds of each stage; and after 1
# and 4 table.md, README's tables of it. Those of both phases:
#     awk -f tests/gpu_table.awk OUT1/table.csv OUT4/table.csv
# A stage that fails does not stop the others, one without tests has failed, and what a machine does
# not have or refuses is skipped. The last line is "N passed, N failed, N skipped"; exits 1 if
# anything failed.

case $#-${1-} in 2-[1234]) ;; *) echo 'usage: gpu.sh 1|2|3|4 OUT' >&2; exit 2 ;; esac
NVCC=${NVCC:-nvcc} CC=${CC:-cc}
command -v "$NVCC" > /dev/null 2>&1 || { echo "skip gpu: $NVCC not found"; exit 0; }
phase=$1 started=$(date +%s) passed=0 failed=0 skipped=0 programs=
mkdir -p "$2" && out=$(cd "$2" && pwd) && cd "$(dirname "$0")/.." && work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
export PYTHONDONTWRITEBYTECODE=1
: > "$out/report.txt"
echo name,what,n,tensors,unit,value,low,high > "$out/table.csv"

say()  { echo "$*" | tee -a "$out/report.txt"; }
ok()   { passed=$((passed + 1));   say "ok   gpu/$1"; }
skip() { skipped=$((skipped + 1)); say "skip gpu/$1: $2"; }
fail() {
    failed=$((failed + 1))
    say "FAIL gpu/$1: $2"
    tail -n 12 "$work/log" | sed 's/^/     /'
}

# run SECONDS COMMAND...: its words, in the report too, and its rows at once in the table
run() {
    limit=$1
    shift
    echo "\$ $*" >> "$out/report.txt"
    { timeout -k 5 "$limit" "$@" 2>&1; echo $? > "$work/status"; } | tee "$work/log" |
        grep --line-buffered -E '^(amp|unfused|torch|torch-compile|cublas),([^,]*,){6}[^,]*$' \
            >> "$out/table.csv"
    cat "$work/log" >> "$out/report.txt"
    return "$(cat "$work/status")"
}

# row WHAT UNIT VALUE: of the run itself
row() { echo "gpu,$1,,,$2,$(echo "$3" | tr , ' '),," >> "$out/table.csv"; }

# stage NAME SECONDS COMMAND...: it succeeds; the suite has passed tests
stage() {
    name=$1 begun=$(date +%s)
    shift
    run "$@"
    status=$?
    tests=$(sed -n 's/^\([0-9]*\) passed, .*/\1/p' "$work/log" | tail -n 1)
    case $status-$name-$tests in
    124-* | 137-*) fail "$name" "took more than $1 s" ;;
    0-*suite*- | 0-*suite*-0) fail "$name" 'no test ran' ;;
    0-*) ok "$name${tests:+: $tests tests}" ;;
    *) fail "$name" "ended with status $status" ;;
    esac
    row "$name" s $(($(date +%s) - begun))
}

# compile NAME COMMAND...: begins; compiled waits for all of them
compile() {
    name=$1
    shift
    programs="$programs $name"
    { timeout -k 5 55 "$@" -o "$work/$name" > "$work/$name.log" 2>&1 ||
        rm -f "$work/$name"; } &
}
compiled() {
    wait
    for name in $programs; do
        cp "$work/$name.log" "$work/log"
        cat "$work/log" >> "$out/report.txt"
        if [ -x "$work/$name" ]; then ok "compile-$name"
        else fail "compile-$name" 'does not build'; fi
    done
}
built() { [ -x "$work/$1" ] || { skip "$2" 'was not built'; return 1; }; }

flags="-O2 -std=c++14 -arch=native -I. -Itests" libs='-lcublas -lcublasLt'
suite() { # suite NAME [FLAGS]: the CPU backend is C
    cp tests/test_cuda.cpp "$work/$1.cu"
    compile "$1" "$NVCC" $flags ${2-} "$work/$1.cu" amp_kernels.cu "$work/cpu.o" $libs
}
program() { # program SOURCE
    with=$libs
    ! grep -q '<nccl.h>' "$1" || with="$libs -lnccl"
    compile "$(basename "$1" .cu)" "$NVCC" $flags "$1" amp_kernels.cu $with
}

# probe TOOL COMMAND...: whether TOOL can watch a program that is certainly correct
probe() {
    tool=$1
    shift
    command -v "$1" > /dev/null 2>&1 || { skip "$tool" "$1 not found"; return 1; }
    run 15 "$@" "$work/probe" && return
    skip "$tool" "refused: $(grep -v '^ *$' "$work/log" | tail -n 1)"
    return 1
}

# torch NAME SECONDS SCRIPT: where there is one that sees the GPU
torch() {
    run 25 python3 -c 'import torch, sys
print("torch", torch.__version__)
sys.exit(not torch.cuda.is_available())' || { skip "$1" 'no PyTorch that sees the GPU'; return; }
    row torch "" "$(sed -n 's/^torch //p' "$work/log")"
    stage "$1" "$2" python3 "$3"
}

say "# phase $phase, $(date -u +%Y-%m-%d), $("$NVCC" --version | sed -n 's/.*release/CUDA/p')"
row command "" "sh tests/gpu.sh $phase OUT"
row date "" "$(date -u +%Y-%m-%d)"
row cuda "" "$("$NVCC" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
ask() { nvidia-smi "--query-gpu=$1" --format=csv,noheader | head -n 1; }
if command -v nvidia-smi > /dev/null 2>&1; then
    say "# $(ask name,driver_version,memory.total)"
    row device "" "$(ask name)"
    row driver "" "$(ask driver_version)"
fi
printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$work/cpu.c"
run 10 "$CC" -std=c99 -O2 -I. -c "$work/cpu.c" -o "$work/cpu.o" || fail compile-cpu "status $?"

case $phase in
1)
    suite suite
    program tests/bench/bench_cuda.cu
    compiled
    built suite suite-quick && stage suite-quick 30 "$work/suite" --quick
    built bench_cuda bench && stage bench 45 "$work/bench_cuda"
    torch torch 45 tests/bench/torch_step.py
    ;;
2)
    suite suite
    suite suite_fast --use_fast_math
    suite suite_per_thread '--default-stream per-thread'
    sources=$(ls examples/*.cu)
    echo '#include <nccl.h>' > "$work/nccl.cu"
    if ! "$NVCC" -E "$work/nccl.cu" > /dev/null 2>&1; then
        sources=$(grep -L '<nccl.h>' $sources)
        skip ddp_nccl 'no nccl.h'
    fi
    for source in $sources; do program "$source"; done
    compiled
    built suite suite-grids && stage suite-grids 30 "$work/suite" --filter grids
    built suite suite && stage suite 130 "$work/suite"
    built suite_fast suite-fast-math && stage suite-fast-math 130 "$work/suite_fast"
    built suite_per_thread suite-per-thread &&
        stage suite-per-thread 45 "$work/suite_per_thread" --quick
    for source in $sources; do
        name=$(basename "$source" .cu)
        set -- 16 "$work/$name"
        [ "$name" != gpt_cuda ] || set -- 45 "$work/$name" --out "$work"
        built "$name" "$name" && stage "$name" "$@"
    done
    ;;
3)
    cat > "$work/probe.cu" <<'END'
static __global__ void one(int *p) { *p = 1; }
int main() {
    int *p, value = 0;
    if (cudaMalloc((void **)&p, sizeof *p) != cudaSuccess) return 1;
    one<<<1, 1>>>(p);
    return cudaMemcpy(&value, p, sizeof value, cudaMemcpyDeviceToHost) != cudaSuccess || value != 1;
}
END
    compile probe "$NVCC" $flags "$work/probe.cu"
    suite suite
    program tests/bench/bench_cuda.cu
    compiled
    for tool in memcheck racecheck synccheck initcheck; do
        built probe $tool && built suite $tool || continue
        set -- compute-sanitizer --tool $tool --error-exitcode 1
        probe $tool "$@" && stage suite-$tool 70 "$@" "$work/suite" --quick --filter races
    done
    set -- ncu --kernel-name regex:ampi_ --launch-skip 4 --launch-count 8 --kill yes \
        --section SpeedOfLight --section WarpStateStats --section Occupancy
    if built probe ncu && built bench_cuda ncu && probe ncu ncu; then
        if run 75 "$@" "$work/bench_cuda" || grep -q ampi_ "$work/log"; then ok ncu
        else skip ncu "profiled nothing: $(tail -n 1 "$work/log")"; fi
    fi
    ;;
4)
    program tests/bench/bench_mlp.cu
    compiled
    built bench_mlp bench-mlp && stage bench-mlp 75 "$work/bench_mlp"
    torch torch-mlp 180 tests/bench/torch_mlp.py
    ;;
esac

awk -v form=ratios -f tests/gpu_table.awk "$out/table.csv" > "$work/ratios"
cat "$work/ratios" >> "$out/table.csv"
case $phase in 1 | 4) awk -f tests/gpu_table.awk "$out/table.csv" > "$out/table.md" ;; esac
say "# $(($(date +%s) - started)) s"
say "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
