# What only a GPU can show, in three visits of which each has less than ten minutes and no network:
#
#     sh tests/gpu.sh 1 OUT     under four: quick conformance, then timings, beside PyTorch's
#     sh tests/gpu.sh 2 OUT     all of the conformance suite, with --use_fast_math too, and some with a
#                                 default stream per thread; examples
#     sh tests/gpu.sh 3 OUT     compute-sanitizer and Nsight Compute, where the machine lets them
#
# The conformance suite compares every byte with the CPU backend. OUT gets report.txt, with all
# that was said, and table.csv: the rows of bench_cuda and torch_step.py, what they are of each
# other, and the seconds of each stage. A stage that fails does not stop the others, one without
# tests has failed, and what a machine does not have or refuses is skipped. The last line is
# "N passed, N failed, N skipped"; exits 1 if anything failed.

case $#-${1-} in 2-[123]) ;; *) echo 'usage: gpu.sh 1|2|3 OUT' >&2; exit 2 ;; esac
NVCC=${NVCC:-nvcc} CC=${CC:-cc}
command -v "$NVCC" > /dev/null 2>&1 || { echo "skip gpu: $NVCC not found"; exit 0; }
phase=$1 started=$(date +%s) passed=0 failed=0 skipped=0 programs=
mkdir -p "$2" && out=$(cd "$2" && pwd) && cd "$(dirname "$0")/.." && work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
: > "$out/report.txt"
: > "$work/rows"

say()  { echo "$*" | tee -a "$out/report.txt"; }
ok()   { passed=$((passed + 1));   say "ok   gpu/$1"; }
skip() { skipped=$((skipped + 1)); say "skip gpu/$1: $2"; }
fail() {
    failed=$((failed + 1))
    say "FAIL gpu/$1: $2"
    tail -n 12 "$work/log" | sed 's/^/     /'
}

# run SECONDS COMMAND...: its words, in the report too
run() {
    limit=$1
    shift
    echo "\$ $*" >> "$out/report.txt"
    timeout -k 5 "$limit" "$@" > "$work/log" 2>&1
    status=$?
    cat "$work/log" >> "$out/report.txt"
    return $status
}

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
    echo "gpu,$name,,,s,$(($(date +%s) - begun)),," >> "$work/rows"
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
    compile "$(basename "$1" .cu)" "$NVCC" $flags "$1" amp_kernels.cu $libs
}

# What one row is of another: PyTorch's time of ours, and the speed of a copy that we reach.
ratios() {
    awk -F, -v OFS=, 'NF == 8 && $6 + 0 > 0 && $7 + 0 > 0 && $8 + 0 > 0 {
            key = $2 FS $3 FS $4
            name[$1, key] = 1
            value[$1, key] = $6; low[$1, key] = $7; high[$1, key] = $8; unit[$1, key] = $5
            if ($1 == "amp") order[++rows] = key
        }
        function over(what, key, an, ak, bn, bk) {
            if (name[an, ak] && name[bn, bk])
                printf "%s,%s,x,%.3g,%.3g,%.3g\n", what, key, value[an, ak] / value[bn, bk],
                    low[an, ak] / high[bn, bk], high[an, ak] / low[bn, bk]
        }
        END {
            for (i = 1; i <= rows; i++) {
                key = order[i]
                split(key, part, FS)
                over("torch/amp", key, "torch", key, "amp", key)
                copy = "copy" FS part[2] FS part[3]
                array = "array-copy" FS part[2] FS part[3]
                if (unit["amp", key] == "GB/s") {
                    if (key != array) over("of-copy", key, "amp", key, "amp", array)
                } else if (part[1] ~ /^(step|graph)/) {
                    over("of-copy", key, "amp", copy, "amp", key)
                }
            }
        }' "$1"
}

measure() { # measure NAME SECONDS COMMAND...: and its rows
    stage "$@"
    grep -E '^(amp|torch),([^,]*,){6}[^,]*$' "$work/log" >> "$work/rows"
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

say "# phase $phase, $(date -u +%Y-%m-%d), $("$NVCC" --version | sed -n 's/.*release/CUDA/p')"
command -v nvidia-smi > /dev/null 2>&1 &&
    say "# $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader)"
printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$work/cpu.c"
run 10 "$CC" -std=c99 -O2 -I. -c "$work/cpu.c" -o "$work/cpu.o" || fail compile-cpu "status $?"

case $phase in
1)
    suite suite
    program tests/bench/bench_cuda.cu
    compiled
    built suite suite-quick && stage suite-quick 30 "$work/suite" --quick
    built bench_cuda bench && measure bench 50 "$work/bench_cuda"
    if run 10 python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'; then
        measure torch 45 python3 tests/bench/torch_step.py
    else skip torch 'no PyTorch that sees the GPU'; fi
    ;;
2)
    suite suite
    suite suite_fast --use_fast_math
    suite suite_per_thread '--default-stream per-thread'
    for source in examples/*.cu; do program "$source"; done
    compiled
    built suite suite && stage suite 150 "$work/suite"
    built suite_fast suite-fast-math && stage suite-fast-math 150 "$work/suite_fast"
    built suite_per_thread suite-per-thread &&
        stage suite-per-thread 45 "$work/suite_per_thread" --quick
    for source in examples/*.cu; do
        name=$(basename "$source" .cu)
        built "$name" "$name" && stage "$name" 30 "$work/$name"
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
esac

{ echo name,what,n,tensors,unit,value,low,high; cat "$work/rows"; ratios "$work/rows"; } \
    > "$out/table.csv"
say "# $(($(date +%s) - started)) s"
say "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
