# gpt learns, alike in all types, with right gradients; killed and resumed, it ends with the same
# bits; bad input is answered. make test runs its toy, make check the full run besides.
# usage: gpt.sh OUTDIR GPT       GPT is the program that make has built
suite=gpt out=${1:?usage: gpt.sh OUTDIR GPT}
rm -rf "$out"
. tests/lib.sh
cp "$2" "$out/gpt"
gpt() { "$out/gpt" --quick --out "$out" "$@"; }
number='[0-9.]+' d='d [-+][0-9.]+ se [0-9.]+' count='[1-9][0-9]*'

gpt > "$out/toy" 2> /dev/null && tail -n 3 "$out/toy" > "$out/log" &&
    sed -n 1p "$out/log" |
        grep -Eq "^parity gpt: fp32 $number fp16 $number $d bf16 $number $d seeds 2\$" &&
    sed -n 2p "$out/log" |
        grep -Eq "^speed gpt: fp32 $count fp16 $count bf16 $count tokens/s\$" &&
    sed -n 3p "$out/log" | grep -Eq "^memory gpt: fp32 $count fp16 $count bf16 $count MiB\$" &&
    grep -q '</svg>' "$out/gpt_loss.svg"
check 'a short run ends with its three lines and has drawn its curves' $?
tail -n 3 "$out/toy"
awk '/^parity/ {lines++; bad += !($4 < 4.5 && $8 * $8 < 1e-4 && $14 * $14 < 1e-4)}
     /^  (fp16|bf16) trains/ {lines++; bad += !($10 == 50)}
     END {exit !(lines == 3 && !bad)}' "$out/toy"
check 'it learns, alike in all types, with half the bytes of activations in halves' $?
"$out/gpt" --check > "$out/log" 2>&1 && [ "$(grep -c ': 0, without a workspace [1-9]' "$out/log")" = 3 ]
check 'gradients agree with finite differences, and a step allocates nothing' $?

one='--dtype fp16 --steps 300'
rm -f "$out/part"
gpt $one --save "$out/whole" --save-every 300 > "$out/first" 2> /dev/null
"$out/gpt" --quick --out "$out" $one --save "$out/part" --save-every 1 > "$out/log" 2>&1 &
tries=0 # killed as soon as there is a state
while [ ! -s "$out/part" ] && [ $tries -lt 400 ]; do sleep 0.05; tries=$((tries + 1)); done
kill -9 $! 2> /dev/null && ! wait $! 2> /dev/null && cp "$out/part" "$out/killed" &&
    ! cmp -s "$out/whole" "$out/killed" &&
    gpt $one --resume "$out/killed" --save "$out/part" --save-every 300 > "$out/second" 2> /dev/null &&
    cmp "$out/whole" "$out/part" > "$out/log" 2>&1 &&
    [ "$(grep '^final' "$out/first")" = "$(grep '^final' "$out/second")" ]
check 'a run that was killed and resumed ends with the same bytes' $?
try 'attention and head in fp32, if the policy says so' \
    gpt --dtype bf16 --steps 3 --policy 'op:bmm=fp32, head=fp32'

# Bytes of one more sequence, counted anew: of each block 16 widths and the squares of the heads, of
# the head 2 widths, statistics in fp32; of work 6 widths in the type, 2 and the logits in fp32.
"$out/gpt" --quick --budget 16 > "$out/log" 2>&1 && awk '
     /^fp(32|16) |^bf16 / {
         lines++; e = $1 == "fp32" ? 4 : 2; L = 2; c = 64; T = 32; h = 4
         one = T * (L * (16 * c * e + h * T * e + 16) + 2 * c * e + 8 + 6 * c * e + 8 * c + 1024)
         bad += !($3 == T * $2 && $4 <= 16 && $4 + one / 1048576 > 16.001 && $5 > 0)
         rows[$1] = $3
     }
     /^budget gpt: 16 MiB/ {lines++; bad += !($6 == rows["fp32"] && $8 == rows["fp16"] && $10 == rows["bf16"])}
     END {exit !(lines == 4 && !bad && rows["fp16"] > 1.5 * rows["fp32"] && rows["bf16"] == rows["fp16"])}' \
    "$out/log"
check 'the rows that fit into 16 MiB: not one sequence more; in halves half as many again' $?
refuses 'a budget without room is named'  'budget [0-9]* or more'  "$out/gpt" --budget 8

# Of 116736 weights and 1792 gains and biases: fewer bytes in each state than in the default.
for state in default split bf16 8bit sr-8bit; do
    gpt --dtype bf16 --state $state --seeds 1 2> /dev/null | awk '$1 == "bf16" && NF == 11 {print $9}'
done > "$out/log"
awk '{saved = kept - $1} NR == 1 {kept = $1} NR > 1 {
         want = (NR == 2 ? 2 : NR == 3 ? 6 : NR == 4 ? 7.9375 : 9.9375) * 116736 / 118528
         bad += !(saved > want - 0.011 && saved < want + 0.011)
     } END {exit !(NR == 5 && kept > 16 && kept < 16.3 && !bad)}' "$out/log"
check '--state keeps 2, 6, 7.9375 and 9.9375 bytes less for a weight' $?
gpt --dtype bf16 --state 8bit --save "$out/8bit" > "$out/log" 2>&1 &&
    gpt --dtype bf16 --state 8bit --save "$out/part" --stop-after 17 > "$out/log" 2>&1 &&
    ! cmp -s "$out/8bit" "$out/part" &&
    gpt --dtype bf16 --state 8bit --resume "$out/part" --save "$out/part" > "$out/log" 2>&1 &&
    cmp "$out/8bit" "$out/part" > "$out/log" 2>&1
check 'with --state 8bit a run that was stopped and resumed ends with the same bytes' $?
refuses 'moments that are kept otherwise are refused' 8bit \
    "$out/gpt" --quick --dtype bf16 --state bf16 --resume "$out/8bit"
refuses 'an unknown state is named'    9bit         "$out/gpt" --dtype bf16 --state 9bit
refuses '--state is for bf16'          8bit.*bf16   "$out/gpt" --state 8bit
refuses '--state has no weights in fp32'  head      "$out/gpt" --dtype bf16 --state split --policy head=fp32
refuses 'a state of another run is refused' 'lr 0.01' \
    "$out/gpt" --quick $one --lr 0.01 --resume "$out/killed"
head -c 999 "$out/killed" > "$out/torn"
refuses 'a torn state is named'        torn         "$out/gpt" --quick $one --resume "$out/torn"
refuses 'a missing text is named'      nowhere      "$out/gpt" --text "$out/nowhere"
refuses 'a directory is named'         "$out"       "$out/gpt" --text "$out"
refuses 'a text too short is named'    digits.txt   "$out/gpt" --text examples/digits.txt
refuses 'a width that the heads do not divide'  250 "$out/gpt" --width 250
refuses 'a layer that is not there'    blok         "$out/gpt" --policy 'blok*=fp32'
refuses 'a bad policy is named'        soft         "$out/gpt" --policy 'op:soft=fp32'
refuses 'an unknown type is named'     fp64         "$out/gpt" --dtype fp64
refuses 'an unknown option is named'   --bogus      "$out/gpt" --bogus
refuses 'an unknown tier is named'     mmx          "$out/gpt" --tier mmx
refuses 'a bad rate is named'          fast         "$out/gpt" --lr fast
refuses '--save is for one type'       --dtype      "$out/gpt" --save "$out/whole"
"$out/gpt" --help > "$out/log" 2>&1 && grep -q -e --policy "$out/log"
check '--help' $?
quick && finish

# In full: five seeds of the network that README shows.
try 'a run of five seeds ends' "$out/gpt" --seeds 5 --out "$out"
cp "$out/log" "$out/full"
tail -n 3 "$out/full"
awk 'function size(x) {return x < 0 ? -x : x}
     /^parity gpt/ {lines++; bad += size($8) > 0.005 * $4 || size($14) > 0.005 * $4}
     END {exit !(lines == 1 && !bad)}' "$out/full"
check 'held-out loss in fp16 and bf16 is within 0.5 % of that in fp32' $?
fp16=0.95 bf16=0.95
grep -q 'products by amx' "$out/full" && fp16=1.3 bf16=2.0
awk -v fp16=$fp16 -v bf16=$bf16 '
     /^speed gpt/ {lines++; bad += $6 < fp16 * $4 || $8 < bf16 * $4}
     END {exit !(lines == 1 && !bad)}' "$out/full"
check "fp16 is at least $fp16 times and bf16 $bf16 times as fast as fp32" $?
finish
