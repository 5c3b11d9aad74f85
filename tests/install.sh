# What README says of make install, pkg-config and CMake, done in a directory of its own.
# What is not installed costs one line.
# usage: [CC=COMPILER] install.sh OUTDIR, in the root of the repository

suite=install out=${1:?usage: install.sh OUTDIR}
cc=${CC:-cc}
rm -rf "$out"
. tests/lib.sh
mkdir -p "$out/project"
out=$(cd "$out" && pwd)

version() { awk '/define AMP_VERSION_/ {printf "%s%s", dot, $3; dot = "."}' amp.h; }

cat > "$out/project/main.c" <<'END'
#define AMP_IMPLEMENTATION
#include "amp.h"
#include <stdio.h>
int main(void) {
    const float x[2] = {1.0f, -2.0f};
    puts(amp_version());
    return !amp_all_finite(x, AMP_F32, 2);
}
END

MAKEFLAGS= make --no-print-directory install PREFIX="$out/prefix" > "$out/log" 2>&1 &&
    cmp amp.h "$out/prefix/include/amp.h" >> "$out/log" 2>&1
check 'make install PREFIX= copies the header' $?
MAKEFLAGS= make --no-print-directory install PREFIX=/opt/amp DESTDIR="$out/stage" > "$out/log" 2>&1 &&
    cmp amp.h "$out/stage/opt/amp/include/amp.h" >> "$out/log" 2>&1 &&
    grep -x 'prefix=/opt/amp' "$out/stage/opt/amp/share/pkgconfig/amp.pc" >> "$out/log" 2>&1
check 'DESTDIR= is where files go, not what amp.pc says' $?

if have pkg-config; then
    PKG_CONFIG_PATH=$out/prefix/share/pkgconfig
    export PKG_CONFIG_PATH
    pkg-config --modversion amp > "$out/log" 2>&1 && [ "$(cat "$out/log")" = "$(version)" ]
    check "pkg-config: amp.pc has the header's version, $(version)" $?
    cmp amp_kernels.cu "$(pkg-config --variable=kernels amp)" > "$out/log" 2>&1
    check 'pkg-config: the variable kernels leads to amp_kernels.cu' $?
    (cd "$out/project" && $cc $(pkg-config --cflags amp) main.c -o program \
        $(pkg-config --libs amp) && ./program) > "$out/log" 2>&1 &&
        [ "$(tail -n 1 "$out/log")" = "$(version)" ]
    check 'pkg-config: a program compiles with its flags and runs' $?
else
    skip 'pkg-config' 'not installed'
fi

tag=$(sed -n 's/.*GIT_TAG \([^ )]*\).*/\1/p' README.md)
[ "$tag" = main ] || git rev-parse -q --verify "$tag^{commit}" > "$out/log" 2>&1
check "README: its CMake snippet asks for what there is: $tag" $?

# README's snippet, with this checkout in place of a download.
if have cmake; then
    {
        echo 'cmake_minimum_required(VERSION 3.18)'
        echo 'project(trainer LANGUAGES C)'
        echo 'add_executable(trainer main.c)'
        sed -n '/^```cmake/,/^```$/p' README.md | sed '/^```/d'
    } > "$out/project/CMakeLists.txt"
    grep -q FetchContent "$out/project/CMakeLists.txt" &&
        CC="$cc" cmake -S "$out/project" -B "$out/cmake" -DFETCHCONTENT_SOURCE_DIR_AMP="$PWD" \
            > "$out/log" 2>&1 &&
        cmake --build "$out/cmake" >> "$out/log" 2>&1 &&
        [ "$("$out/cmake/trainer")" = "$(version)" ]
    check 'cmake: the FetchContent snippet of README builds a program' $?
else
    skip 'cmake' 'not installed'
fi

finish
