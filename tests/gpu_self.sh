# What gpu.sh does with a GPU, tried without one: compilers, tools and programs are shell scripts
# that succeed, fail, hang or refuse as told. usage: gpu_self.sh OUTDIR, in the repository's root
suite=gpu_self out=${1:?usage: gpu_self.sh OUTDIR}
. tests/lib.sh
out=$(cd "$out" && pwd)
rm -rf "$out/bin" "$out/tmp"
mkdir -p "$out/bin" "$out/tmp"

python=$(command -v python3)
script() { { echo '#!/bin/sh'; cat; } > "$out/bin/$1"; chmod +x "$out/bin/$1"; }
script nvcc << 'END'
[ "$1" != --version ] || { echo 'Cuda compilation tools, release 0.0, V0.0'; exit; }
for program; do :; done
[ "${program##*/}" != "$FAKE_UNBUILT" ] || { echo 'error: not today'; exit 1; }
cp "$FAKE/bin/program" "$program"
END
script program << 'END'
name=${0##*/}
echo "$name $*" >> "$FAKE/ran"
[ "$name" != "$FAKE_HANGS" ] || sleep 60
[ "$name" != "$FAKE_FAILS" ] || { echo '3 passed, 1 failed'; exit 1; }
case $name in
suite*) echo "${FAKE_TESTS:-28} passed, 0 failed, 1 skipped" ;;
bench_cuda)
    printf '# fake\nname,what,n,tensors,unit,value,low,high\n'
    printf 'amp,step,100,2,ms,2,1,4\namp,overflow,100,2,ms,1,1,1\namp,copy,100,2,ms,1,1,1\n'
    printf 'amp,array-copy,100,1,GB/s,50,50,50\namp,cast,100,1,GB/s,40,40,40\n'
    printf 'unfused,step,100,2,ms,3,3,3\n' ;;
bench_mlp)
    printf 'amp,mlp-scaler,512,6,ms,2,2,2\namp,mlp-norm,512,6,ms,1.9,1.9,1.9\n'
    printf 'cublas,halves,4096,1,ms,9,9,9\namp,sgemm-kept,4096,1,ms,10,10,10\n'
    [ "$name" != "$FAKE_SLEEPS" ] || sleep 60 ;;
esac
exit 0
END
script python3 << 'END'
[ "$1" != -c ] || { echo 'torch 1.0,0'; exit "${FAKE_NO_TORCH:-0}"; }
echo "$1" >> "$FAKE/ran"
printf '# fake\nname,what,n,tensors,unit,value,low,high\n'
case $1 in
*step.py) echo 'torch,step,100,2,ms,6,4,8' ;;
*) printf 'torch,mlp-scaler,512,6,ms,4,4,4\ntorch-compile,mlp-scaler,512,6,ms,3,3,3\n' ;;
esac
END
script compute-sanitizer << 'END'
[ -z "$FAKE_REFUSES" ] || { echo '========= Error: not for you'; exit 1; }
echo "$1 $2" >> "$FAKE/ran"
shift 4
exec "$@"
END
script ncu << 'END'
echo '==ERROR== ERR_NVGPUCTRPERM'
exit 1
END
script timeout << 'END'
echo "$*" >> "$FAKE/limits"
shift 3
exec "$FAKE_TIMEOUT" -k 1 2 "$@"
END
script cc < /dev/null
script nvidia-smi << 'END'
case $1 in *=name) echo 'Fake GPU' ;; *=driver_version) echo 1.2 ;; *) echo 'Fake GPU, 1.2' ;; esac
END
FAKE=$out FAKE_TIMEOUT=$(command -v timeout) FAKE_UNBUILT='' FAKE_HANGS='' FAKE_FAILS='' \
    FAKE_REFUSES='' FAKE_SLEEPS='' TMPDIR=$out/tmp PATH=$out/bin:$PATH
export FAKE FAKE_TIMEOUT FAKE_UNBUILT FAKE_HANGS FAKE_FAILS FAKE_REFUSES FAKE_SLEEPS TMPDIR PATH
unset NVCC CC

# gpu STATUS PHASE [VARIABLE=VALUE]...: how it ends, and that it leaves its files and nothing else
gpu() {
    status=$1 phase=$2
    shift 2
    rm -rf "$out/out" "$out/limits"
    : > "$out/ran"
    env "$@" sh tests/gpu.sh "$phase" "$out/out" > "$out/log" 2>&1
    [ $? = "$status" ] || return 1
    files='report.txt table.csv '
    case $phase in 1 | 4) files="${files}table.md " ;; esac
    [ "$(ls "$out/out" | tr '\n' ' ')" = "$files" ] && [ -z "$(ls "$out/tmp")" ] &&
        grep -q '^[0-9]* passed, [0-9]* failed' "$out/log"
}
line()   { grep -q "$1" "$out/log"; }
stages() { [ "$(sed -n 's#^[a-zA-Z]* *gpu/\([^:]*\).*#\1#p' "$out/log" | tr '\n' ' ')" = "$1 " ]; }
seconds() { # what the limits add up to, with those that hold at the same time counted once
    awk '$1 != "-k" {exit 1}
         {limit = $2 + $3}
         $4 ~ /nvcc$/ {if (limit > most) most = limit; next}
         {sum += limit}
         END {print sum + most}' "$out/limits"
}

gpu 0 1 && stages 'compile-suite compile-bench_cuda suite-quick bench torch' &&
    line '^5 passed, 0 failed, 0 skipped$'
check "phase 1 builds, tests, measures, asks PyTorch, and leaves two files" $?
[ "$(seconds)" -le 240 ]
check "the limits of phase 1 add up to less than 4 minutes" $?
awk -F, 'NF != 8 {exit 1}' "$out/out/table.csv" &&
    grep -qx 'torch/amp,step,100,2,x,3,1,8' "$out/out/table.csv" &&
    grep -qx 'of-copy,step,100,2,x,0.5,0.25,1' "$out/out/table.csv" &&
    grep -qx 'of-copy,cast,100,1,x,0.8,0.8,0.8' "$out/out/table.csv" &&
    grep -qx 'unfused/amp,step,100,2,x,1.5,0.75,3' "$out/out/table.csv" &&
    grep -qx 'gpu,torch,,,,1.0 0,,' "$out/out/table.csv" &&
    grep -q '^gpu,bench,,,s,[0-9]*,,$' "$out/out/table.csv"
check "table.csv has the rows of both sides, their ratios, and the stages" $?

[ "$(head -n 1 "$out/out/table.md" | sed 's/date [-0-9]*;/date;/')" = \
    'Device Fake GPU, driver 1.2, CUDA 0.0, PyTorch 1.0 0, date; `sh tests/gpu.sh 1 OUT`' ]
check "table.md begins with the device, its driver and the command" $?

gpu 0 2 && line '^ok   gpu/suite: 28 tests$' && grep -qx 'suite --filter grids' "$out/ran" &&
    line '^ok   gpu/suite-fast-math: 28 tests$' &&
    [ "$(grep -Ec '^ok   gpu/(ddp|gpt|step|train|trainer)_' "$out/log")" = 6 ] &&
    [ "$(seconds)" -lt 600 ]
check "phase 2 runs the suite with both kernels, and the examples, in less than 10 minutes" $?

tools='suite-memcheck suite-racecheck suite-synccheck suite-initcheck ncu'
gpu 0 3 && stages "compile-probe compile-suite compile-bench_cuda $tools" &&
    [ "$(grep -cx 'suite --quick --filter races' "$out/ran")" = 4 ] && [ "$(seconds)" -lt 600 ]
check "phase 3 runs each sanitizer on tests that a device has, in less than 10 minutes" $?
line '^skip gpu/ncu: refused: ==ERROR== ERR_NVGPUCTRPERM$' && line ', 0 failed, 1 skipped$'
check "what ncu may not do is skipped" $?
gpu 0 3 FAKE_REFUSES=1 && line '^skip gpu/memcheck: refused: ========= Error: not for you$' &&
    line '^3 passed, 0 failed, 5 skipped$' && ! grep -q '^suite' "$out/ran"
check "and so is a sanitizer that cannot watch even a correct program" $?
gpu 1 3 FAKE_FAILS=suite && line '^FAIL gpu/suite-initcheck: ended with status 1$'
check "one that finds something has failed" $?

gpu 0 4 && stages 'compile-bench_mlp bench-mlp torch-mlp' && [ "$(seconds)" -le 360 ] &&
    grep -qx 'amp-share,mlp-norm,512,6,x,0.05,0.05,0.05' "$out/out/table.csv" &&
    grep -qx 'torch/amp,mlp-scaler,512,6,x,2,2,2' "$out/out/table.csv" &&
    grep -qx 'torch-compile/amp,mlp-scaler,512,6,x,1.5,1.5,1.5' "$out/out/table.csv" &&
    grep -qx 'cublas/amp,sgemm-kept,4096,1,x,0.9,0.9,0.9' "$out/out/table.csv"
check "phase 4 measures a network and products, beside PyTorch and cuBLAS, in under 6 minutes" $?
gpu 1 4 FAKE_SLEEPS=bench_mlp && line '^FAIL gpu/bench-mlp: took more than 75 s$' &&
    grep -qx 'amp,mlp-norm,512,6,ms,1.9,1.9,1.9' "$out/out/table.csv" &&
    grep -qx 'torch/amp,mlp-scaler,512,6,x,2,2,2' "$out/out/table.csv"
check "what was measured before a program was stopped is in the table" $?

gpu 1 1 FAKE_UNBUILT=bench_cuda && line '^FAIL gpu/compile-bench_cuda: ' && line 'not today' &&
    line '^skip gpu/bench: was not built$' && line '^ok   gpu/torch$'
check "after a program that does not build it goes on" $?
gpu 1 1 FAKE_FAILS=suite && line '^FAIL gpu/suite-quick: ended with status 1$' &&
    line '^ok   gpu/bench$' && line '^ok   gpu/torch$'
check "after a test that fails it goes on" $?
gpu 1 1 FAKE_HANGS=suite && line '^FAIL gpu/suite-quick: took more than 30 s$' &&
    line '^ok   gpu/bench$'
check "a program that hangs is stopped" $?
gpu 1 2 FAKE_TESTS=0 && line '^FAIL gpu/suite: no test ran$' && line '^ok   gpu/step_cuda$'
check "a suite without tests has failed" $?
gpu 0 1 FAKE_NO_TORCH=1 && line '^skip gpu/torch: no PyTorch that sees the GPU$'
check "without PyTorch it is one line" $?

# The tables of known values, and of none.
table() { awk -f tests/gpu_table.awk "$@" > "$out/log" 2>&1; }
known() { grep -Fqx "$1" "$out/log"; }
cat > "$out/one.csv" << 'END'
name,what,n,tensors,unit,value,low,high
gpu,command,,,,sh tests/gpu.sh 1 OUT,,
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
amp,array-copy,124468000,1,GB/s,2500,2400,2600
amp,cast-f32-f16,124468000,1,GB/s,2000,2000,2000
END
cat > "$out/two.csv" << 'END'
gpu,command,,,,sh tests/gpu.sh 4 OUT,,
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
    known "Device Fake GPU, driver 1.2, CUDA $no, PyTorch $no, date $no; \`sh tests/gpu.sh 1 OUT\`, \
\`sh tests/gpu.sh 4 OUT\`" &&
    known '| 124 M | 148 | plain | 2 [1.9-2.1] | 0.95 | 3 [3-3] | 1.50 | 3.3 [3-6] | 1.65 |' &&
    known '| 8bit | 1.5 [1.4-1.6] | 1.60 |' && known "| sr | $no | $no |" &&
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
wanted=$(sed -n 's/.* sizes = split("\([0-9 ,]*\)", size)/\1/p' tests/gpu_table.awk | tr , '\n')
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
    for name in step:8 mlp:10; do
        PYTHONDONTWRITEBYTECODE=1 "$FAKE_TIMEOUT" 600 \
            "$python" "tests/bench/torch_${name%:*}.py" --cpu > "$out/log" 2>&1 &&
            [ "$(grep -Ec '^torch[a-z-]*,([^,]*,){6}[^,]*$' "$out/log")" = ${name#*:} ]
        check "torch: torch_${name%:*}.py --cpu prints its rows" $?
    done
fi

refused=0
for arguments in '' '1' "5 $out/out" "1 $out/out more"; do
    sh tests/gpu.sh $arguments > "$out/log" 2>&1
    [ $? = 2 ] && [ "$(cat "$out/log")" = 'usage: gpu.sh 1|2|3|4 OUT' ] && refused=$((refused + 1))
done
[ $refused = 4 ]
check "wrong arguments are answered with the usage" $?
NVCC=$out/none sh tests/gpu.sh 1 "$out/out" > "$out/log" 2>&1 &&
    [ "$(cat "$out/log")" = "skip gpu: $out/none not found" ]
check "without nvcc it is one line, and no failure" $?

finish
