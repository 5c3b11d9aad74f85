# The CUDA examples on the emulator: they pass their own checks and refuse bad input.
# usage: [OBJECTS=DIR] examples_cuda.sh OUTDIR GPT      GPT is gpt.c as make has built it
suite=examples_cuda out=${1:?usage: examples_cuda.sh OUTDIR GPT} gpt=${2:?}
. tests/lib.sh
. tests/gpu/emu/kinds.sh
kind plain
objects=${OBJECTS:-build/tests}/kind-plain
cpu=$objects/../o2/amp.o
have "$compiler" || { skip compiler "$compiler not found"; finish; }
if quick; then with=-O1; fi

# Linked last, so that no default comes later: the first call fails as without a driver.
printf '%s\n' '#include "cuda_emu.h"' 'static int none = (emu_fail_error = cudaErrorInsufficientDriver, emu_fail_at = 1);' \
    > "$out/driver.cpp"
object "$out/driver.o" "$compiler" $fake -c "$out/driver.cpp"
for program in train_cuda step_cuda gpt_cuda; do
    plain "$out/$program.o" "$compiler" "$(example $program.cu)" $fake -w $with $linked &&
        $compiler "$out/$program.o" "$objects/kernels.o" "$objects/emu.o" "$cpu" \
            -o "$out/$program" > "$out/log" 2>&1
    check "$program: compiles with $compiler" $?
    "$out/$program" --help > "$out/log" 2>&1 && grep -q "^usage: [^ ]*$program" "$out/log"
    check "$program: --help" $?
    refuses "$program: --help on a full disk" "^$program: standard output: No space left" \
        sh -c '"$0" --help > /dev/full' "$out/$program"
    refuses "$program: an unknown option is named" --bogus "$out/$program" --bogus
    $compiler "$out/$program.o" "$objects/kernels.o" "$objects/emu.o" "$cpu" "$out/driver.o" -o "$out/driver"
    refuses "$program: without a driver it says so" "^$program: no GPU: no driver" "$out/driver"
done
# The block of examples/README.md for a GPU, in a program with eight weights whose loss is 2^-10: scaled it is 64.
cat > "$out/readme.head" << 'END'
#include "amp.h"
#include <cuda_runtime.h>
#include <string.h>
int main(void) {
    const size_t       n = 8;
    const float        lr = 0.5f, ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const amp_f16      loss[8] = {{0x1400}, {0}, {0}, {0}, {0}, {0}, {0}, {0}};
    amp_f16            scaled[8];
    cudaStream_t       stream;
    void              *w, *grad, *dloss;
    amp_optimizer      opt;
    amp_optimizer_desc desc;
    amp_tensor         t;
    amp_status         status;
    memset(&desc, 0, sizeof desc), memset(&t, 0, sizeof t);
    cudaStreamCreate(&stream);
    cudaMalloc(&w, sizeof ones), cudaMalloc(&grad, sizeof loss), cudaMalloc(&dloss, sizeof loss);
    cudaMemcpy(w, ones, sizeof ones, cudaMemcpyHostToDevice), cudaMemset(grad, 0, sizeof loss);
    cudaMemcpy(dloss, loss, sizeof loss, cudaMemcpyHostToDevice);
    desc.dtype = AMP_F16;
END
cat > "$out/readme.init" << 'END'
    t.n = n, t.weight = (float *)w, t.grad = grad, t.grad_type = AMP_F16;
    if (amp_optimizer_init(&opt, &desc) || amp_optimizer_add(&opt, &t) || amp_optimizer_prepare(&opt)) return 1;
END
cat > "$out/readme.tail" << 'END'
    cudaMemcpy(scaled, dloss, sizeof scaled, cudaMemcpyDeviceToHost);
    if (amp_optimizer_status(&opt, &status) || status.steps != 1) return 2;
    amp_optimizer_free(&opt);
    return scaled[0].bits != 0x5400;
}
END
block examples/README.md amp_cuda_scale_loss > "$out/block"
sed '/^\/\* init/,$d' "$out/block" > "$out/readme.desc"
sed '1,/^\/\* init/d' "$out/block" > "$out/readme.step"
cat "$out/readme.head" "$out/readme.desc" "$out/readme.init" "$out/readme.step" "$out/readme.tail" > "$out/readme_gpu.cpp"
object "$out/readme_gpu.o" "$compiler" $fake -w $with $linked -include $emu/cuda_emu.h -c "$out/readme_gpu.cpp" &&
    $compiler "$out/readme_gpu.o" "$objects/kernels.o" "$objects/emu.o" "$cpu" -o "$out/readme_gpu" > "$out/log" 2>&1 &&
    "$out/readme_gpu" > "$out/log" 2>&1
check 'examples/README.md: the block for a GPU compiles, scales the loss and takes a step' $?

small="--width 64 --batch 32 --batches 10 --epochs 2"
for dtype in fp16 bf16; do
    "$out/train_cuda" $small --dtype $dtype > "$out/log" 2>&1 && grep -q '^ok' "$out/log"
    check "train_cuda: the losses of all forms agree, in $dtype, at a small size" $?
done
"$out/step_cuda" > "$out/log" 2>&1 && [ "$(grep -c ' yes$' "$out/log")" = 2 ]
check 'step_cuda: read-back, gate and conditional node end with the same bits' $?

# gpt_cuda begins with the weights of gpt.c and draws the same text. At this size rows and columns
# end within a slice, a strip and a batch.
toy="--quick --text LICENSE --seeds 1 --steps 24 --lr 0.005
     --layers 1 --width 40 --heads 5 --context 16 --batch 5"
cuda() { "$out/gpt_cuda" $toy --out "$out" "$@"; }
final() { sed -n 's/^final [a-z_]* //p' "$1"; } # step, and held-out loss with all digits
number='[0-9.]+' d='d [-+][0-9.]+ se -' count='[1-9][0-9]*'
cuda > "$out/toy" 2> /dev/null && tail -n 3 "$out/toy" > "$out/log" &&
    sed -n 1p "$out/log" |
        grep -Eq "^parity gpt_cuda: fp32 $number fp16 $number $d bf16 $number $d seeds 1\$" &&
    sed -n 2p "$out/log" |
        grep -Eq "^speed gpt_cuda: fp32 $count fp16 $count bf16 $count tokens/s\$" &&
    sed -n 3p "$out/log" |
        grep -Eq "^memory gpt_cuda: fp32 $count fp16 $count bf16 $count MiB\$" &&
    grep -q '</svg>' "$out/gpt_cuda_loss.svg"
check 'gpt_cuda: a short run ends with its three lines and has drawn its curves' $?
tail -n 3 "$out/toy"
awk '/^parity/ {lines++; bad += !($4 < 4.2 && $8 * $8 < 1e-4 && $14 * $14 < 1e-4)}
     /^  (fp16|bf16) trains/ {lines++; bad += !($10 < 55)}
     END {exit !(lines == 3 && !bad)}' "$out/toy"
check 'gpt_cuda: learns from 5.5 to below 4.2, alike in all types' $?

# The two add in different orders. In fp32 a sum of some hundred terms is then off by some ten times
# 2^-24, and so is what a step moves; in 16 bits the loss may be off by what one rounding is.
for pair in fp32/1e-6 fp16/4.9e-4 bf16/3.9e-3; do
    type=${pair%/*} most=${pair#*/}
    cuda --dtype $type --save "$out/whole.$type" > "$out/gpu.$type" 2> "$out/log" &&
        "$gpt" $toy --out "$out" --write 1 --dtype $type --save "$out/cpu.state" > "$out/cpu" \
            2> "$out/log" &&
        { final "$out/gpu.$type"; final "$out/cpu"; } | awk -v most=$most '
            {step[NR] = $3; loss[NR] = $NF}
            END {far = loss[1] / loss[2] - 1
                 exit !(NR == 2 && step[1] == 24 && step[2] == 24 && far * far < most * most)}'
    check "gpt_cuda: after 24 steps in $type the loss is that of gpt.c, to $most of it" $?
done

cuda --dtype fp16 --stop-after 9 --save "$out/part" > "$out/log" 2>&1 &&
    ! cmp -s "$out/part" "$out/whole.fp16" &&
    cuda --dtype fp16 --resume "$out/part" --save "$out/part" > "$out/log" 2>&1 &&
    cmp "$out/part" "$out/whole.fp16" > "$out/log" 2>&1
check 'gpt_cuda: interrupted and resumed, a run ends with the same bytes' $?
refuses 'gpt_cuda: what gpt.c has saved is refused' 'was saved by gpt, not by gpt_cuda;' \
    cuda --dtype bf16 --resume "$out/cpu.state"
cuda --dtype bf16 --stop-after 24 --overflow 5 > "$out/spoilt" 2> "$out/log" &&
    grep -Eq '^bf16 .* 1\.0 +1 ' "$out/spoilt" && grep -Eq '^bf16 .* 0\.0 +1 ' "$out/gpu.bf16" &&
    same "$(final "$out/gpu.bf16")" "$(final "$out/spoilt")"
check 'gpt_cuda: an overflow on purpose is skipped, and the end has the bits of a run without' $?
cuda --dtype fp16 --stop-after 8 --overflow 5 > "$out/log" 2>&1 &&
    grep -Eq '^fp16 .* 1\.0 +32768 ' "$out/log"
check 'gpt_cuda: it halves the scale of fp16' $?
refuses 'gpt_cuda: a width that the heads do not divide by 8'  250 "$out/gpt_cuda" --width 250
refuses 'gpt_cuda: a context that is no multiple of 8'          20 "$out/gpt_cuda" --context 20
refuses 'gpt_cuda: a policy is for a CPU'                 --policy "$out/gpt_cuda" --policy a=fp32
refuses 'gpt_cuda: a state of another run is refused'    'lr 0.005' \
    cuda --dtype fp16 --lr 0.01 --resume "$out/part"
finish
