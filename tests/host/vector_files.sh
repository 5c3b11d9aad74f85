# The vectors as other projects run them: the C runner with amp.h; state files beside state.py, a reader in Python. The
# files must match their schemas. (test_vectors.c runs the vectors in every configuration.)
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

if have "$cc"; then
    object=${OBJECTS-}/o2/amp.o # as make has compiled it
    [ -s "$object" ] || { object=$out/amp.o; $cc -std=c99 -O1 -I. -c tests/amp.c -o "$object"; }
    try "run.c compiles" $cc -std=c99 -O1 -Wall -Wextra -Werror -I. tests/vectors/run.c "$object" -o "$out/run" -lm
    results "$out/run" tests/vectors/*.json
    try "make_state.c compiles" $cc -std=c99 -O1 -w -I. tests/vectors/make_state.c "$object" -o "$out/make_state" -lm
    mkdir -p "$out/state" && cp tests/vectors/state.json "$out"
    try "state files are made" "$out/make_state" "$out"
    for file in tests/vectors/state/*.state; do
        try "${file##*/}: made again, byte for byte" cmp "$file" "$out/state/${file##*/}"
    done
    try "load_state.c compiles" $cc -std=c99 -O1 -w -I. tests/vectors/load_state.c "$object" -o "$out/load_state" -lm
    rm -rf "$out/refused"
    have "$python" && results "$python" tests/vectors/refusals.py "$out/load_state" "$out/refused"
    try "make_set.c compiles" $cc -std=c99 -O1 -w -I. tests/vectors/make_set.c "$object" -o "$out/make_set" -lm -lpthread
    rm -f "$out"/set*
    try "a set of files is made" "$out/make_set" "$out/set"
    have "$python" && try "state.py reads a set of three ranks as the file of one" "$python" -c '
import sys
sys.path.insert(0, "tests/vectors")
import state
(a, x), (b, y) = state.load(sys.argv[1] + ".one"), state.load(sys.argv[1])
same = [p[k].tobytes() == q[k].tobytes() for p, q in zip(x, y) for k in ("master", "m", "v")]
sys.exit(not (a == b and len(same) == 12 and all(same)))' "$out/set"
else
    skip run.c "$cc not found"
fi
have "$python" && for release in 0.6 0.7; do
    try "state.py reads the files of $release.0 as those of today, a set as the file of one, and masters as that release told them" \
        "$python" -c '
import sys
sys.path.insert(0, "tests/vectors")
import state
path, names = "tests/vectors/state/%s/", "adamw sgd lion 24bit report own".split()
ours, theirs = ([state.load(path % release + name + ".state") for name in names] for release in ("0.7", sys.argv[1]))
set_of = state.load(path % sys.argv[1] + "set")
told = open(path % sys.argv[1] + "values.txt").read().split("adamw, three")[0].split("\nmaster")[1:]
bits = [[int(x, 16) for x in text.split("\n")[0].split()] for text in told]
masters = [[int.from_bytes(x, "little") for x in zip(*[iter(t["master"].tobytes())] * 4)] for t in theirs[0][1]]
sys.exit(not (ours == theirs and set_of == theirs[0] and len(bits) == 3 and masters == bits))' $release
done
if have "$python"; then results "$python" tests/vectors/schema.py
else skip schema.py "$python not found"
fi
finish
