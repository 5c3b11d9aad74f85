# Everything that needs a GPU, in one command and under 8 minutes, without a network:
#
#     sh tests/gpu.sh [OUTDIR]          default build/gpu
#
# Builds with nvcc for the GPU that is there; runs the conformance suite on it, which compares every
# byte with the CPU backend (exhaustive conversions and 1,000 graph replays with injected overflows
# among it); compute-sanitizer where it is installed; the examples; then the timings. All of it
# goes to OUTDIR/report.txt. Exits 1 if anything failed.
out=${1:-build/gpu}
NVCC=${NVCC:-nvcc}
CC=${CC:-cc}
cd "$(dirname "$0")/.." || exit 1
mkdir -p "$out"
report=$out/report.txt
status=0

say() { echo "$@" | tee -a "$report"; }
run() { # run NAME SECONDS COMMAND...: its output goes to the report, its failure is remembered
    name=$1 seconds=$2
    shift 2
    say "== $name: $*"
    timeout "$seconds" "$@" > "$out/log" 2>&1
    result=$?
    tee -a "$report" < "$out/log"
    [ $result = 0 ] || { say "FAIL gpu/$name: status $result"; status=1; }
}

: > "$report"
command -v "$NVCC" > /dev/null 2>&1 || { say "skip gpu: $NVCC not found"; exit 0; }
say "# $(date -u +%Y-%m-%d) $($NVCC --version | sed -n 's/.*release/CUDA release/p')"
if command -v nvidia-smi > /dev/null 2>&1; then
    say "# $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader)"
fi

flags="-O2 -std=c++14 -arch=native -I. -Itests" libs="-lcublas -lcublasLt"
printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$out/amp.c"
run compile-cpu 60 $CC -std=c99 -O2 -I. -c "$out/amp.c" -o "$out/amp.o"
run compile-kernels 120 $NVCC $flags -c amp_kernels.cu -o "$out/kernels.o"
run compile-fast 120 $NVCC $flags --use_fast_math -c amp_kernels.cu -o "$out/kernels_fast.o"
run compile-suite 120 $NVCC $flags -x cu -c tests/test_cuda.cpp -o "$out/suite.o"
for k in kernels kernels_fast; do
    run "link-$k" 60 $NVCC -arch=native "$out/suite.o" "$out/$k.o" "$out/amp.o" $libs \
        -o "$out/suite_$k"
done
run conformance 150 "$out/suite_kernels"
run conformance-fast-math 100 "$out/suite_kernels_fast" --quick
if command -v compute-sanitizer > /dev/null 2>&1; then
    for tool in memcheck racecheck initcheck synccheck; do
        run "sanitizer-$tool" 60 compute-sanitizer --tool $tool --error-exitcode 1 \
            "$out/suite_kernels" --quick --filter races
    done
else
    say "skip gpu/sanitizer: compute-sanitizer not found"
fi
for example in examples/*.cu; do
    name=$(basename "$example" .cu)
    run "compile-$name" 120 $NVCC $flags "$example" amp_kernels.cu $libs -o "$out/$name"
    run "$name" 90 "$out/$name"
done
run compile-bench 120 $NVCC $flags tests/bench/bench_cuda.cu amp_kernels.cu $libs \
    -o "$out/bench_cuda"
run bench 90 "$out/bench_cuda"
if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2> /dev/null; then
    run torch 90 python3 tests/bench/torch_step.py
else
    say "skip gpu/torch: no PyTorch that sees the GPU"
fi
[ $status = 0 ] && say "gpu: all passed" || say "gpu: FAILED"
exit $status
