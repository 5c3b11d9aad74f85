# The vectors as other projects run them: the C runner with amp.h. The files must match their schemas. State files: amp.h
# writes those of tests/vectors/state in either order of bytes, state.py refuses what amp.h refuses, and state-file.md has
# their bytes. (test_vectors.c runs the vectors, and reads and writes these files, in every configuration.)
# usage: [CC=COMPILER] [PYTHON=COMMAND] [OBJECTS=DIR] vector_files.sh OUTDIR
suite=vector_files out=${1:?usage: vector_files.sh OUTDIR}
cc=${CC:-cc} python=${PYTHON:-python3}
. tests/lib.sh
export PYTHONDONTWRITEBYTECODE=1

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

# writes NAME COMPILER...: golden.c writes the files of tests/vectors/state, byte for byte, and reads them
writes() {
    name=$1
    shift
    rm -rf "$out/golden" "$out/state"
    mkdir "$out/state"
    try "$name: golden.c compiles" "$@" -I. tests/vectors/golden.c -o "$out/golden" -lm
    run=
    [ "$name" != s390x ] || run=qemu-s390x
    try "$name: state files are written, and read as they are" $run "$out/golden" "$out/state"
    for file in tests/vectors/state/*.state; do
        try "$name: ${file##*/} has the bytes of tests/vectors/state" cmp "$file" "$out/state/${file##*/}"
    done
}

if have "$cc"; then
    object=${OBJECTS-}/o2/amp.o # as make has compiled it
    [ -s "$object" ] || { object=$out/amp.o; $cc -std=c99 -O1 -I. -c tests/amp.c -o "$object"; }
    try "run.c compiles" $cc -std=c99 -O1 -Wall -Wextra -Werror -I. tests/vectors/run.c "$object" -o "$out/run" -lm
    results "$out/run" tests/vectors/*.json
    writes "$cc" $cc -std=c99 -O1 -Wall -Wextra -Werror "$object"
    rm -rf "$out/refused"
    have "$python" && results "$python" tests/vectors/refusals.py "$out/golden" "$out/refused"
else
    skip run.c "$cc not found"
fi
if ! have s390x-linux-gnu-gcc || ! have qemu-s390x; then skip s390x 's390x-linux-gnu-gcc or qemu-s390x not found'
else writes s390x s390x-linux-gnu-gcc -static -std=c99 -O1 tests/amp.c
fi
for script in schema golden; do
    if have "$python"; then results "$python" tests/vectors/$script.py
    else skip $script.py "$python not found"
    fi
done
finish
