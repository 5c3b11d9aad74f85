# ncf learns, alike in all types, from a process and from a file, with right gradients; killed and
# resumed, it ends with the same bits; bad input is answered. make test runs its toy, make check the
# full run besides.
# usage: ncf.sh OUTDIR NCF       NCF is the program that make has built
suite=ncf out=${1:?usage: ncf.sh OUTDIR NCF}
rm -rf "$out"
. tests/lib.sh
cp "$2" "$out/ncf"
ncf() { "$out/ncf" --quick --out "$out" "$@"; }
number='[0-9.]+' d='d [-+][0-9.]+ se [0-9.]+' count='[1-9][0-9]*'

ncf > "$out/toy" 2> /dev/null && tail -n 3 "$out/toy" > "$out/log" &&
    sed -n 1p "$out/log" |
        grep -Eqx "parity ncf: fp32 $number fp16 $number $d bf16 $number $d seeds 2" &&
    sed -n 2p "$out/log" |
        grep -Eqx "speed ncf: fp32 $count fp16 $count bf16 $count interactions/s" &&
    sed -n 3p "$out/log" | grep -Eqx "memory ncf: fp32 $count fp16 $count bf16 $count MiB" &&
    grep -q '</svg>' "$out/ncf_hits.svg"
check 'a short run ends with its three lines and has drawn its curves' $?
tail -n 3 "$out/toy"
# What is popular hits 34 %, who knows the process 70 %. Of 1000 users, twice, a difference that
# means nothing has a standard error of 1 point if one in ten is hit in one type alone. fp16's
# loss scale has grown from 65536.
awk 'function size(x) {return x < 0 ? -x : x}
     /^parity/ {lines++; bad += !($4 > 60 && size($8) < 3 && size($14) < 3)}
     /^  (fp16|bf16) trains/ {lines++; bad += !($10 < 52)}
     /^fp16 / {lines++; bad += !($6 > 65536)}
     END {exit !(lines == 4 && !bad)}' "$out/toy"
check 'it learns, alike in all types, with half the bytes of activations in halves' $?
"$out/ncf" --check > "$out/log" 2>&1 &&
    [ "$(grep -c ': 0, without a workspace [1-9]' "$out/log")" = 3 ]
check 'gradients agree with finite differences, and a step allocates nothing' $?
try 'and so they do with a layer and the last one in fp32, if the policy says so' \
    "$out/ncf" --check --policy 'layer1=fp32, predict=fp32'

# In a file, each of 300 users meets 20 of the 40 items of a kind. The other file says the same.
awk 'BEGIN {for (k = 0; k < 20; k++) for (u = 0; u < 300; u++)
     printf "%d\t%d\t5\t99%d\n", 1000 + u * 7, u % 5 + 5 * ((u * 13 + k * 7) % 40), k}' \
    > "$out/likes"
awk '{printf "%s, %s:3.5\r\n", $1, $2; if (NR % 1000 == 0) print "\n" $1, $2}' "$out/likes" \
    > "$out/same"
ncf --dtype bf16 --seeds 1 --data "$out/likes" > "$out/first" 2> "$out/hits" &&
    ncf --dtype bf16 --seeds 1 --data "$out/same" > "$out/log" 2> "$out/again" &&
    cmp "$out/hits" "$out/again" && awk '{exit !($7 > 90)}' "$out/hits" &&
    [ "$(cat "$out/first" "$out/log" |
         grep -c ': 300 users, 200 items, 5700 interactions to learn, 300 held out')" = 2 ]
check 'it learns from a file, however its columns are divided' $?
# The first item of each user is nobody else's, the last one is popular.
awk 'BEGIN {for (u = 0; u < 150; u++) for (k = 0; k < 7; k++)
     print u, k == 0 ? 1000 + u : (u + k) % 8}' > "$out/taste"
ncf --dtype bf16 --seeds 1 --steps 1 --data "$out/taste" > "$out/log" 2> /dev/null &&
    grep -q 'of what is popular: 100.0$' "$out/log"
check 'the last line of a user is held out' $?

one='--dtype fp16 --steps 600'
rm -f "$out/part"
ncf $one --save "$out/whole" --save-every 600 > "$out/first" 2> /dev/null
"$out/ncf" --quick --out "$out" $one --save "$out/part" --save-every 1 > "$out/log" 2>&1 &
tries=0 # killed as soon as there is a state
while [ ! -s "$out/part" ] && [ $tries -lt 400 ]; do sleep 0.05; tries=$((tries + 1)); done
kill -9 $! 2> /dev/null && ! wait $! 2> /dev/null && cp "$out/part" "$out/killed" &&
    ! cmp -s "$out/whole" "$out/killed" &&
    ncf $one --resume "$out/killed" --save "$out/part" --save-every 600 \
        > "$out/second" 2> /dev/null &&
    cmp "$out/whole" "$out/part" > "$out/log" 2>&1 &&
    [ "$(grep '^final' "$out/first")" = "$(grep '^final' "$out/second")" ]
check 'a run that was killed and resumed ends with the same bytes' $?
ncf $one --stop-after 450 --save "$out/part" > "$out/log" 2> /dev/null && # in the second epoch
    ncf $one --resume "$out/part" --save "$out/part" > "$out/log" 2> /dev/null &&
    cmp "$out/whole" "$out/part" > "$out/log" 2>&1
check 'and so does one that was stopped in its second epoch' $?

refuses 'a state of another run is refused' 'lr 0.05' \
    "$out/ncf" --quick $one --lr 0.05 --resume "$out/killed"
head -c 999 "$out/killed" > "$out/torn"
refuses 'a torn state is named'        torn       "$out/ncf" --quick $one --resume "$out/torn"
refuses 'a missing file is named'      nowhere    "$out/ncf" --data "$out/nowhere"
refuses 'a directory is named'         "$out"     "$out/ncf" --data "$out"
(cat "$out/likes"; echo '17 ten') > "$out/words"
refuses 'a line that is no pair'       'line 6001 .*17 ten'  "$out/ncf" --quick --data "$out/words"
(cat "$out/likes"; echo '17 4294967296') > "$out/words"
refuses 'a number too large'           'line 6001'  "$out/ncf" --quick --data "$out/words"
(cat "$out/likes"; printf '17 18.5\n3 4\n') > "$out/words"
refuses 'a number that is not whole'   'line 6001'  "$out/ncf" --quick --data "$out/words"
sed -n 1,300p "$out/likes" > "$out/few"
refuses 'users of one item each'       'no user of two' "$out/ncf" --quick --data "$out/few"
awk 'BEGIN {for (i = 0; i < 110; i++) print i % 5 ? 1 : 2, i}' > "$out/few"
refuses 'a user who has met nearly all' '88 of 110' "$out/ncf" --quick --data "$out/few"
: > "$out/few"
refuses 'an empty file'                'no user of two' "$out/ncf" --quick --data "$out/few"
refuses 'a batch too large is named'   --batch    "$out/ncf" --users 10 --batch 4096
refuses 'too few items are named'      146        "$out/ncf" --items 146
refuses 'a width that is no multiple of 4'  30    "$out/ncf" --width 30
refuses 'a layer that is not there'    lair       "$out/ncf" --quick --policy 'lair*=fp32'
refuses 'a bad policy is named'        soft       "$out/ncf" --quick --policy 'op:soft=fp32'
refuses 'an unknown type is named'     fp64       "$out/ncf" --dtype fp64
refuses 'an unknown option is named'   --bogus    "$out/ncf" --bogus
refuses 'an unknown tier is named'     mmx        "$out/ncf" --tier mmx
refuses 'a bad rate is named'          fast       "$out/ncf" --lr fast
refuses '--save is for one type'       --dtype    "$out/ncf" --save "$out/whole"
"$out/ncf" --help > "$out/log" 2>&1 && grep -q -e --policy "$out/log"
check '--help' $?
quick && finish

# In full: five seeds of the network that README shows.
try 'a run of five seeds ends' "$out/ncf" --seeds 5 --out "$out"
cp "$out/log" "$out/full"
tail -n 3 "$out/full"
awk 'function size(x) {return x < 0 ? -x : x}
     /^parity ncf/ {lines++; bad += !($4 > 60 && size($8) <= 0.5 && size($14) <= 0.5)}
     END {exit !(lines == 1 && !bad)}' "$out/full"
check 'the hit rate in fp16 and bf16 is within 0.5 points of that in fp32' $?
fp16=0.95 bf16=0.95
grep -q 'products by amx' "$out/full" && fp16=1 bf16=1.4
awk -v fp16=$fp16 -v bf16=$bf16 '
     /^speed ncf/ {lines++; bad += $6 < fp16 * $4 || $8 < bf16 * $4}
     /beside a dense one/ {lines++; for (i = NF; i > NF - 6; i -= 2) bad += !($i + 0 > 1)}
     END {exit !(lines == 2 && !bad)}' "$out/full"
check "fp16 is at least $fp16 and bf16 $bf16 times as fast, sparse faster than dense" $?
finish
