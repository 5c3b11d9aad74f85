# The vectors as other projects run them: the C runner with amp.h, the Python one with its scaler and, where torch is,
# PyTorch's; the files are as their schemas say; faults that are planted are seen. (test_vectors.c runs the vectors in
# every configuration.)
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
export PYTHONDONTWRITEBYTECODE=1
if have "$python"; then results "$python" tests/vectors/schema.py
else skip schema.py "$python not found"
fi
for script in run faults; do
    if ! have "$python"; then skip $script.py "$python not found"
    elif ! "$python" -c 'import numpy' > /dev/null 2>&1; then skip $script.py "numpy is not installed"
    else results "$python" tests/vectors/$script.py
    fi
done
finish
