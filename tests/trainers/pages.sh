# The page of a run: examples/report.c reads the lines of trainers, and of a run of 100 layers and
# 10,000 steps; it refuses damaged ones; a browser shows the page without a message on its console.
# usage: [CC=COMPILER] pages.sh OUTDIR DIRECTORY-OF-EXAMPLES
suite=pages out=${1:?usage: pages.sh OUTDIR DIRECTORY}
build=${2:?usage: pages.sh OUTDIR DIRECTORY}
. tests/lib.sh

cat > "$out/many.c" << 'END'
/* A run of 100 layers and 10,000 steps, as lines: gradients that fade with depth and with time,
   overflows, a step asked to be skipped, a NaN, a name that HTML would stumble over. */
#define AMP_IMPLEMENTATION
#define AMP_STATIC
#include "amp.h"
#include "examples/amp_report.h"
#include <math.h>
#include <stdio.h>

enum { LAYERS = 100, N = 48, STEPS = 10000, EVERY = 100 };
static float    weight[LAYERS][N];
static amp_f16  grad[LAYERS][N];
static char     names[LAYERS][40];
static uint32_t dice = 1;

static float uniform(void) {
    dice = dice * 1664525u + 1013904223u;
    return (float)(dice >> 8) / 8388608.0f - 1.0f;
}

int main(void) {
    const amp_report_desc watch = {EVERY};
    amp_optimizer      opt;
    amp_optimizer_desc desc = {0};
    uint64_t           told = 0;
    desc.dtype  = AMP_F16;
    desc.kind   = AMP_KIND_ADAMW;
    desc.report = &watch;
    desc.scaler.growth_interval = 200;
    if (amp_optimizer_init(&opt, &desc) != AMP_OK) return 1;
    for (int i = 0; i < LAYERS; i++) {
        amp_tensor t = {0};
        sprintf(names[i], i % 7 ? "block%d.attention.qkv.weight" : "block%d.<mlp> & \"norm\"", i);
        t.name = names[i], t.n = N, t.weight = weight[i], t.grad = grad[i], t.grad_type = AMP_F16;
        for (int k = 0; k < N; k++) weight[i][k] = uniform();
        if (amp_optimizer_add(&opt, &t) != AMP_OK) return 1;
    }
    if (amp_optimizer_prepare(&opt) != AMP_OK) return 1;
    for (int step = 1; step <= STEPS; step++) {
        const float scale = amp_optimizer_loss_scale(&opt);
        for (int i = 0; i < LAYERS; i++)
            for (int k = 0; k < N; k++)
                grad[i][k] = amp_f32_to_f16(uniform() * uniform() * scale *
                             expf(-0.12f * (float)i - 0.0002f * (float)step) * 0.4f);
        if (step == 6920) amp_optimizer_scaler(&opt)->found_inf = 1;
        if (step == 9000) grad[60][5].bits = 0x7e00;
        if (amp_optimizer_step(&opt, 1e-3f) != AMP_OK) return 1;
        if (step % EVERY == 0 && amp_report_json(&opt, stdout, &told) != AMP_OK) return 1;
    }
    amp_optimizer_free(&opt);
    return 0;
}
END
${CC:-cc} -std=c99 -O2 -Wall -Wextra -I. "$out/many.c" -o "$out/many" -lm > "$out/log" 2>&1 &&
    "$out/many" > "$out/many.jsonl" && "$build/report" "$out/many.jsonl" > "$out/log" 2>&1 &&
    grep -q ': 10000 steps, 100 tensors, 100 samples$' "$out/log"
check 'a run of 100 layers and 10,000 steps becomes a page' $?
page=$out/many.jsonl.html
bytes=$(wc -c < "$page") && [ "$bytes" -lt 1000000 ]
status=$?
check "its page is smaller than 1 MB: $((${bytes:-0} / 1000)) KB" $status
grep -E '(src|href)=["'\'']?(https?:)?//|@import|url\(|fetch\(' "$page" > "$out/log"
[ $? = 1 ]
check 'it asks nothing of a network' $?
[ "$(grep -o '<span title=' "$page" | wc -l)" = 100 ] &&
    [ "$(grep -o '<tr><th title=' "$page" | wc -l)" = 100 ] &&
    grep -q 'block0.&#60;mlp&#62; &#38; &#34;norm&#34;' "$page" && ! grep -q '<mlp>' "$page"
check 'each layer has its row on the map and in the table, its name as text' $?
grep -q "class='skip overflow' d='M[0-9]" "$page" && grep -q "class='skip asked' d='M[0-9]" "$page" &&
    grep -q "class=line d='M0 [0-9.]*H[0-9]*V" "$page" && grep -q "class=line d='M0 [0-9.V]*L1 " "$page"
check 'the scale in stairs, with overflows and what was asked for; the norm as a line' $?
head -n 30 "$out/many.jsonl" > "$out/short.jsonl" && "$build/report" "$out/short.jsonl" --out "$out/short.html" > "$out/log" &&
    grep -q ': 3000 steps' "$out/log" && [ -s "$out/short.html" ]
check 'a part of the lines' $?

# Chromium, in both colors and widths; what a page says on its console comes on stderr.
look() { # look WIDTH SCHEME
    timeout 60 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$out/chromium" \
        --enable-logging=stderr --blink-settings=preferredColorScheme="$2" --window-size="$1",2000 \
        --screenshot="$out/page_$1_$2.png" "file://$(cd "$out" && pwd)/many.jsonl.html" > "$out/log" 2>&1 &&
        [ -s "$out/page_$1_$2.png" ] && ! grep -q CONSOLE "$out/log"
}
if have chromium; then
    look 1200 0 && look 1200 1 && look 500 0 && look 500 1
    check 'a browser shows it at two widths, light and dark, without an error' $?
    timeout 60 chromium --headless --no-sandbox --disable-gpu --user-data-dir="$out/chromium" --dump-dom \
        "file://$(cd "$out" && pwd)/many.jsonl.html" 2> "$out/log" | grep -c '<span title=' > "$out/dom"
    [ "$(cat "$out/dom")" -ge 1 ]
    check 'and takes it for what it is' $?
    # On 400 pixels; names of 40 and of 200 characters, which differ at their ends.
    sed 's/attention.qkv.weight/&.that_has_quite_a_name/g; s/block0[.]<mlp>/&01234567890123456789012345678901234567890123456789/' \
        "$out/many.jsonl" > "$out/long.jsonl" && "$build/report" "$out/long.jsonl" > "$out/log" 2>&1
    sed 's,</body>,<style>body{width:400px;margin:0}</style><script>document.title="cut: "+[...document.querySelectorAll(".names span\,th\,td\,dd\,h1\,h2\,.cards div\,li")].filter(e=>e.scrollWidth>e.clientWidth+1||e.scrollHeight>e.clientHeight+4||e.getBoundingClientRect().right>391).length+"."</script>&,' \
        "$out/long.jsonl.html" > "$out/phone.html"
    timeout 60 chromium --headless --no-sandbox --disable-gpu --user-data-dir="$out/chromium" --window-size=500,2000 --dump-dom \
        "file://$(cd "$out" && pwd)/phone.html" 2> "$out/log" | grep -o '<title>cut: [0-9]*[.]' > "$out/cut"
    [ "$(cat "$out/cut")" = '<title>cut: 0.' ]
    check 'on a phone nothing is cut off' $?
else
    skip browser 'chromium not found'
fi

"$build/gpt" --quick --dtype fp16 --seeds 1 --out "$out" --report "$out/gpt.jsonl" > "$out/log" 2>&1 &&
    "$build/report" "$out/gpt.jsonl" > "$out/log" 2>&1 && grep -q ' 28 tensors' "$out/log" && grep -q '<h1>gpt in fp16</h1>' "$out/gpt.jsonl.html" &&
    grep -q '<dt>command</dt><dd>[^<]*gpt --quick --dtype fp16' "$out/gpt.jsonl.html" &&
    grep -q '<dt>processor' "$out/gpt.jsonl.html" && grep -q '<h2>Loss</h2>' "$out/gpt.jsonl.html" &&
    ! grep -q 'run of fp16' "$out/gpt.jsonl.html"
check 'gpt --report: lines that become a page, with what was run, where, and its losses' $?
for program in 'cnn --data digits/32/11' 'ncf --users 200 --items 160/13/11'; do # of cnn's two networks the first
    name=${program%% *} steps=${program##*/} tensors=${program#*/} command=${program%%/*}
    $build/$command --quick --steps $steps --seeds 1 --out "$out" --report "$out/$name.jsonl" > "$out/log" 2>&1 &&
        "$build/report" "$out/$name.jsonl" > "$out/log" 2>&1 &&
        grep -q ": $steps steps, ${tensors%/*} tensors, $steps samples" "$out/log" &&
        grep -q "<h1>$name in fp16</h1>" "$out/$name.jsonl.html" && grep -q '<h2>Loss</h2>' "$out/$name.jsonl.html"
    check "$name --report: a page of one run, each step once" $?
done
"$build/train" --data digits --task classify --seeds 1 --epochs 2 --dtype fp16 --out "$out" \
    --report "$out/train.jsonl" > "$out/log" 2>&1 && "$build/report" "$out/train.jsonl" > "$out/log" 2>&1 &&
    grep -q ': 44 steps, 8 tensors, 44 samples' "$out/log" &&
    [ "$(grep -o '<th title=.layer[0-3][.bias]*.>' "$out/train.jsonl.html" | sort -u | wc -l)" = 8 ]
check 'train --report: the steps of a run, each once, and eight names' $?
numbers() { # numbers FILE OPTIONS...: rows of train's table of accuracies; those of its times differ
    file=$1
    shift
    "$build/train" --data digits --task classify --seeds 1 --epochs 2 --dtype fp16 --out "$out" "$@" 2> "$out/log" |
        sed -n '/accuracy %/,/^$/p' | grep '^fp16' > "$file"
}
numbers "$out/without" && numbers "$out/with" --report "$out/train.jsonl" && [ "$(wc -l < "$out/with")" = 3 ] &&
    cmp "$out/without" "$out/with" > "$out/log" 2>&1
check 'train: a run that reports has the numbers of one that does not' $?

"$build/report" "$out/train.jsonl" "$out/gpt.jsonl" "$out/short.jsonl" --out "$out/three.html" > "$out/log" 2>&1 &&
    grep -q 'train.jsonl: 44 steps, 8 tensors, 44 samples$' "$out/log" && grep -q 'gpt.jsonl: .* 28 tensors' "$out/log" &&
    grep -q 'short.jsonl: 3000 steps, 100 tensors, 30 samples$' "$out/log"
check 'of several runs each has its counts' $?
"$build/gpt" --quick --tier c --dtype bf16 --seeds 1 --steps 3 --out "$out" --report "$out/c.jsonl" > "$out/log" 2>&1 &&
    "$build/report" "$out/c.jsonl" > "$out/log" 2>&1 &&
    [ "$(grep -o 'bf16 and fp16 are multiplied as fp32; 16 bits save memory here, not time' "$out/c.jsonl.html" | wc -l)" = 2 ]
check 'a processor without 16-bit products is named, and where there is nothing to change, too' $?

refuses 'a missing file is named' nowhere "$build/report" "$out/nowhere"
sed 's/"norm":[0-9.e+-]*/"norm":nan/' "$out/train.jsonl" > "$out/nan.jsonl"
refuses 'NaN in JSON is named' "nan.jsonl, line 3: is not JSON where it has 'nan'; give" "$build/report" "$out/nan.jsonl"
(sed 6q "$out/train.jsonl"; sed -n '7,8s/.*/&/p' "$out/nan.jsonl"; sed 1,8d "$out/train.jsonl") > "$out/one.jsonl"
"$build/report" "$out/one.jsonl" > "$out/log" && grep -q ": 44 steps, .*; line 7 is not JSON where it has 'nan'; this" "$out/log"
check 'in one line of many it is left out' $?
refuses 'a file without an end has one' '/dev/zero: is longer than 1 GB, or a line' "$build/report" /dev/zero
refuses 'for ncf, too' '/dev/zero: has more than 200 million lines, or one' "$build/ncf" --out "$out" --data /dev/zero
refuses 'a foreign file is named, with its line' 'Makefile, line 1' "$build/report" Makefile
head -c 5000 "$out/many.jsonl" > "$out/torn.jsonl"
refuses 'a torn line alone is named' 'torn.jsonl, line 1: ends early' "$build/report" "$out/torn.jsonl"
head -c 20000 "$out/train.jsonl" > "$out/torn.jsonl"
torn=$(($(wc -l < "$out/torn.jsonl") + 1))
"$build/report" "$out/torn.jsonl" > "$out/log" &&
    grep -q "torn.jsonl: .*; line $torn ends early (the run was killed?)" "$out/log" &&
    grep -q "line $torn ends early" "$out/torn.jsonl.html"
check 'behind whole lines it is left out, and the page says so' $?
(cat "$out/torn.jsonl"; echo; sed 1d "$out/train.jsonl") > "$out/again.jsonl"
"$build/report" "$out/again.jsonl" > "$out/log" && grep -q ': 44 steps, 8 tensors, 44 samples' "$out/log"
check 'a run that was killed and resumed: each step once' $?
refuses 'a full disk is named' '/dev/full: No space left' "$build/report" "$out/train.jsonl" --out /dev/full
cp "$out/train.jsonl" "$out/input.jsonl" && ln -f "$out/input.jsonl" "$out/hard" && ln -sf input.jsonl "$out/soft" &&
    cp "$out/train.jsonl" "$out/beside.new"
for path in input.jsonl ./input.jsonl hard soft; do
    refuses "a page on its own lines is refused: $path" "input.jsonl: --out .*$path would overwrite this file" \
        "$build/report" "$out/input.jsonl" --out "$out/$path"
done
refuses 'and on those of the second run' 'hard: --out .*input.jsonl would' \
    "$build/report" "$out/train.jsonl" "$out/hard" --out "$out/input.jsonl"
refuses 'and on what lies where it is written first' 'beside.new: --out .*beside would' \
    "$build/report" "$out/beside.new" --out "$out/beside"
cmp "$out/train.jsonl" "$out/input.jsonl" && cmp "$out/train.jsonl" "$out/beside.new"
check 'all of them stay' $?
mkdir -p "$out/folder"
refuses 'a directory is named' 'folder: Is a directory; choose a file' "$build/report" "$out/train.jsonl" --out "$out/folder"
refuses 'a seventh file is refused, with the limit' ' seventh: is one file too many; give at most 6$' \
    "$build/report" $(for file in 1 2 3 4 5 6; do echo "$out/train.jsonl"; done) seventh
head -n 9 "$out/train.jsonl" > "$out/seed.jsonl"
with='-O1 -fsanitize=address,undefined -fno-sanitize-recover=all'
works "${CC:-cc}" "$with -x c" || with=-O1
${CC:-cc} -std=c99 $with tests/trainers/report_damage.c -o "$out/damage" -lm > "$out/log" 2>&1 &&
    ASAN_OPTIONS=detect_leaks=0 "$out/damage" "$out/seed.jsonl" $(quick && echo 2000 || echo 20000) > "$out/log"
status=$?
check "$(cat "$out/log"): no crash, and no tag that is not the page's" $status
(cat "$out/gpt.jsonl"; head -n 1 "$out/many.jsonl") > "$out/two.jsonl"
refuses 'lines of two networks are refused' 'other tensors' "$build/report" "$out/two.jsonl"
: > "$out/empty.jsonl"
refuses 'a file without lines is named' 'empty.jsonl: holds no line' "$build/report" "$out/empty.jsonl"
refuses 'an unknown option is named' '^report: unknown option --bogus; see --help$' "$build/report" --bogus
refuses 'no file is named' '^report: LINES: no input file; give what' "$build/report"
refuses 'a page that cannot be written is named' nowhere "$build/report" "$out/gpt.jsonl" --out "$out/nowhere/x"
refuses 'train: a report that cannot be written is named, before the training' nowhere \
    "$build/train" --data digits --out "$out" --report "$out/nowhere/x"
for name in gpt cnn ncf; do
    refuses "$name: and here, too" nowhere "$build/$name" --quick --out "$out" --report "$out/nowhere/x"
done
"$build/report" --help > "$out/log" && grep -q usage: "$out/log"
check '--help' $?
finish
