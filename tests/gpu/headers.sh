# Do the CUDA sources compile against NVIDIA's own headers, with nothing of the emulator in front?
# usage: headers.sh [--fetch DIR] OUTDIR, in the root of the repository
#
# CUDA_HEADERS names toolkits, or directories with cuda_runtime.h, with colons between; without it
# the toolkit that nvcc belongs to is taken. --fetch gets the headers of older toolkits from PyPI
# into DIR (300 MB), unless they are there, and takes those too. Types are checked by a C++
# compiler, once with a stream per thread. cuBLAS has no small wheel: where a tree is without it,
# the declarations in tests/gpu/emu/fake stand in. Where a toolkit has ptxas but no nvcc, as those from
# PyPI do, and clang can compile for CUDA, the kernels are also compiled, for the oldest GPU too.

cxx=${CXX:-c++} trees=${CUDA_HEADERS-} fetch=
versions='cu11-11.8.89 cu12-12.0.146 cu12-12.4.127 cu12-12.5.82 cu12-12.6.77'
[ "${1-}" != --fetch ] || { fetch=${2:?usage: headers.sh [--fetch DIR] OUTDIR}; shift 2; }
suite=headers out=${1:?usage: headers.sh [--fetch DIR] OUTDIR}
. tests/lib.sh
mkdir -p "$out/cublas"

# get KIND-VERSION: the wheels of the runtime and of the compiler, laid out like a toolkit
get() {
    kind=${1%%-*} version=${1#*-} tree=$fetch/${1#*-}
    [ ! -f "$tree/include/cuda_runtime.h" ] || return 0
    rm -rf "$tree.part" # the compiler's last number differs from the runtime's
    timeout -k 5 300 python3 -m pip install -q --retries 1 --no-deps --target "$tree.part" \
        "nvidia-cuda-runtime-$kind==$version" "nvidia-cuda-nvcc-$kind==${version%.*}.*" \
        > "$out/log" 2>&1 || return
    mkdir -p "$tree" && cp -R "$tree.part"/nvidia/cuda_nvcc/. "$tree" &&
        cp -R "$tree.part"/nvidia/cuda_runtime/include/. "$tree/include" && rm -rf "$tree.part"
}

if [ -n "$fetch" ]; then
    if ! python3 -m pip --version > /dev/null 2>&1; then skip fetch 'no python3 with pip'
    else
        for version in $versions; do
            if get "$version"; then trees="$trees:$fetch/${version#*-}"
            else skip "${version#*-}" "PyPI does not answer with it"
            fi
        done
    fi
fi
nvcc=$(command -v "${NVCC:-nvcc}") && [ -z "${CUDA_HEADERS-}" ] && trees="$trees:${nvcc%/bin/*}"
have "$cxx" || { skip compiler "$cxx not found"; finish; }
case $trees in *[!:]*) ;; *) skip toolkit 'no CUDA toolkit (nvcc, CUDA_HEADERS)'; finish ;; esac

# types NAME FLAGS TEXT
types() {
    before=$failed
    for source in amp_kernels.cu examples/*.cu examples/*/*.cu tests/*/*.cu tests/unit/test_cuda.cpp; do
        if grep -q '<nccl.h>' "$source" && [ ! -f "$include/nccl.h" ]; then
            skip "$1" "$source: no nccl.h here"
            continue
        fi
        strict="-std=c++14 -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-return-local-addr $2"
        { $cxx $strict -isystem "$include" -isystem "$cublas" -I. -include tests/host/compile/device.h \
            -E -x c++ "$source" -o "$out/source.ii" &&
            awk -f tests/gpu/emu/plain.awk "$out/source.ii" > "$out/source.cpp" &&
            $cxx $strict -fsyntax-only -x c++-cpp-output "$out/source.cpp"; } > "$out/log" 2>&1 ||
            fail "$1: $3: $source"
    done
    [ $failed != $before ] || ok "$1: $3"
}

# kernels NAME: real code, by clang and the toolkit's own ptxas
kernels() {
    flags="-x cuda --cuda-path=$tree -isystem $include -Wno-unknown-cuda-version -std=c++14 -O2"
    flags="$flags --cuda-device-only -include tests/host/compile/clang_cuda.h"
    printf '#include <stdint.h>\n__global__ void f() {}\n' > "$out/works.cu"
    for clang in ${CLANGXX:-clang++-19 clang++}; do
        $clang $flags --cuda-gpu-arch=sm_70 -c "$out/works.cu" -o "$out/works.o" \
            > "$out/log" 2>&1 && break
        clang=
    done
    [ -n "$clang" ] || { skip "$1" 'no clang that compiles for this toolkit'; return; }
    for arch in sm_70 sm_90; do
        text="$clang and this toolkit's ptxas make $arch code of the kernels"
        if $clang $flags --cuda-gpu-arch=$arch -isystem "$cublas" -I. -c amp_kernels.cu \
            -o "$out/kernels.o" > "$out/log" 2>&1; then ok "$1: $text"
        else fail "$1: $text"; fi
    done
}

cp tests/gpu/emu/fake/cublas*.h "$out/cublas"
old_ifs=$IFS
IFS=:
set -- $trees
IFS=$old_ifs
for tree; do
    [ -n "$tree" ] || continue
    include=$tree/include
    [ -f "$include/cuda_runtime.h" ] || include=$tree
    version=$(sed -n 's/^#define CUDART_VERSION *\([0-9]*\).*/\1/p' \
        "$include/cuda_runtime_api.h" 2> /dev/null)
    [ -n "$version" ] || { skip "$tree" 'no cuda_runtime_api.h'; continue; }
    version=$((version / 1000)).$((version % 1000 / 10))
    cublas=$out/cublas
    [ ! -f "$include/cublasLt.h" ] || cublas=$include
    types $version '' "kernels, examples, bench and suite have the right types for CUDA $version"
    types $version -DCUDA_API_PER_THREAD_DEFAULT_STREAM "and with a default stream per thread"
    if [ -x "$tree/bin/ptxas" ] && [ ! -x "$tree/bin/nvcc" ]; then kernels $version; fi
done
finish
