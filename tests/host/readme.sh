# Extract the blocks of code of README and examples/README.md, and the program at the top of amp.h; compile them as C99
# and C++11 without a warning, run them, and compare what they compute or print. The texts are looked at first. Run
# elsewhere: README's block for cuBLAS by sgemm.sh, the block for amp.h's optimizer on a GPU by examples_cuda.sh (on the
# emulator), the one for CMake by install.sh.
# usage: [CC=COMPILER CXX=COMPILER CLANG=COMPILER OBJECTS=DIR] readme.sh OUTDIR PART    PART is cc, with the text, or others
suite=readme out=${1:?usage: readme.sh OUTDIR PART} part=${2:?usage: readme.sh OUTDIR PART}
rm -rf "$out"
. tests/lib.sh

fast > "$out/fast.c"
fast_prints > "$out/expected"

# A layer, and the function that multiplies. 1 + 2^-10 is 1 in bf16, all else is exact: so are the sums.
block README.md amp_linear_backward > "$out/block"
{
    printf '%s\n' '#define AMP_IMPLEMENTATION' '#include "amp.h"'
    cat << 'END'
int main(void) {
    enum { rows = 4, in = 3, out = 2 };
    float x[rows * in], y[rows * out], dy[rows * out], w[out * in], bias[out] = {3, 5};
    float dx[rows * in], dw[out * in], dbias[out] = {7, 7};
    int   r, i, o, bad = 0;
    for (i = 0; i < rows * in; i++) x[i] = (float)(i % 5 - 2), dx[i] = 9;
    for (i = 0; i < rows * out; i++) dy[i] = (float)(i % 3 - 1);
    for (i = 0; i < out * in; i++) w[i] = (float)(i % 4), dw[i] = 7;
    x[1] = 1.0009765625f;
END
    sed 1d "$out/block"
    cat << 'END'
    x[1] = 1;
    for (r = 0; r < rows; r++)
        for (o = 0; o < out; o++) {
            float sum = bias[o];
            for (i = 0; i < in; i++) sum += x[r * in + i] * w[o * in + i];
            bad |= !(y[r * out + o] == sum);
        }
    for (r = 0; r < rows; r++)
        for (i = 0; i < in; i++) bad |= !(dx[r * in + i] == dy[r * out] * w[i] + dy[r * out + 1] * w[in + i]);
    for (o = 0; o < out; o++) {
        float sum = 7;
        for (r = 0; r < rows; r++) sum += dy[r * out + o];
        bad |= !(dbias[o] == sum);
        for (i = 0; i < in; i++) {
            sum = 7;
            for (r = 0; r < rows; r++) sum += dy[r * out + o] * x[r * in + i];
            bad |= !(dw[o * in + i] == sum);
        }
    }
    return bad;
}
END
} > "$out/layer.c"

# Weights IN x OUT: the calls of that row.
{
    printf '%s\n' '#define AMP_IMPLEMENTATION' '#include "amp.h"'
    cat << 'END'
int main(void) {
    enum { rows = 4, in = 3, out = 2 };
    const amp_dtype type = AMP_F32;
    float x[rows * in], y[rows * out], dy[rows * out], w[in * out], dx[rows * in], dw[in * out], sum;
    int   r, i, o, bad = 0;
    for (i = 0; i < rows * in; i++) x[i] = (float)(i % 5 - 2);
    for (i = 0; i < rows * out; i++) dy[i] = (float)(i % 3 - 1);
    for (i = 0; i < in * out; i++) w[i] = (float)(i % 4), dw[i] = 7;
END
    sed -n 's/^| weights IN x OUT |//p' examples/README.md | grep -o '`amp_[a-z_]*([^`]*)`' | tr '`' ' ' | sed 's/$/;/'
    cat << 'END'
    for (r = 0; r < rows; r++)
        for (o = 0; o < out; o++, bad |= !(y[r * out + o - 1] == sum))
            for (i = 0, sum = 0; i < in; i++) sum += x[r * in + i] * w[i * out + o];
    for (r = 0; r < rows; r++)
        for (i = 0; i < in; i++, bad |= !(dx[r * in + i - 1] == sum))
            for (o = 0, sum = 0; o < out; o++) sum += dy[r * out + o] * w[i * out + o];
    for (i = 0; i < in; i++)
        for (o = 0; o < out; o++, bad |= !(dw[i * out + o - 1] == sum))
            for (r = 0, sum = 0; r < rows; r++) sum += x[r * in + i] * dy[r * out + o];
    return bad;
}
END
} > "$out/in_out.c"
{
    printf '%s\n' '#define AMP_IMPLEMENTATION' '#include "amp.h"'
    cat << 'END'
static void gemm(int TA, int TB, int M, int N, int K, float ALPHA, float BETA, const float *A, int lda, const float *B, int ldb,
                 float *C, int ldc) {
END
    block README.md amp_gemm
    cat << 'END'
}
int main(void) {
    enum { M = 3, N = 4, K = 5, LD = 7 };
    float a[LD * LD], b[LD * LD], c[LD * LD];
    int   t, i, j, k, bad = 0;
    for (t = 0; t < 4; t++) {
        const int ta = t & 1, tb = t >> 1;
        for (i = 0; i < LD * LD; i++) a[i] = (float)(i % 5 - 2), b[i] = (float)(i % 3), c[i] = (float)i;
        b[0] = 1.0009765625f;
        gemm(ta, tb, M, N, K, 2, 1, a, LD, b, LD, c, LD);
        b[0] = 1;
        for (i = 0; i < LD; i++)
            for (j = 0; j < LD; j++) {
                float sum = (float)(i * LD + j);
                for (k = 0; k < K && i < M && j < N; k++)
                    sum += 2 * a[ta ? k * LD + i : i * LD + k] * b[tb ? j * LD + k : k * LD + j];
                bad |= !(c[i * LD + j] == sum);
            }
    }
    return bad;
}
END
} > "$out/gemm.c"

# A trainer on cblas_sgemm, of one product. Its first three lines stand in front of main.
block README.md AMP_CBLAS_DROP_IN > "$out/block"
{
    echo '#define AMP_IMPLEMENTATION'
    sed '/^$/,$d' "$out/block"
    cat << 'END'
#include <stdio.h>
static float a[64 * 64], b[64 * 64], c[64 * 64];
int main(void) {
    int i;
    for (i = 0; i < 64 * 64; i++) a[i] = 1.0009765625f, b[i] = 1;
END
    echo 'static amp_session_desc desc; desc.policy = getenv("MY_POLICY");'
    sed '1,/^$/d; /your loop/,$d; s/&session, NULL/\&session, \&desc/' "$out/block"
    echo 'cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 64, 64, 64, 1, a, 64, b, 64, 0, c, 64);'
    echo 'printf("%g", (double)c[64 * 64 - 1]), puts("");'
    sed '1,/your loop/d' "$out/block"
    echo 'return 0; }'
} > "$out/cblas.c"

# amp.h's AdamW changes the first program: lines in front of the loop, the scale, the step, lines behind the loop.
adamw() { block examples/README.md desc_from_env; }
adamw | sed '/in the loop/,$d' > "$out/before"
adamw | sed -n '/in the loop, in front of/,/loss_scale(/p' > "$out/scale"
adamw | sed -n '/in the loop, instead of/,/_step(/p' > "$out/step"
adamw | sed '1,/_step(/d' > "$out/behind"
echo 'if (status.steps != 61 || status.skipped || !(status.norm > 0.0)) return 2;' >> "$out/behind"
echo 'printf("scale "), printf("%g", (double)status.loss_scale), puts("");' >> "$out/behind"
sed -e "/ x\[i\] = /r $out/before" -e "/dy\[i\] = y\[i\] - x/r $out/scale" -e "/ w\[i\] -= /{
    r $out/step
    d
}" -e "/ ms a step/r $out/behind" "$out/fast.c" > "$out/adamw.c"

# README's wrap stands in a trainer of eight weights. w halves in each step that is taken; the first of nine overflows. The
# moment adds up t. A second run goes on from the state of the first.
{
    printf '%s\n' '#define AMP_IMPLEMENTATION' '#include "amp.h"' '#include <stdio.h>'
    cat << 'END'
static float w[8] = {1}, moment[8], dloss;
static amp_f16 grad[8];
static void forward(const void *model) { dloss = model != NULL; }
static void backward(float d) { for (int i = 0; i < 8; i++) grad[i] = amp_f32_to_f16(d * w[i]); }
static void adam_step(float *x, float *m, const float *g, int n, float lr, uint64_t t) {
    while (n--) x[n] -= lr * g[n], m[n] += (float)t;
}
int main(int argc, char **argv) {
    int step, n = 8, resume = argc > 1 && argv[1][0] == 'r', steps = resume ? 18 : 9;
    float lr = 0.5f;
    if (resume) w[0] = 5;
END
    block README.md amp_optimizer_begin_step
    echo '    printf("%g", (double)w[0]), printf(" %g", (double)moment[0]), printf(" %d", (int)status.steps), puts("");'
    echo '    return 0; }'
} > "$out/wrap.c"

linked='' object=''
programs() { # programs COMPILER: both
    if ! have "$1"; then skip "$1" 'not installed'; return; fi
    $1 -O0 $linked -Wall -Wextra -Werror -I. "$out/fast.c" $object -o "$out/fast" -lm > "$out/log" 2>&1 &&
        "$out/fast" | grep '^step' > "$out/log" && [ -s "$out/expected" ] && diff "$out/expected" "$out/log" >> "$out/log"
    check "$1: the program at the top of amp.h prints a loss that falls" $?
    $1 -O0 -DAMP_DEBUG -Wall -Wextra -Werror -I. "$out/layer.c" -o "$out/layer" -lm > "$out/log" 2>&1 && "$out/layer"
    check "$1: README's layer, forward and backward, has the numbers of loops" $?
    $1 -O0 -DAMP_DEBUG -Wall -Wextra -Werror -I. "$out/in_out.c" -o "$out/in_out" -lm > "$out/log" 2>&1 && "$out/in_out"
    check "$1: and with weights IN x OUT" $?
    $1 -O0 $linked -Wall -Wextra -Werror -I. "$out/adamw.c" $object -o "$out/adamw_run" -lm > "$out/log" 2>&1 &&
        "$out/adamw_run" > "$out/log" && awk '/^step/ {rows++; first = rows == 1 ? $4 : first; last = $4}
            END {exit !(rows == 4 && last < 0.01 * first)}' "$out/log"
    check "$1: it learns with amp.h's AdamW, too: 61 steps, none skipped" $?
    for user in 'AMP_DTYPE=fp16 65536' 'AMP_ENABLE=1 65536' 'AMP_DTYPE=bf16 1' 'AMP_ENABLE=0 1'; do
        env "${user% *}" "$out/adamw_run" > "$out/log" && awk -v scale="${user#* }" '/^scale/ {is = $2}
            /^step/ {rows++; first = rows == 1 ? $4 : first; last = $4}
            END {exit !(rows == 4 && last < 0.01 * first && is == scale)}' "$out/log"
        check "$1: ${user% *}: it learns, with a loss scale of ${user#* }" $?
    done
    AMP_DTYPE=fp8 "$out/adamw_run" > "$out/log"
    [ $? = 1 ] && grep -q '^AMP_DTYPE must be fp32, fp16 or bf16, not "fp8"$' "$out/log"
    check "$1: AMP_DTYPE=fp8: it says what may be" $?
    $1 -O0 -DAMP_DEBUG -Wall -Wextra -Werror -I. "$out/wrap.c" -o "$out/wrap" -lm > "$out/log" 2>&1 &&
        (cd "$out" && ./wrap && ./wrap r) > "$out/log" &&
        printf '%s\n' '0.00390625 36 8' '7.62939e-06 153 17' | diff - "$out/log" > "$out/log.diff"
    check "$1: the wrap halves its weight in each step but the first, which overflows; a second run goes on from there" $?
}
cxx20() { # cxx20 COMPILER: floats with enums are deprecated there
    if ! echo 'int x;' | $1 -std=c++20 -x c++ -fsyntax-only - 2> "$out/log"; then skip "$1 -std=c++20" 'not there'; return; fi
    (for file in "$out/fast.c" "$out/layer.c" "$out/adamw.c" "$out/wrap.c" examples/linear.c; do
        $1 -std=c++20 -x c++ -Wall -Wextra -Werror -I. -fsyntax-only "$file" || exit 1
    done) > "$out/log" 2>&1
    check "$1 -std=c++20: the blocks, and linear.c" $?
}
case $part in others)
    programs "${CLANG:-clang} -std=c99"
    for compiler in "${CXX:-g++}" "${CLANG:-clang}++"; do
        programs "$compiler -std=c++11 -x c++"
        cxx20 "$compiler"
    done
    finish ;;
esac
for page in README.md examples/README.md; do
    echo "$page $(grep -c '^```[a-z]' $page) $(grep -c '^```c$' $page)"
done > "$out/log"
printf '%s\n' 'README.md 5 5' 'examples/README.md 3 2' | diff - "$out/log" > "$out/log.diff"
check 'both have no other block of code than those that are run' $?

lines=$(wc -l < README.md)
echo "$lines lines" > "$out/log"
[ "$lines" -ge 100 ] && [ "$lines" -le 140 ]
check 'README.md has at most 140 lines' $?
first=$(grep -n '^```c$' README.md | head -n 1)
[ -n "$first" ] && [ "${first%%:*}" -le 25 ]
check 'its first code is among the first 25 lines' $?
awk '/^## / {doors += /^## Your trainer/; door = /^## Your trainer/; lines = 0}
    door && ++lines > 25 {bad = 1}
    END {exit !(doors == 3 && !bad)}' README.md
check 'each of its three doors has at most 25 lines' $?

# Its picture is drawn from figures that the table of examples has, too: seconds, losses.
awk -f tests/bench/trainers.awk tests/bench/trainers.txt > "$out/trainers.svg" 2> "$out/log" &&
    cmp "$out/trainers.svg" tests/bench/trainers.svg > "$out/log" 2>&1
check 'its picture is what make pictures draws' $?
title=$(sed -n 's:.*<title>\(.*\)</title>:\1:p' tests/bench/trainers.svg)
[ -n "$title" ] && grep -qF "![$title](" README.md
check 'the words for its picture are the title of it' $?
awk -F ' *[|] *' 'FNR == 1 {file++}
    file == 1 && /^## / {on = /^## Where it goes in/}
    file == 1 && on {n = split($0, x, /[^0-9.]+/); for (i = 1; i <= n; i++) there[sprintf("%.3g", x[i])]}
    file == 2 && !/^#/ && $2 !~ /recurrent/ {
        rows++
        for (i = 4; i <= 8; i++) if (!(sprintf("%.3g", $i) in there)) print $1 ": " $i
    }
    END {exit rows < 4}' examples/README.md tests/bench/trainers.txt > "$out/log" && [ ! -s "$out/log" ]
check 'the figures of its picture stand in the table of examples' $?
lines=$(grep -c 'AMP [0-9]* \*/$' examples/cublas/trainer_amp.cu)
grep -q "AMP_CUBLAS_DROP_IN\`: $lines lines, " examples/README.md
check "examples/README.md: the cuBLAS trainer needs $lines lines" $?
grep -oh '`amp_[a-z0-9_]*`' README.md examples/README.md | tr -d '`' | sort -u > "$out/names"
for name in $(cat "$out/names"); do
    grep -q "\b$name\b" amp.h examples/amp_report.h || case $name in amp_kernels) ;; *) echo "$name" ;; esac
done > "$out/log"
[ ! -s "$out/log" ] && [ "$(wc -l < "$out/names")" -ge 10 ]
check 'every name in both exists' $?
grep -oE '`(examples|tests|build)/[a-z_/]*(\.[a-z]+)?`|`[a-z_]+\.(c|cu|cpp)`' README.md | tr -d '`' | sort -u > "$out/names"
for file in $(cat "$out/names"); do
    case $file in build/*) file=${file#build/}.c ;; amp.c) continue ;; esac # amp.c: of the user
    [ -e "$file" ] || [ -n "$(example "$file")" ] || echo "$file"
done > "$out/log"
[ ! -s "$out/log" ] && [ "$(wc -l < "$out/names")" -ge 4 ]
check 'every file in it exists' $?

# Paths from the root, in all texts: each leads to a file, or, up to a star, a variable or a NAME, to some that begin so.
# Links of pages. Names of files in the two maps.
find .ci amp* LICENSE Makefile README.md examples tests -type f > "$out/files"
[ ! -d .github ] || find .github -type f >> "$out/files"
tr '\n' '\0' < "$out/files" | xargs -0 cat |
    command grep -aoE '(^|[^]A-Za-z0-9_$}/.)-]|-I)(tests|examples)/[A-Za-z0-9_./*%$<{-]*' |
    sed -E 's/^-I//; s/^[^a-z]//; s/[.]+$//; s/([*%$<{]|NAME).*/*/' | sort -u > "$out/paths"
while read -r path; do ls -d $path > "$out/found" 2>&1 || echo "$path"; done < "$out/paths" > "$out/log"
[ ! -s "$out/log" ] && [ "$(wc -l < "$out/paths")" -ge 150 ]
check 'every path from the root, in text, code, scripts and the Makefile, leads somewhere' $?
anchors() { sed -n 's/^##* //p' "$1" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9_\n-'; } # anchors PAGE: its headings, as links name them
for page in $(command grep '\.md$' "$out/files"); do
    for link in $(sed 's/`[^`]*`//g' "$page" | command grep -oE '\]\([^):]+\)' | tr -d '()]'); do
        echo "$link" >> "$out/links"
        to=${link%%#*}
        to=${to:+$(dirname "$page")/}${to:-$page}
        [ -e "$to" ] || echo "$page: $link"
        case $link in *'#'*) anchors "$to" | command grep -qx -e "${link#*#}" || echo "$page: $link" ;; esac
    done
done > "$out/log"
[ ! -s "$out/log" ] && [ -s "$out/links" ]
check 'every link in a page leads to a file, and to a heading that is there' $?
for page in tests/README.md examples/README.md; do
    command grep -oE '`[a-z0-9_*/.-]+\.(c|h|cu|cuh|cpp|sh|py|awk|mk|txt|md)`' "$page" | tr -d '`' | sort -u |
        tee -a "$out/mapped" | sed 's/[.]/[.]/g; s/[*]/.*/g' | while read -r name; do
        case $name in *test_x* | *amp?.?c) continue ;; esac # one to come; from unit/
        sed 's:^:/:' "$out/files" | command grep -q "/$name\$" || echo "$page: $name"
    done
done > "$out/log"
[ ! -s "$out/log" ] && [ "$(wc -l < "$out/mapped")" -ge 80 ]
check 'every file that tests/README.md and examples/README.md name is there' $?

# The contract of determinism names files and tests: (FILE: TEST, TEST; FILE). A star ends what begins so.
sed -n '/What is reproducible/,/>>memory/p' amp.h | tr -s '\n ' ' ' | grep -oE '\([^()]*\.(sh|c|cpp)[^()]*\)' |
    sed 's/ to /, /g; s/ on a device//' | tr -d '() ' | tr ';' '\n' > "$out/shown"
while IFS=: read -r file names; do
    file=$(find tests -name "${file##*/}")
    [ -e "$file" ] || echo "$names: in no file, or in some: $file"
    for name in $(echo "$names" | tr ',*' ' .'); do
        grep -qE "(TEST\(|check .*)$name" "$file" || echo "$file: $name"
    done
done < "$out/shown" > "$out/log"
[ ! -s "$out/log" ] && [ "$(wc -l < "$out/shown")" -ge 8 ]
check "every test that the manual's contract of determinism names exists" $?

# Two of them with amp.h as make has compiled it, which takes half of the time.
object=${OBJECTS-}/o2/amp.o
if [ -s "$object" ]; then linked='-DAMP_CORE_INCLUDED -DAMP_IMPLEMENTATION_INCLUDED'; else object=''; fi
programs "${CC:-gcc} -std=c99"

# Members by name in a product's arguments are C99, or C++20 with a cast of each size.
${CC:-gcc} -std=c99 -O0 -DAMP_DEBUG -Wall -Wextra -Werror -I. "$out/gemm.c" -o "$out/gemm" -lm > "$out/log" 2>&1 && "$out/gemm"
check "README's gemm adds op(A) op(B) to C, as loops do, and rounds to bf16" $?
for blas in -lopenblas -lcblas -lblas none; do
    ${CC:-gcc} -std=c99 -O0 -DAMP_DEBUG -Wall -Wextra -Werror -I. "$out/cblas.c" -o "$out/cblas" $blas -lm > "$out/log" 2>&1 && break
done
printf '%s\n' '#include <cblas.h>' > "$out/has.c"
if ! ${CC:-gcc} -fsyntax-only "$out/has.c" 2> "$out/has.log"; then skip 'cblas' 'no <cblas.h>'; else
    printf '%s\n' 64.0625 64 > "$out/sums"
    { AMP_ENABLE=0 "$out/cblas" && AMP_DTYPE=bf16 MY_POLICY=op:gemm=low "$out/cblas"; } > "$out/log" 2>&1 &&
        diff "$out/sums" "$out/log" > "$out/log.diff"
    check "README's lines for cblas_sgemm: the product of fp32, and of bf16" $?
fi
finish
