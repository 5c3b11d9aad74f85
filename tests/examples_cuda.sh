# The CUDA examples on the emulator: they pass their own checks, and bad input is answered.
# usage: examples_cuda.sh OUTDIR      The last line is "N passed, N failed[, N skipped]".
out=$1
CXX=${CXX:-c++}
passed=0 failed=0
mkdir -p "$out"
command -v "$CXX" > /dev/null 2>&1 || {
    echo "skip examples_cuda: $CXX not found"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
flags="-std=c++14 -O2 -w -ffp-contract=off -fno-strict-aliasing -Itests/emu/fake -I."
kernels="-include tests/emu/cuda_emu.h -x c++"

check() { # check NAME STATUS: the status of the command that just ran
    if [ "$2" = 0 ]; then echo "ok   examples_cuda/$1"; passed=$((passed + 1))
    else echo "FAIL examples_cuda/$1"; failed=$((failed + 1)); cat "$out/log"; fi
}
refuses() { # refuses NAME PATTERN COMMAND...: it must fail with one line that matches the pattern
    name=$1 pattern=$2
    shift 2
    "$@" > "$out/log" 2>&1
    status=$?
    [ $status -ne 0 ] && [ $status -lt 126 ] && [ "$(grep -c . "$out/log")" = 1 ] &&
        grep -q -e "$pattern" "$out/log"
    check "$name" $?
}

$CXX $flags -c tests/emu/cuda_emu.cpp -o "$out/emu.o" > "$out/log" 2>&1 &&
    $CXX $flags $kernels -c amp_kernels.cu -o "$out/kernels.o" >> "$out/log" 2>&1
check "the emulator and amp_kernels.cu compile with $CXX" $?
for program in train_cuda step_cuda; do
    $CXX $flags $kernels -c examples/$program.cu -o "$out/$program.o" > "$out/log" 2>&1 &&
        $CXX "$out/$program.o" "$out/kernels.o" "$out/emu.o" -o "$out/$program" >> "$out/log" 2>&1
    check "$program: compiles with $CXX" $?
    "$out/$program" --help > "$out/log" 2>&1 && [ -s "$out/log" ]
    check "$program: --help" $?
    refuses "$program: an unknown option is named" --bogus "$out/$program" --bogus
done
small="--width 64 --batch 32 --batches 10 --epochs 2"
for dtype in fp16 bf16; do
    "$out/train_cuda" $small --dtype $dtype > "$out/log" 2>&1 && grep -q '^ok' "$out/log"
    check "train_cuda: the losses of all forms agree, in $dtype, at a small size" $?
done
"$out/step_cuda" > "$out/log" 2>&1 && [ "$(grep -c ' yes$' "$out/log")" = 2 ]
check 'step_cuda: read-back, gate and conditional node end with the same bits' $?
echo "$passed passed, $failed failed"
