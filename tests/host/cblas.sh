# AMP_CBLAS_DROP_IN: cblas_sgemm beside amp_gemm, and a trainer of it with and without amp.h. What is
# not installed costs one line.
# usage: [CC=COMPILER] [CXX=COMPILER] cblas.sh OUTDIR, in the repository's root
suite=cblas out=${1:?usage: cblas.sh OUTDIR}
. tests/lib.sh
cc=${CC:-cc} cxx=${CXX:-c++}
strict='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wundef -Werror'
export OPENBLAS_NUM_THREADS=1

printf '%s\n' '#include <cblas.h>' 'int main(void) { float x = 1;' \
    'return (int)cblas_isamax(1, &x, 1); }' > "$out/has.c"
for blas in -lopenblas -lcblas -lblas none; do
    $cc "$out/has.c" -o "$out/has" $blas > /dev/null 2>&1 && break
done
[ "$blas" != none ] || { skip cblas_sgemm 'no <cblas.h> with a library'; finish; }

printf '%s\n' '#include <cblas.h>' '#include "tests/support/processor.h"' '#define AMP_CBLAS_DROP_IN' \
    '#define AMP_IMPLEMENTATION' '#include "amp.h"' 'void f(float *x); void f(float *x) {' \
    'cblas_sgemm(CblasColMajor, CblasNoTrans, CblasTrans, 1, 1, 1, 1.0f, x, 1, x, 1, 0.0f, x, 1); }' \
    > "$out/use.c"
cp "$out/use.c" "$out/use.cpp"
have "$cxx" || skip "in C++" "$cxx not found"
! have "$cxx" || try "in C++, without warnings" $cxx -std=c++11 $strict -I. -fsyntax-only "$out/use.cpp"
try "AMP_NO_AUTOCAST, without warnings" $cc -std=c99 $strict -DAMP_NO_AUTOCAST -I. -fsyntax-only \
    "$out/use.c"
! $cc -std=c99 -DAMP_CBLAS -E -I. "$out/use.c" -o "$out/use.i" > "$out/log" 2>&1 &&
    grep -q 'error.*define one of them' "$out/log"
check "AMP_CBLAS with it is an #error" $?
! $cc -std=c99 -include ./amp.h -E -I. "$out/use.c" -o "$out/use.i" > "$out/log" 2>&1 &&
    grep -q 'error.*before the first time' "$out/log"
check "after a first amp.h without it is an #error" $?
try "in C, without warnings" $cc -std=c99 -O2 $strict -I. -c "$out/use.c" -o "$out/amp.o" || finish
linked='-DAMP_CORE_INCLUDED -DAMP_IMPLEMENTATION_INCLUDED'
# A host that declares what it calls itself, as dlib does, behind amp.h: its calls come to amp.h, too.
cat > "$out/host.h" << 'END'
#ifdef __cplusplus
namespace host { extern "C" {
#endif
enum order { by_rows = 101 };
enum transpose { as_it_is = 111 };
void cblas_sgemm(const enum order order, const enum transpose ta, const enum transpose tb, const int m, const int n,
                 const int k, const float alpha, const float *a, const int lda, const float *b, const int ldb,
                 const float beta, float *c, const int ldc);
#ifdef __cplusplus
} inline
#else
static
#endif
void product(float *c, const float *a, const float *b) {
    cblas_sgemm(by_rows, as_it_is, as_it_is, 1, 1, 1, 1.0f, a, 1, b, 1, 0.0f, c, 1);
}
#ifdef __cplusplus
}
using host::product;
#endif
END
printf '%s\n' '#ifdef __cplusplus' '#include <cblas.h>' '#endif' '#define AMP_CBLAS_DROP_IN' '#include "amp.h"' '#include "host.h"' \
    'int main(void) {' '    float a = 2, b = 3, c = 0;' '    product(&c, &a, &b);' '#ifdef __cplusplus' \
    '    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1.0f, &a, 1, &b, 1, 1.0f, &c, 1);' \
    '    return c == 12.0f ? 0 : 1;' '#else' '    return c == 6.0f ? 0 : 1;' '#endif' '}' > "$out/declares.c"
cp "$out/declares.c" "$out/declares.cpp"
declares() { # declares COMPILER SUFFIX: an original that is called would begin again, without an end
    $1 -Wall -Wextra -Werror -I. -I"$out" "$out/declares.$2" "$out/amp.o" -Wl,--wrap=cblas_sgemm \
        -Wl,--defsym=__wrap_cblas_sgemm=main -o "$out/declares" $blas -lm && "$out/declares"
}
try "a host's own declaration behind amp.h, in C" declares "$cc -std=c99" c
! have "$cxx" || try "a host's own declaration behind amp.h, in C++" declares "$cxx -std=c++11" cpp
program() { # NAME FLAGS...
    name=$1
    shift
    try "$name compiles" $cc -std=c99 -Wall -Wextra -Werror $linked -pthread -I. "$@" -o "$out/$name" $blas -lm
}
# On this processor, as one of each tier, and by the model of those in C.
tiers() { # PROGRAM TIER...
    calls=$1
    shift
    for tier in "$@"; do
        AMP_TEST_TIER=$tier "$out/$calls" --filter calls > "$out/log" 2>&1
        if [ $? = 77 ]; then skip "$calls-$tier" 'not on this processor'; continue; fi
        lines "$calls-$tier" env AMP_TEST_TIER=$tier "$out/$calls"
    done
}
program calls -O1 tests/unit/test_cblas.c "$out/amp.o" -Wl,--wrap=cblas_sgemm && lines calls "$out/calls" &&
    tiers calls c avx2 avx512 pairs amx neon
try "in C by the model of tiles" $cc -std=c99 -Wno-psabi -DAMPI_TILES_MODEL='"tests/support/tiles.h"' -I. \
    -c "$out/use.c" -o "$out/model.o" &&
    program model -O1 tests/unit/test_cblas.c "$out/model.o" -Wl,--wrap=cblas_sgemm && tiers model pairs amx

# losses NAME PROGRAM COMMAND...: of three seeds, a line for each network
losses() {
    name=$1 program=$2
    shift 2
    for seed in 1 2 3; do "$@" "$out/$program" 48 48 200 $seed || return; done > "$out/$name.txt"
}
# near ONE OTHER MOST TEXT: losses of three seeds together differ by less than MOST. Among seeds they differ
# by 9 %; bf16 rounds each operand by 2^-9 at most, at random, and 48 of them average out.
near() {
    paste "$out/$1.txt" "$out/$2.txt" | awk -v most="$3" '
        $1 != $5 || $2 + 0 <= 0 || $6 + 0 <= 0 {exit bad = 1}
        {a[$1] += $2; b[$1] += $6}
        END {for (n in a) if (a[n] / b[n] - 1 > most || b[n] / a[n] - 1 > most) bad = 1
             exit bad || NR != 6}' > "$out/log" 2>&1
    status=$?
    paste "$out/$1.txt" "$out/$2.txt" >> "$out/log"
    check "$4" $status
}
program plain -O3 tests/host/cblas_trainer.c
program amp -O3 -DAMP tests/host/cblas_trainer.c "$out/amp.o"
losses plain plain env
losses fp32 amp env AMP_ENABLE=0
losses bf16 amp env AMP_DTYPE=bf16 TRAINER_POLICY=op:gemm=low
near plain fp32 0.001 "the trainer, MLP and RNN: in fp32 the losses of the BLAS"
near plain bf16 0.02 "the trainer, MLP and RNN: in bf16 losses at parity over 3 seeds"
! cmp -s "$out/fp32.txt" "$out/bf16.txt"
check "the trainer: bf16 is not fp32" $?
finish
