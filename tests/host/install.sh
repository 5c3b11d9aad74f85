# Do what examples/README.md says of make install, pkg-config and CMake, in a directory of its own.
# A tool that is not installed costs one line.
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
#include "amp_report.h"
#include <stdio.h>
int main(void) {
    const float x[2] = {1.0f, -2.0f};
    puts(amp_version());
    return !amp_all_finite(x, AMP_F32, 2);
}
END

prefix="$out/a prefix"
MAKEFLAGS= make --no-print-directory install PREFIX="$prefix" > "$out/log" 2>&1 &&
    cmp amp.h "$prefix/include/amp.h" >> "$out/log" 2>&1 &&
    cmp amp.h "$prefix/include/amp/amp.h" >> "$out/log" 2>&1 &&
    cmp examples/amp_report.h "$prefix/include/amp/amp_report.h" >> "$out/log" 2>&1
check 'make install PREFIX= copies the headers, a PREFIX with a blank in it too' $?
MAKEFLAGS= make --no-print-directory install PREFIX=/opt/amp DESTDIR="$out/stage" > "$out/log" 2>&1 &&
    cmp amp.h "$out/stage/opt/amp/include/amp.h" >> "$out/log" 2>&1 &&
    grep -x 'prefix=/opt/amp' "$out/stage/opt/amp/share/pkgconfig/amp.pc" >> "$out/log" 2>&1
check 'DESTDIR= is where files go, not what amp.pc says' $?

for target in install uninstall; do
    refuses "make $target: an empty PREFIX is refused" "PREFIX is empty; give a directory: make $target PREFIX=/" \
        env MAKEFLAGS= make --no-print-directory -n $target PREFIX=
    refuses "make $target: so is a relative one with DESTDIR" 'PREFIX=rel is relative, and DESTDIR is set; begin' \
        env MAKEFLAGS= make --no-print-directory $target PREFIX=rel DESTDIR="$out/stage"
done
grep -q 'DESTDIR is set' "$out/log" && [ ! -e "$out/stagerel" ] && [ ! -e "$out/stage/rel" ]
check 'and nothing is beside DESTDIR' $?

(umask 077 && MAKEFLAGS= make --no-print-directory install PREFIX="$out/dark") > "$out/log" 2>&1 &&
    [ -z "$(find "$out/dark" ! -perm -444 -o -type d ! -perm -555)" ] && [ -s "$out/dark/share/amp/amp-config.cmake" ] &&
    MAKEFLAGS= make --no-print-directory uninstall PREFIX="$out/dark" >> "$out/log" 2>&1 &&
    [ -z "$(find "$out/dark" -type f)" ] && [ ! -d "$out/dark/include/amp" ]
check 'make install under umask 077 can be read by all; make uninstall leaves nothing' $?

runs() { same "$("$1" 2> "$out/log")" "$(version)"; } # runs PROGRAM: it prints the version
if have pkg-config; then
    PKG_CONFIG_PATH=$prefix/share/pkgconfig
    export PKG_CONFIG_PATH
    pkg-config --modversion amp > "$out/log" 2>&1 && same "$(cat "$out/log")" "$(version)"
    status=$?
    check "pkg-config: amp.pc has the header's version, $(version)" $status
    cmp amp_kernels.cu "$(pkg-config --variable=kernels amp | tr -d '\\')" > "$out/log" 2>&1
    check 'pkg-config: the variable kernels leads to amp_kernels.cu' $?
    eval "$cc $(pkg-config --cflags amp) '$out/project/main.c' -o '$out/program' $(pkg-config --libs amp)" \
        > "$out/log" 2>&1 && runs "$out/program"
    check 'pkg-config: a program compiles with its flags and runs' $?
else
    skip 'pkg-config' 'not installed'
fi

# Windows has an <amp.h> of its own. Ours is found by #include "amp.h" beside the file, or as <amp/amp.h>.
mkdir -p "$out/decoy"
echo '#error C++ AMP' > "$out/decoy/amp.h"
cp amp.h examples/amp_report.h "$out/project/"
sed 's,"\(amp[a-z_]*.h\)",<amp/\1>,' "$out/project/main.c" > "$out/project/angle.c"
for compiler in "$cc" x86_64-w64-mingw32-gcc; do
    if ! have "$compiler"; then skip "$compiler: a decoy <amp.h>" 'not installed'; continue; fi
    $compiler -fsyntax-only -isystem "$out/decoy" "$out/project/main.c" > "$out/log" 2>&1 &&
        $compiler -fsyntax-only -I "$out/decoy" -I "$prefix/include" "$out/project/angle.c" >> "$out/log" 2>&1
    check "$compiler: with an <amp.h> of the system in its path ours is found" $?
done
rm "$out/project/amp.h" "$out/project/amp_report.h"

# A clone of this checkout, as it is now, stands for the repository.
url() { sed "s,URL_OF_THIS_REPOSITORY,file://$out/repository,g"; }
git clone -q --bare . "$out/repository" > "$out/log" 2>&1 &&
    git -C "$out/repository" update-ref refs/heads/main HEAD || rm -rf "$out/repository"

packages=examples/packaging
# The snippet of examples/README.md as it stands there but for the address.
if have cmake && [ -d "$out/repository" ]; then
    {
        echo 'cmake_minimum_required(VERSION 3.18)'
        echo 'project(trainer LANGUAGES C)'
        echo 'add_executable(trainer main.c)'
        echo 'add_executable(long main.c)'
        sed -n '/^```cmake/,/^```$/p' examples/README.md | sed '/^```/d' | url
        echo 'target_link_libraries(long PRIVATE amp::amp)'
    } > "$out/project/CMakeLists.txt"
    grep -q FetchContent "$out/project/CMakeLists.txt" &&
        CC="$cc" cmake -S "$out/project" -B "$out/cmake" > "$out/log" 2>&1 &&
        cmake --build "$out/cmake" >> "$out/log" 2>&1 && runs "$out/cmake/trainer" && runs "$out/cmake/long"
    check 'cmake: the FetchContent snippet of examples/README.md builds a program' $?

    # find_package after make install; then a library that links amp, exported, and a program that finds both.
    mkdir -p "$out/finds" "$out/library" "$out/user"
    cp "$out/project/main.c" "$out/finds/"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.18)' 'project(finds LANGUAGES C)' \
        "find_package(amp $(version | cut -d. -f1,2) REQUIRED CONFIG)" 'add_executable(finds main.c)' \
        'target_link_libraries(finds PRIVATE amp::amp)' 'add_executable(short main.c)' \
        'target_link_libraries(short PRIVATE amp)' > "$out/finds/CMakeLists.txt"
    CC="$cc" cmake -S "$out/finds" -B "$out/finds/b" -DCMAKE_PREFIX_PATH="$prefix" > "$out/log" 2>&1 &&
        cmake --build "$out/finds/b" >> "$out/log" 2>&1 && runs "$out/finds/b/finds" && runs "$out/finds/b/short"
    check 'cmake: as amp::amp and as amp find_package(amp) finds what make install has put there' $?
    sed -i 's/find_package(amp [0-9.]*/find_package(amp 99.0/' "$out/finds/CMakeLists.txt"
    ! CC="$cc" cmake -S "$out/finds" -B "$out/finds/c" -DCMAKE_PREFIX_PATH="$prefix" > "$out/log" 2>&1
    check 'cmake: find_package(amp 99.0) finds no such version' $?
    printf '%s\n' '#include <amp.h>' '#include "layer.h"' 'const char *layer(void) { return amp_version(); }' \
        > "$out/library/layer.c"
    echo 'const char *layer(void);' > "$out/library/layer.h"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.18)' 'project(layer LANGUAGES C)' \
        "add_subdirectory(\"$PWD/$packages/cmake\" amp)" 'add_library(layer STATIC layer.c)' \
        'target_compile_definitions(layer PRIVATE AMP_IMPLEMENTATION)' \
        'target_include_directories(layer PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)' \
        'target_link_libraries(layer PUBLIC amp::amp)' 'install(FILES layer.h DESTINATION include)' \
        'install(TARGETS layer EXPORT layer ARCHIVE DESTINATION lib)' \
        'install(EXPORT layer DESTINATION share/layer FILE layer-config.cmake)' > "$out/library/CMakeLists.txt"
    printf '%s\n' '#include <amp.h>' '#include <layer.h>' '#include <stdio.h>' \
        'int main(void) { return puts(layer()) < 0; }' > "$out/user/main.c"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.18)' 'project(user LANGUAGES C)' \
        'find_package(amp REQUIRED CONFIG)' 'find_package(layer REQUIRED CONFIG)' 'add_executable(user main.c)' \
        'target_link_libraries(user PRIVATE layer)' > "$out/user/CMakeLists.txt"
    CC="$cc" cmake -S "$out/library" -B "$out/library/b" -DCMAKE_INSTALL_PREFIX="$out/exported" > "$out/log" 2>&1 &&
        cmake --build "$out/library/b" >> "$out/log" 2>&1 && cmake --install "$out/library/b" >> "$out/log" 2>&1 &&
        CC="$cc" cmake -S "$out/user" -B "$out/user/b" -DCMAKE_PREFIX_PATH="$out/exported" >> "$out/log" 2>&1 &&
        cmake --build "$out/user/b" >> "$out/log" 2>&1 && runs "$out/user/b/user"
    check 'cmake: a library that links amp::amp is exported, and found with it' $?
else
    skip 'cmake' 'not installed, or this is no clone'
fi

if have meson && have ninja && [ -d "$out/repository" ]; then
    mkdir -p "$out/project/subprojects/packagefiles/amp"
    url < $packages/meson/amp.wrap > "$out/project/subprojects/amp.wrap"
    cp $packages/meson/meson.build "$out/project/subprojects/packagefiles/amp/"
    printf '%s\n' "project('trainer', 'c')" \
        "executable('trainer', 'main.c', dependencies: dependency('amp'))" > "$out/project/meson.build"
    CC="$cc" meson setup --wrap-mode=forcefallback "$out/meson" "$out/project" > "$out/log" 2>&1 &&
        ninja -C "$out/meson" >> "$out/log" 2>&1 && runs "$out/meson/trainer"
    check 'meson: the subproject of packaging/meson builds a program' $?
else
    skip 'meson' 'not installed, or this is no clone'
fi
if have conan && have cmake; then
    CONAN_HOME=$out/conan
    export CONAN_HOME
    { conan profile detect && conan create $packages/conan; } > "$out/log" 2>&1 &&
        header=$(find "$out/conan/p" -path '*/p/include/amp/amp.h') && cmp amp.h "$header" >> "$out/log" 2>&1
    check 'conan: the recipe of packaging/conan makes a package' $?
else
    skip 'conan' 'not installed'
fi
if have python3; then # vcpkg itself is not to be had here
    python3 -m json.tool $packages/vcpkg/vcpkg.json > "$out/log" 2>&1
    check 'vcpkg: the manifest is JSON' $?
    port=$packages/vcpkg/portfile.cmake
    grep -o '{SOURCE_PATH}/[a-z_/.A-Z-]*' $port | sed 's,.*H}/,,' > "$out/files"
    for file in $(cat "$out/files"); do [ -f "$file" ] || echo "$file"; done > "$out/log"
    [ ! -s "$out/log" ] && [ -s "$out/files" ] && [ -s $packages/vcpkg/usage ] && ! grep -q 'POLICY\|SKIP' $port
    check 'vcpkg: what the port installs is there, and no check is switched off' $?
    grep -h '"name": "amp"\|name = "amp"\|Name: amp'"'"'\|^project(.\?amp' $packages/*/* Makefile | wc -l > "$out/log"
    [ "$(cat "$out/log")" -eq 5 ]
    check 'one name everywhere: amp' $?
fi

finish
