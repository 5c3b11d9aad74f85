# What the CUDA compiler says about amp_kernels.cu and the CUDA examples: warnings, registers,
# spills, the width of memory accesses. Nothing runs, no GPU is needed. usage: nvcc.sh OUTDIR
# make test compiles the kernels for the oldest and the newest GPU, and leaves the programs to
# headers.sh, which looks at their types, and to the emulator.
suite=nvcc out=${1:?usage: nvcc.sh OUTDIR}
. tests/lib.sh
NVCC=${NVCC:-nvcc}
have "$NVCC" || { skip "$NVCC" 'not found'; finish; }
flags="-std=c++14 -I. -Werror all-warnings -Xcompiler -Wall,-Wextra"
echo "# $($NVCC --version | sed -n 's/.*release/CUDA release/p')"
archs=
for arch in 75 80 86 89 90 100 120; do # an older toolkit knows fewer
    if $NVCC --list-gpu-arch | grep -qx "compute_$arch"; then archs="$archs $arch"; fi
done
if quick && [ "$archs" ]; then
    set -- $archs
    archs=" $1 $(eval echo "\${$#}")"
fi

code=
for arch in $archs; do code="$code -gencode arch=compute_$arch,code=sm_$arch"; done
programs=$(quick || ls examples/*.cu tests/bench/*.cu) libs='-lcublas -lcublasLt'

# Everything is compiled once.
$NVCC $flags $code -Xptxas -v,-warn-spills,-warn-lmem-usage -c amp_kernels.cu \
    -o "$out/kernels.o" > "$out/kernels.log" 2>&1
for program in $programs; do
    name=$(basename "$program" .cu)
    rm -f "$out/$name.o"
    $NVCC $flags $code -c "$program" -o "$out/$name.o" > "$out/$name.log" 2>&1
done

# One line for each architecture: the registers of each kernel, and that nothing spills.
for arch in $archs; do
    awk -v arch="$arch" '/Compiling entry function/ {
             mine = index($0, "\x27sm_" arch "\x27")
             name = $0
             sub(/.*ampi_/, "", name)
             sub(/_kernel/, "", name)
             sub(/8amp_plan.*|[EP].*|yPK.*|\x27.*/, "", name)
             sub(/ILi0/, "_adamw", name); sub(/ILi1/, "_sgd", name)
             sub(/ILi2/, "_unscale", name); sub(/ILi3/, "_model", name)
             sub(/ILi4/, "_carry", name)
         }
         mine && /stack frame/ {stack += $1; spill += $5 + $9}
         mine && /Used [0-9]+ registers/ {
             used = $0
             sub(/.*Used /, "", used)
             printf "%s %d, ", name, used
             kernels++
         }
         END {printf "stack %d, spilled %d bytes\n", stack, spill
              exit stack + spill != 0 || kernels < 12}' "$out/kernels.log" > "$out/registers"
    if [ $? = 0 ]; then ok "sm_$arch: registers $(cat "$out/registers")"
    else fail "sm_$arch: registers $(cat "$out/registers")" "$out/kernels.log"; fi
done

# Every formula is rounded as written, also under --use_fast_math: no flushed subnormal, no
# approximation, no fused multiply-add in the code for the device.
if $NVCC $flags --use_fast_math -ptx amp_kernels.cu -o "$out/fast.ptx" 2> "$out/fast.log" &&
    ! grep -E 'ftz|approx|fma\.r' "$out/fast.ptx" > "$out/fast.log"; then
    ok "fast-math: no .ftz, .approx or fma in PTX"
else fail "fast-math: PTX has" "$out/fast.log"; fi

# Aligned fp32 arrays are read and written 16 bytes at a time, halves 8; the check reads all 16.
if $NVCC $flags -ptx amp_kernels.cu -o "$out/kernels.ptx" 2> "$out/ptx.log" &&
    awk '/\.entry/ {name = $0}
         /ld\.global\.v4/ {loads[name]++}
         /st\.global\.v4/ {stores[name]++}
         END {
             for (k in loads) {
                 if (k ~ /check_kernel/) check = loads[k]
                 if (k ~ /update_kernelILi0/) adamw = loads[k] " loads and " stores[k] " stores"
             }
             print "check " check " loads, adamw " adamw
             exit !(check >= 24 && adamw == "4 loads and 5 stores")
         }' "$out/kernels.ptx" > "$out/ptx.log" 2>&1; then
    ok "128 bits: $(cat "$out/ptx.log") of 16 bytes in PTX"
else fail "128 bits: not found in PTX" "$out/ptx.log"; fi

for program in $programs; do
    name=$(basename "$program" .cu)
    if [ -f "$out/$name.o" ] && $NVCC "$out/$name.o" "$out/kernels.o" $libs -o "$out/$name" \
        >> "$out/$name.log" 2>&1; then ok "$name: compiles and links for sm:$archs"
    else fail "$name: does not build" "$out/$name.log"; fi
done
finish
