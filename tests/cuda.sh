# The CUDA backend without a GPU: test_cuda.cpp in the emulator, in every configuration that the
# compilers here allow. What is not installed costs one line.
# usage: [CXX=COMPILER] [CC=COMPILER] [CUDA_HOME=TOOLKIT] cuda.sh OUTDIR, in the repository's root

out=${1:?usage: cuda.sh OUTDIR}
cxx=${CXX:-c++} cc=${CC:-cc}
emu=tests/emu
flags="-std=c++14 -ffp-contract=off -fno-strict-aliasing -Wno-unknown-pragmas -I. -Itests -I$emu"
fake=-I$emu/fake
sanitize='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -DEMU_PLAIN_SHARED'
command -v "${cxx%% *}" > /dev/null 2>&1 || {
    echo "skip cuda: $cxx not found"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
mkdir -p "$out"
rm -f "$out"/*.part "$out"/*.log
printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$out/cpu.c"

skip() { echo "skip cuda/$1: $2" > "$out/$1.part"; } # skip NAME REASON
works() { # works COMPILER FLAGS: a program compiled so runs
    command -v "${1%% *}" > /dev/null 2>&1 &&
        echo 'int main() { return 0; }' > "$out/works-$$.cpp" &&
        $1 $2 "$out/works-$$.cpp" -o "$out/works-$$" > /dev/null 2>&1 && "$out/works-$$"
}

# build NAME COMPILER C-COMPILER FLAGS EMULATOR-FLAGS CPU-FLAGS [KERNEL-FLAGS [OBJECT]]: four units;
# the kernels and the test have the emulator in front
build() {
    {
        $2 $flags $fake $4 ${7-} -include $emu/cuda_emu.h -x c++ -c amp_kernels.cu \
            -o "$out/$1-kernels.o" &&
        $2 $flags $fake $5 -c $emu/cuda_emu.cpp -o "$out/$1-emu.o" &&
        $2 $flags $fake $4 -include $emu/cuda_emu.h -c tests/test_cuda.cpp -o "$out/$1-test.o" &&
        $3 -std=c99 $6 -I. -c "$out/cpu.c" -o "$out/$1-cpu.o" &&
        $2 $6 "$out/$1-test.o" "$out/$1-kernels.o" "$out/$1-emu.o" "$out/$1-cpu.o" ${8-} \
            -o "$out/$1" -lm
    } > "$out/$1.log" 2>&1 && return
    { echo "FAIL cuda/$1: does not compile"; head -n 12 "$out/$1.log" | sed 's/^/     /'; } \
        > "$out/$1.part"
    return 1
}

# run NAME PROGRAM ARGUMENTS...: its lines, with the configuration in front
run() {
    name=$1 program=$2
    shift 2
    "$out/$program" "$@" > "$out/$name.log" 2>&1
    code=$?
    case $name in plain | traffic) figures='[a-z ]+: [0-9]' ;; *) figures='ok' ;; esac
    sed -En "s#^(ok|FAIL|skip) +#&cuda/$name/#; /^(ok |FAIL|skip|    |$figures)/p" \
        "$out/$name.log" > "$out/$name.part"
    tail -n 1 "$out/$name.log" | grep -Eq '^[0-9]+ passed, [0-9]+ failed' && return
    { echo "FAIL cuda/$name: ended with status $code"
      tail -n 12 "$out/$name.log" | sed 's/^/     /'; } >> "$out/$name.part"
}

plain() { # all of it, and nothing but a C++ compiler
    build plain "$cxx" "$cc" -O2 -O2 -O2 && { no_stream; bench; run plain plain; }
}

no_stream() { # a suite that cannot test has failed; linked last, so that no default comes later
    text="without a device the suite says so in one line, and fails"
    echo 'extern int emu_device_count; static int none = emu_device_count = 0;' > "$out/none.cpp"
    if $cxx "$out"/plain-*.o "$out/none.cpp" -o "$out/none" > "$out/none.log" 2>&1 &&
        ! "$out/none" --quick > "$out/none.log" 2>&1 &&
        [ "$(grep -c '^FAIL main: no CUDA stream: ' "$out/none.log")" = 1 ] &&
        tail -n 1 "$out/none.log" | grep -qx '0 passed, 1 failed'
    then echo "ok   cuda/no-stream: $text" > "$out/no-stream.part"
    else { echo "FAIL cuda/no-stream: $text"; head -n 12 "$out/none.log" | sed 's/^/     /'; } \
        > "$out/no-stream.part"
    fi
}

bench() { # there is no time in the emulator, so the numbers mean nothing
    text="bench_cuda --quick prints rows of eight fields for each model"
    if $cxx $flags $fake -O2 -include $emu/cuda_emu.h -x c++ -c tests/bench/bench_cuda.cu \
        -o "$out/bench.o" > "$out/bench.log" 2>&1 &&
       $cxx "$out/bench.o" "$out/plain-kernels.o" "$out/plain-emu.o" -o "$out/bench" \
        >> "$out/bench.log" 2>&1 && "$out/bench" --quick > "$out/bench.log" 2>&1 &&
        awk -F, '!/^#/ {if (NF != 8) exit 1; rows[$2]++}
                 END {exit rows["step"] != 2 || rows["graph-clip"] != 2 || rows["copy"] != 2}' \
            "$out/bench.log"
    then echo "ok   cuda/bench: $text" > "$out/bench.part"
    else { echo "FAIL cuda/bench: $text"; tail -n 12 "$out/bench.log" | sed 's/^/     /'; } \
        > "$out/bench.part"
    fi
}

toolkit() { # NVIDIA's declarations, which the fake headers only imitate
    cuda=${CUDA_HOME-}
    nvcc=$(command -v nvcc) && [ -z "$cuda" ] && cuda=${nvcc%/bin/nvcc}
    [ -f "$cuda/include/cuda_runtime.h" ] ||
        { skip toolkit 'no CUDA toolkit (nvcc, CUDA_HOME)'; return; }
    text="the kernels and their test compile against the toolkit's headers"
    if $cxx $flags -Wall -Wextra -isystem "$cuda/include" -include $emu/cuda_emu.h -x c++ \
        -fsyntax-only amp_kernels.cu > "$out/toolkit.log" 2>&1 &&
       $cxx $flags -Wall -Wextra -isystem "$cuda/include" -include $emu/cuda_emu.h \
        -fsyntax-only tests/test_cuda.cpp >> "$out/toolkit.log" 2>&1
    then echo "ok   cuda/toolkit: $text" > "$out/toolkit.part"
    else { echo "FAIL cuda/toolkit: $text"; head -n 12 "$out/toolkit.log" | sed 's/^/     /'; } \
        > "$out/toolkit.part"
    fi
}

other_compiler() {
    works clang++ -O2 && command -v clang > /dev/null || { skip clang 'clang++ not found'; return; }
    build clang clang++ clang -O2 -O2 -O2 && run clang clang --quick
}

address() { # and undefined behaviour
    works "$cxx" "$sanitize" ||
        { skip sanitize "$cxx has no address and undefined-behaviour sanitizers"; return; }
    build sanitize "$cxx" "$cc" "$sanitize" "$sanitize -DEMU_ASAN" "$sanitize" &&
        run sanitize sanitize --quick
}

races() { # inside a block, then between blocks
    works "$cxx" -fsanitize=thread || { skip races "$cxx has no thread sanitizer"; return; }
    build races "$cxx" "$cc" '-O1 -g -fsanitize=thread' '-O1 -g -DEMU_TSAN' \
        '-O1 -fsanitize=thread' || return
    (export EMU_RACE=shared; run races-shared races --filter races)
    (export EMU_RACE=global; run races-global races --filter races)
}

traffic() { # the emulator stands in for the thread sanitizer, and counts
    order=
    case $($cxx --version) in *clang*) order='-mllvm -tsan-instrument-read-before-write' ;; esac
    echo 'int main() { return 0; }' > "$out/hooks.cpp"
    $cxx -fsanitize=thread $order -c "$out/hooks.cpp" -o "$out/hooks.o" > /dev/null 2>&1 ||
        { skip traffic "$cxx has no thread sanitizer"; return; }
    $cxx $flags $fake -O2 -c $emu/traffic.cpp -o "$out/traffic-hooks.o" > "$out/traffic.log" 2>&1
    build traffic "$cxx" "$cc" '-O1 -DEMU_TRAFFIC' -O2 -O2 "-fsanitize=thread $order" \
        "$out/traffic-hooks.o" && run traffic traffic --filter traffic
}

{ plain; toolkit; races; } &
{ traffic; address; other_compiler; } &
wait

for name in no-stream bench plain toolkit clang sanitize races races-shared races-global traffic; do
    [ ! -f "$out/$name.part" ] || cat "$out/$name.part"
done | tee "$out/lines"
awk '/^ok / {p++} /^FAIL / {f++} /^skip / {s++}
     END {printf "%d passed, %d failed", p, f; if (s) printf ", %d skipped", s; print ""
          exit f != 0 || p == 0}' "$out/lines"
