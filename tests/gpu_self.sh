# What gpu.sh does with a GPU, tried without one: compilers, tools and programs are shell scripts
# that succeed, fail, hang or refuse as told. usage: gpu_self.sh OUTDIR, in the repository's root
suite=gpu_self out=${1:?usage: gpu_self.sh OUTDIR}
. tests/lib.sh
out=$(cd "$out" && pwd)
rm -rf "$out/bin" "$out/tmp"
mkdir -p "$out/bin" "$out/tmp"

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
    printf 'amp,array-copy,100,1,GB/s,50,50,50\namp,cast,100,1,GB/s,40,40,40\n' ;;
esac
exit 0
END
script python3 << 'END'
[ "$1" != -c ] || exit "${FAKE_NO_TORCH:-0}"
echo torch >> "$FAKE/ran"
printf '# fake\nname,what,n,tensors,unit,value,low,high\ntorch,step,100,2,ms,6,4,8\n'
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
echo 'Fake GPU, 0.0, 1 MiB'
END
FAKE=$out FAKE_TIMEOUT=$(command -v timeout) FAKE_UNBUILT='' FAKE_HANGS='' FAKE_FAILS='' \
    FAKE_REFUSES='' TMPDIR=$out/tmp PATH=$out/bin:$PATH
export FAKE FAKE_TIMEOUT FAKE_UNBUILT FAKE_HANGS FAKE_FAILS FAKE_REFUSES TMPDIR PATH
unset NVCC CC

# gpu STATUS PHASE [VARIABLE=VALUE]...: how it ends, and that it leaves two files and nothing else
gpu() {
    status=$1 phase=$2
    shift 2
    rm -rf "$out/out" "$out/limits"
    : > "$out/ran"
    env "$@" sh tests/gpu.sh "$phase" "$out/out" > "$out/log" 2>&1
    [ $? = "$status" ] && [ "$(ls "$out/out")" = "$(printf 'report.txt\ntable.csv')" ] &&
        [ -z "$(ls "$out/tmp")" ] && grep -q '^[0-9]* passed, [0-9]* failed' "$out/log"
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
    grep -q '^gpu,bench,,,s,[0-9]*,,$' "$out/out/table.csv"
check "table.csv has the rows of both sides, their ratios, and the stages" $?

gpu 0 2 && line '^ok   gpu/suite: 28 tests$' && line '^ok   gpu/suite-fast-math: 28 tests$' &&
    [ "$(grep -Ec '^ok   gpu/(step|train|trainer)_' "$out/log")" = 4 ] && [ "$(seconds)" -lt 600 ]
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

refused=0
for arguments in '' '1' "4 $out/out" "1 $out/out more"; do
    sh tests/gpu.sh $arguments > "$out/log" 2>&1
    [ $? = 2 ] && [ "$(cat "$out/log")" = 'usage: gpu.sh 1|2|3 OUT' ] && refused=$((refused + 1))
done
[ $refused = 4 ]
check "wrong arguments are answered with the usage" $?
NVCC=$out/none sh tests/gpu.sh 1 "$out/out" > "$out/log" 2>&1 &&
    [ "$(cat "$out/log")" = "skip gpu: $out/none not found" ]
check "without nvcc it is one line, and no failure" $?

finish
