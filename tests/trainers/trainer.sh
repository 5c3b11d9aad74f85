# A trainer of examples/nets (gpt, cnn, ncf) has right gradients and learns equally well in all types.
# A run that is killed and resumed ends with the same bits. Bad input is refused. make ci runs the small
# network, make check also the full one.
# usage: trainer.sh OUTDIR PROGRAM       PROGRAM is one of the three, which make has built
suite=${2##*/} out=${1:?usage: trainer.sh OUTDIR PROGRAM}
rm -rf "$out"
. tests/lib.sh
program=$out/$suite
cp "$2" "$program"

# What differs: what is learned, its words and pictures, the least that a toy learns, and what a full
# run may differ by from fp32, in which loss is a share and what is in percent are points. A point of
# curves is a mean of every so many steps.
data= only= stop=450 # options of all runs, of one run
case $suite in
gpt) tasks=gpt items=tokens pictures=gpt_loss curves=gpt_loss one='--steps 300' every=3 stop=17
     policy='op:bmm=fp32, head=fp32' learns='gpt < 4.5' near=0.0027 far=0.005 ;;
cnn) tasks='cnn unet' items=images pictures='cnn_loss unet_loss unet_images' data='--data digits' curves=unet_loss every=3
     policy='op:linear=fp32, block1.*=fp32' one='--task unet --steps 300' stop=150 only='--task cnn'
     learns='cnn > 90 unet < 0.06' near='2 0.02' far='0.4 0.02' ;;
ncf) tasks=ncf items=interactions pictures=ncf_hits curves=ncf_hits one='--steps 600' every=6 stop=450 # in the second epoch
     policy='layer1=fp32, predict=fp32' learns='ncf > 60' near=3 far=0.5 ;;
esac
full()  { "$program" $data --out "$out" "$@"; }
toy()   { full --quick "$@"; }
run()   { toy $one --dtype fp16 "$@"; }
same_bytes() { # same_bytes FILE OPTIONS...: of a run that was stopped and resumed as of one that was not
    file=$1
    shift
    toy "$@" --save "$out/$file" > "$out/log" 2>&1 &&
        toy "$@" --save "$out/part" --stop-after 17 > "$out/log" 2>&1 &&
        ! cmp -s "$out/$file" "$out/part" &&
        toy "$@" --resume "$out/part" --save "$out/part" > "$out/log" 2>&1 &&
        cmp "$out/$file" "$out/part" > "$out/log" 2>&1
}
wrong() { # wrong TEXT PATTERN OPTIONS...
    text=$1 pattern=$2
    shift 2
    refuses "$text" "$pattern" "$program" --quick $data --out "$out" "$@"
}
number='[0-9.]+' d='d [-+][0-9.]+ se [0-9.]+' count='[1-9][0-9]*'

many=$(($(echo $tasks | wc -w) * 3))
toy > "$out/toy" 2> "$out/log"
status=$?
tail -n $many "$out/toy" | tee "$out/last"
for task in $tasks; do
    for form in "parity $task: fp32 $number fp16 $number $d bf16 $number $d seeds 2" \
                "speed $task: fp32 $count fp16 $count bf16 $count $items/s" \
                "memory $task: fp32 $count fp16 $count bf16 $count MiB"; do
        grep -Eqx "$form" "$out/last" || status=1
    done
done
check "a short run ends with its $many lines" $status
for picture in $pictures; do
    case $picture in *_images) names=0 ;; *) names=6 ;; esac
    awk -v names=$names -f tests/trainers/picture.awk "$out/$picture.svg" && grep -q '</svg>' "$out/$picture.svg" ||
        echo "$picture is not whole"
done > "$out/log" 2>&1
[ ! -s "$out/log" ]
check 'and has drawn pictures with titles that fit, colors that can be seen, curves with their names' $?
toy --steps 1 --out "$out/one" > "$out/log" 2>&1
for picture in $pictures; do
    case $picture in *_images) continue ;; esac
    awk -v names=6 -f tests/trainers/picture.awk "$out/one/$picture.svg" || echo "$picture is not whole"
done >> "$out/log" 2>&1
! grep -q "not whole" "$out/log"
check 'those of one step have a disc for each curve, and labels that are not cut' $?
# The title of its curves says how many times as fast as fp32 it is, and points of held-out data are as far apart.
for task in $tasks; do
    case $task in ncf) picture=ncf_hits ;; *) picture=${task}_loss ;; esac
    { cat "$out/last"; tr '<' '\n' < "$out/$picture.svg"; } | awk -v task=$task '
        function gap(    x, count) {
            sub(/.*points="/, "")
            count = split($0, x, "[ ,]")
            return (x[count - 2] - x[1]) / (count - 3)
        }
        function near(a, b) {return (a - b) ^ 2 <= (0.06 + 0.03 * b) ^ 2}
        $1 == "speed" && $2 == task ":" {fp16 = $6 / $4; bf16 = $8 / $4}
        /^text .*bold/ {sub(/.*>/, ""); title = title " " $0}
        /^polyline/ && ++curves <= 3 {step[curves] = gap()}
        END {
            split(title, word, " ") # bf16 is 2.47 times as fast as fp32, fp16 as fast; both ...
            i = word[4] == "as" ? 9 : 11
            exit !(word[2] == "bf16" && near(word[4] == "as" ? 1 : word[4], bf16) && word[i - 1] == "fp16" &&
                   near(word[i] == "as" ? 1 : word[i], fp16) && title !~ /1[.]0[0-4] times/ && curves == 6 &&
                   near(step[1] / step[3], bf16) && near(step[1] / step[2], fp16))
        }' || echo $task
done > "$out/log" 2>&1
[ ! -s "$out/log" ]
check 'held-out curves are drawn over seconds, and the title says how many times as fast as fp32' $?

# parity FILE BOUNDS: a share of fp32's loss, or points, for each task
parity() {
    awk -v bounds="$2" -v learns="$3" '
        function size(x) {return x < 0 ? -x : x}
        BEGIN {split(bounds, most); tasks = split(learns, want) / 3}
        /^parity/ {
            most_now = most[++n] * ($2 ~ /cnn|ncf/ ? 1 : $4)
            bad += size($8) > most_now || size($14) > most_now
            for (i = 1; i <= tasks; i++)
                if (want[3 * i - 2] ":" == $2)
                    bad += want[3 * i - 1] == "<" ? $4 >= want[3 * i] : $4 <= want[3 * i]
        }
        END {exit !(n > 0 && !bad)}' "$1"
}
parity "$out/toy" "$near" "$learns" && awk '
    /^  (fp16|bf16) trains/ {lines++; bad += !($10 < 52)}
    END {exit !(lines > 1 && !bad)}' "$out/toy"
check 'it learns, alike in all types, with half the bytes of activations in halves' $?
full --check > "$out/log" 2>&1 &&
    [ "$(grep -c ': 0, without a workspace [1-9]' "$out/log")" = $many ]
check 'gradients agree with finite differences, and a step allocates nothing' $?
try 'with some layers in fp32, too, if the policy says so' full --check $only --policy "$policy"

rm -f "$out/part"
run --save "$out/whole" --save-every 9999 > "$out/first" 2> "$out/log"
"$program" --quick $data --out "$out" --dtype fp16 $one --save "$out/part" --save-every 1 > "$out/log" 2>&1 &
tries=0 # killed as soon as there is a state
while [ ! -s "$out/part" ] && [ $tries -lt 400 ]; do sleep 0.05; tries=$((tries + 1)); done
kill -9 $! 2> /dev/null && ! wait $! 2> /dev/null && cp "$out/part" "$out/killed" &&
    ! cmp -s "$out/whole" "$out/killed" &&
    run --resume "$out/killed" --save "$out/part" --save-every 9999 > "$out/second" 2> /dev/null &&
    cmp "$out/whole" "$out/part" > "$out/log" 2>&1 &&
    same "$(grep '^final' "$out/first")" "$(grep '^final' "$out/second")"
check 'a run that was killed and resumed ends with the same bytes' $?
run --stop-after $stop --save "$out/part" > "$out/log" 2>&1 &&
    run --resume "$out/part" --save "$out/part" > "$out/second" 2> /dev/null &&
    cmp "$out/whole" "$out/part" > "$out/log" 2>&1 &&
    same "$(awk '/^fp16 +[0-9]/ {print $(NF - 2)}' "$out/first")" \
         "$(awk '/^fp16 +[0-9]/ {print $(NF - 2)}' "$out/second")"
check "and so does one that was stopped after step $stop, with as many bytes for a parameter" $?

run --stop-after 8 > "$out/log" 2>&1 && sed -n 's/.*<polyline.*points="\([^"]*\)".*/\1/p' "$out/$curves.svg" > "$out/points" &&
    [ "$(head -n 1 "$out/points" | wc -w)" = $((8 / every)) ]
check 'its curve ends where it has stopped: no mean of steps of which some are missing' $?

if $with_interrupt sh -c : 2> /dev/null; then
    long="$one --dtype fp16 --steps 3000"
    $with_interrupt "$program" --quick $data --out "$out" $long --save "$out/part" --report "$out/lines" \
        > "$out/first" 2> "$out/log" &
    interrupt "$out/lines" losses
    status=$? step=$(sed -n 's/^final .* step \([0-9]*\) of 3000,.*/\1/p' "$out/first")
    [ $status = 130 ] && [ "$step" -lt 3000 ] &&
        grep -q "^$suite: interrupted: the run ends after step $step of 3000, as with --stop-after $step\$" "$out/log" &&
        toy $long --stop-after "$step" --save "$out/again" --report "$out/lines" > "$out/second" 2> "$out/log" &&
        cmp "$out/again" "$out/part" > "$out/log" 2>&1 &&
        same "$(grep '^final' "$out/first")" "$(grep '^final' "$out/second")" &&
        [ "$(sed -n 's/^continue.*--resume //p' "$out/first")" = "$out/part" ]
    check 'Ctrl-C ends a run after the step at hand, with state, table and pictures' $?
    rm -f "$out/lines"
    $with_interrupt "$program" --quick --quiet $data --out "$out" --steps 3000 --report "$out/lines" > "$out/first" 2> "$out/log" &
    interrupt "$out/lines" losses
    [ $? = 130 ] && [ "$(cat "$out/log")" = "$suite: interrupted: what is not printed or saved yet is lost" ] &&
        ! ls "$out"/*.new 2> /dev/null && ! grep -q 'held-out.*:$' "$out/first" && [ "$(tail -c 1 "$out/lines")" = '' ]
    check 'Ctrl-C ends several runs at once, with a line' $?
else
    skip 'Ctrl-C' 'env has no --default-signal'
fi

one="$one --dtype fp16"
rm -f "$out/lines"
as_default= # what has set SIGHUP aside, as nohup, has not meant these
env --default-signal=HUP true 2> /dev/null && as_default='env --default-signal=HUP'
for signal in HUP/129 TERM/143; do
    ended=${signal#*/} signal=${signal%/*}
    $as_default "$program" --quick $data --out "$out" $one --steps 3000 --save "$out/part" --report "$out/lines" > "$out/first" 2> "$out/said" &
    await "$out/lines" losses
    [ $signal = HUP ] || wrong 'a state that another run writes' 'part: another run writes it; choose'  $one --save "$out/part"
    [ $signal = HUP ] || wrong 'and a report' 'lines: another run writes it; choose'  $one --report "$out/lines"
    kill -$signal $! && wait $! 2> /dev/null
    [ $? = $ended ] && grep -q '^final.* of 3000,' "$out/first" && grep -q '^continue' "$out/first" &&
        grep -q "^$suite: interrupted: the run ends after step" "$out/said"
    check "SIG$signal ends a run as Ctrl-C does" $?
    rm -f "$out/lines"
done
# With all types in turns, and held-out data on the way, only steps of the one that reports count.
case $suite in gpt) items=128 ;; cnn) items=16 ;; ncf) items=640 ;; esac
toy --seeds 1 $only --report "$out/lines" > "$out/first" 2> "$out/log" &&
    sed -n 's/^{"losses":\[[^,]*,\(.*\)\],"seconds":\([0-9.]*\).*/\2 \1/p' "$out/lines" |
    awk -v of="$(awk '/^speed/ {print $6; exit}' "$out/first")" -v items=$items '
        {seconds += $1; steps += gsub(/,/, ",") + 1}
        END {x = items * steps / seconds / of; print "steps a second, to those of the table:", x; exit !(x > 0.5 && x < 2)}' \
    > "$out/log"
check 'the seconds of --report are those of its steps' $?
wrong '--save-every without --save'  '--save-every: does nothing without --save; add'  $one --save-every 5
wrong '--stop-after behind the end'  '--stop-after 9999: the run ends after [1-9][0-9]* steps; give at most'  $one --stop-after 9999
wrong 'a rate that is 0 in fp32'     "--lr does not take '1e-50'; give a number from 1.2e-38 to 1"  --lr 1e-50
wrong 'a rate in hexadecimal digits' "--lr does not take '0x1p-3'"  --lr 0x1p-3
wrong 'a report and a state in one file'  "part: --report .*part would overwrite"  $one --save "$out/part" --report "$out/part"
refuses 'checks on a full disk' "^$suite: standard output: No space left" \
    sh -c '"$0" --check > /dev/full' "$program"
wrong 'a state of another run is refused' \
    "killed: was saved by $suite with --lr 0.0[0-9]*, and here it is 0.05; give" $one --lr 0.05 --resume "$out/killed"
sed "s/run of $suite /run of other /" "$out/killed" > "$out/other"
wrong 'and so is that of another program' "other: was saved by other, not by $suite;" $one --resume "$out/other"
wrong 'a directory is no state'      "$out: Is a directory; give"  $one --resume "$out"
wrong 'two seeds have no one state'  'need a single run; .*leave out --seeds'  $one --seeds 2 --save "$out/x"
if (ulimit -v 999999) 2> /dev/null; then # kilobytes
    case $suite in gpt) large='--width 4096 --layers 48' ;; cnn) large='--batch 1024 --width 512' ;; ncf) large='--users 9999999' ;; esac
    refuses 'missing memory names what takes it' \
        "memory: there is not enough; choose a smaller $(echo "$large" | sed 's/ [0-9]*$//; s/ [0-9]* / or /')\$" \
        sh -c 'ulimit -v 999999; exec "$@"' sh "$program" $data --seeds 1 $only $large --out "$out"
fi
head -c 999 "$out/killed" > "$out/torn"
wrong 'a torn state is named'        torn       $one --resume "$out/torn"
wrong 'a layer that is not there'    blok       --policy 'blok*=fp32'
wrong 'a bad policy is marked'       'policy: text, character 4: not understood: "soft=fp32"; write .* types are'  --policy 'op:soft=fp32'
wrong 'an unknown type is named'     fp64       --dtype fp64
wrong 'an unknown option is named'   "^$suite: unknown option --bogus; see --help$"  --bogus
wrong 'a word is named'              "^$suite: unexpected argument fp16; see --help$"  fp16
wrong 'an option without value'      'value'    --steps
wrong 'an unknown tier is named, with those that are there' 'mmx.*c (see'   --tier mmx
wrong 'a bad rate is named'          fast       --lr fast
wrong 'why a state cannot be saved'  'nowhere/x: No such file'  $one --save "$out/nowhere/x"
"$program" $data --batch 7 --quick --seeds 1 --steps 1 --out "$out" > "$out/log" 2>&1 &&
    grep -Eq '\b7 (x|interactions|images)' "$out/log"
check 'options in front of --quick count, too' $?
wrong '--save is for one type'       --dtype    $only --save "$out/whole"
wrong 'a state that cannot be saved is named'   /dev/full  $one --save /dev/full
wrong 'a directory that cannot be made is named'  /dev/full  --out /dev/full
toy $one --steps 1 2> "$out/log" > /dev/full
[ $? = 1 ] && [ "$(grep -c 'standard output' "$out/log")" = 1 ]
check 'a full disk is named' $?
toy --steps 1 --seeds 1 --tier c $only 2> "$out/log" | grep -q '^amp_cpu_tier() is c: bf16 and fp16 are multiplied as fp32; 16 bits save memory here, not time$'
check 'without 16-bit products the table says so' $?
"$program" --help > "$out/log" 2>&1 && grep -q -e --policy "$out/log"
check '--help' $?

case $suite in
gpt)
    # Of 116736 weights and 1792 gains and biases: fewer bytes in each storage than in fp32.
    for storage in fp32 split split+bf16 split+8bit sr+8bit fp32+8bit; do
        toy --dtype bf16 --storage $storage --seeds 1 2> /dev/null |
            awk '$1 == "bf16" && NF == 9 {print $7}'
    done > "$out/log"
    awk '{saved = kept - $1} NR == 1 {kept = $1} NR > 1 {
             want = (NR == 2 ? 2 : NR == 3 ? 6 : NR == 4 ? 7.9375 : NR == 5 ? 9.9375 : 5.9375) * 116736 / 118528
             bad += !(saved > want - 0.011 && saved < want + 0.011)
         } END {exit !(NR == 6 && kept > 16 && kept < 16.3 && !bad)}' "$out/log"
    check '--storage keeps 2, 6, 7.9375, 9.9375 and 5.9375 bytes less for a weight' $?
    toy --storage fp32+8bit --seeds 1 2> /dev/null > "$out/log" && toy --seeds 1 2> /dev/null >> "$out/log" &&
        awk '/^(fp32|fp16|bf16) / && NF == 9 {n++; kept[n] = $7}
             END {for (i = 1; i <= 3; i++) bad += !(kept[i] < kept[i + 3] - 5.8); exit bad || n != 6}' "$out/log"
    check '--storage fp32+8bit is for models of each type, and for none' $?
    same_bytes 8bit --dtype bf16 --storage split+8bit
    check 'with --storage split+8bit a run that was stopped and resumed ends with the same bytes' $?
    wrong 'moments that are kept otherwise are refused' 8bit --dtype bf16 --storage split+bf16 --resume "$out/8bit"
    wrong 'an unknown storage is named'  9bit         --dtype bf16 --storage 9bit
    wrong '--storage is for bf16'        8bit.*bf16   --storage split+8bit
    wrong '--storage has no weights in fp32'  head    --dtype bf16 --storage split --policy head=fp32
    toy --muon > "$out/log" 2> /dev/null
    parity "$out/log" 0.005 "$learns"
    check "--muon: three types learn alike" $?
    same_bytes muon --dtype fp16 --muon
    check 'with --muon a run that was stopped and resumed ends with the same bytes' $?
    wrong "a state with Muon's momenta is refused without --muon" muon --dtype fp16 --resume "$out/muon"
    wrong '--muon is not for --check'    muon         --check --muon
    wrong 'a missing text is named'      nowhere      --text "$out/nowhere"
    wrong 'a directory is named'         "$out"       --text "$out"
    wrong 'a text without end is named'  '/dev/zero: is longer' --text /dev/zero
    wrong 'a text too short is named'    digits.txt   --context 64 --text examples/digits/digits.txt
    wrong 'a width that the heads do not divide'  250 --width 250
    wrong 'a report on a full disk is named'  '/dev/full: No space left'  $one --report /dev/full
    cp LICENSE "$out/own" && ln -f "$out/own" "$out/link"
    wrong 'a report on the text is refused' "own: --report .*link would overwrite"  --text "$out/own" --report "$out/link"
    grep -q 'would overwrite' "$out/log" && cmp LICENSE "$out/own"
    check 'and the text stays' $? ;;
cnn)
    wrong 'a state of the other network is refused' killed $one --task cnn --resume "$out/killed"
    wrong 'a missing path is named'      nowhere    --data "$out/nowhere"
    wrong 'a batch too large is named'   --batch    --batch 4096
    wrong 'an unknown task is named'     fly        --task fly
    wrong '--save is for one task'       --task     --dtype fp16 --save "$out/whole" ;;
ncf)
    # In a file, each of 300 users meets 20 of the 40 items of a kind. The other file says the same.
    awk 'BEGIN {for (k = 0; k < 20; k++) for (u = 0; u < 300; u++)
         printf "%d\t%d\t5\t99%d\n", 1000 + u * 7, u % 5 + 5 * ((u * 13 + k * 7) % 40), k}' \
        > "$out/likes"
    awk '{printf "%s, %s:3.5\r\n", $1, $2; if (NR % 1000 == 0) print "\n" $1, $2}' "$out/likes" \
        > "$out/same"
    for file in likes same; do toy --dtype bf16 --seeds 1 --data "$out/$file" 2> /dev/null; done > "$out/log"
    [ "$(grep -cx '300 users, 200 items, 5700 interactions to learn, 300 held out' "$out/log")" = 2 ] &&
        awk '/^bf16 / {n++; bad += !($2 > 90 && (n == 1 || $2 == was)); was = $2}
             END {exit !(n == 2 && !bad)}' "$out/log"
    check 'it learns from a file, however its columns are divided' $?
    # The first item of each user is nobody else's, the last one is popular.
    awk 'BEGIN {for (u = 0; u < 150; u++) for (k = 0; k < 7; k++)
         print u, k == 0 ? 1000 + u : (u + k) % 8}' > "$out/taste"
    toy --dtype bf16 --seeds 1 --steps 1 --data "$out/taste" > "$out/log" 2> /dev/null &&
        grep -q 'of what is popular: 100.0$' "$out/log"
    check 'the last line of a user is held out' $?
    wrong 'a missing file is named'      nowhere    --data "$out/nowhere"
    wrong 'a directory is named'         "$out"     --data "$out"
    pair() { # pair TEXT PATTERN LINES: behind 6000 good ones
        { cat "$out/likes"; printf "$3\n"; } > "$out/words"
        wrong "$1" "$2" --data "$out/words"
    }
    pair 'a line that is no pair'       'line 6001 .*17 ten'  '17 ten'
    pair 'a number too large'           'line 6001'  '17 4294967296'
    pair 'a number that is not whole'   'line 6001'  '17 18.5\n3 4'
    sed -n 1,300p "$out/likes" > "$out/few"
    wrong 'users of one item each'       'no user of two' --data "$out/few"
    awk 'BEGIN {for (i = 0; i < 110; i++) print i % 5 ? 1 : 2, i}' > "$out/few"
    wrong 'a user who has met nearly all' '88 of 110' --data "$out/few"
    : > "$out/few"
    wrong 'an empty file'                'no user of two' --data "$out/few"
    wrong 'a batch too large is named'   --batch    --users 10 --batch 4096
    wrong 'too few users for a batch'    '^ncf: --users 1: has [0-9]* interactions to learn, and a batch takes 128; '  --users 1
    wrong 'a state on the data is refused'  "likes: --save .*\./likes would overwrite" \
        $one --data "$out/likes" --save "$out/./likes"
    wrong 'too few items are named'      146        --items 146
    wrong 'a width that is no multiple of 4'  30    --width 30 ;;
esac
quick && finish

# In full: five seeds of what README shows.
try 'a run of five seeds ends' full --seeds 5
cp "$out/log" "$out/full"
tail -n $many "$out/full"
parity "$out/full" "$far" ''
check "fp16 and bf16 end within $far of fp32: a share of the loss, or points" $?
finish
