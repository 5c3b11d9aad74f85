# amp_sgemm in place of cublasSgemm: its tests and the trainer with and without it, on the emulator.
# What is not installed costs one line.
# usage: [OBJECTS=DIR] [CXX=COMPILER] [CC=COMPILER] [CUDA_HOME=TOOLKIT] sgemm.sh OUTDIR PART, in the
# repository's root; PART is plain or sanitize
suite=sgemm out=${1:?usage: sgemm.sh OUTDIR PART}
part=${2:?usage: sgemm.sh OUTDIR PART}
. tests/lib.sh
. tests/gpu/emu/kinds.sh
kind "$part"
cxx=${CXX:-c++} cc=${CC:-cc}
objects=${OBJECTS:-build/tests}/kind-$part
warn='-Wall -Wextra'
most_changed=30  # lines that a trainer may need
most_apart=2     # percent of the points by which accuracies may differ
have "$cxx" || { skip "$part" "$cxx not found"; finish; }
if [ "$part" = plain ]; then with=-O1; fi # its own code needs no more

# program NAME SOURCE: with the emulator in front
program() {
    plain "$out/$1.o" "$cxx" "$2" $fake $warn -Werror $with &&
        $cxx $with "$out/$1.o" "$objects/kernels.o" "$objects/emu.o" -o "$out/$1" > "$out/link" 2>&1
    compiled=$?
    cat "$objects/kernels.o.log" "$objects/emu.o.log" "$out/$1.o.log" "$out/link" \
        > "$out/log" 2> /dev/null
    check "$1: compiles with $cxx" $compiled
    return $compiled
}

test_sgemm() {
    program "$part" tests/unit/test_sgemm.cpp || finish
    lines "$part" "$out/$part" "$@"
}

if [ "$part" = sanitize ]; then
    works "$cxx" "$with" ||
        { skip sanitize "$cxx has no address and undefined-behaviour sanitizers"; finish; }
    test_sgemm --quick
    finish
fi

# As a program would use it, in C and in C++: by a #define of its own, and by amp.h's.
cat > "$out/names" <<'END'
#undef cublasSgemm
#define cublasSgemm amp_sgemm
#undef cublasSgemmStridedBatched
#define cublasSgemmStridedBatched amp_sgemm_strided_batched
END
cat > "$out/use" <<'END'
cublasStatus_t products(cublasHandle_t h, const float *a, const float *b, float *c);
cublasStatus_t products(cublasHandle_t h, const float *a, const float *b, float *c) {
    const float    one = 1.0f, zero = 0.0f;
    cublasStatus_t status = cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_T, 9, 9, 9, &one, a, 9, b, 9,
                                        &zero, c, 9);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return cublasSgemmStridedBatched(h, CUBLAS_OP_N, CUBLAS_OP_T, 9, 9, 9, &one, a, 9, 81, b, 9,
                                     81, &zero, c, 9, 81, 2);
}
END
for macro in AMP_CUBLAS AMP_CUBLAS_DROP_IN; do
    for language in c cpp; do
        {
            echo '#include <cublas_v2.h>'
            echo '#define AMP_IMPLEMENTATION'
            echo "#define $macro"
            echo '#include "amp.h"'
            [ $macro = AMP_CUBLAS_DROP_IN ] || cat "$out/names"
            cat "$out/use"
        } > "$out/use-$macro.$language"
    done
done

# drop_in HEADERS INCLUDE
drop_in() {
    strict="$warn -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wundef -Werror"
    try "$1: #define cublasSgemm amp_sgemm in C++, without warnings" sh -c "
        $cxx -std=c++11 $strict $2 -I. -fsyntax-only '$out/use-AMP_CUBLAS.cpp' &&
        $cxx -std=c++17 $strict $2 -I. -fsyntax-only '$out/use-AMP_CUBLAS_DROP_IN.cpp'"
    have "$cc" || { skip "$1 in C" "$cc not found"; return; }
    try "$1: #define cublasSgemm amp_sgemm in C, without warnings" sh -c "
        $cc -std=c99 $strict $2 -I. -fsyntax-only '$out/use-AMP_CUBLAS.c' &&
        $cc -std=c99 $strict $2 -I. -fsyntax-only '$out/use-AMP_CUBLAS_DROP_IN.c'"
}

toolkit() { # NVIDIA's declarations, which the fake headers only imitate; nothing is linked or run
    cuda=${CUDA_HOME-}
    nvcc=$(command -v nvcc) && [ -z "$cuda" ] && cuda=${nvcc%/bin/nvcc}
    [ -f "$cuda/include/cublas_v2.h" ] || {
        skip toolkit 'no CUDA toolkit (nvcc, CUDA_HOME)'
        return
    }
    drop_in "NVIDIA's headers" "-isystem $cuda/include"
    for source in tests/unit/test_sgemm.cpp examples/cublas/trainer_*.cu examples/cublas/saxpy_amp.cu; do
        try "NVIDIA's headers: $source" \
            plain "$out/toolkit.o" "$cxx" $source $warn -isystem "$cuda/include"
    done
}

# No kernel of its own: the host reads found_inf, in the step with a planted overflow, too.
learns() {
    program saxpy_amp examples/cublas/saxpy_amp.cu || return
    try 'saxpy_amp: runs' "$out/saxpy_amp"
    cp "$out/log" "$out/saxpy_amp.said"
    try 'saxpy_amp: learns, and skips the planted overflow' awk '$1 == "before" {before = $3}
        $1 == "after" {after = $3} $1 == "skipped" {skipped = $2}
        END {exit !(before > 1 && after < 1e-4 && skipped > 0)}' "$out/saxpy_amp.said"
    AMP_ENABLE=0 "$out/saxpy_amp" > "$out/saxpy_amp.off" 2>&1
    try 'saxpy_amp: without amp.h that overflow spoils the weights' \
        grep -q '^after   error \([0-9]\{9\}\|-*nan\|inf\)' "$out/saxpy_amp.off"
    try 'saxpy_amp: its 20 lines are marked, in order' awk '/AMP [0-9]* \*\/$/ {n++; if ($(NF - 1) != n) exit 1}
        END {if (n != 20) exit 1}' examples/cublas/saxpy_amp.cu
}
# README's lines for cuBLAS: w is cast once in each of three steps, for two products; 1 + 2^-10 is 1 in bf16.
readme() {
    block README.md AMP_CUBLAS_DROP_IN > "$out/block"
    {
        echo '#define AMP_IMPLEMENTATION'
        sed '/amp.h/q' "$out/block"
        cat << 'END'
#include <stdio.h>
enum { side = 64, n = side * side, steps = 3 };
static cublasHandle_t blas;
static float         *w, *x, *y;
static void train() {
    const float one = 1, zero = 0;
    for (int i = 0; i < 2; i++)
        cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, side, side, side, &one, w, side, x, side, &zero, y, side);
    cublasSaxpy(blas, n, &one, x, 1, w, 1);
}
int main() {
    static float   host[n];
    cudaStream_t   stream;
    for (float &v : host) v = 1.0009765625f;
    cudaStreamCreate(&stream), cublasCreate(&blas), cublasSetStream(blas, stream);
    cudaMalloc(&w, sizeof host), cudaMalloc(&x, sizeof host), cudaMalloc(&y, sizeof host);
    cudaMemcpy(w, host, sizeof host, cudaMemcpyHostToDevice), cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
END
        sed '1,/amp.h/d; /^amp_session_end/,$d' "$out/block"
        cat << 'END'
    cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost);
    printf("%d casts of w, %d others, sum %g\n", (int)session.misses, (int)session.transients, (double)host[0]);
END
        sed -n '/^amp_session_end/,$p' "$out/block"
        echo 'return 0; }'
    } > "$out/readme.cu"
    program readme "$out/readme.cu" || return
    printf '%s\n' '0 products fell back to fp32' '3 casts of w, 6 others, sum 192' > "$out/expected"
    "$out/readme" > "$out/log" 2>&1 && diff "$out/expected" "$out/log" > "$out/log.diff"
    check "README's lines for cuBLAS: all products in bf16, one cast of w a step" $?
}
marked() { # what stands in #ifndef FP32 is what is marked, in order, and no more than allowed
    awk '/^#endif/ {on = 0} on {print} /^#ifndef FP32/ {on = 1}' examples/cublas/trainer_amp.cu > "$out/changed"
    changed=$(grep -c . "$out/changed")
    echo "$changed lines added, of them marked:"
    grep -o 'AMP [0-9]* \*/$' "$out/changed" | awk '$2 != NR {wrong = 1} {print; n++}
        END {exit wrong || n != '"$changed"' || n > '"$most_changed"' || n == 0}'
}
accuracy() { sed -n 's/^after .*accuracy \([0-9.]*\)%$/\1/p' "$out/$1.said"; }
agree() {
    echo "fp32 $(accuracy trainer_fp32), amp $(accuracy trainer_amp)"
    awk -v a="$(accuracy trainer_fp32)" -v b="$(accuracy trainer_amp)" -v most=$most_apart \
        'BEGIN {exit !(a > 90 && b > 90 && a - b <= most && b - a <= most)}'
}

trainers() {
    # Linked last, so that no default comes later: the first call fails as without a driver.
    printf '%s\n' '#include "cuda_emu.h"' 'static int none = (emu_fail_error = cudaErrorInsufficientDriver, emu_fail_at = 1);' \
        > "$out/driver.cpp"
    object "$out/driver.o" "$cxx" $fake -c "$out/driver.cpp"
    for name in trainer_fp32 trainer_amp; do
        program $name examples/cublas/$name.cu || return
        $cxx $with "$out/$name.o" "$objects/kernels.o" "$objects/emu.o" "$out/driver.o" -o "$out/driver-$name"
        refuses "$name: an unknown option is refused" . "$out/$name" --bogus
        refuses "$name: without a driver it says so" 'no NVIDIA driver' "$out/driver-$name"
        try "$name: runs" "$out/$name" --small
        cp "$out/log" "$out/$name.said"
    done
    try "trainer_amp: as accurate as trainer_fp32, to $most_apart percent" agree
    sed '/room.num_bytes/a room.scaler.preset = AMP_PRESET_STATIC, room.scaler.init_scale = 16777216;' \
        examples/cublas/trainer_amp.cu > "$out/overflows.cu"
    program overflows "$out/overflows.cu" || return
    "$out/overflows" --small > "$out/trainer_amp.skips" 2>&1
    try 'trainer_amp: where every step overflows, no weight moves' awk '{loss[$1] = $3}
        END {exit !(loss["before"] > 1 && loss["after"] == loss["before"])}' "$out/trainer_amp.skips"
    try "trainer_amp: $(marked | head -n 1 | sed 's/,.*//'), all marked" marked
}

# client.sh is for trainers outside of the tree; this one is inside, and one is broken.
client() {
    rm -rf "$out/client" && sh tests/gpu/client.sh --example "$out/client" && mkdir -p "$out/client/broken/source" &&
        echo none.cu > "$out/client/broken/files"
    NVCC=none OBJECTS=${OBJECTS:-build/tests} sh tests/gpu/client.sh "$out/client" > "$out/client.said" 2>&1
    status=$?
    cp "$out/client.said" "$out/log"
    grep -Eq '^\| example, amp \| C\+\+ \| 30 \| 2\.[0-9]+ [0-9]+ \| 2\.[0-9]+ [0-9]+ \| yes \|$' "$out/client.said"
    check 'client.sh: the trainer and its 30 lines build and run, and AMP_ENABLE=0 leaves its bits' $?
    [ $status = 1 ] && grep -q '^FAIL broken, own: does not build' "$out/client.said"
    check 'client.sh: a trainer that does not build is a line, and a status' $?
    mkdir -p "$out/client/none" && ! NVCC=none OBJECTS=${OBJECTS:-build/tests} sh tests/gpu/client.sh "$out/client/none" \
        > "$out/log" 2>&1 && grep -q '^FAIL .*: no NAME/source' "$out/log"
    check 'client.sh: so is a folder without a trainer' $?
}

drop_in 'fake headers' '-isystem tests/gpu/emu/fake'
toolkit
trainers
learns
readme
client
if quick; then test_sgemm --quick; else test_sgemm; fi
finish
