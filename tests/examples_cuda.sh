# The CUDA examples on the emulator: they pass their own checks, and bad input is answered.
# usage: [OBJECTS=DIR] examples_cuda.sh OUTDIR
suite=examples_cuda out=${1:?usage: examples_cuda.sh OUTDIR}
. tests/lib.sh
. tests/emu/kinds.sh
kind plain
objects=${OBJECTS:-build/tests}/kind-plain
have "$compiler" || { skip compiler "$compiler not found"; finish; }
if quick; then with=-O1; fi

for program in train_cuda step_cuda; do
    object "$out/$program.o" "$compiler" $fake -w $with $front -c examples/$program.cu &&
        $compiler "$out/$program.o" "$objects/kernels.o" "$objects/emu.o" -o "$out/$program" \
            > "$out/log" 2>&1
    check "$program: compiles with $compiler" $?
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
finish
