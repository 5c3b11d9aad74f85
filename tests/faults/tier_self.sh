# Do the tests see faults in code for other processors? Each is planted in a copy, one at a time, and the
# tests of model-amx and model-pairs, in the samples of make test, must find it there.
# usage: [CC=COMPILER] [PLANT_ONLY=1] tier_self.sh OUTDIR, in the repository's root
# PLANT_ONLY: are the lines there that faults change? self.sh asks.
suite=tier_self out=${1:?usage: tier_self.sh OUTDIR}
. tests/lib.sh
cc=${CC:-cc}
rm -rf "$out/copy"
mkdir -p "$out/copy/tests/support"
export AMP_QUICK=2

for name in gemm cache tiles; do
    [ -n "$PLANT_ONLY" ] || $cc -std=c99 -O1 -I. -c "tests/unit/test_$name.c" -o "$out/$name.o" > "$out/log" 2>&1 ||
        { fail "test_$name.c compiles"; finish; }
done

found() { # TESTS: with the copy's amp.h, one of the tests of TIER:TEST fails
    (cd "$out/copy" && $cc -std=c99 -O1 -Wno-psabi -DTEST_MODEL -I. -c tests/amp.c -o amp.o) || return 2
    for test in $1; do
        name=${test#*:}
        program=$out/copy/$name
        $cc "$out/$name.o" "$out/copy/amp.o" -o "$program" -lm || return 2
        AMP_TEST_TIER=${test%:*} "$program" > "$program.log" 2>&1
        grep '^FAIL' "$program.log" && return 0
    done
    return 1
}

# fault TEXT FILE SED-SCRIPT TESTS: the script changes the file, and one of the tests sees it
fault() {
    cp amp.h "$out/copy/"
    cp tests/amp.c "$out/copy/tests/" && cp tests/support/*.h "$out/copy/tests/support/"
    sed -i.old -e "$3" "$out/copy/$2"
    if cmp -s "$2" "$out/copy/$2"; then fail "$1: there is no such line any more"; return; fi
    [ -n "$PLANT_ONLY" ] || found "$4" > "$out/log" 2>&1
    check "$1 (${2##*/})" $?
}

cp amp.h "$out/copy/"
cp tests/amp.c "$out/copy/tests/" && cp tests/support/*.h "$out/copy/tests/support/"
if [ -z "$PLANT_ONLY" ]; then
    found 'amx:gemm amx:cache amx:tiles pairs:gemm' > "$out/log" 2>&1
    [ $? = 1 ]
    check 'without a fault nothing is found' $?
fi

all='amx:gemm amx:tiles pairs:gemm'
fault "the two cross products of fp16 in tiles, the other one first" amp.h \
    '/^static void ampi_tiles_terms/,/^}/{
         /products < 4/,/^}/s/ampi_tiles_b(b + second);/ampi_tiles_a(a + second);/; t
         s/^    ampi_tiles_b(b + second);$/    ampi_tiles_b(b);/; t
         s/^    ampi_tiles_a(a);$/    ampi_tiles_a(a + second);/; t
         s/^    ampi_tiles_b(b);$/    ampi_tiles_a(a);/; t
         s/^    ampi_tiles_a(a + second);$/    ampi_tiles_b(b + second);/
     }' "$all"
fault "a policy's tf32 is left set after a cast" amp.h \
    's/^    if (rounded) g->tf32 = tf32;$//' amx:cache
fault "pairs are summed even first: the kernel turns them" amp.h \
    '/ ampi_splat_pairs(float x)/s/{ return .*/{ const uint32_t u = ampi_bits_of_f32(x); \
         return ampi_splat_avx512(ampi_f32_from_bits(u >> 16 | u << 16)); }/
     / ampi_get_pairs(const/s/{ return .*/{ const ampi_u16 u = ampi_bits_avx512(ampi_get_avx512(base, i)); \
         return ampi_from_bits_avx512(u >> 16 | u << 16); }/' 'amx:tiles pairs:gemm'
fault "pairs are summed even first: by the instruction" tests/support/tiles.h \
    '/ampi_fma_pairs(/,/^}/{
         s/x & 0xffff0000u, y & 0xffff0000u/x << 16, y << 16 /
         s/x << 16, y << 16, /x \& 0xffff0000u, y \& 0xffff0000u, /
     }' 'amx:tiles pairs:gemm'
fault "a row of a 16-bit C, + for * of ldc" amp.h \
    '/^AMPI_AVX512 void ampi_write_pairs_avx512/,/^}/s/(i + r) \* w->g->ldc/(i + r) + w->g->ldc/' "$all"
fault "an odd tail of k is packed wrong, its last number lost" amp.h \
    '/void ampi_lines_as/,/^}/s/ampi_min(n, 16), second/ampi_min(n < 16 ? n \& ~(size_t)1 : n, 16), second/' "$all"
fault "an odd tail of k is packed wrong in two parts" amp.h \
    '/void ampi_lines_as/,/^}/s/ampi_value_avx512(x, i \* step + next, second)/ampi_value_avx512(x, i * step + next, second \& ~(size_t)1)/' \
    "$all"

mmla='neon_bf16:tiles'
fault "BFMMLA: a wrong lane, by the kernel" amp.h \
    '/void ampi_transpose_mmla/,/^}/s/ampi_high2_neon(s\[r\]\[c\], s\[r + 1\]\[c\])/ampi_high2_neon(s[r + 1][c], s[r][c])/' $mmla
fault "BFMMLA: a wrong lane, where rows are packed" amp.h \
    '/void ampi_pack_as_mmla/,/^}/s/v\[along ? 1 : 2\]/v[1]/' $mmla
fault "BFMMLA: pairs the other way round" tests/support/tiles.h \
    '/^static inline float tiles_mmla/,/^}/s/for (i = 0; i < 2; i++)/for (i = 1; i >= 0; i--)/' $mmla
fault "BFMMLA: all four products in one sum" tests/support/tiles.h \
    '/^static inline float tiles_mmla/,/^}/{
         s/s = tiles_sum_odd(s, tiles_sum_odd(/s = tiles_sum_odd(tiles_sum_odd(s, /
         s/b\[i\] << 16),$/b[i] << 16)),/
         s/0xffff0000u)));/0xffff0000u));/
     }' $mmla
fault "BFMMLA: no flush of a subnormal result" tests/support/tiles.h 's/sign | (e < 1 ? 0u/sign | (e < 0 ? 0u/' $mmla
fault "BFMMLA: a subnormal operand counts" tests/support/tiles.h \
    '/tiles_product_odd/,/^}/s/if (!x || !y) return/if (!x \&\& !y) return/' $mmla
fault "BFMMLA: sums cut off, not rounded to odd" tests/support/tiles.h 's/ | ((x & 0x7fffffffffu) != 0)//' $mmla
fault "BFMMLA: what is below the last bit of a sum is lost" tests/support/tiles.h 's/ | (y >> d << d != y);/;/' $mmla
fault "BFMMLA: k is filled up to the end of a piece" amp.h \
    '/void ampi_sums_mmla/,/^}/s/k < x->words; k += 2/k < ampi_up(x->words, 16); k += 2/' $mmla
fault "BFMMLA: an odd tail of k is packed wrong" amp.h \
    '/void ampi_pack_as_mmla/,/^}/s/there ? n - at : 0)/there ? (n - at) \& ~(size_t)1 : 0)/' $mmla
finish
