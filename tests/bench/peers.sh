# Products of amp.h beside those libraries that are installed: OpenBLAS or another CBLAS (fp32), oneDNN
# (bf16), torch (bf16, fp16). One thread each, in turns in one process; "skip" for a missing one.
# usage: [CC=...] [PYTHON=...] peers.sh DIRECTORY [ROUNDS]    run where amp.h is
dir=$1 rounds=${2:-9}
mkdir -p "$dir"
CC=${CC:-cc} PYTHON=${PYTHON:-python3}
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

blas=
for lib in -lopenblas -lcblas -lblas; do
    if $CC -std=c99 -O2 -I. tests/bench/peers.c -o "$dir/peers" $lib -lm 2> /dev/null; then
        blas=$lib
        break
    fi
done
if [ -n "$blas" ]; then
    echo "BLAS: $blas, OPENBLAS_CORETYPE=SKYLAKEX and HASWELL"
    OPENBLAS_CORETYPE=SKYLAKEX "$dir/peers" avx512 "$rounds"
    OPENBLAS_CORETYPE=HASWELL "$dir/peers" avx2 "$rounds"
else
    echo 'skip BLAS: no <cblas.h> with a library'
fi

if ${CXX:-c++} -std=c++11 -O2 -I. tests/bench/peers_dnnl.cpp -o "$dir/peers_dnnl" -ldnnl \
    2> /dev/null; then
    "$dir/peers_dnnl" "$rounds"
else
    echo 'skip oneDNN: no <dnnl.hpp> with a library'
fi

if "$PYTHON" -c 'import torch' 2> /dev/null; then
    printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$dir/peers_lib.c"
    $CC -std=c99 -O2 -fPIC -shared -I. "$dir/peers_lib.c" -o "$dir/peers_lib.so" -lm &&
        "$PYTHON" tests/bench/peers.py "$dir/peers_lib.so" "$rounds"
else
    echo 'skip torch: not in python3'
fi
