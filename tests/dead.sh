# Is there a check that cannot fail? Each script that sources lib.sh runs, in full, in worlds in which nothing works, and
# nothing may be ok there: what is has looked at nothing.
#     fails-silence      compilers, tools and programs fail, without a word; the texts of the repository are nonsense
#     fails-words        the same, but they say a line of no sense
#     makes              compilers and tools succeed, what they make fails; the texts are empty here and in the next
#     succeeds-silence   all succeed, and neither say nor make what is of use
#     succeeds-words     the same, but they say a line: a check that fails without it asks for any line
# A check that is met in the last three alone has to fail in one of them. What shows in no world is read in scripts and
# in C: see shapes and tautologies below.
# usage: dead.sh OUTDIR [FILE...], in the repository's root: a line for each dead check, and how many were met at all.
# FILE, a script or a test in C, stands for that of its name, and is all that is looked at.
out=${1:?usage: dead.sh OUTDIR [FILE...]}
shift
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
rm -rf "${out:?}"/*

# What cannot be broken so, or is not met: FILE|PART OF ITS LINE OR TEXT|WHY
cat > "$out/listed" <<'LIST'
cblas.sh|bf16 is not fp32|two lines of no sense are two; near has looked at the losses before
long.sh|: the older one stays|the line in front of it fails first: a disk with room
nvcc.sh|none of $all can go unseen|there is no SASS; it plants its own faults
ptx.sh|compute_$arch|nvcc names no architecture
ranks.sh|$1 kills: nobody hangs|mpirun is none of Open MPI; each kill has a line of its own that fails
readme.sh|$1 -std=c++20|its compiler has to compile an empty program, and is skipped
self.sh|lib.sh tells and counts|lib.sh is whole in all worlds
self.sh|try one true|these are told to another lib.sh, and compared with what it should say
self.sh|try two false|as above
self.sh|refuses three line|as above
self.sh|refuses four word|as above
self.sh|lines five|as above
self.sh|lines six|as above
self.sh|lines seven|as above
LIST

# Tools to read and write texts are those of the machine.
mkdir -p "$out/bin" "$out/objects" "$out/build" "$out/toolkit/include"
for header in cuda_runtime cublas_v2; do echo none > "$out/toolkit/include/$header.h"; done
for tool in sh bash env grep sed awk cmp diff cat ls head tail cut tr sort uniq wc mkdir rm rmdir cp mv ln touch chmod \
    seq basename dirname expr tee od find xargs paste comm mktemp date id uname pgrep; do
    for path in /usr/bin /bin $(echo "$PATH" | tr : ' '); do
        [ ! -x "$path/$tool" ] || { ln -s "$path/$tool" "$out/bin/$tool"; break; }
    done
done
cat > "$out/bin/word" <<'TOOL'
set -- q k v w x y z j h u # each time another word, without a digit
number=$$
while [ $number != 0 ]; do
    eval "word=\${$((number % 10 + 1))}${word-}"
    number=$((number / 10))
done
echo "$says $word"
TOOL
cat > "$out/bin/made" <<'TOOL'
#!/bin/sh
case $DEAD_WORLD in *silence) ;; *) (says='no sense'; . "$HOME/bin/word") ;; esac
case $DEAD_WORLD in succeeds*) exit 0 ;; esac
exit 1
TOOL
cat > "$out/bin/cc" <<'TOOL'
#!/bin/sh
case $DEAD_WORLD in *words) (says='x86_64 gcc Universal: no sense'; . "$HOME/bin/word") ;; esac
case $DEAD_WORLD in fails*) exit 1 ;; esac
case ${0##*/} in git) shift $(($# - 1)); mkdir -p "$1"; exit 0 ;; esac
while [ $# -gt 1 ]; do [ "$1" != -o ] || cp "${0%/*}/made" "$2"; shift; done
exit 0
TOOL
chmod +x "$out/bin/made" "$out/bin/cc"
for tool in c++ gcc g++ clang clang++ clang-14 clang-16 clang-19 clang++-19 gcc-13 gcc-14 gcc-15 tcc musl-gcc nvcc mpicc \
    aarch64-linux-gnu-gcc s390x-linux-gnu-gcc arm-linux-gnueabihf-gcc x86_64-w64-mingw32-gcc mpicxx nm objdump ldd ctags \
    nvdisasm cuobjdump make git cmake ninja meson conan pkg-config gzip unshare mount umount; do
    ln -s cc "$out/bin/$tool"
done
for tool in qemu-aarch64 qemu-s390x qemu-arm wine64 wine mpirun python3 timeout chromium frama-c; do
    ln -s made "$out/bin/$tool"
done
for program in linear wrap_step pitfalls which_tensor recipes recipes_net autocast_ops train state gpt cnn ncf report \
    ddp_mpi; do
    cp "$out/bin/made" "$out/build/$program"
done
for object in o2 model sanitize model-sanitize clang aarch64 kind-plain kind-sanitize kind-clang kind-races; do
    mkdir "$out/objects/$object"
    for name in amp emu kernels; do echo none > "$out/objects/$object/$name.o"; done
done

# The repository twice: scripts as they are, all else without sense.
scripts=$(grep -l '^\. tests/lib.sh' tests/*.sh tests/emu/*.sh) tests=$(ls tests/test_*.c tests/*.h tests/*.cpp tests/emu/*.cpp)
: > "$out/nothing"
printf 'isnan(x) != \303\244 printf("x"); exit(1); errno = 1; strtod(x);\t%0200d \n' 0 > "$out/something"
for tree in empty/nothing nonsense/something; do
    text=$out/${tree#*/} tree=$out/${tree%/*}
    find examples tests -type d | (mkdir "$tree" && cd "$tree" && xargs mkdir -p)
    find amp* LICENSE Makefile README.md examples tests -type f | while read -r file; do cp "$text" "$tree/$file"; done
    for script in $scripts tests/lib.sh tests/world.sh tests/emu/kinds.sh; do cp "$script" "$tree/$script"; done
    for file; do case $file in *.sh) cp "$file" "$tree/tests/${file##*tests/}" ;; esac; done
done
if [ $# != 0 ]; then
    scripts=$(for file; do case $file in *.sh) echo "tests/${file##*tests/}" ;; esac; done)
    tests=$(for file; do case $file in *.sh) ;; *) echo "$file" ;; esac; done)
fi

ways() { # ways SCRIPT: its arguments behind OUTDIR, a line for each part of it
    case ${1#tests/} in
    bits.sh) printf '%s\n' cc clang others ;;
    compile.sh) echo c ;; # a script that ends here goes on: finish does nothing
    cuda.sh) printf '%s\n' plain more clang sanitize races traffic ;;
    sgemm.sh) printf '%s\n' plain sanitize ;;
    readme.sh) printf '%s\n' cc others ;;
    trainer.sh) printf "$out/build/%s\n" gpt cnn ncf ;;
    report.sh | examples.sh | long.sh) echo "$out/build" ;;
    ranks.sh) echo "$out/build/ddp_mpi" ;;
    examples_cuda.sh) echo "$out/build/gpt" ;;
    tier.sh) echo 'gemm processors' ;;
    platforms.sh) echo 'gemm bits' ;;
    *) echo ;;
    esac
}
name_of() { echo "${1#tests/}" | tr / -; }
world() { # world SCRIPT WORLD: it runs there; its results come to OUT/NAME.WORLD
    log=$out/$(name_of "$1").$2 script=$1 world=$2 tree=$out/empty
    case $world in fails*) tree=$out/nonsense ;; esac
    : > "$log"
    ways "$script" | while read -r arguments; do
        directory=$log.out/model-amx
        case $script in */fuzz.sh) set -- replay "$directory" ;; *) set -- "$directory" $arguments ;; esac
        (cd "$tree" && ulimit -f 65536 && exec env -i HOME="$out" PATH="$out/bin" DEAD_WORLD="$world" DEAD_LOG="$log" \
            OBJECTS="$out/objects" CUDA_HOME="$out/toolkit" DISKS=yes "$timeout" -k 5 60 bash "$script" "$@") > "$log.said" 2>&1 < /dev/null
        [ $? != 124 ] || echo "FAIL 0 $script does not end" >> "$log"
    done
}
timeout=$(command -v timeout)
running=0
for script in $scripts; do
    for world in fails-silence fails-words makes succeeds-silence succeeds-words; do
        world "$script" $world &
        running=$(((running + 1) % 4))
        [ $running != 0 ] || wait
    done
done
wait

dead() { # dead FILE LINE TEXT WHY: unless it is listed
    while IFS='|' read -r file part why; do
        case $file in "${1##*/}") case $3 in *"$part"*) echo "$file|$part" >> "$out/used"; return ;; esac ;; esac
    done < "$out/listed"
    printf '%s\n' "dead: $1:$2: $3: $4"
}
results() { # results WORD FILE...: LINES TEXT of those with this word
    sed -n "s/^$1 //p" "$2" ${3+"$3"} | sort -u
}
judged() { # judged FILE WHY: lines of it
    while read -r at text; do dead "$script" "$at" "$text" "$2"; done < "$1"
}
for script in $scripts; do
    log=$out/$(name_of "$script")
    results ok "$log.fails-silence" "$log.fails-words" > "$out/c"
    judged "$out/c" 'ok where nothing works'
    results FAIL "$log.succeeds-silence" > "$out/a"
    results ok "$log.succeeds-words" > "$out/b"
    comm -12 "$out/a" "$out/b" > "$out/c"
    judged "$out/c" 'satisfied by any line'
    results vague "$log.succeeds-words" "$log.succeeds-silence" > "$out/c"
    judged "$out/c" 'an empty line fits'
    results lost "$log.fails-silence" "$log.makes" > "$out/c"
    judged "$out/c" 'counted in a subshell, which nobody hears of'

    # Lines that check something; those that were met, and where programs fail.
    text=$out/empty/$script
    awk 'FNR == 1 {pass++; words = "check|try|refuses|lines"}
         pass == 1 && /^[a-z_]+\(\) [{(]/ {name = $1; sub(/\(.*/, "", name)}
         pass == 1 && name != "" && / (check|try|refuses) / {asks[name]}
         pass == 1 && /^([})]|[a-z_]+\(\) [{(].*; [})])/ {name = ""}
         pass == 2 && FNR == 1 {for (name in asks) words = words "|" name}
         pass == 2 && !/^ *#/ && !/^[a-z_]+\(\)/ {
             if ($0 ~ "(^ *|&& |\\|\\| |then |do |[;!)] )(" words ") +[\"\047$a-z.0-9]") print FNR
         }' "$text" "$text" | sort > "$out/asked"
    sed -n 's/^\(ok\|FAIL\) \([0-9]*\).*/\2/p' "$log.fails-silence" "$log.fails-words" | sort -u > "$out/early"
    cat "$log.fails-silence" "$log.fails-words" "$log.makes" "$log.succeeds-silence" "$log.succeeds-words" > "$out/all"
    sed -n 's/^\(ok\|FAIL\) \([0-9]*\).*/\2/p' "$out/all" | sort -u > "$out/met"
    sed -n 's/^FAIL \([0-9]*\).*/\1/p' "$out/all" | sort -u > "$out/failed"
    cut -d ' ' -f 2 "$out/all" | tr : '\n' | sort -u | comm -23 "$out/asked" - > "$out/never" # or led to one that was
    comm -12 "$out/asked" "$out/met" | comm -23 - "$out/early" | comm -23 - "$out/failed" > "$out/well"
    wc -l < "$out/met" >> "$out/count"
    for line in $(cat "$out/never"); do dead "$script" $line "$(sed -n "${line}s/^ *//p" "$text")" 'never met'; done
    for line in $(cat "$out/well"); do dead "$script" $line "$(sed -n "${line}s/^ *//p" "$text")" 'nothing makes it fail'; done
done

# shapes FILE: checks that cannot fail, or not for all that they name, by the way they are written
#     A && B && false || C; x = x; texts that may be empty; the status of a loop, which is that of its last round
shapes() {
    awk '
        function join(    text, more) {
            text = $0
            at = FNR
            while (text ~ /(\\|&&|\|\||[|])$/) {
                sub(/\\$/, "", text)
                if ((getline more) <= 0) break
                sub(/^ +/, " ", more)
                text = text more
            }
            return text
        }
        function form_of(text, size,    form) { # of a name with variables in it; what stands behind it
            form = substr(text, 1, size)
            gsub(/[$]([a-z_]+|[0-9]|[{][^}]*[}])/, "*", form)
            gsub(/[.]/, "[.]", form)
            if (form ~ /[a-z.]/) { gsub(/[*]/, ".*", form); forms["^\"[$]out/" form "\"$"] }
            return substr(text, size + 1)
        }
        function found(text, why) {print at, text "\t" why}
        /^ *#/ {next}
        {
            line = join()
            sub(/^ +/, "", line)
            sub(/ +# [^"\047]*$/, "", line)
            if (line ~ /(&&|;|\|\|) *(false|:|true) *(\|\||&&)/) found(line, "decides nothing behind true or false")
            rest = line
            while (match(rest, /(^|[ (!])(cmp|diff)( -[a-z]+)* +[^ ;|&)]+ +[^ ;|&)]+/)) {
                n = split(substr(rest, RSTART, RLENGTH), word, " ")
                if (word[n] == word[n - 1]) found(line, "a file beside itself")
                rest = substr(rest, RSTART + RLENGTH)
            }
            if (line ~ /\[ "[$][(].*\)" = +"[$][(].*\)" \]/) found(line, "two texts that may both be empty: same says no to them")
            rest = line
            gsub(/(^|[ !])test "/, " [ \"", rest)
            while (match(rest, /\[ [^]&|;]*( \]|$| [&|;])/)) {
                test = substr(rest, RSTART + 2, RLENGTH - 2)
                sub(/ ?[]&|;]?$/, "", test)
                rest = substr(rest, RSTART + RLENGTH)
                n = split(test, side, / (!?=|-eq|-ne|-le|-ge) /)
                if (n == 2 && side[1] == side[2]) found(line, "something beside itself")
                if (test ~ / -(ge|gt) "?-?0"?$/ && test !~ /-gt "?0/) found(line, "what is always so")
                if (test ~ /^(! )?-[nz] "?[^$"`]*"?$/) found(line, "a word that stands there")
            }
            # Files that are compared or searched, and whether anything else is done with them.
            rest = line
            gsub(/\047[^\047]*\047/, "", rest)
            gsub(/(^| ): > *"[^"]*"/, " ", rest)
            others = ""
            while (match(rest, /(^|[ (!])(cmp|diff|grep) [^;&|]*/)) {
                part = substr(rest, RSTART, RLENGTH)
                others = others substr(rest, 1, RSTART) " "
                rest = substr(rest, RSTART + RLENGTH)
                while (match(part, />+ *"[^"]*"/)) {
                    others = others substr(part, RSTART, RLENGTH)
                    part = substr(part, 1, RSTART - 1) substr(part, RSTART + RLENGTH)
                }
                while (match(part, /"[$]out\/[A-Za-z0-9_.-]+"/)) {
                    name = substr(part, RSTART, RLENGTH)
                    reads[++num_reads] = name
                    reading[num_reads] = at " " line
                    part = substr(part, RSTART + RLENGTH)
                }
            }
            others = others rest
            rest = line
            while (match(rest, /[$]out\/[A-Za-z0-9_.{}$-]*[$][A-Za-z0-9_.{}$-]*/)) rest = form_of(substr(rest, RSTART + 5), RLENGTH - 5)
            while (match(others, /[$]out\/[A-Za-z0-9_.-]+/)) {
                used["\"" substr(others, RSTART, RLENGTH) "\""]
                others = substr(others, RSTART + RLENGTH)
            }
            # What stands last in front of check, and never says no.
            if (line ~ /^check .*[$][?]/ && last != "") print last_at, last "\tits last command never says no"
            last = ""
            last_at = at
            rest = line
            gsub(/"[^"]*"|\047[^\047]*\047/, "\"\"", rest)
            if (rest !~ /(^|[ ;])(if|for|while|until|case|then|else|do|done|check|try|refuses|lines|[a-z_]+=[^ ]*) *$|[{}()]$|;;/ &&
                line ~ /&& *(sed|sort|head|tail|cat|wc|echo|printf|tr|cut|tee|uniq|true|:|rm -f|awk)( [^;&|]*)?$/ ||
                line ~ /&& *awk [^&|]*$/ && line !~ /exit/) last = rest ~ /> *""[^&]*$/ ? "" : line
            # Where a loop ends whose status is asked for, and whether a round of it may end it.
            if (line ~ /(^|[ (;])(for|while|until) /) body = ""
            body = body "\n" line
            asks = line ~ /(^| )(check|try) .*[$][?]/
            loop = line ~ /(^|[; ])done\)?( < "[^"]*")?$/ ? (line ~ /(^|[ (;])(for|while|until) / ? line : body) : ""
            if (asks && before != "" && before !~ /\|\| *(return|exit)|exit [^0]/) found(line, "the status of the last round of a loop")
            if (line ~ /(^|[; ])done\)? *&& / && body !~ /\|\| *(return|exit)|&& *(return|exit)|exit [^0]/)
                found(line, "the status of the last round of a loop")
            before = loop
        }
        END { # programs name their pictures and pages, lines its logs
            for (i = 1; i <= num_reads; i++) {
                name = reads[i]
                known = name in used || name ~ /[.](svg|html|log)"$/
                for (form in forms) known += name ~ form
                if (!known) print reading[i] "\tnothing writes " name
            }
        }' "$1"
    # A pattern that fits an empty line fits any.
    grep -nE "grep +(-[A-Za-z]+ +)*'" "$1" | grep -v '^[0-9]*: *#' | sed -nE "s/^([0-9]+):.*grep +((-[A-Za-z]+ +)*)'([^']*)'.*/\1 \2\t\4/p" |
        while IFS='	' read -r options pattern; do
            line=${options%% *} options=${options#* }
            case $options in *v* | *o* | *L* | *n*) continue ;; esac
            echo | grep -q ${options% } -e "$pattern" 2> /dev/null && printf '%s grep %s\tan empty line fits\n' "$line" "$pattern"
        done
}
judge() { while IFS='	' read -r text why; do dead "$1" "${text%% *}" "${text#* }" "$why"; done; }
for script in $scripts; do shapes "$out/empty/$script" | judge "$script"; done

# tautologies FILE: checks of a test in C that cannot fail: CHECK(1), CHECK(x == x), CHECK_MEM(a, b, 0), one in a loop of
# no round or in if (0). (A test in which none is met fails when it runs: test.h.)
tautologies() {
    awk '
        function trim(x) {gsub(/^[ \t\n]+|[ \t\n]+$/, "", x); return x}
        function bare(x) { # without the parentheses around it
            x = trim(x)
            while (x ~ /^\(.*\)$/ && closing(x, 1) == length(x)) x = trim(substr(x, 2, length(x) - 2))
            return x
        }
        function closing(x, i,    depth, c) { # of the parenthesis at i
            for (; i <= length(x); i++) {
                c = substr(x, i, 1)
                if (c ~ /[([{]/) depth++
                if (c ~ /[])}]/ && !--depth) return i
            }
            return 0
        }
        function split_at(x, words, part,    n, i, c, depth, from, k, w, hit) { # at depth 0
            n = split("", part)
            from = 1
            for (i = 1; i <= length(x); i++) {
                c = substr(x, i, 1)
                if (c ~ /[([{]/) depth++
                if (c ~ /[])}]/) depth--
                if (depth) continue
                hit = 0
                for (k = split(words, w, " "); k; k--) if (substr(x, i, length(w[k])) == w[k]) hit = length(w[k])
                if (!hit) continue
                part[++n] = substr(x, from, i - from)
                from = i + hit
                i = from - 1
            }
            part[++n] = substr(x, from)
            return n
        }
        function constant(x) { # of numbers alone, or true; CHECK(0) is there to fail
            x = bare(x)
            if (x == "true" || x == "\"\"") return 1
            if (x ~ /^0*$/ || !gsub(/[0-9][0-9a-fA-FxXuUlL.]*/, "", x)) return 0
            return x !~ /[A-Za-z_"]/
        }
        function always(x,    n, part, i) {
            x = bare(x)
            if ((n = split_at(x, "||", part)) > 1) {
                for (i = 1; i <= n; i++) if (always(part[i])) return 1
                return n == 2 && (bare(part[1]) == "!" bare(part[2]) || bare(part[2]) == "!" bare(part[1]))
            }
            if ((n = split_at(x, "&&", part)) > 1) { # a part of it that is always true adds nothing
                for (i = 1; i <= n; i++) if (always(part[i])) return 1
                return 0
            }
            if (x !~ /<<|>>|->/ && (n = split_at(x, "== <= >=", part)) == 2 && bare(part[1]) == bare(part[2])) return 1
            return constant(x) || x ~ /^sizeof[^=&|]*(> *0|!= *0)$/ || x ~ /^&[a-z_]+ *!= *NULL$/
        }
        function no_round(x,    part, n) { # the head of a for loop
            if (split_at(x, ";", part) != 3) return 0
            n = part[1]
            sub(/.*= */, "", n)
            x = part[2]
            return sub(/^[^<]*< */, "", x) && trim(n) == trim(x)
        }
        function found(why) {print at, shown "\t" why}
        { # comments, strings and characters say nothing
            gsub(/\\\\/, ""); gsub(/\\"/, ""); gsub(/'\''.'\''|'\''\\.'\''/, "c")
            if (!/^ *# *include/) gsub(/"[^"]*"/, "\"\"")
            gsub(/\/\*([^*]|\*[^\/])*\*\//, "")
            sub(/\/\/.*/, "")
            if (comment) { if (!sub(/.*\*\//, "")) next; comment = 0 }
            if (/\/\*/) { sub(/\/\*.*/, ""); comment = 1 }
        }
        /^ *#/ {if (/\\$/) skips = 1; next}
        skips {skips = /\\$/; next}
        {text = text $0 "\n"; number[FNR] = length(text)}
        END {
            line = 1
            while (match(substr(text, begin + 1), /CHECK[A-Z0-9_]*\(/)) {
                at = begin + RSTART
                name = substr(text, at, RLENGTH - 1)
                open = at + RLENGTH - 1
                end = open + closing(substr(text, open, 4000), 1) - 1
                inside = substr(text, open + 1, end - open - 1)
                back = substr(text, at > 200 ? at - 200 : 1, at > 200 ? 200 : at - 1)
                while (number[line] < at || !(line in number)) line++
                begin = open
                at = line
                shown = name "(" inside ")"
                gsub(/[ \n]+/, " ", shown)
                if (name == "CHECK") { if (inside !~ /^ *!""/ && always(inside)) found("is always true") }
                else if ((n = split_at(inside, ",", part)) >= 2) {
                    if (bare(part[1]) == bare(part[2])) found("something beside itself")
                    if (name == "CHECK_MEM" && n == 3 && bare(part[3]) == "0") found("of no byte")
                }
                if (name == "CHECK" && inside ~ /[^=!<>+*\/|&^-]=[^=]/) found("an assignment")
                sub(/.*[;}][ \t]*\n/, "", back)
                if (back ~ /(if|while) \((0|false)( &&|\))/) found("is never met")
                else if (match(back, /for \(/) && (n = closing(back, RSTART + 4)) > 0 &&
                    no_round(substr(back, RSTART + 5, n - RSTART - 5))) found("is in a loop of no round")
            }
        }' "$1"
}
for test in $tests; do tautologies "$test" | judge "$test"; done

[ $# != 0 ] || cut -d '|' -f 1,2 "$out/listed" | sort -u | while read -r line; do
    grep -qxF -e "$line" "$out/used" || echo "dead: tests/dead.sh: $line: is listed, and fails as it should"
done
echo "# $(awk '{n += $1} END {print n + 0}' "$out/count" 2> /dev/null) places in scripts that check were met," \
    "$(cat /dev/null $tests | grep -o 'CHECK[A-Z0-9_]*(' | wc -l) checks in C read"
