# Do what examples/README.md says of make install, and of packages, in a directory of its own; make a release.
# A tool that is not installed costs one line.
# usage: [CC=COMPILER] install.sh OUTDIR, in the root of the repository

suite=install out=${1:?usage: install.sh OUTDIR}
cc=${CC:-cc}
rm -rf "$out"
. tests/lib.sh
mkdir -p "$out/project"
out=$(cd "$out" && pwd)

version() { awk '/define AMP_VERSION_/ {printf "%s%s", dot, $3; dot = "."}' amp.h; }

# whole.c has amp.h's code, too, which takes seconds to compile. Of amp_report.h main.c needs nothing, which -O1 sees.
export CFLAGS=-O1
cat > "$out/project/main.c" <<'END'
#include "amp.h"
#include "amp_report.h"
#include <stdio.h>
int main(void) {
    printf("%d.%d.%d\n", AMP_VERSION_MAJOR, AMP_VERSION_MINOR, AMP_VERSION_PATCH);
    return 0;
}
END
cat > "$out/project/whole.c" <<'END'
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

same "$(sed -n '1s/.* - v\([0-9.]*\)[ ,].*/\1/p' amp.h)" "$(version)" &&
    same "$(sed -n 's/^  "version": "\(.*\)",$/\1/p' examples/packaging/vcpkg/vcpkg.json)" "$(version)" &&
    same "$(sed -n 's/^revision = v//p' examples/packaging/meson/amp.wrap)" "$(version)" &&
    same "$(sed -n 's/.* GIT_TAG v\([0-9.]*\) .*/\1/p' examples/README.md)" "$(version)"
check "the first line of amp.h and the port of vcpkg say the version that its macros have" $?

makes() { MAKEFLAGS= make --no-print-directory "$@" > "$out/log" 2>&1; }
prefix="$out/it's a prefix"
makes install PREFIX="$prefix" && cmp amp.h "$prefix/include/amp.h" >> "$out/log" 2>&1 &&
    cmp amp.h "$prefix/include/amp/amp.h" >> "$out/log" 2>&1 &&
    cmp examples/amp_report.h "$prefix/include/amp/amp_report.h" >> "$out/log" 2>&1
check 'make install PREFIX= copies the headers, a PREFIX with a quote and blanks, too' $?
makes install PREFIX=/opt/amp DESTDIR="$out/stage" &&
    cmp amp.h "$out/stage/opt/amp/include/amp.h" >> "$out/log" 2>&1 &&
    grep -x 'prefix=/opt/amp' "$out/stage/opt/amp/share/pkgconfig/amp.pc" >> "$out/log" 2>&1
check 'DESTDIR= is where files go, not what amp.pc says' $?

for target in install uninstall; do
    refuses "make $target: an empty PREFIX is refused" "PREFIX is empty; give a directory: make $target PREFIX=/" \
        env MAKEFLAGS= make --no-print-directory -n $target PREFIX=
    refuses "make $target: so is a relative one with DESTDIR" 'PREFIX=rel is relative, and DESTDIR is set; begin' \
        env MAKEFLAGS= make --no-print-directory $target PREFIX=rel DESTDIR="$out/stage"
    refuses "make $target: so is a double quote" 'PREFIX has a double quote' \
        env MAKEFLAGS= make --no-print-directory $target PREFIX="$out/a\"quote"
done
[ -e "$out/stage" ] && [ ! -e "$out/stagerel" ] && [ ! -e "$out/stage/rel" ] && [ ! -e "$out/a\"quote" ]
check 'and no file is copied' $?

(umask 077 && makes install PREFIX="$out/dark") &&
    [ -z "$(find "$out/dark" ! -perm -444 -o -type d ! -perm -555)" ] && [ -s "$out/dark/share/amp/amp-config.cmake" ] &&
    makes uninstall PREFIX="$out/dark" &&
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
    eval "$cc $(pkg-config --cflags amp) '$out/project/whole.c' -o '$out/program' $(pkg-config --libs amp)" \
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
    git -C "$out/repository" update-ref refs/heads/main HEAD && git -C "$out/repository" tag -f "v$(version)" HEAD >> "$out/log" || rm -rf "$out/repository"

packages=examples/packaging
configure() { CC="$cc" cmake "$@" >> "$out/log" 2>&1; } # configure -S SOURCES -B BUILD ...
project() { # project DIR LINES...: a project of CMake in DIR, with main.c
    mkdir -p "$1" && cp "$out/project/main.c" "$1/"
    dir=$1
    shift
    printf '%s\n' 'cmake_minimum_required(VERSION 3.18)' 'project(made LANGUAGES C)' "$@" > "$dir/CMakeLists.txt"
}
finds() { # finds DIR OPTION...: a program of a project of its own finds amp, of this version, and its kernels
    dir=$out/finds/$1
    shift
    : > "$out/log"
    project "$dir" "find_package(amp $(version | cut -d. -f1,2) REQUIRED CONFIG)" 'add_executable(finds main.c)' \
        'target_link_libraries(finds PRIVATE amp::amp)' 'add_executable(short main.c)' \
        'target_link_libraries(short PRIVATE amp)' 'file(WRITE "${CMAKE_BINARY_DIR}/kernels" "${amp_KERNELS}")'
    configure -S "$dir" -B "$dir/b" "$@" && cmake --build "$dir/b" >> "$out/log" 2>&1 && runs "$dir/b/finds" &&
        runs "$dir/b/short" && cmp amp_kernels.cu "$(cat "$dir/b/kernels")" >> "$out/log" 2>&1
}
# The snippet of examples/README.md as it stands there but for the address.
if have cmake && [ -d "$out/repository" ]; then
    {
        echo 'cmake_minimum_required(VERSION 3.18)'
        echo 'project(trainer LANGUAGES C)'
        echo 'add_executable(trainer whole.c)'
        echo 'add_executable(long main.c)'
        sed -n '/^```cmake/,/^```$/p' examples/README.md | sed '/^```/d' | url
        echo 'target_link_libraries(long PRIVATE amp::amp)'
        echo 'install(FILES main.c DESTINATION share)'
    } > "$out/project/CMakeLists.txt"
    : > "$out/log"
    grep -q FetchContent "$out/project/CMakeLists.txt" && configure -S "$out/project" -B "$out/cmake" &&
        cmake --build "$out/cmake" >> "$out/log" 2>&1 && runs "$out/cmake/trainer" && runs "$out/cmake/long"
    check 'cmake: the FetchContent snippet of examples/README.md builds a program' $?
    cmake --install "$out/cmake" --prefix "$out/host" > "$out/log" 2>&1 &&
        [ "$(find "$out/host" -type f)" = "$out/host/share/main.c" ]
    check 'cmake: cmake --install of that program installs nothing of amp' $?

    finds make -DCMAKE_PREFIX_PATH="$prefix"
    check 'cmake: find_package finds what make install has put there: amp::amp, amp and amp_KERNELS' $?
    : > "$out/log"
    configure -S $packages/cmake -B "$out/alone" && cmake --install "$out/alone" --prefix "$out/by-cmake" >> "$out/log" 2>&1 &&
        finds cmake -DCMAKE_PREFIX_PATH="$out/by-cmake"
    check "cmake: and what CMake's own install has" $?

    # Which versions do: a header of 3.2.1 in front of the version file.
    mkdir -p "$out/3.2.1/share/amp" "$out/3.2.1/include/amp"
    cp $packages/cmake/*.cmake "$out/3.2.1/share/amp/"
    printf '#define AMP_VERSION_%s\n' 'MAJOR 3' 'MINOR 2' 'PATCH 1' > "$out/3.2.1/include/amp/amp.h"
    mkdir -p "$out/versions"
    cat > "$out/versions/CMakeLists.txt" << 'END'
cmake_minimum_required(VERSION 3.18)
project(versions LANGUAGES NONE)
foreach(version "" 3 3.1 3.2.1 3.1...3.2.1 2...<4 4 2 3.3 3.2.2 3.2...<3.2.1 4...5)
    unset(amp_DIR CACHE)
    find_package(amp ${version} QUIET CONFIG)
    message("amp ${version}: ${amp_FOUND}")
endforeach()
find_package(amp 3.2.1 EXACT CONFIG REQUIRED)
END
    : > "$out/log"
    configure -S "$out/versions" -B "$out/versions/b" -DCMAKE_PREFIX_PATH="$out/3.2.1" &&
        [ "$(sed -n 's/^amp.*: //p' "$out/log" | tr '\n' ' ')" = '1 1 1 1 1 1 0 0 0 0 0 0 ' ]
    check 'cmake: 3.2.1 serves who asks for 3, 3.1 or a range that it lies in; not for 2, 4 or a later 3' $?

    # A library that links amp, exported, and a program that finds both.
    project "$out/library" "add_subdirectory(\"$PWD/$packages/cmake\" amp)" 'add_library(layer STATIC layer.c)' \
        'target_include_directories(layer PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)' \
        'target_link_libraries(layer PUBLIC amp::amp)' 'install(FILES layer.h DESTINATION include)' \
        'install(TARGETS layer EXPORT layer ARCHIVE DESTINATION lib)' \
        'install(EXPORT layer DESTINATION share/layer FILE layer-config.cmake)'
    printf '%s\n' '#include <amp.h>' '#include "layer.h"' 'int layer(void) { return AMP_VERSION_MINOR; }' > "$out/library/layer.c"
    echo 'int layer(void);' > "$out/library/layer.h"
    project "$out/user" 'find_package(amp REQUIRED CONFIG)' 'find_package(layer REQUIRED CONFIG)' \
        'add_executable(user main.c)' 'target_link_libraries(user PRIVATE layer)'
    printf '%s\n' '#include <amp.h>' '#include <layer.h>' 'int main(void) { return layer() != AMP_VERSION_MINOR; }' \
        > "$out/user/main.c"
    : > "$out/log"
    configure -S "$out/library" -B "$out/library/b" -DAMP_INSTALL=ON &&
        cmake --build "$out/library/b" >> "$out/log" 2>&1 &&
        cmake --install "$out/library/b" --prefix "$out/exported" >> "$out/log" 2>&1 &&
        configure -S "$out/user" -B "$out/user/b" -DCMAKE_PREFIX_PATH="$out/exported" &&
        cmake --build "$out/user/b" >> "$out/log" 2>&1 && "$out/user/b/user"
    check 'cmake: with AMP_INSTALL a library that links amp::amp is exported, and found with it' $?
else
    skip 'cmake' 'not installed, or this is no clone'
fi

if have meson && have ninja && [ -d "$out/repository" ]; then
    mkdir -p "$out/project/subprojects/packagefiles/amp"
    url < $packages/meson/amp.wrap > "$out/project/subprojects/amp.wrap"
    cp $packages/meson/meson.build "$out/project/subprojects/packagefiles/amp/"
    printf '%s\n' "project('trainer', 'c')" "amp = dependency('amp', version: '$(version)')" \
        "executable('trainer', 'main.c', dependencies: amp)" > "$out/project/meson.build"
    CC="$cc" meson setup --wrap-mode=forcefallback "$out/meson" "$out/project" > "$out/log" 2>&1 &&
        ninja -C "$out/meson" >> "$out/log" 2>&1 && runs "$out/meson/trainer"
    check 'meson: the subproject of packaging/meson has this version, and builds a program' $?
else
    skip 'meson' 'not installed, or this is no clone'
fi
if have conan && have cmake; then
    export CONAN_HOME="$out/conan"
    { conan profile detect && conan create $packages/conan && conan install --requires="amp/$(version)" \
        -g CMakeDeps -g CMakeToolchain -of "$out/generated"; } > "$out/log" 2>&1 &&
        finds conan -DCMAKE_TOOLCHAIN_FILE="$out/generated/conan_toolchain.cmake" -DCMAKE_BUILD_TYPE=Release
    check 'conan: find_package finds the package of packaging/conan: amp::amp, amp and amp_KERNELS' $?
else
    skip 'conan' 'not installed (.ci/run gets it from PyPI)'
fi
# vcpkg itself is not to be had here: CMake runs the port, with the two functions of vcpkg that it calls.
if have cmake && [ -d "$out/repository" ]; then
    cat > "$out/vcpkg.cmake" << 'END'
function(vcpkg_from_git)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_SOURCE_PATH;URL;REF" "")
    execute_process(COMMAND git clone -q ${arg_URL} ${sources} COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND git -C ${sources} checkout -q ${arg_REF} COMMAND_ERROR_IS_FATAL ANY)
    set(${arg_OUT_SOURCE_PATH} ${sources} PARENT_SCOPE)
endfunction()
function(vcpkg_install_copyright)
    file(INSTALL ${ARGV1} DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}" RENAME copyright)
endfunction()
include("${port}/portfile.cmake")
END
    cp -R $packages/vcpkg "$out/port" &&
        url < $packages/vcpkg/portfile.cmake | sed "s/COMMIT_OF_THIS_REPOSITORY/$(git rev-parse HEAD)/" > "$out/port/portfile.cmake"
    cmake -DPORT=amp -Dport="$out/port" -Dsources="$out/sources" -DCURRENT_PACKAGES_DIR="$out/by-port" -P "$out/vcpkg.cmake" \
        > "$out/log" 2>&1 && [ -s "$out/by-port/share/amp/copyright" ] && [ -s "$out/by-port/share/amp/usage" ] &&
        sed -i 's,"\(amp[a-z_]*.h\)",<amp/\1>,' "$out/project/main.c" &&
        finds vcpkg -DCMAKE_PREFIX_PATH="$out/by-port"
    check 'vcpkg: find_package finds what the port installs: amp::amp, amp and amp_KERNELS' $?
fi

# A release: without tests, but all that make install needs, and that README links.
if [ -d "$out/repository" ]; then
    refuses 'make archive: a tag that is not the version is refused' "TAG=v99.0.0, but amp.h is $(version)" \
        env MAKEFLAGS= make --no-print-directory archive BUILD="$out" TAG=v99.0.0
    release=$out/release source=$out/release/amp-$(version)
    makes archive BUILD="$out" TAG="v$(version)" && (cd "$release" && sha256sum -c SHA256SUMS && tar -xzf amp-*.tar.gz) >> "$out/log" 2>&1 &&
        [ "$(wc -l < "$release/SHA256SUMS")" = 3 ] && cmp "$release/amp.h" "$source/amp.h" &&
        (cd "$source" && find tests -type f | sort) > "$out/there" &&
        git ls-files tests/bench/README.md tests/bench/trainers.svg tests/host/tier.awk tests/vectors | sort > "$out/wanted" &&
        cmp "$out/there" "$out/wanted" && makes -C "$source" install PREFIX="$out/released" &&
        cmp "$release/amp.h" "$out/released/include/amp.h" && cmp "$release/amp_kernels.cu" "$out/released/share/amp/amp_kernels.cu"
    check 'make archive: checksums that are right, and an archive without tests that make install takes' $?
    for page in README.md examples/README.md tests/bench/README.md; do
        sed 's/`[^`]*`//g' "$source/$page" | grep -oE '\]\([^):]+\)' | tr -d ']()' | sed 's/#.*//' | while read -r link; do
            [ -e "$source/$(dirname $page)/$link" ] || echo "$page: $link"
        done
    done > "$out/log" 2>&1
    [ -s "$source/README.md" ] && [ ! -s "$out/log" ]
    check 'make archive: each link of its pages leads to a file' $?
else
    skip 'make archive' 'this is no clone'
fi

finish
