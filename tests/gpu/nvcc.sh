# What the CUDA compiler makes of amp_kernels.cu and the CUDA examples: warnings, registers, spills,
# and the loops in SASS: instructions, loads in front of their uses, loads under way at once.
# Nothing runs, no GPU is needed.
# usage: [NVCC_11_8="nvcc [FLAGS]"] [NVCC_13_5=...] [NVDISASM=PROGRAM] [OBJECTS=BUILD/tests] nvcc.sh OUTDIR
# Where the toolkit came without nvdisasm, that of BUILD/tools is taken, where .ci/run puts PyPI's (5 MB); make cuda and
# make check do so, too.
# make ci compiles the kernels for the newest GPU, and leaves the others, and the programs, to
# make check; headers.sh looks at their types.
suite=nvcc out=${1:?usage: nvcc.sh OUTDIR}
. tests/lib.sh
NVCC=${NVCC:-nvcc}
most_b=212 # instructions of B, AdamW on fp16, for 4 elements
most_a=6.7 # of A on fp16, for 1
# Of B in a storage format, AdamW, for 1; and the loads by which its loop is known: of 128, 64, 32 and
# 8 bits. With fp32 masters the model may be of any type, and 12 of them count what overflows in fp16.
storages='fp32 4100 54, fp32+bf16 2300 77, fp32+8bit 2122 105, split 3300 62, split+bf16 1500 81,
    split+8bit 1322 105, sr 3200 65, sr+bf16 1400 82, sr+8bit 1222 105'
# RELEASE ARCHITECTURE KERNEL BYTES: spills that are known, for their price see tests/README.md. All that spills
# beside them fails, and what spills other bytes.
known='13.5 sm_100 encoded_kernelILi1 16
13.5 sm_120 encoded_kernelILi1 16'
have "$NVCC" || { skip "$NVCC" 'not found'; finish; }
flags="-std=c++14 -I. -Werror all-warnings -Xcompiler -Wall,-Wextra"

release_of() { $1 --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'; }

# compile "NVCC [FLAGS]" DIR: kernels and programs, once, for all architectures.
compile() {
    nvcc=$1 dir=$2 release=$(release_of "$1") archs= code= host=
    # clang gets headers and program as one file from nvcc, so it would name each function that is not used
    case $nvcc in *clang*) host='-Xcompiler -Wno-unused-function' ;; esac
    for arch in 75 80 86 89 90 100 120; do # an older toolkit knows fewer
        if $nvcc --list-gpu-arch | grep -qx "compute_$arch"; then archs="$archs $arch"; fi
    done
    if quick && [ "$archs" ]; then
        set -- $archs
        archs=" $(eval echo "\${$#}")"
    fi
    for arch in $archs; do code="$code -gencode arch=compute_$arch,code=sm_$arch"; done
    rm -rf "$dir/keep" "$dir/kernels.o"
    mkdir -p "$dir/keep"
    programs=$(quick || ls examples/*.cu examples/*/*.cu tests/*/*.cu) libs='-lcublas -lcublasLt'
    echo '#include <nccl.h>' > "$dir/nccl.cu"
    if $nvcc -E "$dir/nccl.cu" > /dev/null 2>&1; then libs="$libs -lnccl"
    else
        [ -z "$programs" ] || programs=$(grep -L '<nccl.h>' $programs)
        skip "$release: ddp_nccl" 'no nccl.h'
    fi
    $nvcc $flags $host $code -Xptxas -v --keep --keep-dir "$dir/keep" \
        -c amp_kernels.cu -o "$dir/kernels.o" > "$dir/kernels.log" 2>&1
    for program in $programs; do
        name=$(basename "$program" .cu)
        rm -f "$dir/$name.o"
        $nvcc $flags $host $code -c "$program" -o "$dir/$name.o" > "$dir/$name.log" 2>&1
    done
    # ARCHITECTURE FUNCTION REGISTERS SPILLED-BYTES (stack included) of each kernel
    awk '/Compiling entry function/ {split($0, word, "\047"); name = word[2]; arch = word[4]}
         / bytes stack frame/ {spilled = $1 + $5 + $9}
         /Used [0-9]+ registers/ {sub(/.*Used /, ""); print arch, name, $1, spilled}' \
        "$dir/kernels.log" > "$dir/usage"
    # A table of registers; behind those of a kernel that spills, its bytes.
    awk -v release="$release" -v archs="$archs" '
        BEGIN {archs_n = split(archs, arch, " ")}
        {
            name = $2
            sub(/.*ampi_/, "", name); sub(/_kernel/, "", name)
            sub(/EEv8amp_plan.*|8amp_plan.*|yPKj.*|PK?v.*|10ampi_binds.*|EEvPf.*|Pf.*|13amp_gemm_args.*|P10amp_scaler.*/, "", name)
            sub(/^update.*ILi1/, "adamw", name); sub(/^update.*ILi2/, "sgd", name)
            sub(/^update.*ILi3/, "lion", name)
            if (name ~ /^around/) sub(/ELb1/, " own", name)
            sub(/ELb0/, "", name); sub(/ELb1/, " rows", name)
            sub(/^encoded.*ILi1/, "adamw encoded", name); sub(/^encoded.*ILi2/, "sgd encoded", name)
            sub(/^encoded.*ILi3/, "lion encoded", name)
            sub(/^around.*ILi2/, "unscale", name); sub(/^around.*ILi3/, "model", name)
            if (!(name in known)) order[++kernels] = name
            known[name]
            used[name, $1] = $3 ($4 ? "+" $4 : "")
        }
        END {
            printf "registers %-14s", release
            for (a = 1; a <= archs_n; a++) printf "%8s", "sm_" arch[a]
            print ""
            for (k = 1; k <= kernels; k++) {
                printf "registers %-14s", order[k]
                for (a = 1; a <= archs_n; a++) printf "%8s", used[order[k], "sm_" arch[a]]
                print ""
            }
        }' "$dir/usage"
    for arch in $archs; do
        besides=$(echo "$known" | awk -v of="$release sm_$arch" '$1 " " $2 == of {print ", besides " $3}')
        awk -v arch="sm_$arch" -v of="$release sm_$arch" '
            NR == FNR {if ($1 " " $2 == of) known[$3] = $4; next}
            $1 == arch {kernels++; for (k in known) if (index($2, k)) $4 -= known[k]; wrong += $4 != 0}
            END {exit wrong || kernels < 16}' - "$dir/usage" <<KNOWN
$known
KNOWN
        if [ $? = 0 ] && [ -f "$dir/kernels.o" ]; then ok "$release: sm_$arch: no kernel spills$besides"
        else
            awk '(FILENAME ~ /usage$/ && $4) || /warning|error/' "$dir/usage" "$dir/kernels.log" > "$dir/wrong"
            fail "$release: sm_$arch: kernels spill, or warn" "$dir/wrong"
        fi
    done
}

# The other toolkits that are there or named, in make check: NVCC_11_8="nvcc [FLAGS]", NVCC_13_5=... Not linked:
# who unpacks a toolkit to compile with it needs no cuBLAS of it.
others=$(quick || { env | sed -n 's/^NVCC_[0-9][0-9_]*=//p'; ls /usr/local/cuda-*/bin/nvcc 2> /dev/null; })
tried=" $(release_of "$NVCC") "
while read -r other; do
    have "$other" || { [ -z "$other" ] || fail "$other: not found"; continue; }
    release=$(release_of "$other")
    case $tried in *" $release "*) continue ;; esac
    tried="$tried$release "
    compile "$other" "$out/$release"
    for program in $programs; do
        name=$(basename "$program" .cu)
        if [ -f "$out/$release/$name.o" ]; then ok "$release: $name: compiles for sm:$archs"
        else fail "$release: $name: does not compile" "$out/$release/$name.log"; fi
    done
done <<OTHERS
$others
OTHERS
quick || [ "$tried" != " $(release_of "$NVCC") " ] ||
    skip toolkits 'one alone: NVCC_11_8="nvcc [FLAGS]", NVCC_13_5=... name others'

compile "$NVCC" "$out"

find_disassembler() {
    disasm=$(command -v "${NVDISASM:-nvdisasm}") && return
    disasm=$(dirname "$(command -v "$NVCC")")/nvdisasm
    [ ! -x "$disasm" ] || return 0
    tools=$(dirname "${OBJECTS:-build/tests}")/tools
    quick || [ -n "$(find "$tools" -name nvdisasm 2> /dev/null)" ] ||
        NVCC="$NVCC" sh tests/gpu/nvdisasm.sh "$tools" > "$out/tools.log" 2>&1
    disasm=$(find "$tools" -name nvdisasm -type f 2> /dev/null | head -n 1)
    [ -n "$disasm" ] && "$disasm" --version > /dev/null 2>&1
}

# judge ARCHITECTURE: two figures, and whether all loops are as they should be
judge() {
    awk -v arch="$1" -v most_a=$most_a -v most_b=$most_b -v storages="$(echo $storages)" '
        BEGIN {rows = split(storages, row, ", ")}
        function loads(bits) {
            return match($0, " ld" bits "=[0-9]+") ? substr($0, RSTART + length(bits) + 4, RLENGTH) + 0 : 0
        }
        function wrong(what) {print "wrong: " what; failed = 1}
        function has(name, count) {return index($0 " ", " " name "=" count " ")}
        FILENAME ~ /usage$/ {if ($1 == arch) {registers[$2] = $3; spills[$2] = $4}; next}
        {bytes = loaded = stored = 0
         for (i = 6; i <= NF; i++) {
             split(substr($i, 3), load, "=")
             if ($i ~ /^ld/) {bytes += load[1] / 8 * load[2]; loaded += load[2]}
             if ($i ~ /^st/) stored += load[2]
         }}
        # B: gradients and model copies in fp16; the zeroing of gradients may be a second store
        /update_kernelILi1/ && has("from_f16", 4) && (has("to_f16", 2) || has("to_f16", 4)) {
            printf "sass %s B adamw f16: %d registers, %d spills, %d instructions per 4 elements, loads %s\n",
                arch, registers[$1], spills[$1], $2, $4
            if (b++) wrong("two loops of B")
            if (registers[$1] > 64 || spills[$1] || $2 > most_b || $4 != "first") wrong($0)
            if (!has("ld128", 3) || !has("ld64", 1) || !has("st128", 3)) wrong($0)
        }
        # B in other storage: three blocks on a multiprocessor
        /coded_kernelILi1/ && /rsq=4/ {
            known = loads(128) loads(64) loads(32) loads(8)
            if (!(known in shortest) || $2 < shortest[known]) shortest[known] = $2
            coded++
            coder = $1
            if ($4 != "first") wrong($0)
            # what it loads but gradients, of either size, it stores
            if (stored < loaded - 2) wrong("counted past its stores: " $0)
        }
        # and all other loops of B over groups: fp32 or halves, with and without a model copy
        /update_kernel/ && /rsq=4|ld128=[234].*st128=[234]/ {groups[$1]++; if ($4 != "first") wrong($0)}
        /check_kernel/ && has("ld128", 8) {
            a++
            if ($4 != "first") wrong($0)
            if (has("from_f16", 64)) {
                printf "sass %s A f16: %d registers, %d spills, %.1f instructions per element, %d loads in flight\n",
                    arch, registers[$1], spills[$1], $2 / 64, 8
                if (spills[$1] || $2 / 64 > most_a) wrong($0)
            }
        }
        /check_by_four/ && (has("ld32", 32) || has("ld64", 16)) {teams++; if ($4 != "first") wrong($0)}
        # a loop for each pair of types, with 64 bytes under way, and a remainder
        /cast|scale|around/ && !/update/ && bytes >= 64 && /ld128=4|ld64=8/ {
            maps[$1]++
            if ($4 != "first") wrong($0)
        }
        END {
            for (k in maps) {
                want = k ~ /cast/ ? 6 : k ~ /scaler/ ? 4 : k ~ /scale_/ ? 3 : k ~ /around.*ILi3/ ? 2 : 3
                loops += maps[k]
                kernels++
                if (maps[k] < want) wrong(k " has " maps[k] " loops with 64 bytes under way, not " want)
            }
            printf "sass %s single arrays: %d loops, 64 bytes in flight per thread, loads first\n", arch, loops
            if (coded != rows) wrong(coded + 0 " loops of B in storage formats, not " rows)
            for (i = 1; i <= rows; i++) {
                split(row[i], format, " ")
                found = shortest[format[2]] / 4
                printf "sass %s B adamw %s: %d registers, %d spills, %.1f instructions per element, loads first\n",
                    arch, format[1], registers[coder], spills[coder], found
                if (!found || found > format[3] * (arch == "sm_75" ? 1.06 : 1) || registers[coder] > 80) wrong(row[i])
            }
            if (b != 1) wrong(b + 0 " loops of B for fp16")
            for (k in groups) all += groups[k]
            if (all < 27) wrong(all + 0 " loops of B over groups, not 9 for each of AdamW, SGD and Lion")
            if (a < 3) wrong(a + 0 " loops of A with 8 loads under way, not 3")
            if (teams < 3) wrong(teams + 0 " loops of A by four warps, not 3")
            if (kernels != 7) wrong(kernels + 0 " kernels for single arrays, not 7")
            exit failed
        }' "$out/usage" "$out/loops"
}

if find_disassembler; then
    for arch in $archs; do
        cubin=$(ls "$out"/keep/amp_kernels*_$arch.cubin 2> /dev/null || echo "$out/keep/amp_kernels.cubin")
        "$disasm" -c "$cubin" > "$out/sass" 2> "$out/loops.log" &&
            awk -f tests/gpu/sass.awk "$out/sass" > "$out/loops" &&
            judge sm_$arch > "$out/judged" 2>> "$out/loops.log"
        status=$?
        grep '^sass' "$out/judged"
        text="sm_$arch: in SASS loads come first, and loops have no more instructions than they had"
        if [ $status = 0 ]; then ok "$text"
        else fail "$text" "$out/judged"; fi
    done
else
    skip sass "no nvdisasm in the toolkit or in $tools: sh tests/gpu/nvdisasm.sh $tools gets it"
fi

# nvcc reads a .cu with its own compiler, whose warnings gcc does not have.
printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$out/implementation.cu"
if $NVCC $flags -Xcompiler -fsyntax-only -c "$out/implementation.cu" \
    -o "$out/implementation.o" > "$out/implementation.log" 2>&1; then
    ok "implementation: no warning in a .cu"
else fail "implementation: warnings in a .cu" "$out/implementation.log"; fi

# Every formula is rounded as written, also under --use_fast_math: no flushed subnormal, no
# approximation, no fused multiply-add in the code for the device but those that amp.h writes.
if $NVCC $flags --use_fast_math -ptx amp_kernels.cu -o "$out/fast.ptx" 2> "$out/fast.log" &&
    awk '/ end inline asm/ {written = 0}
         /ftz|approx/ || (/fma\.r/ && !written) {print; found = 1}
         / begin inline asm/ {written = 1}
         END {exit found || NR == 0}' "$out/fast.ptx" > "$out/fast.log"; then
    ok "fast-math: no .ftz, .approx or contracted fma in PTX"
else fail "fast-math: PTX has" "$out/fast.log"; fi

for program in $programs; do
    name=$(basename "$program" .cu)
    if [ -f "$out/$name.o" ] && $NVCC "$out/$name.o" "$out/kernels.o" $libs -o "$out/$name" \
        >> "$out/$name.log" 2>&1; then ok "$name: compiles and links for sm:$archs"
    else fail "$name: does not build" "$out/$name.log"; fi
done
# Fences that order all fences cost more than those of the meetings here, which release and acquire: of
# blocks there are two in each kernel of A, and one where rows are sorted and where they are summed.
fences() {
    awk '/^\.text\./ {name = $0}
         / MEMBAR\.ALL\.GPU/ {fences[name]++}
         / MEMBAR\.SC/ {wrong = 1}
         END {for (n in fences) {kernels++; if (fences[n] < (n ~ /check/ ? 4 : 2)) wrong = 1}
              exit wrong || kernels != 5}' "$1"
}
if [ -f "$out/sass" ]; then
    fences "$out/sass"
    wrong=$? n=0 all=$(grep -c ' MEMBAR\.ALL\.GPU' "$out/sass")
    while [ $wrong = 0 ] && [ $n -lt "$all" ]; do
        n=$((n + 1))
        awk -v n=$n '/ MEMBAR\.ALL\.GPU/ && ++count == n {next} 1' "$out/sass" > "$out/planted"
        ! fences "$out/planted"
        wrong=$?
    done
    check "fences acquire and release, none is sequentially consistent; none of $all can go unseen" $wrong
fi

text='compiles with a default stream per thread'
if quick; then skip per-thread 'make check compiles with a default stream per thread'
elif $NVCC $flags --default-stream per-thread -arch=sm_${archs##* } -c amp_kernels.cu \
    -o "$out/per_thread.o" > "$out/per_thread.log" 2>&1; then ok "per-thread: $text"
else fail "per-thread: $text" "$out/per_thread.log"; fi
finish
