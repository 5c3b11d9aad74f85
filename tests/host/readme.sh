# Extract README's blocks of code, compile them as C99 and C++11 without a warning, run them and compare what they print.
# (install.sh runs the block for CMake; examples_cuda.sh runs the one for a GPU, on the emulator.)
# usage: [CC=COMPILER CXX=COMPILER CLANG=COMPILER] readme.sh OUTDIR PART    PART is cc, with the text, or others
suite=readme out=${1:?usage: readme.sh OUTDIR PART} part=${2:?usage: readme.sh OUTDIR PART}
rm -rf "$out"
. tests/lib.sh

block() { awk -v n="$1" '/^```c$/ {b++; next} /^```/ {if (b == n) exit} b == n' README.md; } # block NUMBER

block 1 > "$out/fast.c"
sed -n '/It prints/,$s/^   \(step .*[0-9]\).*/\1/p' "$out/fast.c" > "$out/expected"

# The second one changes it: lines in front of the loop, the scale, the step, lines behind the loop.
block 2 | sed '/in the loop/,$d' > "$out/before"
block 2 | sed -n '/in the loop, in front of/,/loss_scale(/p' > "$out/scale"
block 2 | sed -n '/in the loop, instead of/,/_step(/p' > "$out/step"
block 2 | sed '1,/_step(/d' > "$out/behind"
echo 'if (status.steps != 61 || status.skipped || !(status.norm > 0.0)) return 2;' >> "$out/behind"
echo 'printf("scale "), printf("%g", (double)status.loss_scale), puts("");' >> "$out/behind"
sed -e "/ x\[i\] = /r $out/before" -e "/dy\[i\] = y\[i\] - x/r $out/scale" -e "/ w\[i\] -= /{
    r $out/step
    d
}" -e "/ ms a step/r $out/behind" "$out/fast.c" > "$out/adamw.c"

# The third one stands in a trainer of eight weights. w halves in each of eight steps: the first of nine overflows.
{
    printf '%s\n' '#define AMP_IMPLEMENTATION' '#include "amp.h"'
    cat << 'END'
static float w[8] = {1}, dloss;
static amp_f16 grad[8];
static void forward(const void *model) { dloss = model != NULL; }
static void backward(float d) { for (int i = 0; i < 8; i++) grad[i] = amp_f32_to_f16(d * w[i]); }
static void sgd_step(float *x, const float *g, int n, float lr) { while (n--) x[n] -= lr * g[n]; }
int main(void) {
    int step, steps = 9, n = 8;
    float lr = 0.5f;
END
    block 3
    echo '    amp_optimizer_free(&opt); return !(w[0] == 0.00390625f); }'
} > "$out/wrap.c"

programs() { # programs COMPILER: both
    if ! have "$1"; then skip "$1" 'not installed'; return; fi
    $1 -O0 -Wall -Wextra -Werror -I. "$out/fast.c" -o "$out/fast" -lm > "$out/log" 2>&1 &&
        "$out/fast" | grep '^step' > "$out/log" && [ -s "$out/expected" ] && diff "$out/expected" "$out/log" >> "$out/log"
    check "$1: the shortest program prints what it says" $?
    $1 -O0 -Wall -Wextra -Werror -I. "$out/adamw.c" -o "$out/adamw_run" -lm > "$out/log" 2>&1 &&
        "$out/adamw_run" > "$out/log" && awk '/^step/ {rows++; first = rows == 1 ? $4 : first; last = $4}
            END {exit !(rows == 4 && last < 0.01 * first)}' "$out/log"
    check "$1: it learns with amp.h's AdamW, too: 61 steps, none skipped" $?
    for user in 'AMP_DTYPE=fp16 65536' 'AMP_ENABLE=1 65536' 'AMP_DTYPE=bf16 1' 'AMP_ENABLE=0 1' 'AMP_LOSS_SCALE=8 8'; do
        env "${user% *}" "$out/adamw_run" > "$out/log" && awk -v scale="${user#* }" '/^scale/ {is = $2}
            /^step/ {rows++; first = rows == 1 ? $4 : first; last = $4}
            END {exit !(rows == 4 && last < 0.01 * first && is == scale)}' "$out/log"
        check "$1: ${user% *}: it learns, with a loss scale of ${user#* }" $?
    done
    AMP_DTYPE=fp8 "$out/adamw_run" > "$out/log"
    [ $? = 1 ] && grep -q '^AMP_DTYPE must be fp32, fp16 or bf16, not "fp8"$' "$out/log"
    check "$1: AMP_DTYPE=fp8: it says what may be" $?
    $1 -O0 -DAMP_DEBUG -Wall -Wextra -Werror -I. "$out/wrap.c" -o "$out/wrap" -lm > "$out/log" 2>&1 && "$out/wrap"
    check "$1: the wrap halves its weight in each step but the first, which overflows" $?
}
cxx20() { # cxx20 COMPILER: floats with enums are deprecated there
    if ! echo 'int x;' | $1 -std=c++20 -x c++ -fsyntax-only - 2> "$out/log"; then skip "$1 -std=c++20" 'not there'; return; fi
    (for file in "$out/fast.c" "$out/adamw.c" "$out/wrap.c" examples/linear.c; do
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
programs "${CC:-gcc} -std=c99"

# The manual, itself a comment, opens with the first program without its comments.
sed 's:/\*[^*]*\*/::g; /\/\*/,/\*\//{s:/\*.*::; s:.*\*/::; /^ *step/d;}' "$out/fast.c" | tr -d ' ' | grep . > "$out/code"
awk '/#define AMP_IMPLEMENTATION/ {on = 1} on {print} on && /^       }$/ {exit}' amp.h | tr -d ' ' > "$out/manual"
[ -s "$out/code" ] && diff "$out/code" "$out/manual" > "$out/log"
check "amp.h's manual opens with the same program" $?

lines=$(wc -l < README.md)
[ "$lines" -ge 100 ] && [ "$lines" -le 200 ]
check 'at most 200 lines' $?
lines=$(grep -c 'AMP [0-9]* \*/$' examples/cublas/trainer_amp.cu)
grep -q "AMP_CUBLAS_DROP_IN\`: $lines lines, " README.md
check "its cuBLAS trainer needs $lines lines" $?
grep -o '`amp_[a-z0-9_]*`' README.md | tr -d '`' | sort -u > "$out/names"
for name in $(cat "$out/names"); do
    grep -q "\b$name\b" amp.h || case $name in amp_kernels) ;; *) echo "$name" ;; esac
done > "$out/log"
[ ! -s "$out/log" ] && [ "$(wc -l < "$out/names")" -ge 10 ]
check 'every name in it exists' $?
grep -oE '`(examples|tests|build)/[a-z_/]*(\.[a-z]+)?`|`[a-z_]+\.(c|cu|cpp)`' README.md | tr -d '`' | sort -u > "$out/names"
for file in $(cat "$out/names"); do
    case $file in build/*) file=${file#build/}.c ;; fast.c) continue ;; esac
    [ -e "$file" ] || [ -n "$(example "$file")" ] || echo "$file"
done > "$out/log"
[ ! -s "$out/log" ] && [ "$(wc -l < "$out/names")" -ge 10 ]
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
for page in $(command grep '\.md$' "$out/files"); do
    for link in $(sed 's/`[^`]*`//g' "$page" | command grep -oE '\]\([^)#:]+\)' | tr -d '()]'); do
        echo "$link" >> "$out/links"
        [ -e "$(dirname "$page")/$link" ] || echo "$page: $link"
    done
done > "$out/log"
[ ! -s "$out/log" ] && [ -s "$out/links" ]
check 'every link in a page leads to a file' $?
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
sed -n '/What is reproducible/,/>>gpu/p' amp.h | tr -s '\n ' ' ' | grep -oE '\([^()]*\.(sh|c|cpp)[^()]*\)' |
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
finish
