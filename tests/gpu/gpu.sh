# What only a GPU can show, in four visits of which each has less than ten minutes and no network:
#
#     sh tests/gpu/gpu.sh 1 OUT     under four: any_cuda.cu, then quick conformance; the step beside a
#                                 copy, kernels for each of its parts, and PyTorch's
#     sh tests/gpu/gpu.sh 2 OUT     all of the conformance suite, with 10^5 steps in grids of all sizes;
#                                 NCCL with one rank, examples; some of it with a default stream
#                                 per thread, and with --use_fast_math
#     sh tests/gpu/gpu.sh 3 OUT     Nsight Compute and compute-sanitizer, where the machine lets them
#     sh tests/gpu/gpu.sh 4 OUT     under six: a whole network and products, beside PyTorch and cuBLAS
#     sh tests/gpu/gpu.sh carry DIR without a GPU: what all of them compile, for ARCH=90
#
# A GPU that is newer than the compiler gets PTX for the newest one that the compiler knows.
#
# any_cuda.cu and the conformance suite compare every byte with the CPU backend. OUT gets report.txt,
# with all output; issue.md, what of it to paste into an issue; table.csv: the rows of the benches
# (bench/gpu.h) as they are measured, the most wanted first, their ratios, the machine, and the
# seconds, clocks and watts of each stage; and, after 1 and 4, table.md: README's tables of it. For
# the tables of both phases:
#     awk -f tests/gpu/gpu_table.awk OUT1/table.csv OUT4/table.csv
# A stage that fails does not stop the others; a stage without tests has failed. What a machine lacks
# or refuses is skipped. If a test crashes, hangs or loses the device, the suite goes on in another
# process. Programs that make gpu-carry has put into build/gpu are used if they are of the same
# sources, architecture and compiler; what is missing there is compiled. The last line is "N passed,
# N failed, N skipped". Exits 1 if anything failed, or if nothing has run on a GPU.

case $#-${1-} in 2-[1234] | 2-carry) ;; *) echo 'usage: gpu.sh 1|2|3|4|carry OUT' >&2; exit 2 ;; esac
NVCC=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)} CC=${CC:-cc}
device=${CUDA_VISIBLE_DEVICES:-0} device=${device%%,*} # as nvidia-smi calls it
case $device in MIG*) device=0 ;; esac
case $1 in 1) most=235 ;; 4) most=355 ;; carry) most=3000 ;; *) most=540 ;; esac
phase=$1 started=$(date +%s) passed=0 failed=0 skipped=0 ran=0 gpu=unseen
deadline=$((started + most))
mkdir -p "$2" && out=$(cd "$2" && pwd) && cd "$(dirname "$0")/../.." && work=$(mktemp -d) || exit 1
export PYTHONDONTWRITEBYTECODE=1 AMP_TEST_NAMES=1 # so that a report tells what crashed or hung
export AMP_TEST_SECONDS=${AMP_TEST_SECONDS:-45}   # that a test may take
: > "$out/report.txt"
echo name,what,n,tensors,unit,value,low,high > "$out/table.csv"

say()  { echo "$*" | tee -a "$out/report.txt"; }
ok()   { passed=$((passed + 1));   say "ok   gpu/$1"; }
skip() { skipped=$((skipped + 1)); say "skip gpu/$1: $2"; }
fail() { # fail NAME TEXT [LOG]
    failed=$((failed + 1))
    say "FAIL gpu/$1: $2"
    [ ! -f "${3-}" ] || tail -n 12 "$3" | sed 's/^/     /'
}
tables() {
    case $phase in 1 | 4) awk -f tests/gpu/gpu_table.awk "$out/table.csv" > "$out/table.md" ;; esac
}
finish() {
    [ $phase = carry ] || [ $ran -gt 0 ] || fail gpu 'nothing has run on a GPU'
    awk -v form=ratios -f tests/gpu/gpu_table.awk "$out/table.csv" > "$work/ratios"
    cat "$work/ratios" >> "$out/table.csv"
    tables
    say "# $(($(date +%s) - started)) s; paste $out/issue.md into the issue form 'I ran it on a GPU'"
    say "$passed passed, $failed failed, $skipped skipped"
    [ $phase = carry ] || {
        echo "amp.h $(sed -n 's/^#define AMP_VERSION_[MP].* //p' amp.h | paste -sd .)," \
            "commit $(git describe --always --dirty --exclude '*' 2> /dev/null || echo unknown)"
        echo
        sed -En 's/^((ok  |FAIL|skip) gpu\/|#|     |[0-9]+ passed)/    &/p' "$out/report.txt"
        echo
        cat "$out/table.md" 2> /dev/null
    } > "$out/issue.md"
    rm -rf "$work"
    [ $failed = 0 ] && exit 0
    exit 1
}
trap finish EXIT
trap 'exit 1' HUP INT TERM

# least SECONDS: they, or what the phase has left, but 1: no limit is 0
least() {
    left=$((deadline - $(date +%s)))
    [ $left -ge 1 ] || left=1
    if [ $left -lt "$1" ]; then echo $left; else echo "$1"; fi
}

# run SECONDS COMMAND...: its words, in the report too, and its rows at once in the table
run() {
    limit=$1
    shift
    echo "\$ $*" >> "$out/report.txt"
    { timeout -k 5 "$limit" "$@" 2>&1; echo $? > "$work/status"; } | tee "$work/log" |
        grep --line-buffered -E '^(amp|unfused|torch[a-z-]*|cublas),([^,]*,){6}[^,]*$' \
            >> "$out/table.csv"
    cat "$work/log" >> "$out/report.txt"
    return "$(cat "$work/status")"
}

# row WHAT UNIT VALUE: of the run itself
row() { echo "gpu,$1,,,$2,$(echo "$3" | tr , ' '),," >> "$out/table.csv"; }

# ask WHAT: of the device; watch, and watched NAME: its clocks and power in between
ask() { nvidia-smi -i "$device" "--query-gpu=$1" --format=csv,noheader,nounits 2> /dev/null; }
watch() {
    nvidia-smi -i "$device" --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu \
        --format=csv,noheader,nounits -lms 500 > "$work/watch" 2> /dev/null &
}
watched() {
    kill $! 2> /dev/null
    wait $! 2> /dev/null
    awk -F ', *' -v stage="$1" '
        NF == 4 {
            for (i = 1; i <= 4; i++) {
                if ($i !~ /^[0-9]/) continue # [N/A]
                seen[i]++
                sum[i] += $i
                if (seen[i] == 1 || $i + 0 < low[i]) low[i] = $i + 0
                if (seen[i] == 1 || $i + 0 > high[i]) high[i] = $i + 0
            }
        }
        END {
            split("clock memory-clock power temperature", what, " ")
            split("MHz MHz W C", unit, " ")
            for (i = 1; i <= 4; i++)
                if (seen[i])
                    printf "gpu,%s-%s,,,%s,%.0f,%.0f,%.0f\n", stage, what[i], unit[i],
                        sum[i] / seen[i], low[i], high[i]
        }' "$work/watch" | tee -a "$out/table.csv" >> "$out/report.txt"
}

# stage NAME SECONDS COMMAND...: it succeeds; the suite has passed tests. Where a test of it has ended
# the process, those behind that test run in another one.
stage() {
    name=$1 begun=$(date +%s) limit=$(least "$2") lost='' before=0
    until=$((begun + limit))
    shift 2
    [ "$limit" -ge 3 ] || { skip "$name" 'no time left'; return; }
    watch
    run "$limit" "$@"
    status=$?
    while killed; do
        lost="$lost $killer" before=$((before + $(grep -c '^ok ' "$work/log")))
        say "# $name: $killer ended its process, status $status"
        tail -n 12 "$work/log" | sed 's/^/     /'
        limit=$(least $((until - $(date +%s))))
        [ "$limit" -ge 3 ] || break
        run "$limit" env AMP_TEST_AFTER="$killer" "$@"
        status=$?
    done
    watched "$name"
    tests=$(sed -n 's/^\([0-9]*\) passed, .*/\1/p' "$work/log" | tail -n 1)
    [ ! "$lost" ] || {
        fail "$name" "lost$lost; $((before + ${tests:-0})) other tests passed"
        row "$name" s $(($(date +%s) - begun))
        return
    }
    case $status-$name-$tests in
    124-* | 137-*) fail "$name" "took more than $limit s" "$work/log" ;;
    0-*suite*- | 0-*suite*-0) fail "$name" 'no test ran' "$work/log" ;;
    0-*) ran=$((ran + 1)); ok "$name${tests:+: $tests tests}" ;;
    *) fail "$name" "ended with status $status" "$work/log" ;;
    esac
    row "$name" s $(($(date +%s) - begun))
    tables
}

# killed: has the last command ended within a test, the killer, and not within the last killer?
killed() {
    killer=$(sed -n 's/^# \([a-z0-9_]*\) begins$/\1/p' "$work/log" | tail -n 1)
    case $name-$(grep -c '^[0-9]* passed, ' "$work/log") in *suite*-0) ;; *) return 1 ;; esac
    [ "$killer" ] && [ "$lost" = "${lost% "$killer"}" ]
}

# ------------------------------------------------------------------------------ compiling

# begin NAME SECONDS COMMAND...: begins to make a file, as many at once as there are processors;
# made waits for all. What fails is taken from those that were carried along.
begin() {
    making="$making $1" jobs=$((jobs + 1)) file=$work/$1 limit=$(least "$2")
    [ $phase != carry ] || limit=600 # where nobody waits
    shift 2
    {
        begun=$(date +%s)
        timeout -k 5 "$limit" "$@" -o "$file" > "$file.log" 2>&1 || rm -f "$file"
        echo $(($(date +%s) - begun)) > "$file.took"
    } &
    [ $((jobs % cores)) != 0 ] || wait
}
made() {
    wait
    for name in $making; do
        took=$(cat "$work/$name.took")
        cat "$work/$name.log" >> "$out/report.txt"
        row "compile-$name" s "$took"
        if [ -f "$work/$name" ]; then ok "compile-$name: $took s"
        else
            fail "compile-$name" "is not made after $took s" "$work/$name.log"
            carry "$name"
        fi
    done
    making=
}
carry() {
    [ -f "$carried/$1" ] && cp "$carried/$1" "$work" && say "# $1 was carried along"
}

# What a program is linked of. Kernels are compiled once for each way: as they are, with fast
# mathematics, and with a default stream per thread.
objects_of() {
    case $1 in
    suite) echo kernels.o test.o cpu.o ;;
    suite_fast) echo kernels_fast.o test.o cpu.o ;;
    suite_per_thread) echo kernels_per_thread.o test_per_thread.o cpu.o ;;
    any_cuda) echo kernels.o any_cuda.o cpu.o ;;
    any_cpu) echo any_cpu.o cpu.o ;;
    probe | any_differs) echo "$1.o" ;;
    *) echo kernels.o "$1.o" ;;
    esac
}
compile() { # compile OBJECT
    with= source=$(ls examples/${1%.o}.cu examples/*/${1%.o}.cu 2> /dev/null)
    case $1 in
    cpu.o) begin cpu.o 60 "$CC" -std=c99 -O2 -I. -c "$work/cpu.c"; return ;;
    kernels*) source='-DAMPI_GRIDS amp_kernels.cu' ;;
    test*) source='-x cu tests/unit/test_cuda.cpp' ;;
    any_cuda.o) source="$linked tests/gpu/any_cuda.cu" ;;
    any_cpu.o) source="-DANY_CPU $linked -x c++ tests/gpu/any_cuda.cu" ;;
    any_differs.o) source='-x c++ tests/gpu/any_differs.c' ;;
    bench*) source=tests/bench/${1%.o}.cu ;;
    probe.o) source=$work/probe.cu ;;
    esac
    case $1 in
    *_fast.o) with=--use_fast_math ;;
    *_per_thread.o) with='--default-stream per-thread' ;;
    esac
    begin "$1" 150 "$NVCC" -O2 -std=c++14 -gencode arch=compute_$known,code=${code:-compute_$known} $with -I. \
        $includes -c $source
}
build() { # build PROGRAM...: but those that were carried along, and find their libraries
    for program; do
        shift
        if ldd "$carried/$program" 2> /dev/null | grep -q 'not found' || ! carry "$program"; then
            set -- "$@" "$program"
        fi
    done
    for name in $(for program; do objects_of "$program"; done | tr ' ' '\n' | sort -u); do
        [ ! "$cuda" ] || compile $name
    done
    made
    for program; do
        set --
        for name in $(objects_of "$program"); do set -- "$@" "$work/$name"; done
        if [ "$cuda" ] && ls "$@" > /dev/null 2>&1; then
            case $program in *nccl*) set -- "$@" $nccl ;; esac
            begin "$program" 60 "$NVCC" -arch=${code:-compute_$known} "$@" $libraries
        fi
    done
    made
}
built() { # built PROGRAM STAGE
    if [ $gpu = none ]; then skip "$2" 'no GPU'
    elif [ ! -x "$work/$1" ]; then skip "$2" 'was not built'
    else return 0; fi
    return 1
}

# find_file SUBDIRECTORY/FILE...: the first there is of the toolkit's, the system's or a wheel's
find_file() {
    for home in $homes; do
        for file; do
            for file in $home/$file; do [ ! -f "$file" ] || { echo "$file"; return; }; done
        done
    done
    return 1
}
library() { # library NAME: the words that link it; in wheels its name ends with a number
    file=$(find_file "lib64/lib$1.so*" "lib/lib$1.so*" "lib/*/lib$1.so*") &&
        echo "-L${file%/*} -l:${file##*/}"
}
header() { # header FILE: the word that finds it
    file=$(find_file "include/$1") && case $file in
    "$toolkit"/* | /usr/include/*) ;;
    *) echo "-I${file%/*}" ;;
    esac
}

# tried NAME COMMAND...: whether a tool can watch a program that is certainly correct
tried() {
    name=$1
    shift
    built probe $name || return 1
    command -v "$1" > /dev/null 2>&1 || { skip $name "$1 not found"; return 1; }
    run "$(least 30)" "$@" "$work/probe" && return
    skip $name "refused: $(grep -v '^ *$' "$work/log" | tail -n 1)"
    return 1
}
# sanitize TOOL: kernels of all kinds, eight runs of each test
sanitize() {
    tool=$1
    set -- compute-sanitizer --tool $tool --error-exitcode 1
    built suite $tool && tried $tool "$@" || return
    for test in races few_rows storage_formats ranks casts reports scaler_twins; do
        stage suite-$tool-$test 60 env AMP_QUICK=2 "$@" "$work/suite" --filter $test
    done
}

# torch NAME SECONDS SCRIPT: where there is one that sees the GPU; with libraries of its own
torch() {
    run "$(least 60)" env -u LD_LIBRARY_PATH python3 -c 'import torch, sys
print("torch", torch.__version__)
sys.exit(not torch.cuda.is_available())' || { skip "$1" 'no PyTorch that sees the GPU'; return; }
    row torch "" "$(sed -n 's/^torch //p' "$work/log")"
    stage "$1" "$2" env -u LD_LIBRARY_PATH python3 "$3"
}

# ------------------------------------------------------------------------------ the machine

cuda=$("$NVCC" --version 2> /dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
ARCH=${ARCH:-$(ask compute_cap | sed -n 's/^\([0-9]*\)\.\([0-9]\)$/\1\2/p')}
ARCH=${ARCH:-90}
known=$ARCH code=sm_$ARCH
newest=$("$NVCC" --list-gpu-arch 2> /dev/null | sed -n 's/^compute_\([0-9]*\)$/\1/p' | sort -n | tail -n 1)
if [ "${newest:-$ARCH}" -lt "$ARCH" ]; then
    known=$newest code=
    say "# $NVCC knows no GPU of $ARCH: it makes PTX for $newest"
fi
cores=$(nproc 2> /dev/null || echo 4)
say "# gpu.sh $phase, $(date -u +%Y-%m-%d), $(uname -srm), $cores processors, CUDA ${cuda:-is missing}"
row command "" "sh tests/gpu/gpu.sh $phase OUT"
row date "" "$(date -u +%Y-%m-%d)"
[ ! "$cuda" ] || row cuda "" "$cuda"
if command -v nvidia-smi > /dev/null 2>&1; then
    say "# $(ask name,driver_version,memory.total)"
    row device "" "$(ask name)"
    row driver "" "$(ask driver_version)"
else say '# no nvidia-smi: no clocks, no watts'
fi
nvcc_is=$(command -v "$NVCC") && toolkit=$(readlink -f "$nvcc_is") && toolkit=${toolkit%/bin/*}
homes=${toolkit=/usr/local/cuda}
PATH=$PATH:$toolkit/bin:$toolkit/compute-sanitizer # ncu's, and that one's
for wheel in $(python3 -c 'import nvidia; print(*nvidia.__path__)' 2> /dev/null); do
    homes="$homes $wheel/*"
done
homes="$homes /usr"
making='' jobs=0 linked='-DAMP_CORE_INCLUDED -DAMP_IMPLEMENTATION_INCLUDED' # with cpu.o
libraries="$(library cublas) $(library cublasLt)" includes="$(header cublas_v2.h) $(header nccl.h)"
examples=$(ls examples/*.cu examples/*/*.cu)
nccl=$(library nccl) && header nccl.h > /dev/null || {
    examples=$(grep -L '<nccl.h>' $examples)
    case $phase in 2 | carry) skip ddp_nccl 'no nccl.h, or no library' ;; esac
}
examples=$(for source in $examples; do basename "$source" .cu; done | sort)
# of programs that were linked elsewhere, too
LD_LIBRARY_PATH=$(echo $libraries $nccl | tr ' ' '\n' | sed -n 's/^-L//p' | tr '\n' :)${LD_LIBRARY_PATH-}
export LD_LIBRARY_PATH
printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$work/cpu.c"
cat > "$work/probe.cu" <<'END'
#include <stdio.h>
static __global__ void one(int *p) { *p = 1; }
int main() {
    int *p, value = 0;
    cudaError_t error = cudaMalloc((void **)&p, sizeof *p);
    if (error == cudaSuccess) {
        one<<<1, 1>>>(p);
        error = cudaMemcpy(&value, p, sizeof value, cudaMemcpyDeviceToHost);
    }
    if (error == cudaSuccess && value != 1) error = cudaErrorUnknown;
    printf("%s\n", cudaGetErrorString(error));
    return error != cudaSuccess;
}
END
any='any_cuda any_cpu any_differs'
sources=$(cat amp.h amp_kernels.cu tests/gpu/any_* tests/support/*.h tests/unit/test_cuda.cpp tests/bench/*.cu tests/bench/gpu.h \
    examples/*.cu examples/*.h examples/*/*.cu* examples/*/*.h | cksum)
carried=${CARRIED:-build/gpu}
if [ $phase = carry ]; then
    carried=$work/none
    build probe $any suite suite_fast suite_per_thread bench_cuda bench_mlp $examples
    rm -f "$work"/*.took "$work"/*.log "$work"/*.c "$work"/*.cu
    cp "$work"/* "$out" && echo "$sources $ARCH $cuda" > "$out/of"
    say "# $(du -sm "$out" | cut -f 1) MB, of which a machine may take 64 with the sources"
    exit
fi
of=$(cat "$carried/of" 2> /dev/null)
[ "$of" = "$sources $ARCH ${cuda:-${of##*[!0-9.]}}" ] || {
    if [ -d "$carried" ]; then say "# $carried is of other sources, another GPU or compiler: not used"
    else say "# $carried is not there (make gpu-carry)"; fi
    carried=$work/none
}
[ "$cuda" ] || skip compile "$NVCC not found, so what was carried along"

# programs PROGRAM...: what the phase needs, and whether there is a GPU at all
programs() {
    build probe "$@"
    [ ! -x "$work/probe" ] || run 60 "$work/probe" || {
        gpu=none
        skip probe "$(tail -n 1 "$work/log")"
    }
}

case $phase in
1)
    programs $any suite bench_cuda
    built any_cuda any && stage any 30 sh -c '"$0/any_cpu" "$0/cpu" && "$0/any_cuda" "$0/gpu"
        "$0/any_differs" "$0/cpu" "$0/gpu"' "$work" && say "# $(tail -n 1 "$work/log")"
    built suite suite-quick && stage suite-quick 60 "$work/suite" --quick
    built bench_cuda bench && stage bench 75 "$work/bench_cuda"
    torch torch 110 tests/bench/torch_step.py
    ;;
2)
    programs suite suite_fast suite_per_thread $examples
    built suite suite && stage suite 240 "$work/suite"
    for name in $examples; do # ddp_nccl is the first
        built $name $name || continue
        case $name in
        gpt_cuda) stage $name 40 "$work/$name" --out "$work" ;;
        ddp_nccl) # a communicator of one rank, too
            stage $name 15 "$work/$name"
            stage $name-one 15 env DDP_ID="$work/ddp" RANK=0 WORLD_SIZE=1 "$work/$name" ;;
        *) stage $name 15 "$work/$name" ;;
        esac
    done
    built suite_per_thread suite-per-thread &&
        stage suite-per-thread 40 "$work/suite_per_thread" --quick
    built suite_fast suite-fast-math && stage suite-fast-math 40 "$work/suite_fast" --quick
    ;;
3)
    programs suite bench_cuda
    # Each kernel by its name in the source, in steps of 20M parameters in all storage formats.
    set -- ncu --clock-control none # which are not ours to lock
    if built bench_cuda ncu && tried ncu "$@"; then
        kernels=$(sed -n 's/.*AMPI_KERNEL(.*) \(ampi_[a-z_]*\)(.*/\1/p' amp_kernels.cu)
        watch
        run "$(least 120)" "$@" --kernel-name "regex:^($(echo $kernels | tr ' ' '|'))\$" \
            --launch-count 200 --section SpeedOfLight --section MemoryWorkloadAnalysis \
            --section InstructionStats --section WarpStateStats --section Occupancy \
            --section LaunchStats "$work/bench_cuda" --once 2e7
        watched ncu
        if grep -q ampi_ "$work/log"; then ran=$((ran + 1)) && ok ncu
        else skip ncu "profiled nothing: $(tail -n 1 "$work/log")"; fi
    fi
    for tool in memcheck racecheck synccheck initcheck; do sanitize $tool; done
    ;;
4)
    programs bench_mlp
    built bench_mlp bench-mlp && stage bench-mlp 120 "$work/bench_mlp"
    torch torch-mlp 200 tests/bench/torch_mlp.py
    ;;
esac
