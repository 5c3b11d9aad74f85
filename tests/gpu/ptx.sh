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

object "$out/test_ptx.o" "$compiler" $fake $with -include $emu/cuda_emu.h -c $emu/test_ptx.cpp &&
    $compiler "$out/test_ptx.o" "$objects/kind-plain/emu.o" "$out/ptx.o" -o "$out/test_ptx" \
        > "$out/log" 2>&1
lines self "$out/test_ptx"

# seen SECONDS LOG COMMAND...: a test fails or crashes; a program that cannot begin, or end, tells nothing
seen() {
    seconds=$1 log=$2
    shift 2
    timeout "$seconds" "$@" > "$log" 2>&1
    status=$?
    [ $status = 1 ] || [ $status -ge 128 ] || grep -q '^FAIL' "$log"
}
# fault NUMBER TEXT SED: of the interpreter; test_ptx.cpp must see it
fault() {
    mkdir -p "$out/fault"
    for file in ptx.cpp ptx_ops.h; do sed "$3" $emu/$file > "$out/fault/$file"; done
    cat "$out/fault/ptx.cpp" "$out/fault/ptx_ops.h" > "$out/faulty"
    ! cat $emu/ptx.cpp $emu/ptx_ops.h | cmp -s - "$out/faulty" &&
        object "$out/fault/ptx.o" "$compiler" $fake -w -O0 -c "$out/fault/ptx.cpp" &&
        $compiler "$out/test_ptx.o" "$objects/kind-plain/emu.o" "$out/fault/ptx.o" \
            -o "$out/faulty" > "$out/log" 2>&1 && seen 60 "$out/fault.log" "$out/faulty"
    check "fault $1: $2 is seen" $?
}
# wrong NUMBER TEXT WORD SED: of a kernel; the tests of test_cuda.cpp with that word must see it
wrong() {
    sed "$4" "$ptx" > "$out/wrong.txt"
    [ -s "$ptx" ] && ! cmp -s "$ptx" "$out/wrong.txt" &&
        seen 300 "$out/wrong.log" env EMU_PTX="$out/wrong.txt" AMP_QUICK=2 "$out/test" --filter "$3"
    check "kernel $1: $2 is seen" $?
}
faults() {
    fault 1 'ties away from zero' 's/rintl(x)/roundl(x)/'
    fault 2 'another NaN' 's/v != v ? 0x7fffffffu/v != v ? 0x7fc00000u/'
    fault 3 'a flushed -0 that is 0' 's/w & 0x80000000u : w/0 : w/'
    fault 4 'no sign behind shr.s' 's/(T)(a < 0 ? -1 : 0)/(T)0/'
    fault 5 'shl by its amount modulo 32' 's/n < bits ? (T)((word)a << n) : (T)0/(T)((word)a << (n % bits))/'
    fault 6 'prmt without signs' 's/byte & 0x80 ? 0xffu : 0u/0u/'
    fault 7 'bfi of no bits in place of all' 's/len >= bits ? (T)-1/len > bits ? (T)-1/'
    fault 8 'zeros in the other order' 's/signbit(a) == less/signbit(a) != less/'
    fault 9 'ltu without NaN' 's/return !(a >= b)/return a < b/'
    fault 10 'mul.hi one bit off' 's/(D)b >> bits/(D)b >> (bits - 1)/'
    fault 11 'the least integer' 's/most + 1 : 0/most : 0/'
    fault 12 'subnormals with all digits' 's/std::max(e - f.digits, least_of(f))/e - f.digits/'
    fault 13 'shfl without segments' 's/segment = c >> 8 & 31/segment = 0/'
    fault 14 'halves of a vector as aligned' 's/if (a % n != 0)/if (a % 2 != 0)/'
    fault 15 'all registers as written' 's/& ~lanes) | defined/\& ~lanes) | lanes/'
    fault 16 'a race' 's/b.write_epoch == epoch && b.writer != me/false/'
    fault 17 'a barrier for some' 's/if (waiting != (for_clients.*//'
    fault 18 'a branch that misses an instruction' 's/mask & ~lanes, pc)/mask \& ~lanes, pc + 1)/'
    fault 19 'inc one too far' 's/return old >= a ? 0/return old > a ? 0/'
    fault 20 'a vector backwards' 's/, p + k \* size/, p + (i.num_to - 1 - k) * size/'
    fault 21 'halves of cvt in the other order' 's/c(a) << 16 | c(b)/c(b) << 16 | c(a)/'
    fault 22 'vote.all of one' 's/yes == lanes/yes != 0/'
    fault 23 'selp the wrong way' 's/p ? a : b/p ? b : a/'
    fault 24 'add.f32, which may be contracted' 's/"add.rn" + type/"add" + type/'
    fault 25 'a store of 16 bytes aligned as one of 8' \
        's/if (a % n != 0)/if (a % (how == WRITE \&\& n > 8 ? 8 : n) != 0)/'
    fault 26 'fma.rm to nearest where the sum is even' 's/ || (near == sum && error < 0)//'
    fault 27 'extern shared memory in the kernel'"'"'s own' 's/(unsigned)behind,/0u,/'
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
    tail -n 1 "$counts" 2> /dev/null | awk '{good = $1 == $3 && $1 >= 31} END {exit !good}'
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
    faults
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
