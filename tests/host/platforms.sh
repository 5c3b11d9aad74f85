# One digest and one file on every platform: compilers, C libraries, processors, byte orders.
# bits.sh has the digests of each compiler, mingw.sh all tests on Windows, make ci AArch64 and s390x.
# This script runs all tests with the other C libraries and processors. It looks at the warnings of each
# compiler and the state files that it writes, runs with a stack of 64 KB, and runs clang as Microsoft's
# compiler. A line says what is missing.
# Debian: musl-tools, gcc-arm-linux-gnueabihf, libc6-dev-armhf-cross, libc6-dev-i386, lib32gcc-12-dev.
# usage: platforms.sh OUTDIR TEST...
suite=platforms out=${1:?usage: platforms.sh OUTDIR TEST...}
shift
all=$*
. tests/lib.sh
WARN='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wcast-align
      -Wundef -Wpointer-arith -Wwrite-strings -Wformat=2 -Wvla -Werror'
WARN_C='-Wdouble-promotion -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition'
i386="-m32 -msse2 -mfpmath=sse -idirafter /usr/include/$(gcc -print-multiarch 2> /dev/null)"
printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$out/only.c"

# there NAME RUNNER COMPILER [FLAGS]: a program that is compiled so runs
there() {
    echo 'int main(void) { return 0; }' > "$out/empty.c"
    have "$3" && $3 "$out/empty.c" -o "$out/empty.exe" > "$out/log" 2>&1 &&
        $2 "$out/empty.exe" >> "$out/log" 2>&1 && return
    skip "$1" "no program by $3 runs here"
    return 1
}
silent() { # silent TEXT COMMAND...: it succeeds, and says nothing
    text=$1
    shift
    "$@" > "$out/log" 2>&1 && [ ! -s "$out/log" ]
    check "$text" $?
}

# tests NAME RUNNER COMPILER QUICK [FLAGS]: warnings, and all tests
tests() {
    there "$@" || return
    mkdir -p "$out/$1"
    $3 -std=c99 ${5:--O2} $WARN -I. -c tests/amp.c -o "$out/$1/amp.o" > "$out/$1/amp.o.log" 2>&1
    for test in $all; do
        RUNNER=$2 AMP_QUICK=$4 lines "$1" sh tests/one.sh "$test" "$test" "$3" "${5:--O1}" "$out/$1/$test"
    done
}

# writes NAME RUNNER COMPILER: state files of all kinds and formats, byte by byte those of
# tests/vectors/state, which test_vectors.c reads on all of these; and warnings
writes() {
    there "$@" || return
    warn="$WARN $WARN_C"
    case $1 in
    tcc) warn='-Wall -Werror' ;;
    s390x) warn="$warn -Wno-double-promotion" ;; # -std=c99 computes in doubles there
    esac
    for std in c99 c17; do
        silent "$1: $std, all warnings" $3 -std=$std $warn -O2 -I. -c "$out/only.c" -o "$out/only.o"
    done
    rm -rf "$out/$1-state"
    mkdir "$out/$1-state"
    $3 -O1 -I. tests/vectors/golden.c "$out/only.c" -o "$out/$1-state.exe" -lm > "$out/log" 2>&1 &&
        $2 "$out/$1-state.exe" "$out/$1-state" > "$out/log" 2>&1 &&
        (for file in tests/vectors/state/*; do
            cmp "$file" "$out/$1-state/${file##*/}" || exit 1
        done) > "$out/log" 2>&1
    check "$1: state files that it writes are those that all read" $?
}

for WINE in wine64 /usr/lib/wine/wine64 wine; do have $WINE && break; done
export WINEDEBUG=-all WINEPREFIX="$(cd "$out" && pwd)/wine"
tests musl '' 'musl-gcc' 1
tests i386 '' "gcc $i386" 1
tests armhf qemu-arm 'arm-linux-gnueabihf-gcc -static' 2
all=bits # an -Ofast link flushes subnormals; NEON of ARMv7 always does
tests armhf-Ofast qemu-arm 'arm-linux-gnueabihf-gcc -static -mfpu=neon' 2 -Ofast
tests armhf-clang qemu-arm 'clang --target=arm-linux-gnueabihf -static' 2 -O2
for compiler in gcc gcc-13 gcc-14 gcc-15 clang clang-14 clang-16 clang-19 tcc; do
    have $compiler || continue
    writes $compiler '' $compiler
done
writes musl '' 'musl-gcc'
writes i386 '' "gcc $i386"
writes armhf qemu-arm 'arm-linux-gnueabihf-gcc -static'
writes armhf-clang qemu-arm 'clang --target=arm-linux-gnueabihf -static'
writes aarch64 qemu-aarch64 'aarch64-linux-gnu-gcc -static'
writes s390x qemu-s390x 's390x-linux-gnu-gcc -static'
writes mingw "$WINE" x86_64-w64-mingw32-gcc

# All but products runs on a stack of 64 KB, threads with one of that size included.
gcc -std=c99 -O2 -I. -c tests/amp.c -o "$out/amp.o" > "$out/log" 2>&1
for test in optimizer state sparse storage scaler alloc vectors zero; do
    gcc -std=c99 -O1 -I. tests/unit/test_$test.c "$out/amp.o" -o "$out/stack" -lm -pthread > "$out/log" 2>&1 ||
        fail "stack: test_$test.c does not compile"
    (ulimit -s 64 && exec env -i AMP_QUICK=1 "$out/stack") > "$out/log" 2>&1
    check "a stack of 64 KB: test_$test.c" $?
done

# As Microsoft's compiler, whose C library compile/msvc stands for. (clang 14 has not all pragmas on
# AArch64.)
for compiler in clang clang-16 clang-19; do
    have $compiler || { skip "$compiler for Windows" 'not found'; continue; }
    for machine in x86_64 i686 aarch64; do
        case $machine$($compiler -dumpversion) in aarch641[0-4].*) continue ;; esac
        for language in 'c -std=c99' 'c -std=c17' 'c++ -std=c++14' 'c++ -std=c++20'; do
            silent "$compiler for Windows on $machine, $language" $compiler \
                --target=$machine-pc-windows-msvc -fms-compatibility-version=19.38 -nostdlibinc \
                -isystem tests/host/compile/msvc $WARN -I. -O2 -x $language -c "$out/only.c" -o "$out/only.o"
        done
    done
done
finish
