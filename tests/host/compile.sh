# Does amp.h compile everywhere, without a warning, and is what it defines only its own?
# usage: compile.sh OUTDIR PART    run where amp.h is; CC, CXX, CLANG, CLANGXX may be set. PART is c or
# cxx, CC or CXX in every standard, or uses: other compilers, options, what objects hold.
# Except in make check, each build is as cheap as its purpose allows: warnings in every standard need no
# code. The seven configurations of the tests show the warnings of optimizers.
suite=compile out=${1:?usage: compile.sh OUTDIR PART}
part=${2:?usage: compile.sh OUTDIR PART}
. tests/lib.sh
here=tests/host/compile
CC=${CC:-cc} CXX=${CXX:-c++} CLANG=${CLANG:-clang} CLANGXX=${CLANGXX:-clang++}
if quick; then each=-fsyntax-only level='-O0 -DAMP_DEBUG'
else each="-O2 -c -o $out/use.o" level=-O2; fi

WARN='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wcast-align
      -Wundef -Wpointer-arith -Wwrite-strings -Wdouble-promotion -Wformat=2 -Wvla -Werror'
WARN_C='-Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition'

silent() { # silent NAME COMMAND...: the command must succeed and, where it compiles, print nothing
    name=$1
    shift
    "$@" > "$out/log" 2>&1 && [ ! -s "$out/log" ]
    check "$name" $?
}
is_gcc() { "$1" --version 2> /dev/null | grep -qi 'gcc\|free software foundation'; }
accepts() { # accepts COMPILER-WITH-FLAGS SUFFIX: can it compile an empty program so?
    echo 'int main(void) { return 0; }' > "$out/empty.$2"
    $1 -c "$out/empty.$2" -o "$out/empty.o" > /dev/null 2>&1
}

# The implementation, in every standard, with all warnings as errors.
each_standard() { # each_standard COMPILER SUFFIX EXTRA-FLAGS STANDARD...
    compiler=$1 suffix=$2 extra=$3
    shift 3
    if ! have "$compiler"; then skip "$compiler" 'not found'; return; fi
    file=$here/use.c language=c
    [ "$suffix" = cpp ] && file=$here/cpp.cpp language=c++
    label=$(basename "${compiler%% *}")
    for std; do
        if ! accepts "$compiler -std=$std" "$suffix"; then
            skip "$label-$std" 'this compiler does not know the standard'
            continue
        fi
        silent "$label $std, all warnings" \
            $compiler -std="$std" $each $WARN $extra -I. "$file"
        silent "$label $std, declarations alone" \
            $compiler -std="$std" $WARN $extra -I. -x "$language" -c $here/header_only.c \
            -o "$out/header.o"
        latest=$std
    done
    for o in -O0 -O3 -Ofast; do
        if quick && [ $o != -O0 ]; then continue; fi
        silent "$label $latest $o, all warnings" \
            $compiler -std="$latest" $o $WARN $extra -I. "$file" -o "$out/use" -lm
        silent "$label $latest $o, runs" "$out/use"
    done
}

COMPAT=
if is_gcc "$CC"; then COMPAT=-Wc++-compat; fi
case $part in
c)   each_standard "$CC"  c   "$WARN_C $COMPAT" c99 c11 c17; finish ;;
cxx) each_standard "$CXX" cpp ''                c++11 c++14 c++17 c++20; finish ;;
esac
each_standard "$CLANG"   c   "$WARN_C"         c99 c11 c17
each_standard "$CLANGXX" cpp ''                c++11 c++14 c++17 c++20

for older in _POSIX_C_SOURCE=199309L _POSIX_SOURCE _XOPEN_SOURCE=500; do # as a program for clock_gettime has it
    have "$CLANG" && silent "$CLANG: -D$older" $CLANG $WARN -D$older -I. -fsyntax-only $here/use.c
done
if have tcc; then
    silent 'tcc, all warnings' tcc -Wall -Werror -I. $here/use.c -o "$out/use" -lm
    silent 'tcc, runs' "$out/use"
else
    skip tcc 'not found'
fi
echo 'int main(void) { return 0; }' > "$out/x87.c"
x87="-m32 -mfpmath=387 -idirafter /usr/include/$($CC -print-multiarch 2> /dev/null)"
if $CC $x87 "$out/x87.c" -o "$out/x87" 2> /dev/null; then # a square root without libm
    silent 'x87, all warnings, without -lm' \
        $CC $x87 -std=c99 $level $WARN $WARN_C -I. $here/a.c $here/b.c -o "$out/x87"
    silent 'x87, runs' "$out/x87"
else
    skip x87 "$CC cannot compile for 32-bit x86 (libc6-dev-i386, lib32gcc)"
fi
# Options under which an operation would round more than once, or in another type.
refused() { ! "$@" -I. -DAMP_DEBUG -fsyntax-only $here/a.c > "$out/errors" 2>&1 && grep -q 'error.*\(single_precision\|mfpmath\)' "$out/errors"; }
echo 'char has_effect[sizeof(1.0) == 4 || __FLT_EVAL_METHOD__ != 0 ? 1 : -1];' > "$out/effect.c"
for build in "$CC -fsingle-precision-constant" "$CC -mfpmath=387" "$CC -mfpmath=both" 'clang-19 -ffp-eval-method=double'; do
    if have "$build" && $build -fsyntax-only "$out/effect.c" 2> /dev/null; then try "$build is refused" refused $build
    else skip "$build" 'not found, or it changes nothing'; fi
done
for cross in x86_64-w64-mingw32-gcc aarch64-linux-gnu-gcc; do
    if have $cross; then
        silent "$cross, all warnings" \
            $cross -std=c99 $level $WARN -I. -c $here/use.c -o "$out/cross.o"
    else
        skip $cross 'not found'
    fi
done

# Ways to use it.
printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$out/only.c"
C="$CC -std=c99 $level $WARN $WARN_C -I."
silent 'two units; the header twice in one' $C $here/a.c $here/b.c -o "$out/two" -lm
silent 'two units, runs' "$out/two"
for compiler in "$CC" "$CLANG"; do
    if ! have "$compiler"; then skip "static $compiler" 'not found'; continue; fi
    S="$compiler -std=c99 $level $WARN $WARN_C -I. $here/static.c"
    silent "AMP_STATIC, nothing used, $compiler" $S -o "$out/static" -lm
    silent "AMP_STATIC, one function used, $compiler" $S -DUSE_IT -o "$out/static" -lm
    silent "AMP_STATIC, runs, $compiler" "$out/static"
done
# A C++ trainer. a.c and b.c are its units; both have amp.h whole with AMP_STATIC, as a project of headers has
# it; or b.c is a shared library that hides its names: its own amp.h, or with AMP_DEF the program's, too.
modern='-std=c++20 -fno-exceptions -fno-rtti'
visible='__attribute__((visibility("default")))'
exports() { # exports FILE LEAST: the three functions of b.c, so many of amp.h or, for 0, none, no other
    nm -D --defined-only "$1" | awk -v least="$2" 'NF == 3 && $2 == "T" {
            if ($3 ~ /^_?amp_/) amp++; else if ($3 ~ /_b/) own++; else other++ }
        END { exit !(own == 3 && !other && (least ? amp >= least : !amp)) }'
}
for compiler in "$CXX" "$CLANGXX"; do
    if ! accepts "$compiler $modern" cpp; then skip "$compiler $modern" 'not known here'; continue; fi
    X="$compiler $modern $level $WARN -I. -x c++" all=-DAMP_IMPLEMENTATION=
    silent "$compiler $modern: two units" $X $here/a.c $here/b.c -o "$out/two" -lm
    silent "$compiler $modern: two units, runs" "$out/two"
    silent "$compiler: AMP_STATIC in both" $X $all -DAMP_STATIC -DOWN=1 $here/a.c $here/b.c -o "$out/two" -lm
    silent "$compiler: AMP_STATIC in both, runs" "$out/two"
    for exported in 0 70; do
        define="-DAMP_DEF=extern" where=-DOWN=1
        [ $exported = 0 ] || define="-DAMP_DEF=$visible" where=-DELSEWHERE
        rm -f "$out/libb.so" "$out/two"
        silent "$compiler: a shared library, $exported of amp.h to be seen" $X -fPIC -shared -fvisibility=hidden \
            $all "$define" -DEXPORTED="$visible" $here/b.c -o "$out/libb.so" -lm
        silent "$compiler: a shared library, $exported of amp.h are seen" exports "$out/libb.so" $exported
        silent "$compiler: its program, $where" $X $where $here/a.c -x none "$out/libb.so" -o "$out/two" -lm
        silent "$compiler: its program, $where, runs" "$out/two"
    done
done
silent 'AMP_NO_AUTOCAST' $C -DAMP_NO_AUTOCAST $here/a.c $here/b.c -o "$out/no_autocast" -lm
silent 'AMP_NO_AUTOCAST, runs' "$out/no_autocast"
sizes() { # FILE: of what users hold, printed by a program that includes it
    printf '%s\n' '#define AMP_IMPLEMENTATION' "#include \"$1\"" '#include <stdio.h>' \
        'int main(void) { printf("%d %d %d\n", (int)sizeof(amp_autocast),' \
        '(int)sizeof(amp_session), (int)AMP_NUM_OPS); return 0; }' \
        > "$out/sizes.c"
    $CC -std=c99 -I. -w "$out/sizes.c" -o "$out/sizes" && "$out/sizes"
}
new_op() { # a row more in the list: no size changes
    sed 's/^    X(GEMM,/    X(NEW_OP, LLLLL) &/' amp.h > "$out/amp_more.h"
    one=$(sizes amp.h) two=$(sizes "$(cd "$out" && pwd)/amp_more.h")
    [ "${one% *}" = "${two% *}" ] && [ $((${one##* } + 1)) = "${two##* }" ] ||
        { echo "$one, then $two"; return 1; }
}
silent 'a new op changes no sizeof' new_op
if have "$CXX"; then # no tiles, as on other systems and processors
    silent "$CXX without Linux" $CXX -std=c++11 -U__linux__ $WARN -I. -fsyntax-only $here/cpp.cpp
else
    skip 'C++ without Linux' "$CXX not found"
fi
# amp.h reads itself, by its name: whatever the way to it, the code is the same, vectors and all, or
# an #error names the macros that help.
ways=$(cd "$out" && pwd)/ways
rm -rf "$ways"
mkdir -p "$ways/decoy" "$ways/other" "$ways/real"
cp amp.h "$ways/renamed.h"
cp amp.h "$ways/real"
sed 's/^#define AMP_VERSION_PATCH .*/#define AMP_VERSION_PATCH 99/' amp.h > "$ways/other/amp.h"
echo '#define DECOY' > "$ways/decoy/amp.h"
printf '#define AMP_IMPLEMENTATION\n#include "renamed.h"\n' > "$ways/renamed.c"
printf '#define AMP_IMPLEMENTATION\n#include "real/amp.h"\n' > "$ways/real.c"
# from the system's directories, where compilers do not warn of macros that change
printf '#define AMP_IMPLEMENTATION\n#include <renamed.h>\n' > "$ways/system.c"
printf '#include <other/amp.h>\n#define AMP_IMPLEMENTATION\n#include <real/amp.h>\n' > "$ways/mixed.c"
{ echo '#define AMP_IMPLEMENTATION' && cat amp.h; } > "$ways/pasted.c"
code_of() { "$@" -std=c99 -E -P 2>&1 | grep . > "$out/code"; } # COMPILER FLAGS... FILE
same_code() { code_of "$@" && cmp "$out/code" "$out/usual"; }
plain_code() { code_of "$@" && grep -q ampi_fold "$out/code" && ! grep -q ampi_fold_ "$out/code"; }
says_how() { # COMPILER FLAGS... FILE: it does not compile, and both macros are named
    ! "$@" -std=c99 -fsyntax-only > "$out/errors" 2>&1 &&
        grep -q 'error.*AMP_FILE.*AMP_NO_VECTORS' "$out/errors"
}
for compiler in "$CC" "$CLANG"; do
    if ! have "$compiler"; then skip "amp.h by other ways, $compiler" 'not found'; continue; fi
    code_of $compiler -I. "$out/only.c" && mv "$out/code" "$out/usual"
    case $($compiler -dumpmachine) in
    x86_64* | aarch64*)
        silent "$compiler: a renamed header says what to define" says_how $compiler "$ways/renamed.c"
        silent "$compiler: so does one that finds another file of its name" \
            says_how $compiler -I"$ways/decoy" "$ways/renamed.c"
        silent "$compiler: so does its text pasted into a file" says_how $compiler "$ways/pasted.c"
        silent "$compiler: another version is not taken for this one" \
            says_how $compiler -isystem "$ways" -isystem "$ways/other" "$ways/system.c"
        silent "$compiler: nor implemented under another's declarations" \
            says_how $compiler -isystem "$ways" -isystem "$ways/other" "$ways/mixed.c" ;;
    *) skip "$compiler: a renamed header" 'no vectors here' ;;
    esac
    silent "$compiler: renamed, with AMP_FILE" \
        same_code $compiler '-DAMP_FILE="renamed.h"' "$ways/renamed.c"
    silent "$compiler: renamed, with AMP_NO_VECTORS" \
        plain_code $compiler -DAMP_NO_VECTORS "$ways/renamed.c"
    silent "$compiler: pasted, with AMP_NO_VECTORS" \
        plain_code $compiler -DAMP_NO_VECTORS "$ways/pasted.c"
    silent "$compiler: pasted, where amp.h is" same_code $compiler -I. "$ways/pasted.c"
    silent "$compiler: -include amp.h" \
        same_code $compiler -DAMP_IMPLEMENTATION -include ./amp.h -x c /dev/null
    silent "$compiler: another amp.h first in the path" \
        same_code $compiler -I"$ways/decoy" "$ways/real.c"
done
says_c99() { # COMPILER FLAGS...: it does not compile, and that is all it says
    ! "$@" -Wall -I. -fsyntax-only "$out/only.c" > "$out/errors" 2>&1 &&
        [ "$(grep -cE '(error|warning):' "$out/errors")" = 1 ] && grep -q 'error:.*-std=c99' "$out/errors"
}
for compiler in "$CC" "$CLANG"; do
    if ! have "$compiler"; then skip "C89, $compiler" 'not found'; continue; fi
    for std in -std=c89 -ansi -std=iso9899:199409; do
        silent "$compiler $std: one error, that amp.h is C99" says_c99 $compiler $std
    done
    silent "$compiler -std=gnu89, which has what it needs" \
        $compiler -std=gnu89 -Wall $level -I. $here/use.c -o "$out/use" -lm
    silent "$compiler -std=gnu89, runs" "$out/use"
done
silent 'AMP_NO_VECTORS' $C -DAMP_NO_VECTORS $here/use.c -o "$out/use" -lm
silent 'AMP_NO_VECTORS, runs' "$out/use"

silent 'AMP_NO_STDLIB' $C $here/no_stdlib.c -o "$out/no_stdlib" -lm
silent 'AMP_NO_STDLIB, runs' "$out/no_stdlib"
printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\nint main(void) { return 0; }\n' > "$out/bare.c"
balanced() { # COMPILER FLAGS...: or what follows amp.h is compiled as that is
    "$@" -E -I. "$out/bare.c" > "$out/code" && pushed=$(grep -c '#pragma.*push' "$out/code") &&
        [ "$pushed" = "$(grep -c '#pragma.*pop' "$out/code")" ]
}
for less in AMP_NO_AUTOCAST AMP_NO_STDLIB 'AMP_NO_AUTOCAST -DAMP_NO_STDLIB'; do
    silent "$less" $C -D$less "$out/bare.c" -o "$out/bare" -lm
    silent "$less -DAMP_STATIC" $C -D$less -DAMP_STATIC "$out/bare.c" -o "$out/bare" -lm
    silent "$less: every option of the compiler that is set is taken back" balanced $CC -O2 -D$less
done
# Law 21, nothing by position: neighbours in the scaler, the control block and the report swap
# their names in a copy of amp.h, and members.c does not compile, or what it finds there is not what it gave.
members() { # members INCLUDES
    $CC -std=c99 -O0 $WARN -I"$1" $here/members.c -o "$out/members" && "$out/members"
}
swapped() { # swapped STRUCT LETTER: the pairs that went unseen; but in make check, of every third pair
    before='' pair=0
    for name in $(sed -n "s/^ *is(\((double)\)*$2\.\([a-z0-9_]*\).*/\2/p" $here/members.c); do
        pair=$((pair + 1))
        if [ -n "$before" ] && { ! quick || [ $((pair % 3)) = 0 ]; }; then
            sed "/^typedef struct $1 {/,/} $1;/{
                 s/\([^a-z_0-9]\)$before\([^a-z_0-9]\)/\1@\2/g
                 s/\([^a-z_0-9]\)$name\([^a-z_0-9]\)/\1$before\2/g
                 s/@/$name/g
                 }" amp.h > "$out/swap/amp.h"
            pairs=$((pairs + 1))
            ! cmp -s amp.h "$out/swap/amp.h" || echo "$1: $before and $name are not there"
            ! members "$out/swap" > "$out/swap/log" 2>&1 || echo "$1: $before and $name"
        fi
        before=$name
    done
}
unseen() {
    mkdir -p "$out/swap"
    for of in ampi_rates:r ampi_control:c amp_report:q; do
        swapped ${of%:*} ${of#*:}
    done
}
try 'law 21: members of control block and report by place, and by name' members .
pairs=0
unseen > "$out/log"
[ ! -s "$out/log" ] && [ $pairs -ge 18 ]
check 'law 21: two members that swap their places are seen' $?

blas=
printf '%s\n' '#include <cblas.h>' 'int main(void) { float x = 1;' \
    'return (int)cblas_isamax(1, &x, 1); }' > "$out/cblas.c"
for lib in -lopenblas -lcblas -lblas; do
    if $CC "$out/cblas.c" -o "$out/cblas" $lib > /dev/null 2>&1; then blas=$lib; break; fi
done
if [ -n "$blas" ]; then
    silent "AMP_CBLAS with $blas" $C $here/cblas.c -o "$out/cblas" $blas -lm
    silent 'AMP_CBLAS, runs' "$out/cblas"
else
    skip AMP_CBLAS 'no <cblas.h> with a library'
fi

# What the object files hold. One that does not compile is not there, and what is asked of it fails.
object() { # object COMPILER-WITH-FLAGS SOURCE NAME
    rm -f "$out/$3"
    $1 -I. -c "$2" -o "$out/$3" > "$out/log" 2>&1
}
only_amp_names() { # FILE: every global it defines begins with amp_ (clang's reductions have a lock)
    nm -g --defined-only "$1" | awk 'NF == 3 && $3 !~ /^_?amp_/ &&
        $3 != ".gomp_critical_user_.reduction.var" {print; bad = 1} END {exit bad || NR < 70}'
}
no_writable_data() { # FILE: tables of addresses are read-only once loaded; law 9 allows these three
    nm -f sysv "$1" | awk -F '|' '{ gsub(/ /, "", $1); gsub(/ /, "", $7) }
        $7 ~ /^([*]COM[*]|[.](data|bss|tdata|tbss))/ && $7 !~ /^[.]data[.]rel[.]ro/ &&
            $1 !~ /^ampi_(tier_chosen|current|last_error)([.][0-9])?$/ {print $1, $7; bad = 1} END {exit bad || NR < 80}'
}
# symbols FLAGS FILE: in OUT/symbols; an object that is missing, or none, is no reason to be content
symbols() { nm $1 "$2" > "$out/symbols" && grep -q ' _*amp_' "$out/symbols"; }
first_floor_only() {
    symbols '' "$1" && ! grep -iE 'autocast|cache|session|amp_op_|ampi_ops' "$out/symbols"
}
no_allocation() { # FILE: it does not even ask for the names
    symbols '' "$1" && ! grep -wE 'U _?(malloc|calloc|realloc|free)' "$out/symbols"
}
is_inlined() { # FLAGS: gcc without -O leaves no call in loops of vectors, nor of casts, but for a debugger
    object "$CC -std=c99 $1" "$out/only.c" told.o &&
        symbols '' "$out/told.o" &&
        ! grep -E ' ampi_(fma|add|mul|get|put|load|f16_from_f32)(_avx2|_avx512|_neon)?$' "$out/symbols"
}
for_debuggers() { ! is_inlined "-O0 -DAMP_DEBUG" > /dev/null && symbols '' "$out/told.o"; }
defines_nothing() { # FILE: not one symbol; of a file without one nm says no more than its name
    nm --defined-only "$1" > "$out/symbols" 2> /dev/null && ! awk '$2 !~ /^[aN]$/' "$out/symbols" | grep .
}
static_is_hidden() { # FILE: main is all
    nm -g --defined-only "$1" > "$out/symbols" &&
        awk '$3 != "main" && $3 != "_main" {print; bad = 1} END {exit bad || NR != 1}' "$out/symbols"
}
if have nm; then
    for compiler in "$CC" "$CLANG"; do
        have "$compiler" || continue
        object "$compiler -std=c99 $level" "$out/only.c" only.o
        silent "nm: only amp_ names are global, $compiler" only_amp_names "$out/only.o"
        silent "nm: no writable data, $compiler" no_writable_data "$out/only.o"
    done
    for compiler in "$CC" "$CLANG"; do
        object "$compiler -std=c99 $level -fopenmp" "$out/only.c" only.o || { skip "nm: -fopenmp, $compiler" 'no OpenMP'; continue; }
        silent "nm: only amp_ names are global with -fopenmp, $compiler" only_amp_names "$out/only.o"
    done
    object "$CC -std=c99 -DAMP_DEBUG -DAMP_NO_AUTOCAST" "$out/only.c" only.o
    silent 'nm: AMP_NO_AUTOCAST has nothing of the second floor' first_floor_only "$out/only.o"
    object "$CC -std=c99 -DAMP_DEBUG -DAMP_NO_STDLIB" "$out/only.c" only.o
    silent 'nm: AMP_NO_STDLIB needs neither malloc nor free' no_allocation "$out/only.o"
    if is_gcc "$CC"; then
        silent 'manual: gcc optimizes amp.h without -O' is_inlined -O0
        silent 'manual: AMP_DEBUG leaves it to a debugger' for_debuggers
        ! works "$CXX" -fsanitize=enum ||
            silent 'no warning where gcc checks enums, as -fsanitize=undefined does' $CXX -x c++ -O0 \
                -fsanitize=enum -DAMP_NO_VECTORS -Wall -Wextra -Werror -I. -c "$out/only.c" -o "$out/told.o"
    fi
    object "$CC -std=c99" $here/header_only.c header.o
    silent 'nm: the declarations define nothing' defines_nothing "$out/header.o"
    object "$CC -std=c99" $here/static.c static.o
    silent 'nm: AMP_STATIC exports nothing' static_is_hidden "$out/static.o"
else
    skip nm 'not found'
fi

# The text of amp.h.
narrow_lines() { awk 'length > 100 {print FNR ": " length; bad = 1} END {exit bad}' "$1"; }
bare() { # FILE: its lines without comments, which may speak of anything
    awk '
        { line = $0; code = ""
          for (;;) {
              if (comment && !(i = index(line, "*/"))) break
              if (comment) { line = substr(line, i + 2); comment = 0 }
              if (!(i = index(line, "/*"))) { code = code line; break }
              code = code substr(line, 1, i - 1)
              line = substr(line, i + 2)
              comment = 1
          }
          print code }' "$1"
}
no_float_tests() { # law 1: neither isfinite and its kin, nor a comparison of a name with itself
    bare "$1" | awk '
        { code = $0 }
        code ~ /(^|[^A-Za-z0-9_])(__builtin_)?is(nan|inf|finite|normal|unordered)[fl]?[ \t]*\(/ ||
        code ~ /(^|[^A-Za-z0-9_])fpclassify[ \t]*\(/ { print FNR ": " $0; bad = 1 }
        { n = split(code, part, /[!=]=/)
          for (k = 1; k < n; k++) {
              left = part[k]; right = part[k + 1]
              gsub(/[ \t]+$/, "", left); gsub(/^[ \t]+/, "", right)
              if (!match(left, /[A-Za-z_*][A-Za-z0-9_>.\[\]-]*$/)) continue
              left = substr(left, RSTART)
              after = substr(right, length(left) + 1, 1)
              if (index(right, left) == 1 && after !~ /[A-Za-z0-9_.\[(-]/) {
                  print FNR ": " $0; bad = 1
              }
          } }
        END { exit bad }'
}
# In the implementation no function above the second floor names one that stands there, but those of rows and report
# that one block declares. (Tiers stand last, behind a table of their own.)
line_of() { grep -nE -e "$1" amp.h | head -n 1 | cut -d : -f 1; } # PATTERN
first_floor_alone() {
    begin=$(line_of '>>impl [*]/') floor=$(line_of '- the second floor') end=$(line_of '>>impl tiers')
    ctags -x --language-force=C --c-kinds=f amp.h |
        awk -v from="$floor" -v to="$end" '$3 > from && $3 < to {print $1}' | sort > "$out/all"
    sed -n '/^\/\* What rows and report add/,/^$/s/^static [^(]*[ *]\(ampi_[a-z_]*\)(.*/\1/p' amp.h | sort > "$out/optional"
    comm -23 "$out/all" "$out/optional" > "$out/upstairs"
    [ "$begin" -lt "$floor" ] && [ "$floor" -lt "$end" ] && [ "$(grep -c . "$out/upstairs")" -gt 50 ] &&
        [ "$(grep -c . "$out/optional")" -gt 10 ] && ! comm -13 "$out/all" "$out/optional" | grep . &&
        bare amp.h | awk -v from="$begin" -v to="$floor" '
            NR == FNR { upstairs[$1]; next }
            FNR > from && FNR < to {
                gsub(/"([^"\\]|\\.)*"/, "")
                n = split($0, word, /[^A-Za-z0-9_]+/)
                for (k = 1; k <= n; k++)
                    if (word[k] in upstairs) { print FNR ": " word[k]; bad = 1 }
            }
            END { exit bad }' "$out/upstairs" -
}
plain_text() { # ASCII, no tabs, no trailing blanks
    ! LC_ALL=C grep -n '[^ -~]\|[ ]$' "$1"
}
says_nothing() { # law 9: no printing, no exit; errno is at most given back
    bare "$1" > "$out/code" # the manual has a program that prints
    ! grep -nE '(^|[^A-Za-z0-9_"])(printf|fprintf|puts|perror|abort|exit|assert) ?[(]' "$out/code" &&
        ! grep -nE '(^|[^A-Za-z0-9_"])errno *=[^=]' "$out/code" | grep -vE 'errno += ((to->)?error|ELOOP|EEXIST);'
}
asks_no_locale() { # law 9: what a user writes means the same in every locale
    ! grep -nE '(^|[^A-Za-z0-9_"])(strtod|strtof|atof|scanf|sscanf|snprintf|sprintf|isspace|tolower)' \
        "$1"
}
definitions() { # functions, those of a tier by their first name, structs, macros, enumerators
    sed -E 's/AMPI_\(([a-z0-9_]+)\)/ampi_\1/g' "$1" | awk '
        function names(line, form) {
            for (; match(line, form); line = substr(line, RSTART + RLENGTH - 1)) {
                name = substr(line, RSTART, RLENGTH)
                gsub(/[^A-Za-z0-9_]/, "", name)
                print name
            }
        }
        /^#define/ {sub(/\(.*/, "", $2); print $2}
        /^[a-z].*struct ampi_[a-z0-9_]* [{]|^struct ampi_[a-z0-9_]* [{]/ {sub(/.*struct /, ""); print $1}
        /^[A-Za-z].*[^;]$/ {names($0, "ampi_[a-z0-9_]+[(]")}
        /^(typedef )?enum.*[{]/ {names($0, "[{,] AMPI_[A-Z0-9_]+")}
        /^    AMPI_[A-Z0-9_]+ *(=|,|$)/ {names($1, "AMPI_[A-Z0-9_]+")}' | sort -u
}
one_meaning() {
    definitions amp.h > "$out/names.h"
    definitions amp_kernels.cu > "$out/names.cu"
    [ $(wc -l < "$out/names.h") -gt 700 ] && [ $(wc -l < "$out/names.cu") -gt 150 ] &&
        ! comm -12 "$out/names.h" "$out/names.cu" | grep .
}
case $($CC -dumpmachine) in x86_64*) tier=avx2 ;; aarch64*) tier=neon ;; *) tier=x4 ;; esac
make_tier() { MAKEFLAGS= make --no-print-directory tier TIER=$1 CC="$CC" > "$out/tier"; }
tier_text() { # its kernel, as ctags and debuggers name it, and nothing of a tier that is not there
    make_tier $tier && grep -q "ampi_kernel_$tier(ampi_block" "$out/tier" &&
        ! make_tier none 2> "$out/none" && grep -q 'ends with _none' "$out/none"
}
if have make; then silent 'make tier prints the functions of one instruction set' tier_text; else
    skip 'make tier' 'make not found'
fi
tells_all() { # law 19: no error is made without a text, but in what its caller tells; every function's are tested
    sed -nE 's/^AMP_DEF amp_result +(amp_[a-z_]+)[(].*/\1/p' amp.h | sort -u > "$out/fallible"
    while read -r name; do
        grep -q "SAYS($name(" tests/unit/test_errors.c || echo "$name: not in test_errors.c"
    done < "$out/fallible"
    awk '/^[A-Za-z].*[a-z_]+[(]/ {at = $0} /return AMP_ERROR_|= AMP_ERROR_[A-Z_]+;/ &&
        at !~ /ampi_(ready|block_alloc|follow|replace_file|cache_(get|place))[(]/ {print FILENAME ":" FNR ": " $0}' amp.h
    [ $(wc -l < "$out/fallible") -gt 45 ] # of a text that is empty there are none
}
silent 'amp_kernels.cu: no private name of amp.h is another thing here' one_meaning
silent 'amp.h: law 19: each error of each function has a text' tells_all
silent 'amp.h: lines of at most 100 columns' narrow_lines amp.h
silent 'amp.h: law 1: no isnan, isinf, isfinite, x != x' no_float_tests amp.h
silent 'amp.h: ASCII, no tabs, no trailing blanks' plain_text amp.h
silent 'amp.h: law 9: no printing, no exit, errno as the call left it' says_nothing amp.h
silent 'amp.h: nothing that depends on the locale' asks_no_locale amp.h
contents() { # the rooms that CONTENTS names are those there are, in their order
    sed -n '/^       >>api  /,/^       >>core  /p' amp.h |
        sed '/>>core/d; s/>>api//; s/optional//' | tr -cs a-z '\n' | grep . > "$out/listed"
    sed -n 's/^.*-- >>api \([a-z]*\).*/\1/p' amp.h | diff "$out/listed" -
}
fifteen_minutes() {
    begin=$(line_of '^#define AMP_VERSION_MAJOR') end=$(line_of 'Stop here, unless')
    [ -n "$begin" ] && [ -n "$end" ] && [ $((end - begin)) -le 400 ]
}
# A function that no program needs should not be there: tests do not count, but for recipes. A drop-in is called by the name
# that it replaces.
in_use() {
    sed '/AMP_H_INCLUDED:/q' amp.h | sed -nE 's/^(AMP_DEF|extern) [^(]*[ *](amp_[a-z0-9_]+)[(].*/\2/p' | sort -u > "$out/public"
    for file in $(find examples -name '*.[ch]' -o -name '*.cu*') tests/unit/test_recipes.c tests/host/cblas_trainer.c; do
        case $file in
        *.h | *.cuh | tests/*) ;;
        *) name=${file##*/}
            cat Makefile $(ls tests/*/*.sh | grep -v '/gpu[_.]') | grep -qw "${name%.*}" || echo "$file: no test runs it" >&2 ;;
        esac
        bare "$file" | case $(grep -o 'AMP_[CUBLAS]*_DROP_IN' "$file") in
        '') cat ;;
        *) sed 's/cublasSgemm(/amp_sgemm(/g; s/cublasSgemmStridedBatched(/amp_sgemm_strided_batched(/g; s/cblas_sgemm(/amp_&/g' ;;
        esac
    done 2> "$out/unrun" | grep -oE 'amp_[a-z0-9_]+ *[(]' | tr -d ' (' | sort -u > "$out/called"
    [ $(wc -l < "$out/public") -ge 80 ] && [ $(wc -l < "$out/public") -le 89 ] && ! comm -23 "$out/public" "$out/called" | grep . && ! grep . "$out/unrun"
}
silent 'amp.h: each of at most 89 public functions is called by a program that is run here, for its use' in_use
silent 'amp.h: the table of contents names the rooms of part 1' contents
silent 'amp.h: the first floor of part 1 is read in fifteen minutes: 400 lines' fifteen_minutes
case $(ctags --version 2>&1) in
*Universal* | *Exuberant*) silent 'amp.h: the first floor names no function of the second' first_floor_alone ;;
*) skip 'the first floor names no function of the second' 'no Universal or Exuberant Ctags' ;;
esac

# Editors find each function that a debugger shows, those of a tier by their first name.
first_names() { sed -E 's/[.].*//; s/AMPI_\((.*)\)/ampi_\1/; s/_(x4|avx2|avx512|pairs|neon|mmla)$//' | sort -u; }
ctags_lists() { ctags "$@" -x amp.h 2> /dev/null | awk '$2 == "function" {if ($1 == "AMPI_") {match($0, /AMPI_\([^)]*\)/); $1 = substr($0, RSTART, RLENGTH)} print $1}'; }
tree_sitter_lists() {
    python3 - <<'END'
import re, tree_sitter, tree_sitter_c
nodes = [tree_sitter.Parser(tree_sitter.Language(tree_sitter_c.language())).parse(open("amp.h", "rb").read()).root_node]
for node in nodes:
    nodes += node.children
    if node.type == "function_definition":
        print(re.match(rb"[* ]*((AMPI_\(\w+\)|\w+)?)", node.child_by_field_name("declarator").text).group(1).decode())
END
}
finds_all() { # COMMAND: the functions that it prints are all that nm shows
    nm "$out/only.o" | awk '$2 ~ /^[tT]$/ {sub(/^_/, "", $3); print $3}' | first_names > "$out/shown"
    "$@" | first_names > "$out/listed"
    [ "$(grep -c '^ampi*_' "$out/shown")" -gt 200 ] && ! comm -23 "$out/shown" "$out/listed" | grep '^ampi*_'
}
if have nm; then
    object "$CC -std=c99 -O0" "$out/only.c" only.o
    case $(ctags --version 2>&1) in
    *Universal*)
        silent 'ctags lists each function' finds_all ctags_lists --options=NONE
        ctags -x amp.h > "$out/log" && grep -q '^ampi_fma  *function' "$out/log" && ! grep '^AMPI_  *function' "$out/log"
        check '.ctags.d: ctags lists those of tiers by their name' $? ;;
    *) skip 'ctags lists each function' 'no Universal Ctags' ;;
    esac
    if python3 -c 'import tree_sitter, tree_sitter_c' 2> /dev/null; then
        silent 'tree-sitter lists each function' finds_all tree_sitter_lists
    else
        skip 'tree-sitter lists each function' 'not found (pip install tree-sitter tree-sitter-c)'
    fi
fi

# Law 25: behind macros of other headers, and behind <windows.h> where MinGW is.
for language in "$CC -std=c99 -x c" "$CXX -std=c++11 -x c++"; do
    silent "law 25: behind a hundred macros of other headers: ${language##* }" $language -O0 -DAMP_DEBUG -w -fsyntax-only -I. $here/neighbours.c
done
for compiler in 'x86_64-w64-mingw32-gcc -std=c99' 'x86_64-w64-mingw32-g++ -std=c++11 -x c++'; do
    if ! have "${compiler%% *}"; then skip "behind <windows.h>: ${compiler%% *}" 'not found'; continue; fi
    for lean in -DHOST -DWIN32_LEAN_AND_MEAN; do
        silent "law 25: behind <windows.h>, $lean: ${compiler%% *}" $compiler $lean -O0 -w -fsyntax-only -I. $here/neighbours.c
    done
done

# The host compiles as if amp.h were not there: behind the implementation each predefined macro is as
# before it, though any level could change it, and the host's functions are the same instructions.
host_macros() { # host_macros COMPILER FLAGS
    for level_of in -O0 -Og -O2 -Os -Ofast '-O2 -frounding-math -fsignaling-nans'; do
        $1 $level_of -w -dM -E -x c /dev/null 2> /dev/null
    done | awk '$2 !~ /[(]/ {print $2}' | sort -u > "$out/names"
    $1 $2 -w -dM -E -x c /dev/null | awk '$2 !~ /[(]/ {name = $2; $1 = $2 = ""; print name, $0}' > "$out/macros"
    { printf '%s\n' '#define AMP_IMPLEMENTATION' '#include "amp.h"'
      awk 'NR == FNR {has[$1] = 1; value[$1] = $2; fields[$1] = NF; next}
           !has[$1] {printf "#ifdef %s\n#error \"%s is new\"\n#endif\n", $1, $1; next}
           {printf "#ifndef %s\n#error \"%s is gone\"\n#endif\n", $1, $1}
           fields[$1] == 2 && value[$1] ~ /^[0-9]+$/ {printf "#if %s != %s\n#error \"%s was %s\"\n#endif\n", $1, value[$1], $1, value[$1]}' \
          "$out/macros" "$out/names"
    } > "$out/behind.c"
    [ $(grep -c 'is gone' "$out/behind.c") -ge 250 ] && [ $(grep -c 'is new' "$out/behind.c") -ge 1 ] &&
        $1 $2 -w -fsyntax-only -I. "$out/behind.c"
}
host_code() { # host_code FILE COMMAND...: the host's functions, without names of places
    code=$1
    shift
    "$@" -w -std=gnu11 -I. -S -o "$out/behind.s" $here/behind.c || return
    sed -n '/^host_[a-z_]*:/,/cfi_endproc/p' "$out/behind.s" |
        sed -E 's/[#].*//; s/[ \t]+$//; s/\.L[A-Z_]*[0-9]+(_[0-9]+)?/.L/g; /^\t*\.(L|size|p2align|quad|long|section|text|set)/d' \
        > "$code"
}
host_functions() { # host_functions COMPILER FLAGS
    host_code "$out/alone" $1 $2 && host_code "$out/behind" $1 $2 -DBEHIND -DAMP_NO_VECTORS &&
        [ $(grep -c '^host_' "$out/alone") = 7 ] && diff "$out/alone" "$out/behind"
}
for compiler in "$CC" "$CLANG" gcc-11 gcc-13 gcc-14 clang-19; do
    have "$compiler" || continue
    label=$(basename "${compiler%% *}")
    for flags in -Ofast '-O3 -ffast-math -march=native' -O2 -O0; do
        silent "$label $flags: the host has its macros behind amp.h" host_macros "$compiler" "$flags"
    done
    for flags in -Ofast '-O3 -ffast-math -march=native'; do
        silent "$label $flags: the host has its functions behind amp.h" host_functions "$compiler" "$flags"
    done
    is_gcc "$compiler" && [ "$(uname -m)" = x86_64 ] &&
        try "$label: vector functions of <math.h>, behind amp.h, too" grep -q _ZGV "$out/behind"
done

# Each clang there is: what their optimizers take for a comparison of floats differs.
for compiler in clang clang-19; do
    if ! have $compiler; then skip "$compiler: a subnormal alpha" 'not installed'; continue; fi
    $compiler -std=c99 -O2 -I. tests/host/compile/flush.c -o "$out/flush" -lm > "$out/log" 2>&1 && "$out/flush"
    check "$compiler: a subnormal alpha is no 0 where the host flushes" $?
done

# A figure, or a row "avx512", of a call that was refused would be none.
printf '%s\n' '#define AMP_DEF extern __attribute__((warn_unused_result))' '#include "amp.h"' > "$out/unused.h"
for bench in bench small peers; do
    if ! is_gcc "$CC"; then skip "bench/$bench.c: ignored results" 'not gcc'; continue; fi
    $CC -std=gnu99 -Wno-attributes -I. -include "$out/unused.h" -c tests/bench/$bench.c -o "$out/unused.o" > "$out/all" 2>&1
    status=$?
    command grep "^tests/bench/.*ignoring return value of .amp_" "$out/all" |
        command grep -v 'amp_optimizer_begin_step\|amp_optimizer_loss_scale' > "$out/log"
    [ $status = 0 ] && [ ! -s "$out/log" ]
    check "bench/$bench.c: no result is ignored" $?
done

# gcc 11 takes vectors to outlive vzeroupper, if it inlines the function that has it.
if have gcc-11; then
    gcc-11 -std=c99 -O3 -I. tests/unit/test_gemm.c tests/amp.c -o "$out/gemm" -lm > "$out/log" 2>&1 &&
        AMP_QUICK=2 "$out/gemm" --filter batch_ > "$out/log"
    check "gcc-11 -O3: a row has the same bits in any batch" $?
else
    skip 'gcc-11 -O3: a row in a batch' 'not installed'
fi

finish
