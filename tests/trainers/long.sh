# Long runs and bad ends: many steps with loads by another number of ranks; processes killed
# while they save; full disks, which are small file systems that this script mounts for itself alone.
# make check: 1,000 steps; make soak: only 10^5 steps and 1,000 kills (STEPS, KILLS).
# usage: [STEPS=N KILLS=N] long.sh OUTDIR BUILD      BUILD has the examples
if [ -z "${DISKS-}" ]; then
    export DISKS=no
    unshare -rm mount -t tmpfs tmpfs /mnt > /dev/null 2>&1 && DISKS=yes exec unshare -rm sh "$0" "$@"
fi
suite=long out=${1:?usage: long.sh OUTDIR BUILD} build=${2:?usage: long.sh OUTDIR BUILD}
. tests/lib.sh
CC=${CC:-cc}

built() { # built NAME FLAGS...: test_NAME.c, with an amp.h of its own
    name=$1
    shift
    $CC -std=c99 -O2 "$@" -pthread -I. tests/unit/test_$name.c tests/amp.c -o "$out/$name$1" -lm > "$out/log" 2>&1 ||
        { fail "test_$name.c does not compile"; finish; }
}
built state
built zero
TMPDIR=$out AMP_STEPS=${STEPS-} lines threads "$out/zero" --filter long_run
grep '^#' "$out/threads.log"
if [ -n "${KILLS-}" ]; then
    for program in state zero; do
        TMPDIR=$out AMP_KILLS=$KILLS lines "$program" "$out/$program" --filter kill
        grep '^#' "$out/$program.log"
    done
    finish
fi

# ------------------------------------------------------------------------------ a disk that is full
[ $DISKS = yes ] || { skip full_disk 'no file system can be mounted here'; finish; }
disk=$out/disk
mkdir -p "$disk"
mount -t tmpfs -o size=64k tmpfs "$disk"
TMPDIR=$disk lines 64K "$out/state" --filter full_disk
umount "$disk"
mount -t tmpfs -o size=16m tmpfs "$disk"
TMPDIR=$disk lines 16M "$out/zero" --filter damaged

# keeps TEXT FILE COMMAND...: what the command has written stays, byte by byte, and nothing lies beside it, when
# it runs again on a disk that is full; one line says so.
keeps() {
    text=$1 file=$2
    shift 2
    umount "$disk"
    mount -t tmpfs -o size=16m tmpfs "$disk"
    "$@" > "$out/log" 2>&1 && [ -s "$file" ] || { fail "$text: on a disk with room"; return; }
    cp "$disk"/* "$out/kept/" && rm -f "$disk"/*.jsonl
    ls "$disk" > "$out/files"
    cat /dev/zero > "$disk/filler" 2> /dev/null
    "$@" > /dev/null 2> "$out/log"
    status=$?
    rm "$disk/filler"
    cmp "$file" "$out/kept/$(basename "$file")" >> "$out/log" 2>&1 && ls "$disk" | cmp - "$out/files" >> "$out/log" &&
        [ $status -ne 0 ] && [ $status -lt 126 ] && grep -q 'No space left\|disk full' "$out/log" &&
        [ "$(grep -c '^[a-z_]*: ' "$out/log")" = 1 ]
    check "$text: the older one stays, and one line says why" $?
    rm -f "$out/kept"/*
}
mkdir -p "$out/kept"
for name in gpt 'cnn --task cnn' ncf; do
    keeps "${name%% *}: a state" "$disk/state" "$build/"$name --quick --seeds 1 --dtype fp16 --steps 2 --out "$out" --save "$disk/state"
done
keeps 'train: a picture' "$disk/train_loss.svg" "$build/train" --data digits --task classify --seeds 1 --epochs 1 --out "$disk"
"$build/gpt" --quick --seeds 1 --dtype fp16 --out "$out" --report "$out/run.jsonl" > "$out/log" 2>&1
keeps 'report: a page' "$disk/page.html" "$build/report" "$out/run.jsonl" --out "$disk/page.html"
keeps 'ddp_mpi: a state' "$disk/set" "$build/ddp_mpi" --data digits --width 64 --batch 8 --micro 2 --steps 2 --save "$disk/set"
finish
