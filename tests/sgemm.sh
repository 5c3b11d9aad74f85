# amp_sgemm in place of cublasSgemm: its tests and the trainer with and without it, on the emulator.
# What is not installed costs one line.
# usage: [CXX=COMPILER] [CC=COMPILER] [CUDA_HOME=TOOLKIT] sgemm.sh OUTDIR, in the repository's root
# The last line is "N passed, N failed[, N skipped]".

out=${1:?usage: sgemm.sh OUTDIR}
cxx=${CXX:-c++} cc=${CC:-cc}
fake=-Itests/emu/fake
warn='-Wall -Wextra'
flags="-std=c++14 -O2 -ffp-contract=off -fno-strict-aliasing -Wno-unknown-pragmas -I. -Itests"
front='-include tests/emu/cuda_emu.h -x c++'
sanitize='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -DEMU_PLAIN_SHARED'
most_changed=16  # lines that a trainer may need
most_apart=2     # percent of the points by which accuracies may differ
mkdir -p "$out"
rm -f "$out"/*.part

finish() {
    awk '/^ok / {p++} /^FAIL / {f++} /^skip / {s++}
         END {printf "%d passed, %d failed", p, f; if (s) printf ", %d skipped", s; print ""}' "$1"
}
command -v "${cxx%% *}" > /dev/null 2>&1 || {
    echo "skip sgemm: $cxx not found" | tee "$out/lines"
    finish "$out/lines"
    exit 0
}

# check PART TEXT LOG COMMAND...: its line goes to PART.part; what it says, to LOG.log
check() {
    part=$1 text=$2 log=$3
    shift 3
    if "$@" > "$out/$log.log" 2>&1; then echo "ok   sgemm/$text" >> "$out/$part.part"; return; fi
    { echo "FAIL sgemm/$text"; head -n 12 "$out/$log.log" | sed 's/^/     /'; } >> "$out/$part.part"
    return 1
}
skip() { echo "skip sgemm/$2: $3" >> "$out/$1.part"; } # skip PART NAME REASON

# run NAME ARGUMENTS...: the program's lines, with the configuration in front
run() {
    name=$1
    shift
    "$out/$name" "$@" > "$out/$name.log" 2>&1
    code=$?
    sed -En "s#^(ok|FAIL|skip) +#&sgemm/$name/#; /^(ok|FAIL|skip|    ) /p" "$out/$name.log" \
        >> "$out/$name.part"
    tail -n 1 "$out/$name.log" | grep -Eq '^[0-9]+ passed, [0-9]+ failed' && return
    { echo "FAIL sgemm/$name: ended with status $code"
      tail -n 12 "$out/$name.log" | sed 's/^/     /'; } >> "$out/$name.part"
}

# build NAME FLAGS EMULATOR-FLAGS
build() {
    check "$1" "$1: compiles with $cxx" "$1-build" sh -c "
        $cxx $flags $fake -w $2 $3 -c tests/emu/cuda_emu.cpp -o '$out/$1-emu.o' &&
        $cxx $flags $fake -w $2 $front -c amp_kernels.cu -o '$out/$1-kernels.o' &&
        $cxx $flags $fake $warn -Werror $2 $front -c tests/test_sgemm.cpp -o '$out/$1-test.o' &&
        $cxx $2 '$out/$1-test.o' '$out/$1-kernels.o' '$out/$1-emu.o' -o '$out/$1'"
}

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

# drop_in PART HEADERS INCLUDE
drop_in() {
    strict="$warn -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wundef -Werror"
    check "$1" "$2: #define cublasSgemm amp_sgemm in C++, without warnings" "$1-cpp" sh -c "
        $cxx -std=c++11 $strict $3 -I. -fsyntax-only '$out/use-AMP_CUBLAS.cpp' &&
        $cxx -std=c++17 $strict $3 -I. -fsyntax-only '$out/use-AMP_CUBLAS_DROP_IN.cpp'"
    command -v "${cc%% *}" > /dev/null 2>&1 || { skip "$1" "$2 in C" "$cc not found"; return; }
    check "$1" "$2: #define cublasSgemm amp_sgemm in C, without warnings" "$1-c" sh -c "
        $cc -std=c99 $strict $3 -I. -fsyntax-only '$out/use-AMP_CUBLAS.c' &&
        $cc -std=c99 $strict $3 -I. -fsyntax-only '$out/use-AMP_CUBLAS_DROP_IN.c'"
}

toolkit() { # NVIDIA's declarations, which the fake headers only imitate; nothing is linked or run
    cuda=${CUDA_HOME-}
    nvcc=$(command -v nvcc) && [ -z "$cuda" ] && cuda=${nvcc%/bin/nvcc}
    [ -f "$cuda/include/cublas_v2.h" ] || {
        skip toolkit toolkit 'no CUDA toolkit (nvcc, CUDA_HOME)'
        return
    }
    drop_in toolkit "NVIDIA's headers" "-isystem $cuda/include"
    for source in tests/test_sgemm.cpp examples/trainer_fp32.cu examples/trainer_amp.cu; do
        check toolkit "NVIDIA's headers: $source" toolkit \
            $cxx $flags $warn -isystem "$cuda/include" $front -fsyntax-only $source
    done
}

lines() { # what diff shows is what is marked, in order, and no more than allowed
    diff examples/trainer_fp32.cu examples/trainer_amp.cu | grep '^>' > "$out/changed"
    changed=$(grep -c . "$out/changed")
    echo "$changed lines changed or added, of them marked:"
    grep -o 'AMP [0-9]* \*/$' "$out/changed" | awk '$2 != NR {wrong = 1} {print; n++}
        END {exit wrong || n != '"$changed"' || n > '"$most_changed"' || n == 0}'
}
accuracy() { sed -n 's/^after .*accuracy \([0-9.]*\)%$/\1/p' "$out/$1.log"; }
agree() {
    echo "fp32 $(accuracy trainer_fp32), amp $(accuracy trainer_amp)"
    awk -v a="$(accuracy trainer_fp32)" -v b="$(accuracy trainer_amp)" -v most=$most_apart \
        'BEGIN {exit !(a > 90 && b > 90 && a - b <= most && b - a <= most)}'
}
refuses() { ! "$out/$1" --bogus && [ "$(grep -c . "$out/$1.log")" = 1 ]; }

trainers() { # after the plain build, whose emulator and kernels they take
    for name in trainer_fp32 trainer_amp; do
        check trainers "$name: compiles" $name sh -c "
            $cxx $flags $fake $warn -Werror $front -c examples/$name.cu -o '$out/$name.o' &&
            $cxx '$out/$name.o' '$out/plain-kernels.o' '$out/plain-emu.o' -o '$out/$name'" || return
        check trainers "$name: an unknown option is refused" $name refuses $name
        check trainers "$name: runs" $name "$out/$name" --small
    done
    check trainers "trainer_amp: as accurate as trainer_fp32, to $most_apart percent" agree agree
    check trainers "trainer_amp: $(lines | head -n 1 | sed 's/,.*//'), all marked" changed lines
}

{
    drop_in drop_in 'fake headers' '-isystem tests/emu/fake'
    build plain '' '' && { trainers; run plain; }
} &
{
    toolkit
    echo 'int main() { return 0; }' > "$out/works.cpp"
    if $cxx $sanitize "$out/works.cpp" -o "$out/works" > /dev/null 2>&1 && "$out/works"; then
        build sanitize "$sanitize" -DEMU_ASAN && run sanitize --quick
    else
        skip sanitize sanitize "$cxx has no address and undefined-behaviour sanitizers"
    fi
} &
wait

for part in drop_in plain trainers toolkit sanitize; do
    [ ! -f "$out/$part.part" ] || cat "$out/$part.part"
done | tee "$out/lines"
finish "$out/lines"
! grep -q '^FAIL' "$out/lines"
