# Is there a check that cannot fail? Each script that sources lib.sh runs in full in worlds in which nothing works. Nothing
# may be ok there: a check that is ok has looked at nothing.
#     fails-silence      compilers, tools and programs fail and print nothing; the texts of the repository are nonsense
#     fails-words        the same, but they print a meaningless line
#     makes              compilers and tools succeed, what they make fails; texts are empty in this world and the next two
#     succeeds-silence   all succeed, but print and make nothing useful
#     succeeds-words     the same, but they print a line: a check that fails without it asks for any line
# A check that is met in the last three alone has to fail in one of them. shapes.awk and tautologies.awk read scripts and
# C for what shows in no world.
# usage: dead.sh OUTDIR [FILE...], in the repository's root: a line for each dead check, and how many were met at all.
# FILE, a script or a test in C, replaces that of its name, and nothing else is looked at.
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
    nvdisasm cuobjdump make git cmake ninja meson conan check-jsonschema pkg-config gzip unshare mount umount; do
    ln -s cc "$out/bin/$tool"
done
for tool in qemu-aarch64 qemu-s390x qemu-arm wine64 wine mpirun python3 timeout chromium frama-c; do
    ln -s made "$out/bin/$tool"
done
for program in linear wrap_step pitfalls which_tensor recipes recipes_net muon autocast_ops train state gpt cnn ncf report \
    ddp_mpi; do
    cp "$out/bin/made" "$out/build/$program"
done
for object in o2 model sanitize model-sanitize clang aarch64 kind-plain kind-sanitize kind-clang kind-races; do
    mkdir "$out/objects/$object"
    for name in amp emu kernels; do echo none > "$out/objects/$object/$name.o"; done
done

# The repository twice: scripts as they are, all else without sense.
scripts=$(grep -l '^\. tests/lib.sh' tests/*/*.sh tests/gpu/emu/*.sh)
tests=$(ls tests/unit/* tests/support/*.h tests/gpu/emu/*.cpp)
: > "$out/nothing"
printf 'isnan(x) != \303\244 printf("x"); exit(1); errno = 1; strtod(x);\t%0200d \n' 0 > "$out/something"
for tree in empty/nothing nonsense/something; do
    text=$out/${tree#*/} tree=$out/${tree%/*}
    find examples tests -type d | (mkdir "$tree" && cd "$tree" && xargs mkdir -p)
    find amp* LICENSE Makefile README.md examples tests -type f |
        (cd "$tree" && xargs sh -c 'tee "$@" < "$0" > /dev/null' "$text")
    for script in $scripts tests/lib.sh tests/faults/world.sh tests/gpu/emu/kinds.sh; do cp "$script" "$tree/$script"; done
    for file; do case $file in *.sh) cp "$file" "$tree/tests/${file##*tests/}" ;; esac; done
done
if [ $# != 0 ]; then
    scripts=$(for file; do case $file in *.sh) echo "tests/${file##*tests/}" ;; esac; done)
    tests=$(for file; do case $file in *.sh) ;; *) echo "$file" ;; esac; done)
fi

ways() { # ways SCRIPT: its arguments behind OUTDIR, a line for each part of it
    case ${1##*/} in
    bits.sh) printf '%s\n' cc clang others ;;
    compile.sh) echo c ;; # a script that ends here goes on: finish does nothing
    cuda.sh) printf '%s\n' plain more clang sanitize races traffic ;;
    sgemm.sh) printf '%s\n' plain sanitize ;;
    readme.sh) printf '%s\n' cc others ;;
    trainer.sh) printf "$out/build/%s\n" gpt cnn ncf ;;
    pages.sh | examples.sh | long.sh) echo "$out/build" ;;
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

# What shows in no world is read.
shapes() { # shapes FILE: lines of a script that cannot fail by the way they are written, each with the reason
    awk -f tests/faults/shapes.awk "$1"
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

for test in $tests; do awk -f tests/faults/tautologies.awk "$test" | judge "$test"; done

[ $# != 0 ] || cut -d '|' -f 1,2 "$out/listed" | sort -u | while read -r line; do
    grep -qxF -e "$line" "$out/used" || echo "dead: tests/faults/dead.sh: $line: is listed, and fails as it should"
done
echo "# $(awk '{n += $1} END {print n + 0}' "$out/count" 2> /dev/null) places in scripts that check were met," \
    "$(cat /dev/null $tests | grep -o 'CHECK[A-Z0-9_]*(' | wc -l) checks in C read"
