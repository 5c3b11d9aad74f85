# The code that nvcc emits, run without a GPU: test_cuda.cpp in the emulator, where emu/ptx.cpp runs the
# PTX of each kernel of amp_kernels.cu in place of its C++ body. No GPU is needed, but nvcc is.
# make test runs the PTX for the newest architecture, and leaves the others to make check.
# usage: [OBJECTS=DIR] [CXX=COMPILER] [NVCC=nvcc] ptx.sh OUTDIR, in the repository's root
suite=ptx out=${1:?usage: ptx.sh OUTDIR}
. tests/lib.sh
. tests/emu/kinds.sh
objects=${OBJECTS:-build/tests}
NVCC=${NVCC:-nvcc}
kind plain
have "$NVCC" || { skip "$NVCC" 'not found'; finish; }

object "$out/ptx.o" "$compiler" $fake -O2 -c $emu/ptx.cpp &&
    object "$out/test.o" "$compiler" $fake $with -include $emu/cuda_emu.h -c tests/test_cuda.cpp &&
    $compiler "$out/test.o" "$objects/kind-plain/kernels.o" "$objects/kind-plain/emu.o" \
        "$out/ptx.o" "$objects/o2/amp.o" -o "$out/test" -lm > "$out/link.log" 2>&1 || {
    cat "$out/ptx.o.log" "$out/test.o.log" "$out/link.log" > "$out/log" 2> /dev/null
    fail "does not compile"
    finish
}

# steps NAME ARCHITECTURE [FLAGS...]: all of test_cuda.cpp on it, but on what has been run
steps() {
    name=$1 arch=$2 counts=$out/$1.counts
    shift 2
    rm -f "$counts"
    $NVCC -I. -std=c++14 -ptx -arch=compute_$arch "$@" amp_kernels.cu -o "$out/$name.ptx" \
        > "$out/log" 2>&1 || { fail "$name: nvcc writes no PTX"; return; }
    for other in "$out"/*.ptx; do
        [ "$other" != "$out/$name.ptx" ] && cmp -s "$other" "$out/$name.ptx" || continue
        ok "$name: its PTX is that of $(basename "$other" .ptx)"
        return
    done
    EMU_PTX=$out/$name.ptx EMU_PTX_COUNTS=$counts lines "$name" "$out/test" --quick
    sed -n '/differing bytes$/p' "$out/$name.log"
    tail -n 1 "$counts" | sed "s/^/$name: /"
    tail -n 1 "$counts" 2> /dev/null | awk '{exit !($1 == $3 && $1 >= 30)}'
    check "$name: every kernel ran as PTX" $?
}

rm -f "$out"/*.ptx
if quick; then steps sm_100 100
else
    for arch in 75 80 90 100; do
        ! $NVCC --list-gpu-arch | grep -qx "compute_$arch" || steps sm_$arch $arch
    done
    steps sm_80-fmad 80 -fmad=true
    steps sm_80-fast 80 --use_fast_math
    steps sm_100-fast 100 --use_fast_math
fi
finish
