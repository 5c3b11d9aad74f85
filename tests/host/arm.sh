# BFMMLA and NEON in qemu: the instruction and 100,000 products (make ci: 300) beside the definition of tiles.h; NEON without
# BFMMLA; the instructions of a product. Then amp.h is compiled as for a Mac and for big-endian AArch64. That needs neither
# machine: their headers are stubs here.
# usage: OBJECTS=BUILD/tests arm.sh OUTDIR
suite=arm out=${1:?usage: arm.sh OUTDIR}
. tests/lib.sh
clang=${CLANG:-clang}
cc=aarch64-linux-gnu-gcc qemu=qemu-aarch64 object=$OBJECTS/aarch64/amp.o

mac() { # mac LANGUAGE STANDARD
    clang-19 --target=arm64-apple-macos11 -nostdinc -isystem "$(clang-19 -print-resource-dir)/include" \
        -ffreestanding -isystem "$out/mac" -std="$2" -O1 -Wall -Wextra -Wpedantic -Werror -I. -x "$1" \
        -c tests/host/compile/mac.c -o "$out/mac.o" > "$out/log" 2>&1 && [ ! -s "$out/log" ]
}
mkdir -p "$out/mac/sys"
for header in string stdlib stdio errno fcntl unistd sys/stat sys/file; do
    echo '#include "tests/host/compile/mac.h"' > "$out/mac/$header.h"
done
if have clang-19; then
    mac c c99
    check 'clang for arm64-apple-macos compiles the implementation as C99, without a warning' $?
    mac c++ c++11
    check 'and as C++11' $?
else
    skip 'arm64-apple-macos' 'no clang-19'
fi

# Has a target NEON's tiers, as expected?
neon() { # neon TARGET 0|1
    $clang --target="$1" -nostdinc -isystem "$($clang -print-resource-dir)/include" -ffreestanding \
        -isystem "$out/mac" -std=c99 -I. "-DAMP_TEST_NEON=$2" -fsyntax-only tests/host/compile/neon.c > "$out/log" 2>&1
}
if have "$clang"; then
    neon aarch64-none-elf 1 && neon aarch64_be-none-elf 0 && ! neon aarch64_be-none-elf 1
    check 'aarch64_be takes plain C, not NEON, whose lanes lie the other way round there' $?
else
    skip aarch64_be "no $clang"
fi

for apple in -U__APPLE__ -D__APPLE__; do
    ${CC:-cc} -std=c99 -O1 -Wall -Wextra -Werror -Wno-psabi $apple -I. tests/host/compile/accelerate.c \
        -o "$out/accelerate" -lm > "$out/log" 2>&1 && "$out/accelerate" >> "$out/log" 2>&1
    check "AMP_CBLAS in a scope, $apple: products of fp32 are Accelerate's on Apple, elsewhere rounded" $?
done

have $cc && have $qemu && [ -s "$object" ] || { skip 'BFMMLA' "no $cc, $qemu or $object"; finish; }
links() { # links SOURCE FLAGS...: a program around that amp.o, of the same name
    name=$(basename "$1" .c)
    $cc -std=c99 -O1 -static -I. "$@" "$object" -o "$out/${name#test_}" -lm > "$out/log" 2>&1
}
links tests/unit/test_tiles.c && links tests/unit/test_gemm.c && links tests/unit/test_bits.c &&
    links tests/host/compile/count.c -DAMP_CORE_INCLUDED -DAMP_IMPLEMENTATION_INCLUDED ||
    { fail 'programs are linked'; finish; }
lines bfmmla $qemu -cpu max "$out/tiles" --filter mmla
AMP_QUICK=2 lines neon $qemu -cpu cortex-a72 "$out/gemm" --filter bits_neon
AMP_QUICK=1 lines digest $qemu -cpu max "$out/bits" --filter products
[ "$($qemu -cpu cortex-a72 "$out/count")" = neon ] && [ "$($qemu -cpu max "$out/count")" = neon_bf16 ] &&
    [ "$(AMP_TEST_TIER=neon $qemu -cpu max "$out/count")" = neon ]
check 'the tier is neon_bf16 where HWCAP2_BF16 is, else neon' $?

# Instructions of a product of 128 x 128 x 128.
step=-singlestep
$qemu -one-insn-per-tb "$out/count" > /dev/null 2>&1 && step=-one-insn-per-tb
instructions() { $qemu -cpu max $step -d exec,nochain "$out/count" "$@" 2>&1 > /dev/null | wc -l; }
nothing=$(instructions none) fp32=$(instructions fp32) bf16=$(instructions bf16) rounded=$(instructions rounded)
fp32=$((fp32 - nothing)) bf16=$((bf16 - nothing)) rounded=$((rounded - nothing))
echo "# instructions of 128 x 128 x 128: fp32 $fp32, bf16 $bf16, fp32 rounded $rounded" | tee "$out/log"
[ $((bf16 * 3)) -lt "$fp32" ] && [ $((rounded * 3)) -lt "$fp32" ] && [ "$bf16" -gt 100000 ]
check 'a product of bf16 takes less than a third of the instructions of fp32, rounded on the way, too' $?
finish
