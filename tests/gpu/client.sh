# CUDA trainers of others without and with amp.h, where no GPU is: compiled by nvcc, if it is there,
# and run on the emulator, as C++ and as the PTX that nvcc makes of them. See tests/README.md.
# usage: [NVCC=nvcc] [CXX=c++] [OBJECTS=build/tests] client.sh DIR      run where amp.h is
#        client.sh --example DIR    writes such a DIR of examples/cublas/trainer_amp.cu, to begin with
# DIR lies outside of the tree, and no line of it is committed. For each trainer it has a folder NAME:
#     source      the checkout
#     files       words: the program's .cu and C++ files, and flags, such as -I.; those that begin
#                 with -- are for nvcc alone
#     run         sh, run in a copy of the checkout; PROGRAM is the program. The last word that it
#                 says is the loss. A file `weights` that it leaves is compared, too
#     own.diff    what every variant needs: fewer steps, weights that are written, mended faults
#     *.diff      a variant each: the lines that make the trainer call amp.h
# With AMP_ENABLE=0 a variant has to end with the loss and weights of the trainer's own, bit for bit;
# with amp.h its loss may be 2 percent off. FAIL: it does not compile, does not run, or is not so.
most=2 root=$PWD emu=$PWD/tests/gpu/emu nvcc=${NVCC:-nvcc} failed=0 rows=0
unset AMP_ENABLE AMP_DTYPE # what is compared is as the diff says
. tests/gpu/emu/kinds.sh
kind plain

example() { # example DIR
    mkdir -p "$1/example/source" && cd "$1/example" || exit
    echo trainer.cu > files
    echo '"$PROGRAM" --small | awk "{print \$3}"' > run
    with=$root/examples/cublas/trainer_amp.cu
    awk '/^#ifndef FP32/ {off = 1} !off {print} /^#endif/ {off = 0}' "$with" > source/trainer.cu
    sed '/^#ifndef FP32/d; /^#endif/d' "$with" > changed
    {
        echo '    float *host = (float *)malloc(sizeof(float) * num_params);'
        echo '    ok(cudaMemcpy(host, params, sizeof(float) * num_params, cudaMemcpyDeviceToHost));'
        echo '    fwrite(host, sizeof(float), num_params, fopen("weights", "wb")), fflush(NULL);'
    } > write
    for file in source/trainer.cu changed; do
        sed -e '/report("after")/r write' -e '/small_size/s/300, 0.003f/10, 0.003f/' $file > $file.own
    done
    label='--label a/trainer.cu --label b/trainer.cu'
    diff -u $label source/trainer.cu source/trainer.cu.own > own.diff
    diff -u $label source/trainer.cu.own changed.own > amp.diff
    rm -f changed changed.own write source/trainer.cu.own
}
if [ "${1-}" = --example ]; then (example "${2:?}"); exit; fi
dir=$(cd "${1:?usage: client.sh DIR}" && pwd) && [ -n "$dir" ] || exit 2

complain() { # complain TRAINER WHAT LOG
    echo "FAIL $1: $2"
    { grep -m 3 'error\|^ptx: \|^emu' "$3" || tail -n 3 "$3"; } | sed 's/^/     /'
    failed=1
}
words() { tr -s ' \n' '\n\n' < ../files | grep "$@"; }
translate() { # translate FILE: by nvcc, for its warnings and its PTX
    mkdir -p nvcc && "$nvcc" $(words '^-') -I"$root" -arch=sm_80 --keep --keep-dir "$PWD/nvcc" -c "$1" \
        -o nvcc/object > nvcc/log 2>&1 && cat "nvcc/$(basename "$1" .cu).ptx" >> program.ptx || {
        cat nvcc/log
        return 1
    }
    sed -n '/warning/s/([0-9]*)//p' nvcc/log >> warnings
}
build() { # build TRAINER VARIANT: program and, if nvcc is there, program.ptx
    rm -rf "${dir:?}/$1/$2" && cp -R "$dir/$1/source" "$dir/$1/$2" && cd "$dir/$1/$2" || return
    for diff in own "$2"; do
        [ ! -s "../$diff.diff" ] || patch -f -p1 < "../$diff.diff" || return
        [ "$2" != own ] || break
    done
    objects=''
    : > warnings
    [ -z "$ptx" ] || cp "$dir/kernels.ptx" program.ptx || return
    for source in $(words -v '^-'); do
        with="$fake -I$root -w -O1 $(words '^-[^-]')"
        case $source in
        *.cu) plain "$source.o" "$compiler" "$source" $with && { [ -z "$ptx" ] || translate "$source"; } ;;
        *) object "$source.o" "$compiler" $with -c "$source" ;;
        esac || { cat "$source.o.log"; return 1; }
        objects="$objects $source.o"
    done
    $compiler $objects "$kernels/kernels.o" "$kernels/emu.o" $ptx -o program -lm
}
run() { # run TRAINER VARIANT C++|PTX [0: AMP_ENABLE]: the loss, and a digest of the weights
    cd "$dir/$1/$2" && rm -f weights counts || return
    [ -z "${4-}" ] || export AMP_ENABLE="$4"
    [ "$3" = C++ ] || export EMU_PTX="$PWD/program.ptx" EMU_PTX_COUNTS="$PWD/counts" EMU_PTX_CLIENT=1
    PROGRAM="$PWD/program" sh ../run > said 2> "../$2.log" || return
    [ ! -s weights ] || digest=$(cksum < weights)
    awk -v digest="${digest-none}" 'NF {loss = $NF} END {
        split(digest, part)
        if (loss !~ /^[-+0-9.e]+$/) exit 1
        print loss, part[1] }' said
}
beside() { # beside TRAINER VARIANT C++|PTX: a line of the table; $own is what the trainer itself gave
    off=$(run "$1" "$2" "$3" 0) && on=$(run "$1" "$2" "$3") ||
        { complain "$1, $2" "no loss as $3" "$dir/$1/$2.log"; return; }
    same=yes rows=$((rows + 1))
    [ "$off" = "$own" ] || same="no: $off" failed=1
    echo "| $1, $2 | $3 | $(grep -c '^+[^+]' "$dir/$1/$2.diff") | $own | $on | $same |"
    echo "$own $on" | awk -v most=$most '{exit ($3 - $1) * ($3 - $1) > (most / 100 * $1) ^ 2}' ||
        { echo "FAIL $1, $2: as $3 its loss is more than $most percent off"; failed=1; }
    [ "$3" = C++ ] ||
        sed -n 's/.*, \([1-9][0-9]* launches of others\).*/     as C++, not PTX: \1/p' "$dir/$1/$2/counts"
}

kernels=${OBJECTS:-build/tests}/kind-plain ptx=''
[ -n "${OBJECTS-}" ] || make -s "$kernels/kernels.o" || exit
kernels=$(cd "$kernels" && pwd)
if command -v "$nvcc" > /dev/null; then
    ptx=$dir/ptx.o
    if [ -n "${PTX-}" ]; then cp "$PTX" "$ptx"
    else object "$ptx" "$compiler" $fake -O2 -c "$emu/ptx.cpp"
    fi && "$nvcc" -I. -std=c++14 -ptx -arch=sm_80 amp_kernels.cu -o "$dir/kernels.ptx" || exit
else echo "skip PTX: $nvcc not found"
fi
echo '| trainer, variant | as | lines | its own: loss, weights | variant | the same with AMP_ENABLE=0 |'
echo '|---|---|---|---|---|---|'
for trainer in $(cd "$dir" && ls); do
    [ -d "$dir/$trainer/source" ] || continue
    variants=''
    for diff in "$dir/$trainer"/*.diff; do
        variant=$(basename "$diff" .diff)
        [ "$variant" = own ] || [ ! -f "$diff" ] || variants="$variants $variant"
    done
    for variant in own $variants; do
        log=$dir/$trainer/$variant.log
        (build "$trainer" "$variant") > "$log" 2>&1 || complain "$trainer, $variant" 'does not build' "$log"
        sort -u "$dir/$trainer/$variant/warnings" > "$dir/$trainer/$variant.warnings"
        comm -13 "$dir/$trainer/own.warnings" "$dir/$trainer/$variant.warnings" | sed 's/^/     nvcc: /'
    done
    [ -x "$dir/$trainer/own/program" ] || continue
    for as in C++ ${ptx:+PTX}; do
        own=$(run "$trainer" own $as) ||
            { complain "$trainer" "no loss as $as" "$dir/$trainer/own.log"; continue; }
        for variant in $variants; do beside "$trainer" "$variant" $as; done
    done
done
[ $rows$failed != 00 ] || { echo "FAIL $dir: no NAME/source with a NAME/*.diff beside own.diff"; exit 1; }
exit $failed
