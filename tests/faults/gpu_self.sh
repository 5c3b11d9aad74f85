# What gpu.sh does with a GPU, tried without one: compilers, tools and programs are shell scripts
# that succeed, fail, crash, hang or refuse as told.
# usage: gpu_self.sh OUTDIR, in the repository's root
suite=gpu_self out=${1:?usage: gpu_self.sh OUTDIR}
. tests/lib.sh
. tests/gpu/emu/kinds.sh
out=$(cd "$out" && pwd)
rm -rf "$out/bin" "$out/tmp"
mkdir -p "$out/bin" "$out/tmp"

# The suite itself, on the emulator: faults are planted in it.
objects=${OBJECTS:-build/tests}
kind plain
have "$compiler" || { skip emulator "$compiler not found"; finish; }
object "$out/test.o" "$compiler" $fake $with -include $emu/cuda_emu.h -c tests/unit/test_cuda.cpp &&
    $compiler "$out/test.o" "$objects/kind-plain/kernels.o" "$objects/kind-plain/emu.o" \
        "$objects/o2/amp.o" -o "$out/emulated" -lm > "$out/log" 2>&1
check "the suite is there, on the emulator" $?

python=$(command -v python3)
script() { { echo '#!/bin/sh'; cat; } > "$out/bin/$1"; chmod +x "$out/bin/$1"; }
script nvcc << 'END'
[ "$1" != --version ] || { echo 'Cuda compilation tools, release 0.0, V0.0'; exit; }
[ "$1" != --list-gpu-arch ] || { printf 'compute_75\ncompute_100\ncompute_90\n'; exit; }
for made; do :; done
[ "${made##*/}" != "$FAKE_UNBUILT" ] || { echo 'error: not today'; exit 1; }
case $made in
*.o) echo "$*" | tee "$made" >> "$FAKE/made" ;;
*) [ -z "$FAKE_LINKS" ] || { echo "$*"; exit 1; }; cp "$FAKE/bin/program" "$made" ;;
esac
END
script cc << 'END'
for made; do :; done
echo "$*" > "$made"
END
script program << 'END'
name=${0##*/}
echo "$name $*" >> "$FAKE/ran"
[ "$name-$AMP_PLANT" = "$name-" ] || [ "$name" != suite ] || exec "$FAKE/emulated" --quick --filter "${FAKE_FILTER:-gemm_}"
[ -z "$AMP_TEST_NAMES" ] || echo '# that_test begins'
[ "$name" != "$FAKE_HANGS" ] || sleep 60
[ "$name" != "$FAKE_CRASHES" ] || kill -SEGV $$
[ "$name" != "$FAKE_FAILS" ] || { echo '3 passed, 1 failed'; exit 1; }
case $name in
any_differs) echo '3 cases, 9 bytes, 0 bytes off' ;;
probe) [ -z "$FAKE_NO_GPU" ] || { echo 'no CUDA-capable device is detected'; exit 1; } ;;
suite*) echo "${FAKE_TESTS:-28} passed, 0 failed, 1 skipped" ;;
bench_cuda)
    printf '# fake\nname,what,n,tensors,unit,value,low,high\n'
    printf 'amp,step,100,2,ms,2,1,4\namp,overflow,100,2,ms,1,1,1\namp,copy,100,2,ms,1,1,1\n'
    printf 'amp,array-copy,100,1,GB/s,50,50,50\namp,cast,100,1,GB/s,40,40,40\n'
    printf 'unfused,step,100,2,ms,3,3,3\n' ;;
bench_mlp)
    printf 'amp,mlp-scaler,512,6,ms,2,2,2\namp,mlp-norm,512,6,ms,1.9,1.9,1.9\n'
    printf 'cublas,halves,4096,1,ms,9,9,9\namp,sgemm-kept,4096,1,ms,10,10,10\n' ;;
esac
exit 0
END
script python3 << 'END'
case $1-$2 in
-c-*nvidia*) echo "$FAKE_WHEELS"; exit ;;
-c-*) echo 'torch 1.0,0'; exit "${FAKE_NO_TORCH:-0}" ;;
esac
echo "$1" >> "$FAKE/ran"
printf '# fake\nname,what,n,tensors,unit,value,low,high\n'
case $1 in
*step.py) printf 'torch,step,100,2,ms,6,4,8\ntorch-foreach,step,100,2,ms,8,8,8\n' ;;
*) printf 'torch,mlp-scaler,512,6,ms,4,4,4\ntorch-compile,mlp-scaler,512,6,ms,3,3,3\n' ;;
esac
END
script compute-sanitizer << 'END'
[ -z "$FAKE_REFUSES" ] || { echo '========= Error: not for you'; exit 1; }
echo "$1 $2 $AMP_QUICK" >> "$FAKE/ran"
shift 4
exec "$@"
END
script ncu << 'END'
[ -n "$FAKE_NCU" ] || { echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1; }
echo "ncu $*" >> "$FAKE/ran"
echo '==PROF== Profiling "ampi_check_kernel": 0%....100%'
END
script nvidia-smi << 'END'
case $* in
*=name*) echo 'Fake GPU' ;;
*=driver_version*) echo 1.2 ;;
*=compute_cap*) echo "${FAKE_CAP:-9.0}" ;;
*=clocks*"${FAKE_NO_WATTS:-none}"*) printf '1000, [N/A], [N/A], 50\n[N/A], [N/A], [N/A], 60\n' ;;
*=clocks*) printf '1000, 3000, 100.00, 50\n1200, 3000, 300.00, 60\n' ;;
esac
END

script timeout << 'END'
limit=$3
shift 3
[ ! "$FAKE_HANGS" ] || limit=2
exec "$FAKE_TIMEOUT" -k 1 "$limit" "$@"
END
FAKE=$out FAKE_TIMEOUT=$(command -v timeout) TMPDIR=$out/tmp
PATH=$out/bin:$PATH CARRIED=$out/carried
export FAKE FAKE_TIMEOUT TMPDIR PATH CARRIED
for name in UNBUILT LINKS HANGS FAILS CRASHES REFUSES NCU NO_GPU WHEELS CAP NO_WATTS; do export FAKE_$name=; done
unset NVCC CC ARCH CUDA_VISIBLE_DEVICES
rm -rf "$CARRIED"

# gpu STATUS PHASE [VARIABLE=VALUE]...: how it ends, and that it leaves its files and nothing else
gpu() {
    status=$1 phase=$2
    shift 2
    rm -rf "$out/out"
    : > "$out/ran" > "$out/made"
    env "$@" sh tests/gpu/gpu.sh "$phase" "$out/out" > "$out/log" 2>&1
    [ $? = "$status" ] || return 1
    files='issue.md report.txt table.csv '
    case $phase in 1 | 4) files="${files}table.md " ;; esac
    [ "$(ls "$out/out" | tr '\n' ' ')" = "$files" ] && [ -z "$(ls "$out/tmp")" ] &&
        tail -n 1 "$out/log" | grep -q '^[0-9]* passed, [0-9]* failed' &&
        tail -n 1 "$out/out/report.txt" | grep -q '^[0-9]* passed, [0-9]* failed'
}
line()   { grep -q "$1" "$out/log"; }
has()    { grep -qx "$1" "$out/out/table.csv"; }
stages() { # but the compilers'
    [ "$(sed -n '/gpu.compile/d;s#^[a-zA-Z]* *gpu/\([^:]*\).*#\1#p' "$out/log" | tr '\n' ' ')" = "$1 " ]
}

gpu 0 1 && stages 'any suite-quick bench torch' && line '^18 passed, 0 failed, 0 skipped$' &&
    line '^# 3 cases, 9 bytes, 0 bytes off$'
check "phase 1 builds, compares any_cuda, tests, measures, asks PyTorch, and leaves four files" $?
grep -qE '^amp.h [0-9]+[.][0-9]+[.][0-9]+, commit ([0-9a-f]+(-dirty)?|unknown)$' "$out/out/issue.md" && grep -q '^    # 3 cases, 9 bytes, 0 bytes off$' "$out/out/issue.md" &&
    grep -q '^    18 passed, 0 failed, 0 skipped$' "$out/out/issue.md" && grep -q '^Device Fake GPU' "$out/out/issue.md"
check "issue.md has the version, each result, and the tables" $?
gpu 1 1 FAKE_FAILS=any_differs && line '^FAIL gpu/any: ended with status 1$' && line '^ok   gpu/suite-quick: 28 tests$' &&
    gpu 1 1 FAKE_CRASHES=any_cuda FAKE_FAILS=any_differs && line '^FAIL gpu/any: ' && line '^ok   gpu/bench$'
check "bytes that differ have failed, and the phase goes on; so it does if any_cuda crashes" $?
awk -F, 'NF != 8 {exit 1}' "$out/out/table.csv" && has 'torch/amp,step,100,2,x,3,1,8' &&
    has 'of-copy,step,100,2,x,0.5,0.25,1' && has 'of-copy,cast,100,1,x,0.8,0.8,0.8' &&
    has 'unfused/amp,step,100,2,x,1.5,0.75,3' &&
    has 'torch-foreach/amp,step,100,2,x,4,2,8' && has 'gpu,torch,,,,1.0 0,,' &&
    has 'gpu,bench,,,s,[0-9]*,,' && has 'gpu,bench-clock,,,MHz,1100,1000,1200' &&
    has 'gpu,bench-power,,,W,200,100,300' && has 'gpu,compile-kernels.o,,,s,[0-9]*,,'
check "table.csv has the rows of both sides, their ratios, and of each stage seconds, clocks, watts" $?
[ "$(head -n 1 "$out/out/table.md" | sed 's/date [-0-9]*;/date;/')" = \
    'Device Fake GPU, driver 1.2, CUDA 0.0, PyTorch 1.0 0, date; `sh tests/gpu/gpu.sh 1 OUT`' ]
check "table.md begins with the device, its driver and the command" $?

gpu 0 1 FAKE_NO_WATTS=power && has 'gpu,bench-clock,,,MHz,1000,1000,1000' && ! grep -q 'bench-power' "$out/out/table.csv"
check "clocks and watts that a machine does not tell are left out" $?
gpu 0 1 FAKE_CAP=12.0 && line 'nvcc knows no GPU of 120: it makes PTX for 100$' &&
    grep -q 'arch=compute_100,code=compute_100 .*kernels.o' "$out/made" &&
    ! grep -q 'sm_' "$out/made" && gpu 0 1 && grep -q 'arch=compute_90,code=sm_90 .*kernels.o' "$out/made"
check "a GPU that is newer than the compiler gets PTX" $?

gpu 0 2 && line '^ok   gpu/suite: 28 tests$' && [ "$(sed -n 2p "$out/ran")" = 'suite ' ] &&
    line '^ok   gpu/suite-fast-math: 28 tests$' &&
    [ "$(grep -Ec '^ok   gpu/(gpt|step|train|trainer)_' "$out/log")" = 5 ] &&
    [ "$(grep -c 'kernels.*took\|kernels[a-z_]*.o: ' "$out/log")" = 3 ]
check "phase 2 compiles three objects of kernels once, and runs the suite with each, and the examples" $?

gpu 0 3 FAKE_NCU=1 && [ "$(grep -c '^--tool [a-z]* 2$' "$out/ran")" = 28 ] &&
    [ "$(grep -cx 'suite --filter storage_formats' "$out/ran")" = 4 ] && line '^ok   gpu/ncu$' &&
    grep '^ncu\|^--tool' "$out/ran" | sed -n 2p |
        grep -q '^ncu --clock-control none .* --section InstructionStats .*/bench_cuda --once 2e7$'
check "phase 3 runs ncu on steps in every state, then each sanitizer on seven tests" $?
sed -n 's/.*--kernel-name regex:^(\([a-z_|]*\))\$ .*/\1/p' "$out/ran" | tr '|' '\n' | sort > "$out/asked"
grep -v '#define' amp_kernels.cu | grep -o '\(AMPI_KERNEL\|__global__\).*' |
    sed 's/.*[) ]\([a-z0-9_]*\)(.*/\1/' | sort > "$out/kernels"
[ "$(grep -c "^ampi_.*_kernel\$" "$out/kernels")" -ge 15 ] && cmp -s "$out/asked" "$out/kernels"
check "and asks it for every kernel of amp_kernels.cu, by name" $?
gpu 0 3 && line '^skip gpu/ncu: refused: ==ERROR== ERR_NVGPUCTRPERM$' && line ', 0 failed, 1 skipped$'
check "what ncu may not do is skipped" $?
mv "$out/bin/ncu" "$out/ncu"
gpu 0 3 PATH="$out/bin:/usr/bin:/bin" && line '^skip gpu/ncu: ncu not found$'
check "and so is ncu where there is none" $?
mkdir -p "$out/compute-sanitizer" && mv "$out/ncu" "$out/compute-sanitizer"
gpu 0 3 FAKE_NCU=1 PATH="$out/bin:/usr/bin:/bin" && line '^ok   gpu/ncu$'
check "it is found in the toolkit, too" $?
mv "$out/compute-sanitizer/ncu" "$out/bin/ncu"
gpu 1 3 FAKE_REFUSES=1 && line '^skip gpu/memcheck: refused: ========= Error: not for you$' &&
    line '^FAIL gpu/gpu: nothing has run on a GPU$' && ! grep -q '^suite' "$out/ran"
check "and so is a sanitizer that cannot watch even a correct program" $?
gpu 1 3 FAKE_FAILS=suite && line '^FAIL gpu/suite-initcheck-races: ended with status 1$'
check "one that finds something has failed" $?

gpu 0 4 && stages 'bench-mlp torch-mlp' && has 'amp-share,mlp-norm,512,6,x,0.05,0.05,0.05' &&
    has 'torch/amp,mlp-scaler,512,6,x,2,2,2' && has 'torch-compile/amp,mlp-scaler,512,6,x,1.5,1.5,1.5' &&
    has 'cublas/amp,sgemm-kept,4096,1,x,0.9,0.9,0.9'
check "phase 4 measures a network and products, beside PyTorch and cuBLAS" $?

gpu 1 1 FAKE_UNBUILT=bench_cuda && line '^FAIL gpu/compile-bench_cuda: ' && line 'not today' &&
    line '^skip gpu/bench: was not built$' && line '^ok   gpu/torch$'
check "after a program that does not build it goes on" $?
gpu 1 1 FAKE_FAILS=suite && line '^FAIL gpu/suite-quick: ended with status 1$' &&
    line '^ok   gpu/bench$' && line '^ok   gpu/torch$'
check "after a test that fails it goes on" $?
gpu 1 1 FAKE_CRASHES=suite && line '^FAIL gpu/suite-quick: lost that_test; 0 other tests passed$' &&
    line '^ok   gpu/bench$' && line '^     # that_test begins$'
check "and after a program that crashes, and tells in which test" $?
gpu 1 1 FAKE_HANGS=suite && line '^FAIL gpu/suite-quick: lost that_test' && line '^ok   gpu/bench$'
check "a program that hangs is stopped" $?
for fault in 'crash 134' 'hang 142' 'sticky 3'; do
    gpu 1 1 AMP_PLANT="${fault% *} gemm_errors" AMP_TEST_SECONDS=2 &&
        line "^# suite-quick: gemm_errors ended its process, status ${fault#* }\$" &&
        line '^FAIL gpu/suite-quick: lost gemm_errors; [12] other tests passed$' &&
        line '^ok   gpu/bench$' && grep -q '^ok   gemm_bias' "$out/out/report.txt"
    check "behind a test with a ${fault% *} the suite goes on in another process, and says what was lost" $?
done
gpu 1 1 FAKE_FILTER=first_met AMP_PLANT='words first_met' AMP_TEST_SECONDS=20 && line '^FAIL gpu/suite-quick: ended with status 1$' &&
    grep -q '^     FAIL first_met: ' "$out/out/report.txt"
check "words of a test's own process are kept" $?
gpu 1 2 FAKE_TESTS=0 && line '^FAIL gpu/suite: no test ran$' && line '^ok   gpu/step_cuda$'
check "a suite without tests has failed" $?
gpu 0 1 FAKE_NO_TORCH=1 && line '^skip gpu/torch: no PyTorch that sees the GPU$'
check "without PyTorch it is one line" $?

# What was built before goes along.
sh tests/gpu/gpu.sh carry "$CARRIED" > "$out/log" 2>&1 && line '^ok   gpu/compile-kernels_fast.o' &&
    line '^ok   gpu/compile-suite_per_thread' && line '^# [0-9]* MB, of which' &&
    [ -x "$CARRIED/bench_mlp" ]
check "gpu.sh carry builds what all phases need" $?
gpu 0 1 && line '^# suite was carried along$' && ! line 'gpu/compile' &&
    line '^ok   gpu/suite-quick: 28 tests$'
check "a program that was carried along is not compiled again" $?
mv "$CARRIED/suite" "$out/suite"
gpu 0 1 && line '^ok   gpu/compile-suite: ' && ! line 'gpu/compile-bench' && line '^ok   gpu/suite-quick'
check "one that is missing is" $?
gpu 1 1 FAKE_LINKS=1 && line '^FAIL gpu/compile-suite: ' && line '^ok   gpu/bench$'
check "if it links" $?
mv "$out/suite" "$CARRIED/suite"
printf '#!/bin/sh\necho "    libcublas.so.99 => not found"\n' > "$out/bin/ldd" && chmod +x "$out/bin/ldd"
gpu 0 1 && line '^ok   gpu/compile-suite: ' && ! line 'was carried along'
check "and so is one whose libraries are not there" $?
rm "$out/bin/ldd"
gpu 0 1 NVCC=none && line '^skip gpu/compile: none not found' && line '^ok   gpu/suite-quick: 28 tests$'
check "without nvcc all programs are" $?
echo 1 >> "$CARRIED/of"
gpu 1 1 NVCC=none FAKE_NO_TORCH=1 && line 'is of other sources, another GPU or compiler: not used$' &&
    line '^skip gpu/suite-quick: was not built$'
check "but not those of other sources" $?
rm -rf "$CARRIED"
mkdir -p "$out/wheels/cu13/lib" "$out/wheels/nccl/lib" "$out/wheels/nccl/include"
: > "$out/wheels/cu13/lib/libcublas.so.13" > "$out/wheels/cu13/lib/libcublasLt.so.13"
: > "$out/wheels/nccl/lib/libnccl.so.2" > "$out/wheels/nccl/include/nccl.h"
gpu 1 2 FAKE_WHEELS="$out/wheels" FAKE_LINKS=1 && ! line 'skip gpu/ddp_nccl: no nccl.h' &&
    line "ddp_nccl.o -L$out/wheels/nccl/lib -l:libnccl.so.2 -L$out/wheels/cu13/lib -l:libcublas.so.13"
check "cublas, cublasLt and nccl are found in wheels, under the only names they have there" $?
rm -rf "$out/wheels"
gpu 0 1 NVCC=none && stages 'any suite-quick bench torch' && has 'torch,step,100,2,ms,6,4,8'
check "without nvcc PyTorch is measured" $?
gpu 1 1 NVCC=none FAKE_NO_TORCH=1 && line '^FAIL gpu/gpu: nothing has run on a GPU$' &&
    grep -q '^# Fake GPU' "$out/out/report.txt"
check "and without PyTorch nothing, which has failed, and the report says what is there" $?
gpu 1 1 FAKE_NO_GPU=1 FAKE_NO_TORCH=1 && line '^skip gpu/probe: no CUDA-capable device is detected$' &&
    line '^skip gpu/suite-quick: no GPU$'
check "without a GPU nothing is tried" $?

# tests/README.md's list of what only a GPU can show: each line is a stage, each test is in the suite.
sed '1,/^## What only a GPU can show/d;/^## /,$d' tests/README.md | awk -F '|' 'NF == 6' > "$out/list"
missing=0
for name in $(cut -d '|' -f 4 "$out/list" | grep -o '`[^`]*`' | tr -d '\`'); do
    case $name in # what loops name
    suite-racecheck-*) grep -q 'stage suite-\$tool-\$test' tests/gpu/gpu.sh && continue ;;
    ddp_nccl-one) grep -q 'stage \$name-one' tests/gpu/gpu.sh && continue ;;
    ddp_nccl | step_cuda) [ -f "$(example $name.cu)" ] && continue ;;
    *) grep -Eq "stage $name( |\$)" tests/gpu/gpu.sh && continue ;;
    esac
    missing=$((missing + 1))
done
for name in $(cut -d '|' -f 5 "$out/list" | grep -o '`[^`]*`' | tr -d '\`'); do
    grep -qx "    RUN($name);" tests/unit/test_cuda.cpp || missing=$((missing + 1))
done
[ "$(wc -l < "$out/list")" -ge 11 ] && [ $missing = 0 ]
check "tests/README.md names stages and tests that there are" $?

# The tables of known values, and of none.
table() { awk -f tests/gpu/gpu_table.awk "$@" > "$out/log" 2>&1; }
known() { grep -Fqx "$1" "$out/log"; }
cat > "$out/one.csv" << 'END'
name,what,n,tensors,unit,value,low,high
gpu,command,,,,sh tests/gpu/gpu.sh 1 OUT,,
gpu,device,,,,Fake GPU,,
gpu,driver,,,,1.2,,
gpu,bench,,,s,40,,
amp,step,124468000,148,ms,2,1.9,2.1
amp,graph,124468000,148,ms,1.9004,1.9,2.1
amp,copy,124468000,148,ms,1.9,1.9,1.9
unfused,step,124468000,148,ms,3,3,3
torch,step,124468000,148,ms,3.3,3,6
torch,graph,124468000,148,ms,3.8008,3.8,3.9
torch,step-clip,124468000,148,ms,4,4,4
amp,graph,1000000,20,ms,0.016,0.016,0.017
amp,graph-clip,1000000,20,ms,0,0,0
amp,step,1000000,20,ms,nan,nan,nan
amp,state-default,124468000,148,ms,2.4,2.4,2.5
amp,state-8bit,124468000,148,ms,1.5,1.4,1.6
amp,report,124468000,148,ms,2.4,2.4,2.4
amp,sampled,124468000,148,ms,6,6,6
amp,graph,1000000,20,ms,0.016,0.016,0.017
torch-foreach,step,124468000,148,ms,5,5,5
amp,rows,38597376,1,ms,0.1,0.1,0.1
amp,rows-all,38597376,1,ms,0.4,0.4,0.4
amp,array-copy,124468000,1,GB/s,2500,2400,2600
amp,cast-f32-f16,124468000,1,GB/s,2000,2000,2000
END
cat > "$out/two.csv" << 'END'
gpu,command,,,,sh tests/gpu/gpu.sh 4 OUT,,
amp,mlp-scaler-graph,512,6,ms,1,1,1
amp,mlp-norm-graph,512,6,ms,0.995,0.99,1
amp,mlp-autocast-graph,512,6,ms,0.9,0.9,0.9
torch,mlp-scaler-graph,512,6,ms,1.5,1.4,1.6
amp,sgemm-kept,4096,1,ms,0.25,0.25,0.25
amp,sgemm-cast,4096,1,ms,0.5,0.5,0.5
cublas,halves,4096,1,ms,0.2,0.2,0.2
END
no='not measured'
table "$out/one.csv" "$out/two.csv" &&
    known "Device Fake GPU, driver 1.2, CUDA $no, PyTorch $no, date $no; \`sh tests/gpu/gpu.sh 1 OUT\`, \
\`sh tests/gpu/gpu.sh 4 OUT\`" &&
    known '| 124 M | 148 | plain | 2 [1.9-2.1] | 0.95 | 3 [3-3] | 1.50 | 3.3 [3-6] | 1.65 |' &&
    known '| 8bit | 1.5 [1.4-1.6] | 1.60 |' && known "| sr | $no | $no |" &&
    known '| that samples each | 6 [6-6] | no report | 2.50 |' &&
    known '| 8192 of 50257 rows of 768 | 0.1 [0.1-0.1] | all rows | 0.25 |' &&
    known '| PyTorch foreach, 124 M | 5 [5-5] | amp.h | 2.50 |' &&
    known "| 8192 times the same row | $no | all rows | $no |" &&
    known '| cast-f32-f16 | 2000 [2000-2000] | 0.80 |' &&
    known "| 512 | fp16 and a scaler | $no | 1 [1-1] | $no | $no | 1.5 [1.4-1.6] | 1.50 | $no | $no |" &&
    known "| 4096 | $no | 0.2 [0.2-0.2] | 0.25 [0.25-0.25] | 0.80 | $no | $no | 0.5 [0.5-0.5] | 0.40 |"
check "gpu_table.awk: medians, quartiles and ratios of known values, of both phases" $?
known '| step of 124 M, speed of a copy | at least 0.95 | 0.95 | yes |' &&
    known '| step of 1 M in a graph, us | at most 15 | 16 | **no** |' &&
    known "| step of 124 M, PyTorch's time | at least 1.7 | 1.65 | **no** |" &&
    known '| the same, both in a graph | at least 1.7 | 2 | yes |' &&
    known "| step with moments of 8 bits, speed of the default's | at least 1.5 | 1.6 | yes |" &&
    known "| with clipping | at least 2 | $no | |" &&
    known "| scaler's share of a step that has the norm, % | at most 1 | 0.5 | yes |" &&
    known '| amp_sgemm 4096, speed of cublasGemmEx | at least 0.9 | 0.8 | **no** |'
check "gpu_table.awk: a bar is met, is not, or was not measured" $?
known "| 1 M | 20 | plain | $no | $no | $no | $no | $no | $no |" &&
    known "| 1 M | 20 | clipped, in a graph | $no | $no | $no | $no | $no | $no |" &&
    known "| 10 M | 10000 | skipped | $no |  | $no | $no | $no | $no |"
check "gpu_table.awk: a row that is not there, is zero or no number was not measured" $?
sed 1q "$out/one.csv" > "$out/none.csv" && table "$out/none.csv" &&
    [ "$(grep '^|[^-]' "$out/log" | grep -v "$no" | grep -c '[0-9]\.[0-9]')" = 0 ] &&
    [ "$(grep -c "$no" "$out/log")" -ge 60 ] && ! grep -q 'yes\|\*\*no' "$out/log"
check "gpu_table.awk: of an empty table it makes up nothing" $?
wanted=$(sed -n 's/.* sizes = split("\([0-9 ,]*\)", size)/\1/p' tests/gpu/gpu_table.awk | tr , '\n')
same=0 count=0
for file in bench_cuda.cu torch_step.py; do
    all=$(tr -d '_ \n' < "tests/bench/$file")
    echo "$wanted" > "$out/wanted"
    while read -r n tensors; do
        count=$((count + 1))
        case $all in *"{$n,$tensors}"* | *"($n,$tensors)"*) ;; *) continue ;; esac
        [ $((n % tensors)) = 0 ] && same=$((same + 1))
    done < "$out/wanted"
done
[ $count = 10 ] && [ $same = 10 ]
check "gpu_table.awk, bench_cuda and torch_step have the same sizes" $?

# What PyTorch is asked, small and on the CPU: it skips a step with an inf, and all forms learn.
if [ -z "$python" ]; then skip torch 'no python3'
elif quick || ! "$python" -c 'import torch' > /dev/null 2>&1; then
    "$python" -c 'import ast, sys; [ast.parse(open(name).read()) for name in sys.argv[1:]]' \
        tests/bench/torch_*.py > "$out/log" 2>&1
    check "torch: the scripts are Python" $?
    skip torch "what they do: $(quick && echo 'make check tries' || echo 'no PyTorch')"
else
    for name in step:16 mlp:10; do
        PYTHONDONTWRITEBYTECODE=1 "$FAKE_TIMEOUT" 600 \
            "$python" "tests/bench/torch_${name%:*}.py" --cpu > "$out/log" 2>&1 &&
            [ "$(grep -Ec '^torch[a-z-]*,([^,]*,){6}[^,]*$' "$out/log")" = ${name#*:} ]
        check "torch: torch_${name%:*}.py --cpu prints its rows" $?
    done
fi

refused=0
for arguments in '' '1' "5 $out/out" "1 $out/out more"; do
    sh tests/gpu/gpu.sh $arguments > "$out/log" 2>&1
    [ $? = 2 ] && [ "$(cat "$out/log")" = 'usage: gpu.sh 1|2|3|4|carry OUT' ] && refused=$((refused + 1))
done
[ $refused = 4 ]
check "wrong arguments are answered with the usage" $?
finish
