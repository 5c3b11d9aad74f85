# libtorch.cpp: with amp.h's scaler and with its fused step a LibTorch module ends where LibTorch in
# fp32 does; an overflow is skipped; resumed runs end with the same bits.
# usage: [TORCH=DIR] libtorch.sh OUTDIR     DIR holds torch/ (a site-packages, or pip's --target);
#                                           without it python3 is asked
suite=libtorch out=${1:?usage: libtorch.sh OUTDIR}
rm -rf "$out"
. tests/lib.sh

torch=${TORCH:+$TORCH/torch}
[ -n "$torch" ] || torch=$(python3 -c 'import torch; print(torch.__path__[0])' 2> /dev/null)
[ -f "$torch/include/torch/csrc/api/include/torch/torch.h" ] && [ -f "$torch/lib/libtorch_cpu.so" ] || {
    skip libtorch "no PyTorch here (pip install torch, or TORCH=DIR)"
    finish
}
cxx=${CXX:-c++}
have "$cxx" || {
    skip libtorch "$cxx not found"
    finish
}
standard=-std=c++20 # which LibTorch wants from 2.10 on
echo 'int main() {}' > "$out/try.cpp"
$cxx $standard -fsyntax-only "$out/try.cpp" > /dev/null 2>&1 || standard=-std=c++17

# train_*.h offer more functions than this program calls
$cxx $standard -O2 -Wall -Wextra -Wno-unused-function -I. -isystem "$torch/include" \
    -isystem "$torch/include/torch/csrc/api/include" examples/libtorch.cpp -o "$out/libtorch" \
    -L"$torch/lib" "-Wl,-rpath,$torch/lib" -ltorch_cpu -lc10 > "$out/log" 2>&1 && [ ! -s "$out/log" ]
check 'it compiles without a warning' $?
torch() { "$out/libtorch" --out "$out" --data digits "$@"; }

torch > "$out/table" 2> "$out/log"
check 'a full run ends, and says that all is as it should be' $?
tail -n 2 "$out/table"
grep -q '^fp16.*left out' "$out/table" && {
    types=1
    skip 'fp16' "this LibTorch has it not on this CPU"
}
awk -v types=${types:-2} 'function size(x) {return x < 0 ? -x : x}
     /^parity libtorch (scaler|fused): fp32/ {
         lines++
         bad += !(NF == 7 + 6 * types && $5 < 0.2)
         for (i = 7; i < NF - 1; i += 6) bad += !($i ~ /^[0-9.]+$/ && size($(i + 2)) <= 0.01 * $5)
     }
     END {exit !(lines == 2 && !bad)}' "$out/table"
check "losses in halves are within 1 % of LibTorch's in fp32" $?
awk -v rows=$((2 + 2 * ${types:-2})) 'function size(x) {return x < 0 ? -x : x}
     /^(fp32|fp16|bf16)  .*x$/ {n++; bad += !($(NF - 5) > 95 && size($(NF - 4)) <= 0.01 * $(NF - 5))}
     /^fp32  fused/ {bad += !(size($(NF - 6)) <= 0.1)}
     END {exit !(n == rows && !bad)}' "$out/table"
check 'so are accuracies; the fused step in fp32 is LibTorch'"'"'s AdamW, to 0.1 % of the loss' $?
[ "$(grep -c 'overflow at step 10: no weight changed, scale 65536 -> 32768;' "$out/table")" = \
    $((2 * ${types:-2})) ]
check 'an overflow on purpose changes no weight and halves the scale, in every mixed trainer' $?
[ "$(grep -c '32768; resumed there, the same bits at step 30$' "$out/table")" = $((2 * ${types:-2})) ]
check 'saved right after it and resumed, each comes to the same bits' $?

refuses 'an unknown option is named'     --bogus          "$out/libtorch" --bogus
refuses 'a bad number is named'          many             "$out/libtorch" --seeds many
refuses 'too few steps are named'        39               "$out/libtorch" --steps 39
refuses 'a wrong path is named'          "$out/nowhere"   "$out/libtorch" --data "$out/nowhere"
"$out/libtorch" --quiet --seeds 1 --steps 40 --data digits --out "$out/nowhere" > "$out/table" 2> "$out/log"
[ $? = 1 ] && [ "$(grep -c . "$out/log")" = 1 ] && grep -q "$out/nowhere" "$out/log"
check 'a directory that is not there is named' $?
"$out/libtorch" --help > "$out/log" 2>&1 && grep -q -e --seeds "$out/log"
check '--help' $?
finish
