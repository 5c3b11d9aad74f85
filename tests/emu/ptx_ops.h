/* ptx_ops.h - what each instruction of PTX does, for ptx.cpp: the values that registers hold, the
   memory that a warp sees, and a line or a few for each instruction.

   What is written here is PTX's definition (PTX ISA 9.0, chapter 9), and not a form of it is guessed: an
   instruction that has no line is refused by name, so .approx, and add, sub and mul of floats without
   a rounding, which ptxas may contract. The NaN of single precision is 0x7fffffff. */

#include "cuda_emu.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace {

typedef uint64_t    word;
typedef std::string string;
typedef std::vector<string> strings;

enum { LANES = 32 };

strings split(const string &name) { /* at its points */
    strings parts(1);
    for (char c : name)
        if (c == '.') parts.push_back("");
        else parts.back() += c;
    return parts;
}

/* ---- Programs ---- */

struct warp;
struct instruction;

struct opcode {
    bool strict; /* may not see a register that was not written; else its result is as unwritten */
    explicit opcode(bool is_strict = true) : strict(is_strict) {}
    virtual ~opcode() {}
    virtual void run(warp &w, const instruction &i, unsigned lanes) const = 0;
};

/* What becomes of the lanes. Lanes at a COLLECTIVE wait for those that its last operand names. */
enum flow { NEXT, BRANCH, END, BARRIER, COLLECTIVE };

/* Addresses are those of the host in GLOBAL; in other spaces they begin at 0, and as generic
   addresses in a window that is no address of the host. */
enum space { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };
const unsigned WINDOW = 56; /* bits of an address in its window */

struct instruction {
    string        text;
    const opcode *op;
    flow          kind;
    int           guard; /* a register, or -1 */
    bool          unless, selects;
    unsigned      to[4], from[8], num_to, num_from; /* registers */
    word          keep;                             /* the bits that the first destination has */
    space         where;
    int64_t       offset; /* from the address in from[0] */
    unsigned      target;
    bool          ran;
    char         *begin, *end; /* the allocation that it touched last, if none has changed since */
    unsigned long seen;        /* emu_heap_changes then */
};

struct array { size_t offset, size; };

struct kernel {
    string                              name;
    size_t                              at; /* in the module's words, behind the name */
    std::vector<instruction>            code;
    std::vector<unsigned>               widths;    /* of registers, in bits */
    std::map<word, unsigned>            constants; /* registers by their value */
    std::map<string, unsigned>          specials;  /* registers by their name */
    std::vector<array>                  params;
    size_t                              param_bytes, shared_bytes, local_bytes;
    unsigned                            max_threads;
};

/* Where the machine is, for its last words. */
const kernel      *running;
const instruction *current;
unsigned           thread_of_block;

[[noreturn]] void fault(const string &what) {
    fprintf(stderr, "ptx: %s", what.c_str());
    if (running != NULL) fprintf(stderr, ": %s", running->name.c_str());
    if (current != NULL)
        fprintf(stderr, ": %s (block %u,%u,%u thread %u)", current->text.c_str(), emu_block.x,
                emu_block.y, emu_block.z, thread_of_block);
    fprintf(stderr, "\n");
    abort();
}

/* ---- A warp, and the memory that it sees ---- */

struct byte_state { /* of a byte of shared memory, between two barriers */
    unsigned char value;
    bool          written;
    unsigned      writer, reader; /* 1 + the number of a warp; MANY readers */
    unsigned      write_epoch, read_epoch;
};
const unsigned MANY = ~0u;

struct block {
    const kernel               *k;
    const std::vector<char>    *params;
    std::vector<byte_state>     shared;
    unsigned                    epoch; /* barriers so far */
};

struct warp {
    block                *in;
    unsigned              number;
    std::vector<word>     values;  /* LANES for each register */
    std::vector<unsigned> written; /* lanes, for each register */
    std::vector<char>     local;   /* local_bytes for each lane */
    unsigned              exists, alive, at_barrier, gathered; /* lanes */
    unsigned              pc[LANES];

    word *at(unsigned r) { return &values[r * LANES]; }
};

template <class F> void in_turn(unsigned lanes, const F &f) {
    for (; lanes != 0; lanes &= lanes - 1) f((unsigned)__builtin_ctz(lanes));
}

/* f for each lane; no lane sees what another one writes. */
template <class F> void each(unsigned lanes, const F &f) {
    if (lanes == ~0u) {
#pragma GCC ivdep
        for (unsigned l = 0; l < LANES; l++) f(l);
    } else in_turn(lanes, f);
}

[[noreturn]] void undefined(const warp &w, unsigned lanes) {
    thread_of_block = w.number * LANES + (unsigned)__builtin_ctz(lanes);
    fault("a register is used before it was written");
}

unsigned bits_of(const word *predicate) {
    unsigned bits = 0;
    for (unsigned l = 0; l < LANES; l++) bits |= (unsigned)predicate[l] << l;
    return bits;
}

enum access { READ, WRITE, ATOMIC };

void touch_shared(const warp &w, byte_state &b, access how) {
    const unsigned me = w.number + 1, epoch = w.in->epoch;
    if (how != WRITE && !b.written) fault("shared memory is read before it was written");
    if (how != ATOMIC) {
        if (b.write_epoch == epoch && b.writer != me)
            fault("shared memory that another warp writes, without a barrier between");
        if (how == WRITE && b.read_epoch == epoch && b.reader != me)
            fault("shared memory that another warp reads is written, without a barrier between");
    }
    if (how == READ) {
        b.reader     = b.read_epoch == epoch && b.reader != me ? MANY : me;
        b.read_epoch = epoch;
    } else if (how == WRITE) {
        b.writer = me, b.write_epoch = epoch, b.written = true;
    }
}

/* One access of a lane: bytes [0, n) from its address, in host memory or, of shared memory, in a
   copy that `leave` puts back. */
struct place {
    char       *p;
    byte_state *shared;
    char        copy[16];

    place(warp &w, const instruction &i, unsigned lane, unsigned n, access how) : shared(NULL) {
        word  a     = w.at(i.from[0])[lane] + (word)i.offset;
        space where = i.where;
        thread_of_block = w.number * LANES + lane;
        if (a % n != 0) fault("a misaligned address");
        if (where == GENERIC) {
            where = a >> WINDOW == 0 ? GLOBAL : (space)(a >> WINDOW);
            a &= ((word)1 << WINDOW) - 1;
        } else if (where != GLOBAL) {
            a = (uint32_t)a;
        }
        if (where == GLOBAL) {
            instruction &seen = const_cast<instruction &>(i);
            p = (char *)a;
            if (p >= seen.begin && p + n <= seen.end && seen.seen == emu_heap_changes) return;
            seen.seen = emu_heap_changes;
            if (!emu_allocation(p, &seen.begin, &seen.end) || p + n > seen.end)
                fault("an address outside of every allocation");
            return;
        }
        const size_t size = where == SHARED  ? w.in->shared.size()
                            : where == LOCAL ? w.in->k->local_bytes
                            : where == PARAM ? w.in->params->size()
                                             : 0;
        if (a + n > size) fault("an address outside of its space");
        if (where == PARAM && how != READ) fault("a store to a parameter");
        if (where == LOCAL) p = &w.local[lane * size + a];
        if (where == PARAM) p = const_cast<char *>(&(*w.in->params)[a]);
        if (where != SHARED) return;
        p      = copy;
        shared = &w.in->shared[a];
        for (unsigned k = 0; k < n; k++) {
            touch_shared(w, shared[k], how);
            copy[k] = (char)shared[k].value;
        }
    }
    void leave(unsigned n) const {
        for (unsigned k = 0; shared != NULL && k < n; k++)
            shared[k].value = (unsigned char)copy[k];
    }
};

/* ---- Values in words ---- */

struct flushed { /* a float of an instruction with .ftz */
    float v;
    flushed(float x) : v(x) {}
    operator float() const { return v; }
};

template <class T> struct native { typedef T type; };
template <> struct native<flushed> { typedef float type; };

template <class T> struct as {
    static T    get(word w) { return (T)w; }
    static word put(T v) { return (word)v; } /* a signed one is extended */
};
template <> struct as<bool> {
    static bool get(word w) { return (w & 1) != 0; }
    static word put(bool v) { return v; }
};
template <> struct as<float> {
    static float get(word w) {
        const uint32_t u = (uint32_t)w;
        return emu_bits<float>(u);
    }
    static word put(float v) { return v != v ? 0x7fffffffu : emu_bits<uint32_t>(v); }
};
template <> struct as<double> {
    static double get(word w) { return emu_bits<double>(w); }
    static word   put(double v) { return emu_bits<word>(v); }
};
template <> struct as<flushed> {
    static word flush(word w) { return (w & 0x7f800000u) == 0 ? w & 0x80000000u : w; }
    static flushed get(word w) { return as<float>::get(flush(w)); }
    static word    put(flushed v) { return flush(as<float>::put(v)); }
};

/* ---- Instructions that do the same in each lane: a function of the values of its operands ---- */

template <class F, class R, class... A> struct lanewise : opcode {
    F f;
    explicit lanewise(const F &function) : opcode(false), f(function) {}
    template <size_t... I>
    void all(warp &w, const instruction &i, unsigned lanes, std::index_sequence<I...>) const {
        word *const       to     = w.at(i.to[0]);
        const word *const from[] = {w.at(i.from[I])...};
        const word        keep   = i.keep;
        each(lanes, [=](unsigned l) { to[l] = as<R>::put(f(as<A>::get(from[I][l])...)) & keep; });
    }
    void run(warp &w, const instruction &i, unsigned lanes) const override {
        all(w, i, lanes, std::index_sequence_for<A...>());
    }
};

struct rule { const opcode *op; size_t operands; };
std::map<string, rule> rules;

template <class F, class R, class... A> void add_rule(const string &name, F f, R (F::*)(A...) const) {
    rules[name] = rule{new lanewise<F, R, A...>(f), sizeof...(A)};
}
/* define("add.u32", [](uint32_t a, uint32_t b) -> uint32_t { return a + b; }) */
template <class F> void define(const string &name, F f) { add_rule(name, f, &F::operator()); }

template <class T> struct twice;
template <> struct twice<uint16_t> { typedef uint32_t type; };
template <> struct twice<int16_t> { typedef int32_t type; };
template <> struct twice<uint32_t> { typedef uint64_t type; };
template <> struct twice<int32_t> { typedef int64_t type; };
template <> struct twice<uint64_t> { typedef unsigned __int128 type; };
template <> struct twice<int64_t> { typedef __int128 type; };

/* setp.CMP and setp.CMP.BOOL with a third operand */
template <class T, class F> void define_comparison(const string &compare, const string &type, F f) {
    define("setp." + compare + type, [f](T a, T b) -> bool { return f(a, b); });
    define("setp." + compare + ".and" + type, [f](T a, T b, bool c) -> bool { return f(a, b) && c; });
    define("setp." + compare + ".or" + type, [f](T a, T b, bool c) -> bool { return f(a, b) || c; });
    define("setp." + compare + ".xor" + type, [f](T a, T b, bool c) -> bool { return f(a, b) != c; });
}
template <class T> void define_comparisons(const string &type) {
    define_comparison<T>("eq", type, [](T a, T b) { return a == b; });
    define_comparison<T>("ne", type, [](T a, T b) { return a != b; });
}
template <class T> void define_order(const string &type) {
    define_comparison<T>("lt", type, [](T a, T b) { return a < b; });
    define_comparison<T>("le", type, [](T a, T b) { return a <= b; });
    define_comparison<T>("gt", type, [](T a, T b) { return a > b; });
    define_comparison<T>("ge", type, [](T a, T b) { return a >= b; });
}

template <class T> void define_integers(const string &type) { /* products wrap */
    typedef typename twice<T>::type D;
    const int                       bits = 8 * sizeof(T);
    define("add" + type, [](T a, T b) -> T { return (T)((word)a + (word)b); });
    define("sub" + type, [](T a, T b) -> T { return (T)((word)a - (word)b); });
    define("mul.lo" + type, [](T a, T b) -> T { return (T)((word)a * (word)b); });
    define("mad.lo" + type, [](T a, T b, T c) -> T { return (T)((word)a * (word)b + (word)c); });
    define("mul.hi" + type, [](T a, T b) -> T { return (T)((D)a * (D)b >> bits); });
    define("div" + type, [](T a, T b) -> T {
        if (b == 0) fault("a division by 0");
        return b == (T)-1 && (T)-1 < 0 ? (T)(0 - (word)a) : (T)(a / b);
    });
    define("rem" + type, [](T a, T b) -> T {
        if (b == 0) fault("a division by 0");
        return b == (T)-1 && (T)-1 < 0 ? (T)0 : (T)(a % b);
    });
    define("min" + type, [](T a, T b) -> T { return a < b ? a : b; });
    define("max" + type, [](T a, T b) -> T { return a > b ? a : b; });
    define("shr" + type, [](T a, uint32_t n) -> T { /* by the width or more: nothing but the sign */
        return n < bits ? (T)(a >> n) : (T)(a < 0 ? -1 : 0);
    });
    define("selp" + type, [](T a, T b, bool p) -> T { return p ? a : b; });
    define("mov" + type, [](T a) -> T { return a; });
    define_comparisons<T>(type);
    define_order<T>(type);
}
template <class T> void define_wide(const string &type) {
    typedef typename twice<T>::type D;
    define("mul.wide" + type, [](T a, T b) -> D { return (D)a * (D)b; });
    define("mad.wide" + type, [](T a, T b, D c) -> D { return (D)((word)((D)a * (D)b) + (word)c); });
}
template <class T> void define_signed(const string &type) {
    define("neg" + type, [](T a) -> T { return (T)(0 - (word)a); });
    define("abs" + type, [](T a) -> T { return a < 0 ? (T)(0 - (word)a) : a; });
}
template <class T> void define_bits(const string &type) {
    const unsigned bits = 8 * sizeof(T);
    define("and" + type, [](T a, T b) -> T { return a & b; });
    define("or" + type, [](T a, T b) -> T { return a | b; });
    define("xor" + type, [](T a, T b) -> T { return a ^ b; });
    define("not" + type, [](T a) -> T { return (T)~a; });
    define("shl" + type, [](T a, uint32_t n) -> T { return n < bits ? (T)(a << n) : (T)0; });
    define("shr" + type, [](T a, uint32_t n) -> T { return n < bits ? (T)(a >> n) : (T)0; });
    define("selp" + type, [](T a, T b, bool p) -> T { return p ? a : b; });
    define("mov" + type, [](T a) -> T { return a; });
    define_comparisons<T>(type);
}
template <class T> void define_wide_bits(const string &type) {
    const unsigned bits = 8 * sizeof(T);
    define("popc" + type, [](T a) -> uint32_t { return (uint32_t)__builtin_popcountll(a); });
    define("clz" + type, [](T a) -> uint32_t {
        return a == 0 ? bits : (uint32_t)__builtin_clzll(a) - (64 - bits);
    });
    /* the low len bits of a, put into b at pos; position and length are bytes */
    define("bfi" + type, [](T a, T b, uint8_t pos, uint8_t len) -> T {
        const T low  = len >= bits ? (T)-1 : (T)(((T)1 << len) - 1);
        const T mask = pos >= bits ? (T)0 : (T)(low << pos);
        return pos >= bits ? b : (T)((b & ~mask) | (a << pos & mask));
    });
}

/* The one NaN is no number: the other operand. Zeros have an order: -0, 0. */
template <class N> N lesser(N a, N b, bool less) {
    if (a != a || b != b) return a != a ? b : a;
    if (a == b) return std::signbit(a) == less ? a : b;
    return (a < b) == less ? a : b;
}
template <class T> void define_floats(const string &type) {
    typedef typename native<T>::type N;
    define("add.rn" + type, [](T a, T b) -> T { return (N)a + (N)b; });
    define("sub.rn" + type, [](T a, T b) -> T { return (N)a - (N)b; });
    define("mul.rn" + type, [](T a, T b) -> T { return (N)a * (N)b; });
    define("fma.rn" + type, [](T a, T b, T c) -> T { return std::fma((N)a, (N)b, (N)c); });
    define("div.rn" + type, [](T a, T b) -> T { return (N)a / (N)b; });
    define("rcp.rn" + type, [](T a) -> T { return (N)1 / (N)a; });
    define("sqrt.rn" + type, [](T a) -> T { return std::sqrt((N)a); });
    define("neg" + type, [](T a) -> T { return -(N)a; });
    define("abs" + type, [](T a) -> T { return std::fabs((N)a); });
    define("min" + type, [](T a, T b) -> T { return lesser<N>(a, b, true); });
    define("max" + type, [](T a, T b) -> T { return lesser<N>(a, b, false); });
    define_comparisons<T>(type); /* eq is false of NaN; so are the four of define_order */
    define_comparison<T>("ne", type, [](N a, N b) { return a < b || a > b; });
    define_order<T>(type);
    define_comparison<T>("equ", type, [](N a, N b) { return !(a < b) && !(a > b); });
    define_comparison<T>("neu", type, [](N a, N b) { return !(a == b); });
    define_comparison<T>("ltu", type, [](N a, N b) { return !(a >= b); });
    define_comparison<T>("leu", type, [](N a, N b) { return !(a > b); });
    define_comparison<T>("gtu", type, [](N a, N b) { return !(a <= b); });
    define_comparison<T>("geu", type, [](N a, N b) { return !(a < b); });
    define_comparison<T>("num", type, [](N a, N b) { return a == a && b == b; });
    define_comparison<T>("nan", type, [](N a, N b) { return a != a || b != b; });
}

/* Bytes of {b, a} by the nibbles of a selector, whose high bit asks for the sign instead. */
uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    const word bytes  = (word)b << 32 | a;
    uint32_t   result = 0;
    for (unsigned k = 0; k < 4; k++) {
        const unsigned nibble = selector >> 4 * k & 15;
        const uint32_t byte   = (uint32_t)(bytes >> 8 * (nibble & 7)) & 0xff;
        result |= (nibble & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * k;
    }
    return result;
}

/* ---- cvt: between exact values and formats ---- */

/* A type as its name says. Floats: digits with the one in front, and the exponent of the last digit
   of subnormals. */
struct format { char kind; unsigned bits; int digits, least; };

bool format_of(const string &name, format *f) {
    static const std::map<string, format> all = {
        {"u8", {'u', 8, 0, 0}},    {"u16", {'u', 16, 0, 0}},    {"u32", {'u', 32, 0, 0}},
        {"u64", {'u', 64, 0, 0}},  {"s8", {'s', 8, 0, 0}},      {"s16", {'s', 16, 0, 0}},
        {"s32", {'s', 32, 0, 0}},  {"s64", {'s', 64, 0, 0}},    {"f16", {'f', 16, 11, -24}},
        {"bf16", {'f', 16, 8, -133}}, {"f32", {'f', 32, 24, -149}}, {"f64", {'f', 64, 53, -1074}}};
    const auto it = all.find(name);
    if (it == all.end()) return false;
    *f = it->second;
    return true;
}

word ones(unsigned bits) { return bits >= 64 ? ~(word)0 : ((word)1 << bits) - 1; }
word infinity_of(const format &f) {
    return ones(f.bits - 1) >> (f.digits - 1) << (f.digits - 1);
}

struct exact { /* (-1)^negative * m * 2^e */
    bool nan, infinite, negative;
    word m;
    int  e;
};

exact decode(word w, const format &f) {
    exact x = {false, false, false, w & ones(f.bits), 0};
    x.negative = f.kind != 'u' && (w >> (f.bits - 1) & 1) != 0;
    if (f.kind == 's' && x.negative) x.m = (0 - x.m) & ones(f.bits);
    if (f.kind != 'f') return x;
    const word magnitude = w & ones(f.bits - 1), biased = magnitude >> (f.digits - 1);
    x.nan      = magnitude > infinity_of(f);
    x.infinite = magnitude == infinity_of(f);
    x.m        = magnitude & ones((unsigned)f.digits - 1);
    if (biased != 0) x.m |= (word)1 << (f.digits - 1);
    x.e = f.least + (biased == 0 ? 0 : (int)biased - 1);
    return x;
}

/* n = 'n' to nearest, ties to even; 'z' to zero; 'm' down; 'p' up. */
void drop_digits(exact *x, int count, char how) {
    if (count <= 0 || x->m == 0) return;
    const word rest = count >= 64 ? x->m : x->m & ones((unsigned)count);
    const word half = count > 64 ? 0 : (word)1 << (count - 1);
    const word kept = count >= 64 ? 0 : x->m >> count;
    bool       up   = false;
    if (how == 'n') up = half != 0 && (rest > half || (rest == half && (kept & 1) != 0));
    if (how == 'm') up = rest != 0 && x->negative;
    if (how == 'p') up = rest != 0 && !x->negative;
    x->m = kept + up;
    x->e += count;
}

word encode_float(exact x, const format &f, char how) {
    const word sign = (word)x.negative << (f.bits - 1), top = (word)1 << (f.digits - 1);
    const word infinity = infinity_of(f);
    if (x.nan) return f.bits == 64 ? sign | infinity | top >> 1 | x.m : ones(f.bits - 1);
    if (x.infinite) return sign | infinity;
    if (x.m == 0) return sign;
    int extra = 64 - __builtin_clzll(x.m) - f.digits; /* digits too many, or missing */
    if (x.e + extra < f.least) extra = f.least - x.e;
    if (extra < 0) x.m <<= -extra, x.e += extra;
    drop_digits(&x, extra, how);
    if (x.m == 0) return sign;
    /* a carry into the next power of two is one into the exponent */
    const word bits = x.m < top ? x.m : ((word)(x.e - f.least + 1) << (f.digits - 1)) + (x.m - top);
    if (bits < infinity) return sign | bits;
    const bool beyond = how == 'n' || (how == 'p' && !x.negative) || (how == 'm' && x.negative);
    return sign | (beyond ? infinity : infinity - 1);
}

/* Beyond the range: its end. NaN is 0, where 64 bits are involved the highest bit alone. */
word encode_integer(exact x, const format &f, const format &from, char how) {
    const word most = f.kind == 's' ? ones(f.bits - 1) + x.negative : x.negative ? 0 : ones(f.bits);
    if (x.nan) return f.bits == 64 || from.bits == 64 ? (word)1 << (f.bits - 1) : 0;
    if (x.e < 0) drop_digits(&x, -x.e, how);
    const bool large = x.infinite || (x.m != 0 && x.e > __builtin_clzll(x.m));
    const word m     = large ? most : std::min(most, x.m << (x.m != 0 ? x.e : 0));
    return x.negative ? 0 - m : m;
}

struct conversion {
    format to, from;
    char   how; /* 'n', 'z', 'm', 'p' */
    bool   ftz, saturate;

    word operator()(word w) const {
        const word low = ones(to.bits), sign = to.kind == 's' ? low ^ low >> 1 : 0;
        if (ftz && from.digits == 24) w = as<flushed>::flush(w);
        exact x = decode(w, from);
        if (to.kind != 'f' && from.kind != 'f' && !saturate) { /* what fits of it, extended */
            const word fits = (x.negative ? 0 - x.m : x.m) & low;
            return fits & sign ? fits | ~low : fits;
        }
        if (x.nan && to.digits == 53) /* the fraction stays */
            x.m = (x.m & ones((unsigned)from.digits - 1)) << (to.digits - from.digits);
        if (to.kind != 'f') return encode_integer(x, to, from, how);
        if (saturate && (x.nan || x.negative)) return 0;
        word result = encode_float(x, to, how);
        if (ftz && to.digits == 24) result = as<flushed>::flush(result);
        const word one = (word)(1 - to.least - to.digits + 1) << (to.digits - 1);
        return saturate ? std::min(result, one) : result;
    }
};

struct convert : opcode { /* a source for each half of the destination, the high one first */
    conversion c;
    convert() : opcode(false) {}
    void run(warp &w, const instruction &i, unsigned lanes) const override {
        word *const to = w.at(i.to[0]);
        each(lanes, [&](unsigned l) {
            word all = c(w.at(i.from[0])[l]);
            if (i.num_from == 2) all = all << c.to.bits | c(w.at(i.from[1])[l]);
            to[l] = all & i.keep;
        });
    }
};

/* cvt[.rounding][.ftz][.sat].to.from */
const opcode *find_conversion(const strings &parts, unsigned operands) {
    if (parts.size() < 3) return NULL;
    convert    op;
    string     to = parts[parts.size() - 2], rounding;
    const bool two = to == "f16x2" || to == "bf16x2";
    op.c.ftz = op.c.saturate = false;
    if (two) to.erase(to.size() - 2);
    if (operands != 1u + two || !format_of(to, &op.c.to) || !format_of(parts.back(), &op.c.from)) return NULL;
    for (size_t k = 1; k + 2 < parts.size(); k++) {
        if (parts[k] == "ftz") op.c.ftz = true;
        else if (parts[k] == "sat") op.c.saturate = true;
        else if (parts[k][0] == 'r' && rounding.empty()) rounding = parts[k];
        else return NULL;
    }
    const bool whole = op.c.to.kind != 'f', of_float = op.c.from.kind == 'f';
    const bool narrower = !whole && (!of_float || op.c.to.bits < op.c.from.bits);
    const string wanted = whole ? "i" : "";
    /* a rounding is told where digits may be lost, and only there */
    if (rounding.empty() != !(narrower || (whole && of_float))) return NULL;
    if (!rounding.empty() && (rounding.size() != 2 + wanted.size() || rounding.substr(2) != wanted ||
                              string("nzmp").find(rounding[1]) == string::npos))
        return NULL;
    op.c.how = rounding.empty() ? 'n' : rounding[1];
    return new convert(op);
}

/* ---- Memory ---- */

template <class T> struct load : opcode { /* a vector is one access */
    void run(warp &w, const instruction &i, unsigned lanes) const override {
        in_turn(lanes, [&](unsigned l) {
            const place p(w, i, l, (unsigned)sizeof(T) * i.num_to, READ);
            for (unsigned k = 0; k < i.num_to; k++) {
                T v;
                memcpy(&v, p.p + k * sizeof v, sizeof v);
                w.at(i.to[k])[l] = as<T>::put(v) & i.keep;
            }
        });
    }
};

template <class T> struct store : opcode { /* from[0] is the address */
    void run(warp &w, const instruction &i, unsigned lanes) const override {
        in_turn(lanes, [&](unsigned l) {
            const place p(w, i, l, (unsigned)sizeof(T) * (i.num_from - 1), WRITE);
            for (unsigned k = 1; k < i.num_from; k++) {
                const T v = (T)w.at(i.from[k])[l];
                memcpy(p.p + (k - 1) * sizeof v, &v, sizeof v);
            }
            p.leave((unsigned)sizeof(T) * (i.num_from - 1));
        });
    }
};

template <class T> struct atomic : opcode { /* atom and red: one lane after the other */
    T (*next)(T old, T a, T b);
    explicit atomic(T (*f)(T, T, T)) : next(f) {}
    void run(warp &w, const instruction &i, unsigned lanes) const override {
        in_turn(lanes, [&](unsigned l) {
            const place p(w, i, l, sizeof(T), ATOMIC);
            T           old;
            memcpy(&old, p.p, sizeof old);
            const T b = i.num_from > 2 ? (T)w.at(i.from[2])[l] : (T)0;
            const T now = next(old, (T)w.at(i.from[1])[l], b);
            memcpy(p.p, &now, sizeof now);
            p.leave(sizeof now);
            if (i.num_to > 0) w.at(i.to[0])[l] = (word)old & i.keep;
        });
    }
};

std::map<string, const opcode *> accesses; /* by family and type, and atom's operation between them */

template <class T> void define_access(const string &type) {
    accesses["ld" + type] = new load<T>();
    accesses["st" + type] = new store<T>();
}
template <class T> void define_atomics(const string &type) {
    const auto add = [&](const char *name, T (*f)(T, T, T)) {
        accesses["atom." + (name + type)] = accesses["red." + (name + type)] = new atomic<T>(f);
    };
    add("add", [](T old, T a, T) -> T { return (T)((word)old + (word)a); });
    add("min", [](T old, T a, T) -> T { return a < old ? a : old; });
    add("max", [](T old, T a, T) -> T { return a > old ? a : old; });
    add("and", [](T old, T a, T) -> T { return old & a; });
    add("or", [](T old, T a, T) -> T { return old | a; });
    add("xor", [](T old, T a, T) -> T { return old ^ a; });
    add("inc", [](T old, T a, T) -> T { return old >= a ? 0 : old + 1; });
    add("exch", [](T, T a, T) -> T { return a; });
    add("cas", [](T old, T a, T b) -> T { return old == a ? b : old; });
}

/* ---- Between lanes ---- */

struct shuffle : opcode { /* d|p = a of another lane, by b, c and the mode; p: there is one */
    char mode; /* up, down, bfly, idx */
    explicit shuffle(char m) : mode(m) {}
    void run(warp &w, const instruction &i, unsigned lanes) const override {
        word a[LANES];
        memcpy(a, w.at(i.from[0]), sizeof a);
        each(lanes, [&](unsigned l) {
            const unsigned b = w.at(i.from[1])[l] & 31, c = (unsigned)w.at(i.from[2])[l];
            const unsigned segment = c >> 8 & 31, first = l & segment;
            const unsigned last = first | (c & 31 & ~segment);
            const int      j = mode == 'u'   ? (int)l - (int)b
                               : mode == 'd' ? (int)(l + b)
                               : mode == 'b' ? (int)(l ^ b)
                                             : (int)(first | (b & ~segment));
            const bool     there  = mode == 'u' ? j >= (int)last : j <= (int)last;
            const unsigned source = there ? (unsigned)j : l;
            thread_of_block = w.number * LANES + l;
            if ((lanes >> source & 1) == 0) fault("a shuffle from a lane outside of the mask");
            w.at(i.to[0])[l] = a[source];
            if (i.num_to > 1) w.at(i.to[1])[l] = there;
        });
    }
};

struct vote : opcode {
    string mode;
    explicit vote(const string &m) : mode(m) {}
    void run(warp &w, const instruction &i, unsigned lanes) const override {
        const unsigned yes = bits_of(w.at(i.from[0])) & lanes;
        const word     all = mode == "ballot" ? yes : mode == "any" ? yes != 0 : yes == lanes;
        each(lanes, [&](unsigned l) { w.at(i.to[0])[l] = all; });
    }
};

struct pack : opcode { /* mov.b64 d, {a, b}: the first is the lowest */
    unsigned bits;
    explicit pack(unsigned width) : opcode(false), bits(width) {}
    void run(warp &w, const instruction &i, unsigned lanes) const override {
        each(lanes, [&](unsigned l) {
            word all = 0;
            for (unsigned k = i.num_from; k-- > 0;)
                all = all << bits / i.num_from | (w.at(i.from[k])[l] & ones(bits / i.num_from));
            w.at(i.to[0])[l] = all;
        });
    }
};
struct unpack : opcode { /* mov.b64 {a, b}, d */
    unsigned bits;
    explicit unpack(unsigned width) : opcode(false), bits(width) {}
    void run(warp &w, const instruction &i, unsigned lanes) const override {
        each(lanes, [&](unsigned l) {
            const word all = w.at(i.from[0])[l];
            for (unsigned k = 0; k < i.num_to; k++)
                w.at(i.to[k])[l] = all >> k * (bits / i.num_to) & ones(bits / i.num_to);
        });
    }
};

struct nothing : opcode { /* fences, and what orders launches: counted */
    unsigned long *count;
    explicit nothing(unsigned long *c) : count(c) {}
    void run(warp &, const instruction &, unsigned) const override { ++*count; }
};

struct call_condition : opcode { /* the only function outside of the program that there is */
    void run(warp &w, const instruction &i, unsigned lanes) const override {
        in_turn(lanes, [&](unsigned l) {
            const char *const mine   = &w.local[l * w.in->k->local_bytes];
            word              handle = 0;
            uint32_t          value  = 0;
            memcpy(&handle, mine + w.at(i.from[0])[l], 8);
            memcpy(&value, mine + w.at(i.from[1])[l], 4);
            cudaGraphSetConditional(handle, value);
        });
    }
};

/* ---- The opcode of a name ---- */

unsigned long num_fences, num_grid_controls, num_instructions, num_launches, num_others;

void define_all() {
    define_integers<uint16_t>(".u16"), define_integers<int16_t>(".s16");
    define_integers<uint32_t>(".u32"), define_integers<int32_t>(".s32");
    define_integers<uint64_t>(".u64"), define_integers<int64_t>(".s64");
    define_wide<uint16_t>(".u16"), define_wide<int16_t>(".s16");
    define_wide<uint32_t>(".u32"), define_wide<int32_t>(".s32");
    define_signed<int16_t>(".s16"), define_signed<int32_t>(".s32"), define_signed<int64_t>(".s64");
    define_bits<uint16_t>(".b16"), define_bits<uint32_t>(".b32"), define_bits<uint64_t>(".b64");
    define_wide_bits<uint32_t>(".b32"), define_wide_bits<uint64_t>(".b64");
    define_access<uint8_t>(".u8"), define_access<uint16_t>(".u16"), define_access<int8_t>(".s8");
    define_access<int16_t>(".s16"), define_access<int32_t>(".s32"), define_access<int64_t>(".s64");
    for (const char *type : {".u32", ".b32", ".f32"}) define_access<uint32_t>(type);
    for (const char *type : {".u64", ".b64", ".f64"}) define_access<uint64_t>(type);
    define_access<uint8_t>(".b8"), define_access<uint16_t>(".b16");
    define_atomics<uint32_t>(".u32"), define_atomics<uint32_t>(".b32"), define_atomics<int32_t>(".s32");
    define_atomics<uint64_t>(".u64"), define_atomics<uint64_t>(".b64"), define_atomics<int64_t>(".s64");
    define_floats<float>(".f32"), define_floats<flushed>(".ftz.f32"), define_floats<double>(".f64");
    for (const string name : {"mov", "selp"}) /* bits pass as they are */
        rules[name + ".f32"] = rules[name + ".b32"], rules[name + ".f64"] = rules[name + ".b64"];
    define("prmt.b32", [](uint32_t a, uint32_t b, uint32_t c) -> uint32_t { return permute(a, b, c); });
    define("and.pred", [](bool a, bool b) -> bool { return a && b; });
    define("or.pred", [](bool a, bool b) -> bool { return a || b; });
    define("xor.pred", [](bool a, bool b) -> bool { return a != b; });
    define("not.pred", [](bool a) -> bool { return !a; });
    define("mov.pred", [](bool a) -> bool { return a; });
    define("cvt.u64.u32", [](uint32_t a) -> word { return a; }); /* the commonest, without a switch */
    define("cvt.u32.u64", [](word a) -> uint32_t { return (uint32_t)a; });
    define("cvt.u16.u32", [](uint32_t a) -> uint16_t { return (uint16_t)a; });
    define("cvt.u32.u16", [](uint16_t a) -> uint32_t { return a; });
    define("cvta.global.u64", [](word a) -> word { return a; });
    define("cvta.to.global.u64", [](word a) -> word { return a; });
    define("cvta.shared.u64", [](word a) -> word { return a | (word)SHARED << WINDOW; });
    define("cvta.to.shared.u64", [](word a) -> word { return a ^ (word)SHARED << WINDOW; });
    define("cvta.local.u64", [](word a) -> word { return a | (word)LOCAL << WINDOW; });
    define("cvta.to.local.u64", [](word a) -> word { return a ^ (word)LOCAL << WINDOW; });
}

/* ld and st: [.volatile][.space][.hint][.v2|.v4].type; atom and red: [.space].operation.type */
const opcode *find_access(strings parts, instruction *i) {
    static const std::map<string, space> spaces = {
        {"global", GLOBAL}, {"const", GLOBAL}, {"shared", SHARED}, {"local", LOCAL}, {"param", PARAM}};
    static const std::set<string> hints = {"ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc"};
    const auto take = [&](bool is) { return is && (parts.erase(parts.begin() + 1), true); };
    const bool vectors = parts[0] == "ld" || parts[0] == "st";
    unsigned   count   = 1;
    i->where = GENERIC;
    take(vectors && parts[1] == "volatile");
    if (spaces.count(parts[1])) i->where = spaces.at(parts[1]), take(true);
    take(vectors && hints.count(parts[1]) != 0);
    if (vectors && (parts[1] == "v2" || parts[1] == "v4")) count = parts[1] == "v2" ? 2 : 4, take(true);
    string key = parts[0];
    for (size_t k = 1; k < parts.size(); k++) key += "." + parts[k];
    const unsigned number = parts[0] == "ld" ? i->num_to : i->num_from - 1;
    const auto     it     = accesses.find(key);
    return it == accesses.end() || (vectors && number != count) ? NULL : it->second;
}

/* NULL: unknown. i: its operands; its flow and space are found here. */
const opcode *find_opcode(const string &name, instruction *i) {
    const strings parts  = split(name);
    const string  family = parts[0];
    const auto    is     = [&](const char *text, unsigned to, unsigned from) {
        return name == text && i->num_to == to && i->num_from == from;
    };
    if (rules.empty()) define_all();
    const auto it = rules.find(name);
    if (it != rules.end())
        return i->num_to == 1 && i->num_from == it->second.operands ? it->second.op : NULL;
    if (family == "cvt" && i->num_to == 1) return find_conversion(parts, i->num_from);
    if ((family == "ld" || family == "st" || family == "atom" || family == "red") && parts.size() > 1)
        return find_access(parts, i);
    i->kind = COLLECTIVE;
    if (is("bar.warp.sync", 0, 1)) return new nothing(&num_fences);
    for (const string mode : {"up", "down", "bfly", "idx"})
        if (is(("shfl.sync." + mode + ".b32").c_str(), i->num_to, 4)) return new shuffle(mode[0]);
    if (is("vote.sync.ballot.b32", 1, 2) || is("vote.sync.any.pred", 1, 2) ||
        is("vote.sync.all.pred", 1, 2))
        return new vote(parts[2]);
    i->kind = BARRIER;
    if (is("bar.sync", 0, 1)) return new nothing(&num_fences);
    i->kind = END;
    if (is("ret", 0, 0) || is("exit", 0, 0)) return new nothing(&num_fences);
    i->kind = BRANCH;
    if (name == "bra" || name == "bra.uni") return new nothing(&num_fences);
    i->kind = NEXT;
    if (family == "membar" || family == "fence") return new nothing(&num_fences);
    if (family == "griddepcontrol") return new nothing(&num_grid_controls);
    return NULL;
}

} // namespace
