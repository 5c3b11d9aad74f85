# The CUDA backend without a GPU: test_cuda.cpp in the emulator, in one configuration, if the compilers
# here allow it. A tool that is not installed costs one line. make has put the emulator, the kernels
# and the CPU part into OBJECTS.
# usage: [OBJECTS=DIR] [CXX=COMPILER] [CC=COMPILER] [CUDA_HOME=TOOLKIT] cuda.sh OUTDIR PART, in the
# repository's root; PART is plain (plain-1of2: half of it), more, clang, sanitize, races or traffic
suite=cuda out=${1:?usage: cuda.sh OUTDIR PART}
part=${2:?usage: cuda.sh OUTDIR PART}
. tests/lib.sh
. tests/gpu/emu/kinds.sh
objects=${OBJECTS:-build/tests}
kind=$part
case $part in
plain-*) kind=plain AMP_TEST_PART=${part#plain-} && export AMP_TEST_PART ;;
more) kind=plain ;;
esac
kind $kind
have "$compiler" || { skip "$part" "$compiler not found"; finish; }

# build CPU-OBJECT [KERNELS EMULATOR [FLAGS OBJECT]]: the test, with the emulator in front
build() {
    kernels=${2:-$objects/kind-$kind/kernels.o} emulation=${3:-$objects/kind-$kind/emu.o}
    object "$out/test.o" "$compiler" $fake $with -include $emu/cuda_emu.h -c tests/unit/test_cuda.cpp &&
        $compiler $with ${4-} "$out/test.o" "$kernels" "$emulation" "$1" ${5-} -o "$out/test" -lm \
            > "$out/link.log" 2>&1 && return
    cat "$kernels.log" "$emulation.log" "$1.log" "$out/test.o.log" "$out/link.log" \
        > "$out/log" 2> /dev/null
    fail "$part: does not compile"
    return 1
}

no_stream() { # a suite that cannot test has failed; linked last, so that no default comes later
    echo 'extern int emu_device_count; static int none = emu_device_count = 0;' > "$out/none.cpp"
    $compiler "$out/test.o" "$kernels" "$emulation" "$objects/o2/amp.o" "$out/none.cpp" \
        -o "$out/none" > "$out/log" 2>&1 && ! "$out/none" --quick > "$out/log" 2>&1 &&
        [ "$(grep -c '^FAIL main: no CUDA stream: ' "$out/log")" = 1 ] &&
        tail -n 1 "$out/log" | grep -qx '0 passed, 1 failed'
    check "no-stream: without a device the suite says so in one line, and fails" $?
}

bench() { # PROGRAM ROWS...: there is no time in the emulator, so the numbers mean nothing
    program=$1
    shift
    object "$out/$program.o" "$compiler" $fake -O1 $front -c "tests/bench/$program.cu" &&
        $compiler "$out/$program.o" "$kernels" "$emulation" -o "$out/$program" \
            > "$out/log" 2>&1 &&
        "$out/$program" --quick > "$out/log" 2>&1 &&
        awk -F, -v wanted="$*" '
            !/^#/ {if (NF != 8) exit 1; rows[$1 "," $2]++}
            END {count = split(wanted, name, " ")
                 for (i = 1; i <= count; i++) if (rows[name[i]] != (name[i] ~ /state|rows|sampled/ ? 1 : 2)) exit 1}' "$out/log"
    check "bench: $program --quick prints rows of eight fields for each model" $?
}

differs() { # what is measured is worth it where the step beside it has other weights, too
    sed 's/<= 3.0f \* step/< 0.0f/' tests/bench/bench_cuda.cu > "$out/differs.cu"
    object "$out/differs.o" "$compiler" $fake -O1 -Itests/bench $front -c "$out/differs.cu" &&
        $compiler "$out/differs.o" "$kernels" "$emulation" -o "$out/differs" > "$out/log" 2>&1 &&
        ! "$out/differs" --quick > "$out/log" 2>&1 && grep -q '^amp,rows-same,' "$out/log" &&
        [ "$(grep -c '^amp,step,' "$out/log")" = 2 ] && grep -q '^# FAIL: the unfused step' "$out/log"
    check "bench: a baseline that differs is a line and the status, and all rows are there" $?
}

fences() { # each that two blocks meet by, left out, is a race
    all=$(grep -c '^ *ampi_device_fence();$' amp_kernels.cu) n=0 seen=0
    while [ $n -lt "$all" ]; do
        n=$((n + 1))
        awk -v n=$n '/^ *ampi_device_fence\(\);$/ && ++count == n {next} 1' amp_kernels.cu > "$out/fence.cu"
        object "$out/fence.o" "$compiler" $fake $with -w -DAMPI_GRIDS $front -c "$out/fence.cu" &&
            $compiler $with "$out/test.o" "$out/fence.o" "$emulation" "$out/cpu.o" -o "$out/fence" -lm \
                > "$out/log" 2>&1 &&
            ! EMU_RACE=global "$out/fence" --quick --filter races > "$out/log" 2>&1 &&
            grep -q 'SUMMARY: ThreadSanitizer: data race ' "$out/log" && seen=$((seen + 1))
    done
    [ "$all" = 4 ] && [ $seen = 4 ]
    check "fences: without one of the $all between blocks there is a race" $?
}

toolkit() { # NVIDIA's declarations, which the fake headers only imitate
    cuda=${CUDA_HOME-}
    nvcc=$(command -v nvcc) && [ -z "$cuda" ] && cuda=${nvcc%/bin/nvcc}
    [ -f "$cuda/include/cuda_runtime.h" ] ||
        { skip toolkit 'no CUDA toolkit (nvcc, CUDA_HOME)'; return; }
    nvidia="-Wall -Wextra -isystem $cuda/include -include $emu/cuda_emu.h -fsyntax-only"
    $compiler $flags $nvidia -x c++ amp_kernels.cu > "$out/log" 2>&1 &&
        $compiler $flags $nvidia tests/unit/test_cuda.cpp >> "$out/log" 2>&1
    check "toolkit: the kernels and their test compile against the toolkit's headers" $?
}

figures() { sed -En '/^[a-z ]+: [0-9]/p' "$out/$1.log"; } # what README says of launches and bytes

case $part in
plain*) # nothing but a C++ compiler
    build "$objects/o2/amp.o" && {
        if quick; then lines plain "$out/test" --quick; else lines plain "$out/test"; fi
        figures plain
    } ;;
more) # without a device, with a default stream per thread; benches, NVIDIA's declarations
    build "$objects/o2/amp.o" && {
        no_stream
        bench bench_cuda amp,step amp,graph-clip amp,cold amp,copy amp,overflow \
            amp,state-sr-8bit amp,sampled amp,rows-same unfused,step unfused,graph-clip \
            unfused,overflow
        bench bench_mlp amp,mlp-scaler amp,mlp-scaler-graph amp,mlp-autocast amp,mlp-norm \
            amp,mlp-tf32 amp,mlp-fp32-graph
        differs
        EMU_PER_THREAD=1
        export EMU_PER_THREAD
        lines per-thread "$out/test" --quick
    }
    toolkit ;;
clang)
    have clang || { skip clang 'clang not found'; finish; }
    build "$objects/clang/amp.o" && lines clang "$out/test" --quick ;;
sanitize) # addresses and undefined behaviour
    works "$compiler" "$with" ||
        { skip sanitize "$compiler has no address and undefined-behaviour sanitizers"; finish; }
    build "$objects/sanitize/amp.o" && lines sanitize "$out/test" --quick ;;
races) # inside a block, then between blocks
    works "$compiler" "$with" || { skip races "$compiler has no thread sanitizer"; finish; }
    ${CC:-cc} -std=c99 -O1 -fsanitize=thread -I. -c tests/amp.c -o "$out/cpu.o" \
        > "$out/cpu.o.log" 2>&1
    build "$out/cpu.o" || finish
    export EMU_RACE=shared
    lines races-shared "$out/test" --filter races
    EMU_RACE=global
    lines races-global "$out/test" --filter races
    quick || fences ;;
traffic) # the emulator stands in for the thread sanitizer, and counts
    order=-fsanitize=thread
    case $($compiler --version) in
    *clang*) order="$order -mllvm -tsan-instrument-read-before-write" ;;
    esac
    with='-Og -DEMU_TRAFFIC'
    works "$compiler" "$order" ||
        { skip traffic "$compiler has no thread sanitizer"; finish; }
    object "$out/hooks.o" "$compiler" $fake -O2 -c $emu/traffic.cpp
    object "$out/kernels.o" "$compiler" $fake $with $order -DAMPI_GRIDS $front -c amp_kernels.cu
    build "$objects/o2/amp.o" "$out/kernels.o" "$objects/kind-plain/emu.o" '' "$out/hooks.o" && {
        lines traffic "$out/test" --filter traffic
        figures traffic
    } ;;
esac
finish
