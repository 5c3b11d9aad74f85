# The C tests as Windows programs, compiled with MinGW, run under wine. make check runs this. CI does
# not, because the packages are large (Debian: gcc-mingw-w64-x86-64, wine64; without recommended ones).
# usage: mingw.sh DIR TEST...
dir=$1 compiler=x86_64-w64-mingw32-gcc
shift
mkdir -p "$dir"

for RUNNER in wine64 /usr/lib/wine/wine64 wine; do # wine64 alone is not on Debian's PATH
    command -v "$RUNNER" > /dev/null 2>&1 && break
done
export RUNNER AMP_QUICK=1 WINEDEBUG=-all WINEPREFIX="$(cd "$dir" && pwd)/wine"

"$RUNNER" wineboot --init > /dev/null 2>&1 # a Windows to run in: it says much, once

$compiler -std=c99 -O2 -Wall -Wextra -I. -c tests/amp.c -o "$dir/amp.o" \
    > "$dir/amp.o.log" 2>&1

for test in "$@"; do
    sh tests/one.sh mingw "$test" "$compiler" "-O2 -Wall -Wextra -static" "$dir/$test.exe.log" | tr -d '\r'
done > "$dir/all"
grep -Ev '^[0-9]+ passed, [0-9]+ failed' "$dir/all"
# A test that tells no result has failed.
awk -v tests=$# '/^[0-9]+ passed, [0-9]+ failed/ {n++; p += $1; f += $3; s += $5}
    END {if (n < tests || !tests) {print "FAIL mingw: results of " n + 0 " tests, of " tests " asked for"; f++}
         printf "%d passed, %d failed", p, f; if (s) printf ", %d skipped", s; print ""; exit f != 0}' "$dir/all"
