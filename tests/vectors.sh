# The vectors as other projects run them: the C runner with amp.h, the Python one with its scaler and, where torch is,
# PyTorch's. (test_vectors.c runs them in every configuration, and on scalers with faults.)
# usage: [CC=COMPILER] [PYTHON=COMMAND] vectors.sh OUTDIR
suite=vectors out=${1:?usage: vectors.sh OUTDIR}
cc=${CC:-cc} python=${PYTHON:-python3}
. tests/lib.sh

# results: a runner's lines as results
results() {
    "$@" > "$out/lines" 2>&1
    ended=$?
    while read -r word text; do
        case $word in
            ok)   ok "$text" ;;
            FAIL) cp "$out/lines" "$out/log"; fail "$text" ;;
            skip) skip "${text%%: *}" "${text#*: }" ;;
        esac
    done < "$out/lines"
    grep -q '^ok' "$out/lines" && [ $ended = 0 ] || grep -q '^FAIL' "$out/lines" || { cp "$out/lines" "$out/log"; fail "$*"; }
}

if have "$cc"; then
    printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$out/amp.c"
    try "run.c compiles" $cc -std=c99 -O1 -Wall -Wextra -Werror -I. tests/vectors/run.c "$out/amp.c" -o "$out/run" -lm
    results "$out/run" tests/vectors/*.json
else
    skip run.c "$cc not found"
fi
if ! have "$python"; then skip run.py "$python not found"
elif ! "$python" -c 'import numpy' > /dev/null 2>&1; then skip run.py "numpy is not installed"
else PYTHONDONTWRITEBYTECODE=1 results "$python" tests/vectors/run.py
fi
finish
