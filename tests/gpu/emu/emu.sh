# Test the emulator: its own tests in every configuration, and that each seeded bug of bugs.cu is
# reported by the tool that should, while the correct program is clean.
# usage: [OBJECTS=DIR] [CXX=COMPILER] [CC=COMPILER] [CUDA=TOOLKIT] emu.sh OUTDIR, in the root of
# the repository; the emulator for two of the kinds is in OBJECTS, where make has put it
suite=emu out=${1:?usage: emu.sh OUTDIR}
. tests/lib.sh
. tests/gpu/emu/kinds.sh
objects=$(cd "${OBJECTS:-build/tests}" && pwd)
cxx=${CXX:-c++} cuda=${CUDA:-/usr/local/cuda}

compile() { # compile NAME COMPILER FLAGS SOURCE
    object "$out/$1.o" "$2" $3 -c "$4"
}
link() { # link NAME COMPILER FLAGS OBJECT...: the words of the compiler come after those before
    name=$1 linker=$2 with=$3
    shift 3
    (cd "$out" && $linker $with "$@" -o "$name" >> "$name.o.log" 2>&1)
}

have "$cxx" || { skip compiler "$cxx not found"; finish; }

# ---- what there is: no toolkit, sanitizer or second compiler is needed ----

racer='' asan='' toolkit=''
for c in "$cxx" clang++; do
    [ -n "$racer" ] || ! works "$c" -fsanitize=thread || racer=$c
done
kind sanitize
sanitize=$with
works "$cxx" "$sanitize" && asan=1
[ -f "$cuda/include/cuda_runtime.h" ] && toolkit=1
quick && toolkit='' # cuda.sh compiles against it

# ---- the emulator, once per way to build it ----

cp "$objects/kind-plain/emu.o" "$out/emu-plain.o"
cp "$objects/kind-sanitize/emu.o" "$out/emu-sanitize.o"
compile emu-ucontext "$cxx" "$fake -O1 -DEMU_UCONTEXT" $emu/cuda_emu.cpp
[ -z "$racer" ] || compile emu-thread "$racer" "$fake -O1 -g -DEMU_TSAN" $emu/cuda_emu.cpp
[ -z "$toolkit" ] || compile emu-toolkit "$cxx" "-I$cuda/include -O1" $emu/cuda_emu.cpp

# ---- its tests ----

kernels="-O1 $front"
tests() { # tests NAME FLAGS [LINK-FLAGS]: with the emulator emu-NAME
    if compile "$1" "$cxx" "$kernels $2" $emu/test_emu.cpp &&
        link "$1" "$cxx" "${3-}" "$1.o" "emu-$1.o"; then lines "$1" "$out/$1"
    else fail "$1: does not compile" "$out/$1.o.log"
    fi
}

tests plain "$fake"
tests ucontext "$fake"
if [ -n "$toolkit" ]; then tests toolkit "-I$cuda/include"
else quick || skip toolkit "no CUDA headers"
fi
if [ -n "$asan" ]; then tests sanitize "$fake $sanitize" "$sanitize"
else skip sanitize "$cxx has no address and undefined-behaviour sanitizers"
fi

for odd in '<<<1, 1>>>(x);' 'k<<<1, 1;' 'extern static float x[]'; do
    echo "$odd" > "$out/odd.ii"
    refuses "plain.awk: refuses $odd" '^plain.awk: ' sh -c 'awk -f "$1" "$2" > /dev/null' - $emu/plain.awk "$out/odd.ii"
done

traffic() { # traffic NAME COMPILER FLAGS
    text="bytes loaded and stored in watched ranges are counted, by $2"
    if ! have "$2"; then skip "$1" "$2 not found"
    elif compile "$1-hooks" "$2" "$fake -O2" $emu/traffic.cpp &&
        compile "$1" "$2" "$kernels $fake -DEMU_TRAFFIC -fsanitize=thread $3" $emu/test_emu.cpp &&
        link "$1" "$2" '' "$1.o" "$1-hooks.o" emu-plain.o &&
        "$out/$1" --filter traffic > "$out/$1.o.log" 2>&1; then ok "$1: $text"
    else fail "$1: $text" "$out/$1.o.log"
    fi
}
case $($cxx --version) in
*clang*) traffic traffic "$cxx" '-mllvm -tsan-instrument-read-before-write' ;;
*) traffic traffic "$cxx"
   quick || traffic traffic-clang clang++ '-mllvm -tsan-instrument-read-before-write' ;;
esac

printf '%s\n' '#include "cuda_emu.h"' 'int main(void) { return emu_live_streams() != 0; }' \
    > "$out/control.c"
try "control: the control interface is C11" ${CC:-cc} -std=c11 -Wall -Wextra -pedantic -Werror \
    -I$emu $fake -c "$out/control.c" -o "$out/control.o"

# ---- the seeded bugs ----

# bug NAME HOW TEXT PATTERN [-DBUG_...]: the program fails and says PATTERN, or if that is "clean"
# it succeeds and says nothing
bug() {
    with='' compiler=$cxx missing=
    case $2 in
    sanitize)
        with=$sanitize
        [ -n "$asan" ] || missing="$cxx has no address and undefined-behaviour sanitizers" ;;
    thread)
        with=-fsanitize=thread compiler=$racer
        [ -n "$racer" ] || missing="no compiler has a thread sanitizer" ;;
    esac
    [ -z "$missing" ] || { skip "$1" "$missing"; return; }
    compile "$1" "$compiler" "$kernels $fake -g $with $5" $emu/bugs.cu &&
        link "$1" "$compiler" "$with" "$1.o" "emu-$2.o" || {
            fail "$1: does not compile" "$out/$1.o.log"
            return
        }
    "$out/$1" 1 > "$out/$1.log" 2>&1
    code=$?
    if [ "$4" = clean ]; then [ $code = 0 ] && [ ! -s "$out/$1.log" ]
    else [ $code != 0 ] && grep -Eq "$4" "$out/$1.log"
    fi && ok "$1: $3" || fail "$1: $3" "$out/$1.log"
}

bug clean plain "the correct program is correct" clean
bug barrier plain "a missing barrier gives a wrong sum" 'wrong sum' -DBUG_BARRIER
bug synchronisation plain "a missing synchronisation shows" 'wrong sum' -DBUG_SYNCHRONISATION
bug capture-malloc plain "cudaMalloc in a capture is refused" 'Malloc.*: 900' -DBUG_CAPTURE
bug capture-end plain "and the capture ends with an error" 'EndCapture.*: 901' -DBUG_CAPTURE
bug clean-sanitize sanitize "the correct program is clean for ASan and UBSan" clean
case $($cxx --version) in
*clang*) skip alignment "clang does not check the alignment of a struct that it copies" ;;
*) bug alignment sanitize "UBSan reports a misaligned vector load" \
       'bugs.cu:.*misaligned address.*float4' -DBUG_ALIGNMENT ;;
esac
bug tail sanitize "ASan reports a tail that is too long" \
    'AddressSanitizer: heap-buffer-overflow' -DBUG_TAIL
bug host-read sanitize "ASan reports a host that reads device memory" \
    'AddressSanitizer: use-after-poison' -DBUG_HOST_READ
export EMU_RACE=shared
bug clean-shared thread "the correct program is clean for TSan inside blocks" clean
bug barrier-race thread "TSan reports a missing barrier" 'data race .*bugs.cu' -DBUG_BARRIER
EMU_RACE=global
bug clean-global thread "the correct program is clean for TSan between blocks" clean
bug fence-race thread "TSan reports a missing fence" 'data race .*bugs.cu' -DBUG_FENCE
bug fence-early thread "TSan reports a fence in front of what it should release" 'data race .*bugs.cu' \
    -DBUG_FENCE_EARLY
bug fence-behind thread "TSan reports a missing fence behind the last block's atomic" 'data race .*bugs.cu' \
    -DBUG_FENCE_BEHIND

finish
