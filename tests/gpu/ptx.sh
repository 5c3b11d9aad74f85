# The code that nvcc emits, run without a GPU: test_cuda.cpp in the emulator, where emu/ptx.cpp runs the
# PTX of each kernel of amp_kernels.cu in place of its C++ body. It needs nvcc, but no GPU.
# make ci runs samples on the PTX for the newest architecture; make check runs them on the PTX for all
# architectures, and with options of nvcc. (All sizes, on one architecture, took over twenty minutes.)
# usage: [OBJECTS=DIR] [CXX=COMPILER] [NVCC=nvcc] ptx.sh OUTDIR, in the repository's root
suite=ptx out=${1:?usage: ptx.sh OUTDIR}
. tests/lib.sh
. tests/gpu/emu/kinds.sh
objects=${OBJECTS:-build/tests}
NVCC=${NVCC:-nvcc}
kind plain
have "$NVCC" || { skip "$NVCC" 'not found'; finish; }

object "$out/ptx.o" "$compiler" $fake -O2 -c $emu/ptx.cpp &&
    object "$out/test.o" "$compiler" $fake $with -include $emu/cuda_emu.h -c tests/unit/test_cuda.cpp &&
    $compiler "$out/test.o" "$objects/kind-plain/kernels.o" "$objects/kind-plain/emu.o" \
        "$out/ptx.o" "$objects/o2/amp.o" -o "$out/test" -lm > "$out/link.log" 2>&1 || {
    cat "$out/ptx.o.log" "$out/test.o.log" "$out/link.log" > "$out/log" 2> /dev/null
    fail "does not compile"
    finish
}

# seen SECONDS LOG COMMAND...: a test fails or crashes; a program that cannot begin, or end, tells nothing
seen() {
    seconds=$1 log=$2
    shift 2
    timeout "$seconds" "$@" > "$log" 2>&1
    status=$?
    [ $status = 1 ] || [ $status -ge 128 ] || grep -q '^FAIL' "$log"
}
# wrong NUMBER TEXT WORD SED: of a kernel; the tests of test_cuda.cpp with that word must see it
wrong() {
    sed "$4" "$ptx" > "$out/wrong.txt"
    [ -s "$ptx" ] && ! cmp -s "$ptx" "$out/wrong.txt" &&
        seen 300 "$out/wrong.log" env EMU_PTX="$out/wrong.txt" AMP_QUICK=2 "$out/test" --filter "$3"
    check "kernel $1: $2 is seen" $?
}
wrongs() { # of the PTX that steps has left
    ptx=$1
    wrong 1 'a mul that became .ftz' steps 's/mul.rn.f32/mul.rn.ftz.f32/'
    wrong 2 'a wrong selector of prmt' casts '/prmt/s/, 4180;/, 21520;/'
    wrong 3 'an offset of a vector load' steps 's/\(ld.global.cs.v4.u32.*\[%rd[0-9]*\)\]/\1+16]/'
    wrong 4 'an address that is not aligned' steps 's/\(ld.global.cs.v4.u32.*\[%rd[0-9]*\)\]/\1+4]/'
    wrong 5 'a missing barrier' steps '/bar.sync/d'
    wrong 6 'an unguarded tail' casts 's/setp.lt.u64/setp.le.u64/'
    wrong 7 'a rounding to zero' steps 's/cvt.rn.f16/cvt.rz.f16/'
    wrong 8 'lanes that some do not reach' steps 's/shfl.sync.bfly/shfl.sync.down/'
    wrong 9 'a division that is .approx' steps 's/div.rn.f32/div.approx.f32/'
    wrong 10 'a sum that may be contracted' steps 's/add.rn.f32/add.f32/'
    wrong 11 'the smallest of two for the largest' steps 's/max.u32/min.u32/'
    wrong 12 'two words of a store in the other order' steps \
        's/\(st.global.cs.v4.u32.*{\)\(%r[0-9]*\), *\(%r[0-9]*\)/\1\3,\2/'
    wrong 13 'a store of 16 bytes at an address of 8' steps 's/\(st.global.cs.v4.u32.*\[%rd[0-9]*\)\]/\1+8]/'
    grep -q 'a misaligned address' "$out/wrong.log"
    check "kernel 13: and it is the address that is told" $?
}

# steps NAME ARCHITECTURE [FLAGS...]: test_cuda.cpp in samples on it, unless it is PTX that has been run
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
    tail -n 1 "$counts" 2> /dev/null | awk '{good = $1 == $3 && $1 >= 25} END {exit !good}'
    check "$name: every kernel ran as PTX" $?
    tail -n 1 "$counts" 2> /dev/null | grep -q ', 0 divisions of 0$'
    check "$name: nobody divides 0, for which a GPU would call a function" $?
}

clients() { # of client.sh: a trainer's own kernels, too
    rm -rf "$out/client" && sh tests/gpu/client.sh --example "$out/client" &&
        PTX=$out/ptx.o OBJECTS=$objects sh tests/gpu/client.sh "$out/client" > "$out/log" 2>&1 &&
        grep -Eq '^\| example, amp \| PTX \| 30 \| 2\.[0-9]+ [0-9]+ \| 2\.[0-9]+ [0-9]+ \| yes \|$' "$out/log" &&
        ! grep -q 'not PTX' "$out/log"
    check "client.sh: a trainer's own kernels run as PTX, and AMP_ENABLE=0 leaves its bits" $?
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
    wrongs "$out/sm_80.ptx"
    clients
fi
finish
