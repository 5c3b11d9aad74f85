# The examples do what their first lines say, and refuse bad input.
# usage: examples.sh OUTDIR BUILD       make has put the examples into BUILD
suite=examples out=${1:?usage: examples.sh OUTDIR BUILD} build=${2:?}
rm -rf "$out"
. tests/lib.sh
programs='wrap_step pitfalls which_tensor recipes recipes_net muon autocast_ops state'
for program in linear $programs train gpt cnn ncf report; do # make has linked them with one amp.o
    into="-O0 -o $out/alone -lm"
    if quick && [ $program != wrap_step ]; then into=-fsyntax-only; fi
    try "$program compiles alone" ${CC:-cc} -std=c99 -Wall -Wextra -I. "$(example $program.c)" $into
done
train() { "$build/train" --out "$out" "$@"; }

"$build/wrap_step" > "$out/log" 2>&1
check 'wrap_step: the wrapped loop ends where the fp32 loop does' $?
awk 'function near(x, bracketed) {sub(/[(]/, "", bracketed); return (x / bracketed - 1) ^ 2 < 0.2 ^ 2}
     /^a mixed step takes .* as plain loops in fp32 [(]/ {mixed = $5; loops = near($5 * $7, $16)}
     /^[0-9.]+ times as fast as amp_linear in fp32 [(]/ {fp32 = near(mixed * $1, $9)}
     END {exit !(loops && fp32)}' "$out/log"
check 'wrap_step: a step beside plain loops, and beside amp_linear in fp32' $?
lines=$(grep -c 'AMP [0-9]' examples/wrap_step.c)
[ "$lines" -ge 1 ] && [ "$lines" -le 12 ]
check "wrap_step: at most 12 lines make it mixed precision ($lines)" $?
"$build/pitfalls" > "$out/log" 2>&1
check 'pitfalls: fp16 fails without loss scaling and equals fp32 with it' $?
shown() { # shown LINES: examples/README.md has them, and there is one
    [ -s "$1" ] && while IFS= read -r line; do grep -qF -e "    $line" examples/README.md || echo "$line"; done \
        < "$1" > "$out/log"
    [ -s "$1" ] && [ ! -s "$out/log" ]
}
sed -n '/^d\. /,/first loss/p' "$out/log" > "$out/shown"
shown "$out/shown"
check 'pitfalls: README has the head of its table' $?
"$build/which_tensor" > "$out/log" 2>&1 && grep -q '^  hidden.weight *17   inf ' "$out/log" &&
    grep -q '^  output.weight *5   NaN ' "$out/log"
check 'which_tensor: the tables name both tensors, with index and kind' $?
"$build/recipes" > "$out/log" 2>&1
check 'recipes: all eleven do what they say' $?
grep -q 'came to 0.0122 instead of 2.3184: ok' "$out/log" &&
    grep -q '48 batches, 4 skipped steps done again: all bits as without overflows' "$out/log"
check 'recipes: 100 steps clipped too early come to 100 * 0.25 * 0.5 / 1024; no batch is lost' $?
"$build/recipes_net" > "$out/log" 2>&1
check 'recipes_net: all four do what they say' $?
grep -q 'head in fp16 skipped 200 of 200 steps' "$out/log" &&
    grep -q '^b. inference: 6144 bytes of half weights are left' "$out/log" &&
    grep -q '^d. attention: the loss changes by 12.389 a unit' "$out/log"
check 'recipes_net: an fp16 head never steps, 3072 weights keep 6144 bytes, attention its slope' $?
"$build/muon" > "$out/log" 2>&1 && grep -q 'weights and moments of both as before: ok$' "$out/log"
check "muon: a NaN in a gradient of Muon's leaves AdamW's state, too" $?
awk '/^AdamW  |^Muon, AdamW/ {rows++; loss[rows] = $(NF - 6); right[rows] = $(NF - 3)}
     /^stable rank of 128/ {rank = $6 + 0; of_step = $9 + 0; most = $NF}
     END {exit !(rows == 2 && loss[2] < loss[1] && loss[1] < 0.12 && right[1] > 96.5 && right[2] > 96.5 &&
                 rank < 8 && of_step > 30 && most > 0.9 && most < 1.3)}' "$out/log"
check "muon: learns as AdamW does; of 128 singular values of a momentum with few Muon's step has many near 1" $?
refuses 'muon: from another directory it says where to run it' 'is not below this directory; run this in the directory of amp.h$' \
    sh -c 'muon=$(cd "$1" && pwd)/muon && cd / && "$muon"' sh "$build"
"$build/autocast_ops" > "$out/ops" 2> "$out/log"
check 'autocast_ops: its forward pass agrees with fp32' $?
words='; types are fp32, fp16, bf16, low; ops: --table all$'
ops() { refuses "autocast_ops: $1" "$2" "$build/autocast_ops" $3; } # ops TEXT PATTERN OPTIONS
ops 'a type that is none is marked, and types are named' "character 12: not understood: \"fp99\"$words" '--override op:softmax=fp99'
ops 'so is an op that is none'                  "character 4: not understood: \"sotmax=fp32\"$words" '--override op:sotmax=fp32'
ops 'what allows a banned op'  'give --override op:BINARY_CROSS_ENTROPY=fp32$' \
    '--op binary_cross_entropy --inputs fp16'
ops 'a question beside a table is refused' '--op: cannot stand beside --table' '--op softmax --table all'
ops 'what --table differ leaves out'       '--table differ; leave'             '--table differ --policy tf'
ops 'inputs without an op are refused'     '--inputs: does nothing without --op' '--inputs fp16'
for pair in 'AMP_DTYPE/fp32, fp16 or bf16' 'AMP_ENABLE/0 or 1'; do
    variable=${pair%/*}
    refuses "recipes: a bad $variable, and what is allowed" ": $variable must be ${pair#*/}, not .foo.; change it" \
        env $variable=foo "$build/recipes"
done
for setting in AMP_ENABLE=0 AMP_ENABLE=1 AMP_DTYPE=bf16 AMP_DTYPE=fp16 AMP_DTYPE=fp32; do # sessions read them
    env $setting "$build/recipes_net" > "$out/log" 2>&1 && grep -q '^c[.].* left out, for AMP_DTYPE and AMP_ENABLE' "$out/log" &&
        grep -q '^d[.] attention' "$out/log" && env $setting "$build/recipes" > "$out/log" 2>&1
    check "recipes, recipes_net: $setting" $?
done
! env AMP_DTYPE=foo "$build/recipes_net" > "$out/log" 2>&1 &&
    grep -q 'AMP_DTYPE must be fp32, fp16 or bf16, not .foo.; change it, or unset it$' "$out/log"
check 'recipes_net: a bad AMP_DTYPE, and what is allowed' $?
"$build/state" --quick > "$out/log" 2>&1 &&
    awk '/^state [a-z0-9+]+ kept [0-9.]+ moved [0-9.]+ speed [0-9.]+ d [+-][0-9.]+ se [0-9.]+$/ {
             kept = kept " " $4; moved = moved " " $6; n++}
         END {exit !(n == 9 && kept == " 14.0 10.0 8.1 12.0 8.0 6.1 10.0 6.0 4.1" &&
                     moved == " 30.0 22.0 18.1 28.0 20.0 16.1 24.0 16.0 12.1")}' "$out/log"
check 'state: each state keeps the bytes that amp.h says' $?
# d of a last line is the mean of its row, but for digits that are not printed. A split master has the
# bits of fp32, and its model where no value lies in the middle: one in 65536, from which two runs
# part slowly: two seeds of the quick run by less than 0.005; without the low halves it is 0.4.
awk 'function size(x) {return x < 0 ? -x : x}
     /^loss, d +classify +reconstruct +gpt *$/ {table = 1}
     table && $1 == "fp32" && NF == 4 {rows++; bad += !($2 > 0 && $2 < 2 && $3 > 0 && $3 < 0.2 && $4 > 0 && $4 < 5)}
     table && $3 == "+-" && $5 $9 $13 == "---" && NF == 13 {
         rows++; mean[$1] = ($2 + $6 + $10) / 3
         bad += $1 == "split" && size($2) + size($6) + size($10) > 0.02
     }
     /^state / {lines++; bad += size($10 - mean[$2]) > 0.000101}
     /^state fp32 / {bad += !($8 == "1.00" && $10 == "+0.0000" && $12 == "0.0000")}
     END {exit !(rows == 9 && lines == 9 && !bad)}' "$out/log"
check 'state: a table of three tasks, of which the lines are means; split trains as fp32 does' $?
for program in $programs; do
    "$build/$program" --help > "$out/log" 2>&1 && grep -q "^usage: $program" "$out/log"
    check "$program: --help" $?
    refuses "$program: an unknown option is named" "^$program: unknown option --bogus; see --help$" "$build/$program" --bogus
    case $program in state) continue ;; esac # it takes long
    { "$build/$program" 3>&2 2>&1 > /dev/full; echo $?; } > "$out/log"
    [ "$(sed -n '$p' "$out/log")" != 0 ] && [ "$(grep -c 'standard output' "$out/log")" = 1 ]
    check "$program: a full disk is named" $?
done
refuses 'wrap_step: a word of no letters' "^wrap_step: unexpected argument ''; see --help\$" "$build/wrap_step" ''

# What all do: help, and a standard output that is full or closed.
for program in linear $programs train gpt cnn ncf report; do
    "$build/$program" --help > "$out/help" 2>&1 && "$build/$program" -h > "$out/log" 2>&1 && cmp "$out/help" "$out/log"
    check "$program: -h is --help" $?
    refuses "$program: --help on a full disk" "^$program: standard output: No space left" \
        sh -c '"$0" --help > /dev/full' "$build/$program"
    refuses "$program: a closed standard output" "^$program: standard output: is closed; redirect" \
        sh -c '"$0" >&-' "$build/$program"
done
cat > "$out/narrow.c" << 'END'
#include <time.h>
static time_t clock_says;
#define time(t) (clock_says += 60)
#define PROGRAM "narrow"
#include "examples/support/train_cli.h"
int main(int argc, char **argv) {
    if (argc > 1) return rewrite_line(argv[1]), 0;
    for (int i = 1; i < 3; i++)
        progress_step(0.1 * i, "reconstruct fp16+master+scaling seed 10/20", 1234, 25000, 2.31, 12500.0, "interactions", 3);
    return 0;
}
END
line='10:07 left  gpt bf16 seed 1/3  step 1234/25000  loss 2.31  12.5k tokens/s  skipped 3'
narrow() { # at every width as many whole parts as fit
    ${CC:-cc} -std=c99 -Wall -Wextra -I. "$out/narrow.c" -o "$out/narrow" || return
    for columns in $(seq 1 100); do COLUMNS=$columns "$out/narrow" "$line" 2>&1 | tr '\r' '\n'; done > "$out/rows"
    grep . "$out/rows" | awk -v line="$line" '
        {fits = ""; count = split(line, part, "  ")
         for (i = 1; i <= count && length(fits part[i]) + 2 * (i > 1) < NR + 1; i++) fits = fits (i > 1 ? "  " : "") part[i]
         if (length($0) != NR || $0 != sprintf("%-" NR "s", fits)) {print NR + 1 ": " $0; bad = 1}}
        END {exit bad || NR != 99}'
}
try 'progress is cut between its parts' narrow
"$out/narrow" 2>&1 | grep -qx '4:00 left  reconstruct fp16+master+scaling seed 10/20  step 1234/25000  loss 2.31  12.5k interactions/s  skipped 3'
check 'and nothing of it is cut elsewhere' $?

"$build/linear" > "$out/log" 2>&1 && grep -q '^amp_cpu_tier() is [a-z0-9_]*: ' "$out/log" && awk '/^loops|^amp / {rows++; bad += !($(NF - 4) < 0.9 * $(NF - 7)); last[$1 $2] = $(NF - 4)}
    function far(a, b) {return (a - b) ^ 2 > 0.02 ^ 2 * b ^ 2}
    END {exit !(rows == 4 && !bad && !far(last["ampfp32"], last["loopsloss"]) &&
                !far(last["ampbf16"], last["loopsloss"]) && !far(last["ampfp16"], last["loopsloss"]))}' "$out/log"
check 'linear: all four ways learn, and end with the loss of the loops within 2 %' $?
lines=$(wc -l < examples/linear.c)
[ "$lines" -ge 50 ] && [ "$lines" -le 105 ]
check 'linear: at most 105 lines' $?
refuses 'linear: an unknown option is named' '^linear: unknown option --bogus; see --help$' "$build/linear" --bogus
refuses 'linear: a word is no number'        "H does not take 'many'; give .* 1 to 2048" "$build/linear" many
refuses 'linear: too many rows are named'    "B does not take '513'; give .* 1 to 512"  "$build/linear" 16 513
refuses 'linear: a third value is refused'   '^linear: unexpected argument 1; see --help$'  "$build/linear" 16 8 1
refuses 'linear: and a number below 1'       "H does not take '-1'"    "$build/linear" -1
refuses 'linear: rows are whole numbers'     "B does not take '0x10'"  "$build/linear" 16 0x10
{ "$build/linear" 16 8 3>&2 2>&1 > /dev/full; echo $?; } > "$out/log"
[ "$(sed -n '$p' "$out/log")" = 1 ] && [ "$(grep -c 'standard output' "$out/log")" = 1 ]
check 'linear: a full disk is named' $?

rm -rf "$out/made"
"$build/train" --data digits --seeds 1 --epochs 1 --out "$out/made/here" > "$out/log" 2>&1 &&
    [ -s "$out/made/here/train_loss.svg" ] && grep -qx 'classify: 1 epoch of 22 steps, batch 64' "$out/log" && awk '$NF ~ /x$/ && NF == 7 {bad++}
        /^(fp32|bf16.master) +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+$/ {rows++}
        END {exit !(rows == 4)}' "$out/log"
check 'train: a missing directory is made; the rows of one seed have no spread' $?
awk -v names=10 -f tests/trainers/picture.awk "$out/made/here/train_loss.svg" > "$out/log" 2>&1
check 'train: a curve of one epoch is a disc' $?
rm "$out/made/here/"*
"$build/train" --data digits --seeds 1 --epochs 1 --dtype bf16 --out "$out/made/here" > "$out/log" 2>&1 &&
    same "$(sed -n 's/^pictures: //p' "$out/log" | sed 's/.*here.//; s/, /\n/g' | sort)" "$(ls "$out/made/here")"
check 'train: the pictures that it names are those that it has drawn' $?
train --data digits --seeds 2 --epochs 2 > "$out/log" 2>&1 &&
    tail -n 2 "$out/log" | head -n 1 | grep -Eq '^parity classify: fp32 [0-9.]+ % fp16 [0-9.]+ % d [-+][0-9.]+ se [0-9.]+ bf16 [0-9.]+ % d [-+][0-9.]+ se [0-9.]+ seeds 2$' &&
    tail -n 1 "$out/log" | grep -Eq '^parity reconstruct: fp32 [0-9.]+ fp16 [0-9.]+ d [-+][0-9.]+ se [0-9.]+ bf16 [0-9.]+ d [-+][0-9.]+ se [0-9.]+ seeds 2$'
check 'train: a short run ends with the two parity lines' $?
cp "$out/log" "$out/first"
awk '$0 ~ /ms\/step +speed +wide ms +speed$/ {tables++}
     /^(fp32|fp16|bf16).*x$/ {
         rows++
         for (i = NF - 3; i < NF; i += 2)
             bad += !($i > 0 && $(i + 1) ~ /^[0-9]+\.[0-9][0-9]x$/ && $(i + 1) + 0 > 0 &&
                      ($1 != "fp32" || $(i + 1) == "1.00x"))
     }
     END {exit !(tables == 2 && rows == 10 && !bad)}' "$out/first"
check 'train: every row says how long a step takes and how many times as fast as fp32 that is' $?
grep -E '^(fp32|fp16|bf16).*x$' "$out/first" | head -n 5 | cut -c1-40 > "$out/shown"
shown "$out/shown"
check 'train: README has its bytes of a parameter and of activations' $?
train --data digits --seeds 2 --epochs 2 2> /dev/null | tail -n 2 > "$out/second"
tail -n 2 "$out/first" | cmp -s - "$out/second"
check 'train: the same seeds give the same numbers' $?
grep -q 'minus fp32' "$out/first" && ! grep -Eq 'within|more than 2 se' "$out/first"
check 'train: two seeds are no ground for a judgment' $?
for svg in costs scale images loss; do
    awk -v names=$([ $svg = loss ] && echo 10 || echo 0) -f tests/trainers/picture.awk "$out/train_$svg.svg" &&
        grep -q '</svg>' "$out/train_$svg.svg" || echo "train_$svg.svg" is not whole
done > "$out/log" 2>&1
[ ! -s "$out/log" ]
check 'train: its pictures have titles that fit, colors that can be seen, curves with their names' $?
tr '<' '\n' < "$out/train_costs.svg" > "$out/tags"
awk 'FNR == NR && /^fp16 alone .*[+]-/ {lost[++tables] = sprintf("%.2g %%", $7)}
     FNR == NR {next}
     /^text .*bold/ {title = title $0}
     /^text x="12.0"/ {most = 0; kinds = kinds substr($0, index($0, ">") + 1, 1)}
     /^rect x="180"/ {width = $4; gsub(/[^0-9.]/, "", width)}
     /^text .* >[0-9]/ {
         sub(/.*>/, "")
         value[++bars] = $1
         wide[bars] = width
         most = $1 > most ? $1 : most
         for (i = bars - 4; bars % 5 == 0 && i <= bars; i++) bad += (wide[i] - 1 - 170 * value[i] / (most + 1e-9)) ^ 2 > 5 ^ 2
         if (bars % 15 == 7) bad += $0 != lost[(bars + 8) / 15]
         if ((bars + 4) % 15 == 0) bad += $0 !~ /^[0-9.e+]+ ms$/
         if ((bars + 3) % 15 < 4) bad += $0 !~ /^[0-9.e+]+ ms, [0-9.]+x$/
     }
     END {exit !(tables == 2 && bars == 30 && kinds == "gwagwa" && !bad &&
                 index(title, "loses " lost[1]) && index(title, "loses " lost[2]))}' "$out/first" "$out/tags"
check 'train: the first picture has the updates of its table that are lost, and bars as long as their numbers' $?
awk '/^<path class="b[01]"/ {bands++} /^<path class="b[2-4]"/ {others++} /[( ]last 22 steps[)]/ {titles++}
     END {exit !(bands == 4 && !others && titles == 2)}' "$out/train_loss.svg"
check 'train: bands of fp32 and of fp16 alone; a headline says of how many steps' $?
tr '\n' ' ' < "$out/train_loss.svg" | sed 's/<[^>]*>//g; s/  */ /g' > "$out/words"
grep -q 'bands of fp32 and fp16 alone: least' "$out/words" && grep -q 'fp16, scaled' "$out/words" && ! grep -qF ... "$out/words"
check 'train: and whose they are; each curve has a name of its own' $?
awk '/fill="#ffffff"/ {white = 1} /<.g>/ {row = white; white = 0; rows++} /url.#ramp/ {ramp = 1; whites += row}
     ramp && /text-anchor="end"/ {scale[++ramps] = $NF; ramp = 0}
     END {exit !(rows == 6 && ramps == 2 && whites == 1 && scale[1] == scale[2])}' "$out/train_images.svg"
check 'train: rows of differences have one scale; the largest of all is white' $?
tr '<' '\n' < examples/step.svg | awk '
    /^text .*class="soft"/ && !/code/ || /^text .*bold/ { # of a box 200 wide, in DejaVu Sans, the widest of its fonts
        ems = 0
        sub(/.*>/, "")
        for (i = 1; i <= length($0); i++)
            ems += substr($0, i, 1) ~ /[ijl.,:;fIt ]/ ? 0.36 : substr($0, i, 1) ~ /[mw]/ ? 0.96 : 0.63
        texts++
        bad += 14 * ems > 196
    }
    END {exit !(texts > 15 && !bad)}'
check 'step.svg: no text leaves its box' $?
sed 's/<[^>]*>/ /g' examples/step.svg | tr -s ' ' | grep -q 'inf or NaN'
check 'step.svg: inf or NaN is skipped' $?
echo older > "$out/train_loss.svg"
"$build/train" --data digits --out "$out" > "$out/log" 2>&1 &
sleep 0.5
kill $! && ! wait $! 2> /dev/null &&
    grep -q '^1797 digits of 8x8' "$out/log" && [ "$(cat "$out/train_loss.svg")" = older ]
check 'train: a run that is interrupted leaves the older picture' $?

one='--data digits --task reconstruct --dtype fp16 --seeds 1 --epochs 3'
train $one --save "$out/whole" > "$out/first" 2> /dev/null &&
    train $one --save "$out/part" --stop-after 1 > "$out/log" 2>&1 &&
    train $one --resume "$out/part" --save "$out/part" > "$out/second" 2> /dev/null &&
    cmp "$out/whole" "$out/part" > "$out/log" 2>&1 &&
    same "$(grep '^final' "$out/first")" "$(grep '^final' "$out/second")"
check 'train: a run that was stopped and resumed ends with the same bytes' $?
refuses 'train: a state of another task is refused' 'was saved by train with --task reconstruct, and here it is classify;' \
    "$build/train" --data digits --task classify --dtype fp16 --seeds 1 --resume "$out/part"
refuses 'train: and of another batch' 'with --batch 64, and here it is 32;' "$build/train" $one --batch 32 --resume "$out/part"
refuses 'train: and of other epochs'  'with --epochs 3, and here it is 9;'  "$build/train" $one --epochs 9 --resume "$out/part"
refuses 'train: a directory is no state' "$out: Is a directory" "$build/train" $one --resume "$out"
refuses 'train: a path that is too long' ': \(is too long a path\|File name too long\);' \
    "$build/train" $one --out "$out" --save "$(printf '%04100d' 0)"
head -c 999 "$out/part" > "$out/torn"
refuses 'train: a torn state is named' torn "$build/train" $one --resume "$out/torn"

if $with_interrupt sh -c : 2> /dev/null; then
    one='--data digits --task classify --dtype fp16 --seeds 1 --epochs 900'
    $with_interrupt "$build/train" $one --out "$out" --save "$out/part" --report "$out/lines" \
        > "$out/first" 2> "$out/log" &
    interrupt "$out/lines" losses
    status=$? epoch=$(sed -n 's/^final .* epoch \([0-9]*\) of 900,.*/\1/p' "$out/first")
    [ $status = 130 ] && [ "$epoch" -lt 900 ] &&
        grep -q "^train: interrupted: the run ends after epoch $epoch of 900, as with --stop-after $epoch\$" "$out/log" &&
        train $one --stop-after "$epoch" --save "$out/whole" --report "$out/lines" > "$out/second" 2> "$out/log" &&
        cmp "$out/whole" "$out/part" > "$out/log" 2>&1 &&
        same "$(grep '^final' "$out/first")" "$(grep '^final' "$out/second")"
    check 'train: Ctrl-C ends it after the epoch, with state, table and pictures' $?
    $with_interrupt "$build/state" 2> "$out/log" &
    sleep 1
    kill -INT $!
    wait $!
    [ $? = 130 ] && [ "$(cat "$out/log")" = 'state: interrupted: what is not printed or saved yet is lost' ]
    check 'state: Ctrl-C ends it with a line' $?
else
    skip 'Ctrl-C' 'env has no --default-signal'
fi

head -c 20000 examples/digits/digits.csv.gz > "$out/torn.csv.gz"
gzip -dc examples/digits/digits.csv.gz | head -n 100 > "$out/few.csv"
gzip -dc examples/digits/digits.csv.gz | head -n 100 | cut -c1-40 > "$out/torn.csv"
mkdir -p "$out/idx" "$out/empty"
printf '\000\000\010\003\000\000\352\140\000\000\000\034\000\000\000\034abc' \
    > "$out/idx/train-images-idx3-ubyte"
refuses 'train: a wrong path is named'       "$out/nowhere: No such file"  "$build/train" --data "$out/nowhere"
refuses 'train: why a state cannot be saved' "$out/nowhere/x: No such file" \
    "$build/train" $one --save "$out/nowhere/x"
refuses 'train: a torn .gz is named'         torn.csv.gz     "$build/train" --data "$out/torn.csv.gz"
refuses 'train: a torn .csv is named'        torn.csv        "$build/train" --data "$out/torn.csv"
refuses 'train: a torn IDX file is named'    idx             "$build/train" --data "$out/idx"
refuses 'train: an empty directory is named' empty           "$build/train" --data "$out/empty"
refuses 'train: a foreign file is named'     'Makefile: is neither a directory'  "$build/train" --data Makefile
AMP_DATA=$out/nowhere
export AMP_DATA
refuses 'train: a wrong AMP_DATA is named'   "$out/nowhere"  "$build/train"
unset AMP_DATA
refuses 'train: an unknown option is named'  '^train: unknown option --bogus; see --help$'  "$build/train" --bogus
refuses 'train: several runs and one file'   'resume, --stop-after: need a single run; add'  "$build/train" --save "$out/x"
refuses 'train: a bad number is named'       zero            "$build/train" --epochs zero
for number in 0x10 +3 ' 3' 3.0 1e1 nan; do
    refuses "train: '$number' epochs are refused" "--epochs does not take '$number'; give a whole" \
        "$build/train" --epochs "$number"
done
refuses 'train: --stop-after behind the end' '--stop-after 21: the run ends after 20 epochs; give at most 20' \
    "$build/train" --data digits --task classify --dtype fp16 --seeds 1 --stop-after 21
refuses 'train: a batch larger than all'     'few.csv.* has 80 images to learn, and a batch takes 90;.* 80$' \
    "$build/train" --data "$out/few.csv" --batch 90
refuses 'train: an unknown task is named'    fly             "$build/train" --task fly
mkdir -p "$out/taken/train_loss.svg"
refuses 'train: a directory where a picture goes' 'train_loss.svg: Is a directory' \
    "$build/train" --data digits --out "$out/taken"
if [ -d /sys/kernel ]; then # of which mkdir and fopen say different things
    refuses 'train: why a directory cannot be made' ': /sys/x: \(Operation not\|Permission\|Read-only\)' \
        "$build/train" --data digits --out /sys/x
else
    skip 'train: why a directory cannot be made' 'no /sys'
fi
cp examples/digits/digits.csv.gz "$out/own.csv.gz" && ln -s own.csv.gz "$out/other.csv.gz"
refuses 'train: --report on its data is refused' 'own.csv.gz: --report .*other.csv.gz would overwrite' \
    "$build/train" --data "$out/own.csv.gz" --report "$out/other.csv.gz"
grep -q 'would overwrite' "$out/log" && cmp examples/digits/digits.csv.gz "$out/own.csv.gz"
check 'train: and they stay' $?
for option in --save --report; do
    one_run='--task classify --dtype bf16 --seeds 1 --epochs 1'
    refuses "train: $option on the digits is refused" 'digits.csv.gz: --.* would overwrite' \
        env -u AMP_DATA "$build/train" $one_run --data digits --out "$out" $option "$PWD/examples/digits/../digits/digits.csv.gz"
    refuses "train: and $option beside the data" 'idx: --.* would write among the data' \
        "$build/train" $one_run --data "$out/idx" --out "$out" $option "$out/idx/state"
    refuses "train: and $option on those that AMP_DATA names" 'own.csv.gz: --.* would overwrite' \
        env AMP_DATA="$out/own.csv.gz" "$build/train" $one_run --out "$out" $option "$out/other.csv.gz"
done
"$build/train" --help > "$out/log" 2>&1 && grep -q -e --seeds "$out/log"
check 'train: --help' $?

finish
