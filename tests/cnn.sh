# cnn's two networks learn, alike in all types, with right gradients; killed and resumed, they end with
# the same bits; bad input is answered. make test runs its toys, make check the full runs besides.
# usage: cnn.sh OUTDIR CNN       CNN is the program that make has built
suite=cnn out=${1:?usage: cnn.sh OUTDIR CNN}
rm -rf "$out"
. tests/lib.sh
cp "$2" "$out/cnn"
digits='--data digits' # whatever is installed
cnn() { "$out/cnn" --quick $digits --out "$out" "$@"; }
number='[0-9.]+' d='d [-+][0-9.]+ se [0-9.]+' count='[1-9][0-9]*'

cnn > "$out/toy" 2> /dev/null && tail -n 6 "$out/toy" > "$out/log"
status=$?
line=0
for task in cnn unet; do
    for form in "parity $task: fp32 $number fp16 $number $d bf16 $number $d seeds 2" \
                "speed $task: fp32 $count fp16 $count bf16 $count images/s" \
                "memory $task: fp32 $count fp16 $count bf16 $count MiB"; do
        line=$((line + 1))
        sed -n ${line}p "$out/log" | grep -Eqx "$form" || status=1
    done
    grep -q '</svg>' "$out/${task}_loss.svg" || status=1
done
[ $status = 0 ] && grep -q '</svg>' "$out/unet_images.svg"
check 'a short run ends with its six lines and has drawn its pictures' $?
tail -n 6 "$out/toy"
awk 'function size(x) {return x < 0 ? -x : x}
     /^parity cnn/  {lines++; bad += !($4 > 90 && size($8) < 2 && size($14) < 2)}
     /^parity unet/ {lines++; bad += !($4 < 0.06 && size($8) < 0.02 * $4 && size($14) < 0.02 * $4)}
     /^  (fp16|bf16) trains/ {lines++; bad += !($10 == 50)}
     END {exit !(lines == 6 && !bad)}' "$out/toy"
check 'they learn, alike in all types, with half the bytes of activations in halves' $?
"$out/cnn" --check $digits > "$out/log" 2>&1 &&
    [ "$(grep -c ': 0, without a workspace [1-9]' "$out/log")" = 6 ]
check 'gradients agree with finite differences, and a step allocates nothing' $?

for task in cnn unet; do
    one="--task $task --dtype fp16 --steps 300"
    rm -f "$out/part"
    cnn $one --save "$out/whole" --save-every 300 > "$out/first" 2> /dev/null
    "$out/cnn" --quick $digits --out "$out" $one --save "$out/part" --save-every 1 > "$out/log" 2>&1 &
    tries=0 # killed as soon as there is a state
    while [ ! -s "$out/part" ] && [ $tries -lt 400 ]; do sleep 0.05; tries=$((tries + 1)); done
    kill -9 $! 2> /dev/null && ! wait $! 2> /dev/null && cp "$out/part" "$out/killed" &&
        ! cmp -s "$out/whole" "$out/killed" &&
        cnn $one --resume "$out/killed" --save "$out/part" --save-every 300 > "$out/second" 2> /dev/null &&
        cmp "$out/whole" "$out/part" > "$out/log" 2>&1 &&
        [ "$(grep '^final' "$out/first")" = "$(grep '^final' "$out/second")" ]
    check "$task: a run that was killed and resumed ends with the same bytes" $?
done
try 'the last layer and a block in fp32, if the policy says so' \
    cnn --task cnn --dtype bf16 --steps 3 --policy 'op:linear=fp32, block1.*=fp32'

refuses 'a state of another run is refused' 'lr 0.01' \
    "$out/cnn" --quick $digits $one --lr 0.01 --resume "$out/killed"
refuses 'a state of the other network is refused' killed \
    "$out/cnn" --quick $digits $one --task cnn --resume "$out/killed"
head -c 999 "$out/killed" > "$out/torn"
refuses 'a torn state is named'        torn       "$out/cnn" --quick $digits $one --resume "$out/torn"
refuses 'a missing path is named'      nowhere    "$out/cnn" --data "$out/nowhere"
refuses 'a batch too large is named'   --batch    "$out/cnn" $digits --batch 4096
refuses 'a layer that is not there'    blok       "$out/cnn" $digits --out "$out" --policy 'blok*=fp32'
refuses 'a bad policy is named'        soft       "$out/cnn" $digits --out "$out" --policy 'op:soft=fp32'
refuses 'an unknown task is named'     fly        "$out/cnn" --task fly
refuses 'an unknown type is named'     fp64       "$out/cnn" --dtype fp64
refuses 'an unknown option is named'   --bogus    "$out/cnn" --bogus
refuses 'an unknown tier is named'     mmx        "$out/cnn" --tier mmx
refuses 'a bad rate is named'          fast       "$out/cnn" --lr fast
refuses '--save is for one type'       --dtype    "$out/cnn" --task cnn --save "$out/whole"
refuses '--save is for one task'       --task     "$out/cnn" --dtype fp16 --save "$out/whole"
"$out/cnn" --help > "$out/log" 2>&1 && grep -q -e --policy "$out/log"
check '--help' $?
quick && finish

# In full: five seeds of the networks that README shows.
try 'a run of five seeds ends' "$out/cnn" $digits --seeds 5 --out "$out"
cp "$out/log" "$out/full"
tail -n 6 "$out/full"
awk 'function size(x) {return x < 0 ? -x : x}
     /^parity cnn/  {lines++; bad += size($8) > 0.4 || size($14) > 0.4}
     /^parity unet/ {lines++; bad += size($8) > 0.02 * $4 || size($14) > 0.02 * $4}
     END {exit !(lines == 2 && !bad)}' "$out/full"
check 'in fp16 and bf16 accuracy is within 0.4 points of fp32, the loss of the denoiser within 2 %' $?
fp16=0.95 bf16=0.95
grep -q 'products by amx' "$out/full" && fp16=1.1 bf16=1.5
awk -v fp16=$fp16 -v bf16=$bf16 '
     /^speed (cnn|unet)/ {lines++; bad += $6 < fp16 * $4 || $8 < bf16 * $4}
     END {exit !(lines == 2 && !bad)}' "$out/full"
check "fp16 is at least $fp16 times and bf16 $bf16 times as fast as fp32" $?
finish
