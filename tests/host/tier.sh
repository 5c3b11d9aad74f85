# The tests that products reach, as on another processor: AMP_TEST_TIER (processor.h) is the name at the
# end of the directory. tier-NAME: o2's programs, if the processor has the tier; model-NAME: the same on
# any processor, with a model in C of the missing instructions (tiles.h); sanitized-NAME: the model under
# sanitizers, which do not see into the processor's own instructions.
# usage: [CC=COMPILER] OBJECTS=BUILD/tests tier.sh OUTDIR TEST...
suite=$(basename "${1:?usage: tier.sh OUTDIR TEST...}") out=$1
shift
. tests/lib.sh
export AMP_TEST_TIER=${suite#*-}
config=o2 amp=o2 flags=-O1 name=$AMP_TEST_TIER
case $suite in
model-*) amp=model ;;
sanitized-*) config=sanitize amp=model-sanitize flags='-O1 -fsanitize=address,undefined' ;;
esac
case $name in pairs) name=avx512_bf16 ;; esac
if quick; then AMP_QUICK=2; fi
quick || case $suite in # in make check o2 has all sizes; sanitizers and the model of BFMMLA take ten times as long
tier-* | model-neon_bf16) AMP_QUICK=1 ;;
sanitized-*) AMP_QUICK=2 ;;
esac
cc=${CC:-cc} object=$OBJECTS/$amp/amp.o
[ "$amp" = o2 ] || model=1
[ -s "$object" ] || { skip "$name" "no $object"; finish; }

# links NAME SOURCE [FLAGS]: a program around that amp.o
links() {
    program=$1
    shift
    $cc -std=c99 $flags -Wall -Wextra -I. -Iexamples -DAMP_CORE_INCLUDED \
        -DAMP_IMPLEMENTATION_INCLUDED "$@" "$object" -o "$out/$program" -lm > "$out/log" 2>&1
}
# What programs say of the processor: its tier; of examples/digits/train.c how products are made; and whether bf16
# pays, of which README says in which tiers.
{
    printf '%s\n' '#include "amp.h"' '#include <stdio.h>' '#include <string.h>'
    sed -n '/^static inline int multiplies_as_fp32/,/^}/p; /^static inline const char \*products_in/,/^}/p' \
        examples/support/train_cli.h
    printf '%s\n' 'int main(void) {' 'amp_capability c;' 'amp_capability_of(0, 0, &c);' \
        'return printf("%s\n%s\n%d\n", amp_cpu_tier(), products_in(amp_cpu_tier()), c.bf16) < 0; }'
} > "$out/words.c"
links words "$out/words.c" || { fail 'a program is linked'; finish; }
"$out/words" > "$out/log" 2>&1
[ $? != 77 ] || { skip "$name" 'not on this processor'; finish; }
case $name in
amx) words='products in AMX tiles, fp16 in two parts' pays=1 ;;
neon_bf16) words='products in BFMMLA, fp16 in fp32 arithmetic' pays=1 ;;
avx512_bf16) words='products in AVX512_BF16, fp16 in fp32 arithmetic' pays=1 ;;
*) words='bf16 and fp16 are multiplied as fp32; 16 bits save memory here, not time' pays=0 ;;
esac
printf '%s\n' "$name" "$words" $pays | diff - "$out/log" > "$out/words.log" 2>&1
check "amp_cpu_tier, train's reading and amp_capability_of are those of $name" $?
grep -A 1 '`amp_cpu_tier()` is' README.md | grep -q "\"$name\"" && named=1 || named=0
[ $named = $pays ]
check "README names it where bf16 pays" $?

for test in "$@"; do
    program=$OBJECTS/$config/$test tests=$OBJECTS/$config/$test.o
    if [ -n "${model-}" ]; then
        program=$out/$test
        [ -f "$tests" ] || { tests=$program.o && $cc -std=c99 $flags -I. -c "tests/unit/test_$test.c" -o "$tests"; }
        $cc $flags "$tests" "$object" -o "$program" -lm -pthread > "$out/log" 2>&1 ||
            { fail "$test is linked"; continue; }
    fi
    lines "$test" "$program"
done
case $suite in sanitized-*) finish ;; esac

# The program at the top of amp.h; examples/linear.c, in samples smaller; examples/pitfalls.c, in samples by the
# model without training, which takes ten seconds.
shortest() {
    fast > "$out/fast.c"
    fast_prints > "$out/expected"
    links fast "$out/fast.c" && "$out/fast" | grep '^step' > "$out/log" && diff "$out/expected" "$out/log" >> "$out/log"
}
linear() {
    links linear examples/linear.c && "$out/linear" $(if quick; then echo 64 32; fi) > "$out/log" 2>&1 &&
        awk '/ loss / {rows++; bad += !($(NF - 4) < 0.9 * $(NF - 7))} END {exit !(rows == 4 && !bad)}' "$out/log"
}
pitfalls() { links pitfalls examples/pitfalls.c && "$out/pitfalls" > "$out/log" 2>&1; }
if quick && [ "$suite" = model-neon_bf16 ]; then skip fast 'a minute by the model: make check'; else
    shortest
    check "the program at the top of amp.h prints a loss that falls" $?
fi
linear
check 'linear: all four ways learn' $?
if quick && [ -n "${model-}" ]; then skip pitfalls 'ten seconds by the model: make check'; else
    pitfalls
    check 'pitfalls: fp16 fails without loss scaling and equals fp32 with it' $?
fi
finish
