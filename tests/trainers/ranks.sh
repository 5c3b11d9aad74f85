# ddp_mpi on 1 to 8 ranks: the same bits, also if another number of ranks resumes; bytes on the links;
# memory of one rank; after SIGKILL or SIGSTOP of a rank no other hangs and no checkpoint is lost.
# ddp_nccl on the emulator, with an NCCL made of MPI: the same bits, too.
# make ci kills twice, make check 20 times; make soak does nothing but kill, 500 times (KILLS).
# usage: [KILLS=N] [OBJECTS=DIR] ranks.sh OUTDIR DDP_MPI      make has built DDP_MPI
suite=ranks out=${1:?usage: ranks.sh OUTDIR DDP_MPI}
rm -rf "$out"
. tests/lib.sh
have mpirun || { skip mpirun 'not found'; finish; }
[ -x "$2" ] || { skip ddp_mpi 'was not built: no mpicc'; finish; }
cp "$2" "$out/ddp"

# Open MPI: as root, more ranks than processors, sockets of the loopback device alone; and the store
# of its launcher without locks in memory that is shared with ranks, for a killed one may hold them.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp
export OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_btl_tcp_if_include=lo
export OMPI_MCA_btl_vader_single_copy_mechanism=none PMIX_MCA_gds=hash
network='--data digits --width 192 --batch 8'
ddp() { # ddp RANKS OPTIONS...
    ranks=$1
    shift
    if [ $ranks = 1 ]; then "$out/ddp" $network "$@"
    else mpirun -n $ranks "$out/ddp" $network "$@"; fi
}
alone() { # alone FROM TO OPTIONS...: one rank goes on, and saves
    from=$1 to=$2
    shift 2
    rm -f "$to" "$to".?.0-of-1
    ddp 1 --resume "$from" --save "$to" "$@"
}
alike() { cmp "$1".?.0-of-1 "$2".?.0-of-1; } # of two checkpoints of one rank: all of the state

# After one more step: counters of the last one are those of the rank that has read its own slice.
identical() { # identical RANKS MICRO TYPE: a run with overflows on one rank, and its bits
    name=$2.$3 run="--micro $2 --dtype $3 --clip 0.4"
    ddp $1 $run --steps 20 --plant 9:$((($1 - 1) % 4)) --save "$out/set.$name.$1" > "$out/log" 2>&1 &&
        awk '/^ddp:/ {ended = 1; bad += $NF != 1}
             /^ +[0-9]+ +[0-9.]+ / && $5 < 1 {clipped++}
             END {exit !(ended && clipped > 3 && !bad)}' "$out/log" &&
        alone "$out/set.$name.$1" "$out/one.$name.$1" $run --steps 21 > "$out/log" 2>&1 &&
        alike "$out/one.$name.1" "$out/one.$name.$1" > "$out/log" 2>&1
}
resumed() { # resumed RANKS: what 4 ranks have begun
    ddp $1 $run --steps 20 --resume "$out/half" --save "$out/rest.$1" > "$out/log" 2>&1 &&
        alone "$out/rest.$1" "$out/one" $run --steps 21 > "$out/log" 2>&1 &&
        alike "$out/one.7.fp16.1" "$out/one" > "$out/log" 2>&1
}

# 2 + 16 / N bytes for each parameter: a copy in 16 bits (biases: fp32); and master, two moments and
# gradient sum of what is this rank's, at most two chunks of 16384 above its share. Tables: for each
# tensor a slot here and there, and arrays that begin at multiples of 64 or 256; for each chunk three
# doubles and an index; plan and control block. What is sent: of 8 micro-batches log2 (8 / N) sums in
# fp32 that wait, and, by more than one rank, what is received, and sums of the largest tensor.
memory() { # memory RANKS
    ddp $1 --width 1024 --steps 0 > "$out/log" 2>&1 &&
        awk -v n=$1 '/^memory ddp:/ {
            p = $6; optimizer = $8; models = $11; slices = $14; own = $16; tables = $19 + 0; sent = $21
            print $0
            printf "%d ranks: %.3f bytes for each parameter, and %.3f sent and received\n", n,
                optimizer / p, sent / p
            waits = (n == 1 ? 12 : n == 2 ? 8 : 4) * p + (n > 2 ? 4 * 2 * 16 * 16384 : 0)
            good = models == 2 * p + 2 * (1024 + 1024 + 10) && own <= p / n + 2 * 16384 &&
                slices <= 16 * own && tables <= 6 * (2 * 216 + 9 * 256) + 28 * (p / 16384 + 6) + 1024 &&
                sent == 2 * p + waits + (n > 1 ? 4 * n * own : 0) && optimizer == models + slices + tables
         } END {exit !good}' "$out/log" > "$out/memory"
}

# Bytes of a step on the busiest link, counted where they are sent: at most 1.05 of what a ring moves.
links() { # links RANKS MICRO
    ddp $1 --width 2048 --micro $2 --steps 2 > "$out/log" 2>&1 && grep '^link ddp:' "$out/log" &&
        awk '/^link ddp:/ {good = $13 > 0.9 && $13 <= 1.05 && $20 > 0.9 && $20 + 0 <= 1.05}
             END {exit !good}' "$out/log"
}

# ------------------------------------------------------------------------------------------- kills
random() { echo $(((($1 * 1103515245 + 12345) % 2147483648) / 1024 % $2)); } # random SEED BELOW
alive()  { # not a zombie; it may end between the two looks
    kill -0 $1 2> /dev/null && case $(sed -n 's/^State:[[:space:]]*//p' /proc/$1/status 2> /dev/null) in Z*) false ;; esac
}
gone() { # gone PIDS...: within 30 seconds of the signal
    for process in "$@"; do
        while alive $process; do
            [ $(($(date +%s) - struck)) -le 30 ] || return 1
            sleep 0.05
        done
    done
}
joined() { until [ -s "$1" ]; do alive $run || break; sleep 0.01; done; } # rank 0 has spoken
turn() { # the step of what is kept
    ddp 1 --micro 6 --resume "$out/kept" --steps 0 2> /dev/null | sed -n 's/^ddp: .* steps \([0-9]*\) .*/\1/p'
}
reference() { # reference STEP: what one rank has that never stopped, in steps of 50
    [ $1 -gt 0 ] || return 0
    [ ! -f "$out/whole.$1" ] || return 0
    [ $1 = 50 ] || reference $(($1 - 50)) || return
    set -- $1 $(($1 - 50))
    if [ $2 = 0 ]; then ddp 1 --micro 6 --steps $1 --save "$out/whole.$1"
    else alone "$out/whole.$2" "$out/whole.$1" --micro 6 --steps $1; fi > "$out/log" 2>&1
}
# Once the ranks have met: a rank that is killed while it joins is mpirun's business, and that of
# Open MPI 4.1.4 then hangs now and then, by itself, when all ranks are gone (its PMIx server).
strike() { # strike NUMBER SIGNAL: at a random moment, a random rank of a run that always saves
    number=$1 signal=$2 of=$((2 + $1 % 3)) device=tcp
    [ $(($1 / 2 % 2)) = 0 ] || device=vader # shared memory
    [ -f "$out/kept" ] || ddp 2 --micro 6 --steps 3 --save "$out/kept" > "$out/log" 2>&1 || return
    : > "$out/struck"
    OMPI_MCA_btl=self,$device mpirun -n $of "$out/ddp" $network --micro 6 --steps 1000000 \
        --resume "$out/kept" --save "$out/kept" --save-every 1 --deadline 2 > "$out/struck" 2>&1 &
    run=$!
    joined "$out/struck"
    sleep $(awk -v ms=$(random $number 1200) 'BEGIN {print ms / 1000}')
    set -- $(pgrep -P $run)
    [ $# = $of ] || { fail "$number: did not start" "$out/struck"; kill -9 $run; return 0; }
    kids=$*
    shift $(random $((number + 7)) $of)
    kill -$signal $1 2> /dev/null
    struck=$(date +%s)
    gone $run || { fail "$number: mpirun hangs" "$out/struck"; kill -9 $run $kids; return 0; }
    wait $run
    status=$?
    gone $kids || { fail "$number: a rank is left" "$out/struck"; kill -9 $kids; return 0; }
    [ $status != 0 ] || { fail "$number: exit status 0" "$out/struck"; return 0; }
    grep -Eq 'rank [0-9]+ (was last heard of|with PID)' "$out/struck" ||
        { fail "$number: no rank is named" "$out/struck"; return 0; }
    now=$(turn)
    next=$((now / 50 * 50 + 50))
    [ -n "$now" ] && reference $next &&
        alone "$out/kept" "$out/one" --micro 6 --steps $next > "$out/log" 2>&1 &&
        alike "$out/whole.$next" "$out/one" > "$out/log" 2>&1 && struck_well=$((struck_well + 1)) ||
        fail "$number: what $of ranks had saved in step $now, when one got $signal"
}
kills() { # kills COUNT
    mpirun --version 2>&1 | grep -q 'Open MPI' || { skip kills 'not Open MPI'; return; }
    struck_well=0
    for number in $(seq 1 $1); do
        case $((number % 2)) in 0) strike $number KILL ;; *) strike $number STOP ;; esac
    done
    [ $struck_well = $1 ]
    check "$1 kills: nobody hangs, a rank is named, what is kept resumes with the bits of a whole run" $?
    echo "# up to step $(turn)"
}
[ -z "${KILLS-}" ] || { kills $KILLS; finish; }

# ------------------------------------------------------------------------------------------- tests
same=0
for run in '7 fp16 1 2 3 4' '12 bf16 1 2 3 4' '8 fp16 1 2 4 8'; do
    set -- $run
    micro=$1 type=$2
    shift 2
    for n in "$@"; do
        if identical $n $micro $type; then same=$((same + 1))
        else fail "$n ranks, $micro micro-batches, $type"; fi
    done
done
[ $same != 12 ] || { echo 'ranks 1 2 3 4 8: checkpoints identical'; ok 'checkpoints'; }
for run in 2:2 $(quick || echo 3:3 4:4 5:5 6:6 7:7 2:8 4:8) 8:8 8:16; do
    links ${run%:*} ${run#*:}
    check "$run ranks and micro-batches: at most 1.05 of the bytes of a ring" $?
done

run='--micro 7 --dtype fp16 --clip 0.4'
ddp 4 $run --steps 11 --plant 9:2 --save "$out/half" > "$out/log" 2>&1
for n in 1 3; do
    resumed $n
    check "what 4 ranks saved resumes on $n with the bits of an uninterrupted run" $?
done
for n in 1 2 4; do
    memory $n
    status=$?
    check "$(tail -n 1 "$out/memory")" $status
done

says() { # says TEXT RANKS PATTERN OPTIONS...: it fails with a line that has the pattern
    text=$1 many=$2 pattern=$3
    shift 3
    ddp $many "$@" > "$out/log" 2>&1
    [ $? != 0 ] && grep -q -e "$pattern" "$out/log"
    check "$text" $?
}
says 'an unknown option is named'           3 --bogus  --bogus
[ "$(grep -c -e --bogus "$out/log")" = 1 ]
check 'once' $?
refuses 'alone: without lines of MPI' '^ddp_mpi: unknown option --bogus; see --help$' ddp 1 --bogus
says 'a rank that is not there is named'    2 9:5      --plant 9:5
says 'a checkpoint of another network is refused' 2 'in the file, not' --width 256 --resume "$out/half"
says 'a checkpoint that is not there is named' 1 nowhere  --resume "$out/nowhere"
says '--save-every without --save is refused' 1 'save-every: does nothing without --save; add'  --save-every 5
file=$(ls "$out"/half.?.1-of-4)
mv "$file" "$out/away"
says 'a file of a checkpoint that is not there is named' 1 'half\..\.1-of-4 cannot be read' --resume "$out/half"
mv "$out/away" "$file"
rm -f "$out"/rest.*
ddp 3 $run --steps 12 --resume "$out/half" --save "$out/rest" > "$out/log" 2>&1 && cp "$out/rest" "$out/rest.was" &&
    ! mpirun -n 2 "$out/ddp" $network $run --steps 14 --resume "$out/rest" --save "$out/rest" : \
        -n 1 sh -c 'trap "" XFSZ; ulimit -f 16; exec "$@"' sh "$out/ddp" $network $run --steps 14 \
        --resume "$out/rest" --save "$out/rest" > "$out/log" 2>&1 && cmp "$out/rest" "$out/rest.was" &&
    grep -q 'ddp_mpi: .*rest: ' "$out/log" && ddp 2 $run --steps 13 --resume "$out/rest" > "$out/log" 2>&1
check 'a full disk on one rank ends all, and leaves the checkpoint as it was' $?
"$out/ddp" --help > "$out/log" 2>&1 && grep -q -e --deadline "$out/log"
check '--help' $?
"$out/ddp" --help 2> "$out/log" > /dev/full
[ $? = 1 ] && grep -q '^ddp_mpi: standard output: No space left' "$out/log"
check '--help on a full disk is an error' $?

# ------------------------------------------------------------------------- NCCL on the emulator
. tests/gpu/emu/kinds.sh
kind plain
objects=${OBJECTS:-build/tests}/kind-plain
cat > "$out/rank" <<'END'
RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=0 exec "$@"
END
nccl() { # nccl RANKS OPTIONS...
    ranks=$1
    shift
    if [ $ranks = 1 ]; then "$out/nccl" $network "$@"
    else DDP_ID=$out/id mpirun -n $ranks sh "$out/rank" "$out/nccl" $network "$@"; fi
}
exchanged() { # exchanged RANKS TYPE: on the emulator; a CPU goes on for a step
    name=nccl.$2 run="--micro 8 --dtype $2 --clip 0.4"
    nccl $1 $run --steps 12 --plant 5:$(($1 - 1)) --save "$out/set.$name.$1" > "$out/log" 2>&1 &&
        grep -q '^ddp: .* skipped 1$' "$out/log" &&
        alone "$out/set.$name.$1" "$out/one.$name.$1" $run --steps 13 > "$out/log" 2>&1 &&
        alike "$out/one.$name.1" "$out/one.$name.$1" > "$out/log" 2>&1
}
emulated() {
    have mpicxx || { skip ddp_nccl 'no mpicxx'; return; }
    [ -s "$objects/kernels.o" ] || { skip ddp_nccl 'there is no emulator'; return; }
    OMPI_CXX=$compiler plain "$out/nccl.o" mpicxx examples/ddp/ddp_nccl.cu $fake -w -O1 $linked &&
        OMPI_CXX=$compiler mpicxx "$out/nccl.o" "$objects/kernels.o" "$objects/emu.o" \
            "$objects/../o2/amp.o" -o "$out/nccl" > "$out/log" 2>&1 ||
        { fail 'ddp_nccl: does not compile' "$out/nccl.o.log"; return; }
    same=0
    for type in $(quick && echo fp16 || echo fp16 bf16 fp32); do
        for n in 1 01 $(quick || echo 2) 3 $(quick || echo 4); do # 01: one, through NCCL
            if exchanged $n $type; then same=$((same + 1))
            else fail "ddp_nccl: $n ranks, $type"; fi
        done
    done
    quick && [ $same = 3 ] || [ $same = 15 ]
    check 'ddp_nccl on the emulator: checkpoints identical, and read by ddp_mpi' $?
}
emulated

if quick; then kills 2; finish; fi

# ------------------------------------------------------------------------------ in make check only
kills 20

# Where mpirun does not end the others, their own deadline does, and says whom they miss.
mpirun --version 2>&1 | grep -q 'Open MPI' || finish
: > "$out/log"
mpirun --enable-recovery -n 3 "$out/ddp" $network --steps 1000000 --deadline 2 > "$out/log" 2>&1 &
run=$!
joined "$out/log"
set -- $(pgrep -P $run)
kill -9 $2
struck=$(date +%s)
gone "$@" $run && grep -q 'rank 1 was last heard of [2-4]' "$out/log"
check 'a rank that is missed is named by the others' $?
finish
