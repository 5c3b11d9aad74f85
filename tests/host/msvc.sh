# amp.h by Microsoft's compiler, cl: the header, and all unit tests except those of a BLAS and of models in GNU C.
# Nobody has seen its warnings yet: they are shown by number, and are not errors.
# usage: msvc.sh OUTDIR    a relative path; cl is on PATH, sh is Git's (GitHub's Windows machine runs it)
suite=msvc out=${1:?usage: msvc.sh OUTDIR}
. tests/lib.sh
have cl || { skip cl 'not found'; finish; }
PATH=$(dirname "$(command -v cl)"):$PATH # its own link.exe, not Git's link
export MSYS2_ARG_CONV_EXCL='*' AMP_QUICK=1 # options are no paths
here=tests/host/compile

compiles() { # compiles NAME OPTIONS FILE...: without an error; what warnings there are
    name=$1
    shift
    cl -nologo -W4 -I. "-Fo$out/" "-Fe$out/program.exe" "$@" > "$out/log" 2>&1
    check "$name compiles" $?
    sed -n 's/.*: \(warning C[0-9]*\): /     \1 /p' "$out/log" | sort | uniq -c
}
runs() { # runs NAME OPTIONS FILE...: the program does
    rm -f "$out/program.exe"
    compiles "$@"
    try "$1 runs" "$out/program.exe"
}

for standard in '' -std:c11 -std:c17; do
    compiles "declarations, C $standard" -c $standard $here/header_only.c
    runs "C $standard" -O2 $standard $here/use.c
done
for standard in '' -std:c++20; do
    compiles "declarations, C++ $standard" -c -TP $standard $here/header_only.c
    runs "C++ $standard" -O2 $standard $here/cpp.cpp
done
runs 'two units' -O2 $here/a.c $here/b.c
runs AMP_STATIC -O2 -DUSE_IT $here/static.c
runs AMP_NO_STDLIB -O2 $here/no_stdlib.c

unit() { # unit TEST: with the amp.obj that lies there
    rm -f "$out/program.exe"
    compiles "$1" -O1 -D_CRT_SECURE_NO_WARNINGS -D_CRT_NONSTDC_NO_WARNINGS "tests/unit/$1.c" "$out/amp.obj"
    lines "$1" "$out/program.exe"
}
compiles 'amp.h, white' -c -O2 tests/amp.c
for file in tests/unit/test_*.c; do
    case $file in */test_cblas.c | */test_tiles.c) ;; *) unit "$(basename "$file" .c)" ;; esac
done
compiles 'amp.h, white, -fp:fast' -c -O2 -fp:fast tests/amp.c
unit test_bits
finish
