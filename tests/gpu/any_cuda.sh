# any_cuda.cu without a GPU: all that it writes on the emulator, and there as nvcc's PTX, is what the
# CPU writes, to the byte. A fault is planted in each family of kernels, and it sees each.
# usage: [OBJECTS=DIR] [CXX=COMPILER] [NVCC=nvcc] any_cuda.sh OUTDIR, in the repository's root
suite=any_cuda out=${1:?usage: any_cuda.sh OUTDIR}
. tests/lib.sh
. tests/gpu/emu/kinds.sh
objects=${OBJECTS:-build/tests}
NVCC=${NVCC:-nvcc}
kind plain
have "$compiler" || { skip compiler "$compiler not found"; finish; }
kernels=$objects/kind-plain/kernels.o emulation=$objects/kind-plain/emu.o cpu=$objects/o2/amp.o
source=tests/gpu/any_cuda.cu

object "$out/cpu.o" "$compiler" -O1 -DANY_CPU $linked -x c++ -c $source &&
    $compiler "$out/cpu.o" "$cpu" -o "$out/cpu" -lm > "$out/log" 2>&1 &&
    plain "$out/emulated.o" "$compiler" $source $fake $with $linked &&
    $compiler "$out/emulated.o" "$kernels" "$emulation" "$cpu" -o "$out/emulated" -lm > "$out/log" 2>&1 &&
    ${CC:-cc} -std=c99 -O1 tests/gpu/any_differs.c -o "$out/differs" > "$out/log" 2>&1 || {
    cat "$out/cpu.o.log" "$out/emulated.o.log" "$out/log" > "$out/words" 2> /dev/null
    fail 'does not compile' "$out/words"
    finish
}

# agrees PROGRAM [CASE...]: it writes what the CPU does; words: how many cases, or the first difference
agrees() {
    program=$1
    shift
    "$out/cpu" "$out/expected" "$@" > "$out/log" 2>&1 && "$program" "$out/found" "$@" > "$out/log" 2>&1 &&
        cmp "$out/expected" "$out/found" > "$out/log" 2>&1
    same=$?
    "$out/differs" "$out/expected" "$out/found" > "$out/log" 2>&1
    words=$(sed -n '$p' "$out/log")
    rm -f "$out/expected" "$out/found"
    return $same
}
[ "$("$out/cpu" --list | sort -u | wc -l)" -ge 60 ]
check 'at least 60 cases, each with a name of its own' $?
agrees "$out/emulated"
check "emulator: $words" $?

# Of two files that differ in one number, and of no file, any_differs says so.
"$out/cpu" "$out/a" lion_f16 loss_f32 > "$out/log" 2>&1
line='loss_f32 step 0 scaled 1: 4 x 5003'
begin=$(grep -abo "$line\$" "$out/a" | cut -d : -f 1)
cp "$out/a" "$out/b" && printf '\252' |
    dd of="$out/b" bs=1 seek=$((begin + ${#line} + 1 + 4 * 7)) conv=notrunc > "$out/log" 2>&1
"$out/differs" "$out/a" "$out/b" > "$out/log" 2>&1
[ $? = 1 ] && grep -q '^loss_f32 step 0 scaled 1 \[7\] of 5003: expected 0x[^ ]* ([^ ]*), found 0x......aa (' \
    "$out/log" && grep -q '^2 cases, [0-9]* bytes, 1 bytes off$' "$out/log"
check 'any_differs names the first number that differs, and counts bytes' $?
head -c 5000 "$out/a" > "$out/b"
refuses 'any_differs: a file that was cut short is told' '/b: ends early$' "$out/differs" "$out/a" "$out/b"
refuses 'any_differs: no file is told' '/none: cannot be read$' "$out/differs" "$out/a" "$out/none"
! "$out/cpu" "$out/a" no_such_case > "$out/log" 2>&1 && grep -q '^0 cases' "$out/log"
check 'a case that there is not is an error' $?
rm -f "$out/a" "$out/b"

# The kernels with all faults in them, of which ANY_FAULT=N makes one.
echo '#include <stdlib.h>
static inline int any_fault(void) {
    static const int n = getenv("ANY_FAULT") ? atoi(getenv("ANY_FAULT")) : 0;
    return n;
}' > "$out/fault.h"
cp amp_kernels.cu "$out/faulty.cu"
faults=0
: > "$out/list"
# fault CASE FAMILY OLD NEW: a text that is there once; FAULT in NEW is whether it is this one
fault() {
    faults=$((faults + 1))
    echo "$faults $1 $2" >> "$out/list"
    OLD=$3 NEW=$4 awk -v n=$faults '
        BEGIN {old = ENVIRON["OLD"]; new = ENVIRON["NEW"]; gsub(/FAULT/, "(any_fault() == " n ")", new)}
        {at = index($0, old)
         if (at) {found++; $0 = substr($0, 1, at - 1) new substr($0, at + length(old))}
         print}
        END {exit found != 1}' "$out/faulty.cu" > "$out/next.cu" && mv "$out/next.cu" "$out/faulty.cu" ||
        fail "fault $faults, in $2: its text is not there once" "$out/none"
}
fault adamw_many check 'if (WARPS == 1) return x;' 'if (WARPS == 1) return x + FAULT;'
fault adamw_f16 check_by_four 'for (int k = 0; k < WARPS; k++) all' 'for (int k = FAULT; k < WARPS; k++) all'
fault adamw_f16 'the tally of chunks' 'if (found.zeros)' 'if (found.zeros && !FAULT)'
fault adamw_reduced decide 'if (threadIdx.x == 0) ampi_decide(&plan);' \
    'if (threadIdx.x == 0 && !FAULT) ampi_decide(&plan);'
fault adamw_f16 update 'ampi_unscale(g[k], t.factor);' 'ampi_unscale(g[k] ^ FAULT, t.factor);'
fault adamw_open zeroing 'ampi_put_vector<false, 4>(x.base' 'if (!FAULT) ampi_put_vector<false, 4>(x.base'
fault rows_f16 'update of rows' '(uint64_t)table->unique[k] *' '(uint64_t)(table->unique[k] ^ FAULT) *'
fault rows_many count '= digits[d];' '= digits[d ^ FAULT];'
fault rows_f16 scatter 'pass ? places[i] : i;' 'pass ? places[i] : FAULT ? 0u : i;'
fault rows_f16 sum_rows 'sum[e] = fresh ?' 'sum[e] = fresh || FAULT ?'
fault adamw_fp32+bf16 coded 'l[k] = ampi_bits_of_f32(p[k]);' 'l[k] = ampi_bits_of_f32(p[k]) ^ FAULT;'
fault adamw_fp32+8bit 'moments of coded' 'if (size == 1 && here) put' 'if (size == 1 && here && !FAULT) put'
fault split_refreshed split 'ampi_encode_weight(model' 'if (!FAULT || i != 5) ampi_encode_weight(model'
fault own_gated unscale 'ampi_map(unscaled, grad, s.count,' 'ampi_map(unscaled, grad, s.count - FAULT,'
fault own_f16 publish 'ampi_map(model, master, s.count,' 'ampi_map(model, master, s.count - FAULT,'
fault adamw_beside_own 'the end of own tensors' '; k < all - others;' '; k + FAULT < all - others;'
fault adamw_reported samples 'ampi_count_grad(counts, s.grad.get(e)' 'ampi_count_grad(counts, FAULT + s.grad.get(e)'
fault adamw_reported 'counts of updates' '&counts[AMPI_UPDATES], 1u' '&counts[AMPI_UPDATES], 1u + FAULT'
fault adamw_rebound bind 'ampi_bind(&b.table' 'if (!FAULT || threadIdx.x != 1) ampi_bind(&b.table'
fault adamw_by_pointer store '(unsigned char)(value >> 8 * b);' \
    '(unsigned char)(value >> 8 * b ^ (FAULT && b == 1));'
fault cast_f32_f16 cast 'cols, AMPI_SPAN), copy' 'cols, AMPI_SPAN) - FAULT, copy'
fault loss_f16 scale 'ampi_mul(ampi_f32_from_bits(u), factor)' 'ampi_mul(ampi_f32_from_bits(u ^ FAULT), factor)'
fault scaler_f16 scaler 'if (bad) atomicOr(&s->found_inf' 'if (bad && !FAULT) atomicOr(&s->found_inf'
fault scaler_f16 scaler_update 'ampi_scaler_transition(s);' 'FAULT ? (void)0 : ampi_scaler_transition(s);'

object "$out/faulty.o" "$compiler" $fake $with -w -include "$out/fault.h" $front -c "$out/faulty.cu" &&
    $compiler "$out/emulated.o" "$out/faulty.o" "$emulation" "$cpu" -o "$out/faulty" -lm > "$out/log" 2>&1
check 'the kernels with faults in them compile' $?
cat "$out/faulty.o.log"
agrees "$out/faulty"
check "without one they are the kernels: $words" $?
while read -r n case family; do
    ANY_FAULT=$n
    export ANY_FAULT
    ! agrees "$out/faulty" "$case" && echo "$words" | grep -q ' [1-9][0-9]* bytes off$'
    check "a fault in $family is seen by $case" $?
done < "$out/list"
unset ANY_FAULT

# As PTX: for the oldest GPUs, and in make check for the newest.
have "$NVCC" || { skip "$NVCC" 'not found'; finish; }
object "$out/ptx.o" "$compiler" $fake -O2 -c $emu/ptx.cpp &&
    $compiler "$out/emulated.o" "$kernels" "$emulation" "$out/ptx.o" "$cpu" -o "$out/ptx" -lm > "$out/log" 2>&1
for arch in 75 $(quick || echo 90 100); do
    rm -f "$out/counts"
    $NVCC -I. -std=c++14 -ptx -arch=compute_$arch amp_kernels.cu -o "$out/$arch.ptx" > "$out/log" 2>&1 &&
        EMU_PTX_COUNTS=$out/counts EMU_PTX=$out/$arch.ptx agrees "$out/ptx" &&
        grep -Eq '^2[3-9] of' "$out/counts"
    check "PTX for sm_$arch: $words, $(cut -d , -f 1 "$out/counts")" $?
done
quick && finish

# Without storage formats, for simulators; and by the command of its head.
object "$out/less.o" "$compiler" $fake $with -DAMPI_NO_STORAGE $front -c amp_kernels.cu &&
    object "$out/cpu_less.o" "$compiler" -O1 -DANY_CPU -DAMPI_NO_STORAGE $linked -x c++ -c $source &&
    $compiler "$out/cpu_less.o" "$cpu" -o "$out/cpu_less" -lm > "$out/log" 2>&1 &&
    $compiler "$out/emulated.o" "$out/less.o" "$emulation" "$cpu" -o "$out/less" -lm > "$out/log" 2>&1 &&
    agrees "$out/less" $("$out/cpu_less" --list)
check "AMPI_NO_STORAGE: $words" $?
$compiler -O2 -std=c++14 -I. -DANY_CPU -x c++ $source -o "$out/alone" > "$out/log" 2>&1 && agrees "$out/alone"
check "compiled alone: $words" $?
finish
