/* ptx_ops.h - what each instruction of PTX does, for ptx.cpp: the values that registers hold, the
   memory that a warp sees, and one table from an instruction's name to its function.

   What is written here is PTX's definition (PTX ISA 9.0, chapter 9), and not a form of it is guessed: an
   instruction that is not in the table is refused by name, so .approx, and add, sub and mul of floats
   without a rounding, which ptxas may contract. The kernels of others may have these, for which
   EMU_PTX_CLIENT is in the environment: the results are rounded to nearest, and nothing is contracted.
   The NaN of single precision is 0x7fffffff. */

#include "cuda_emu.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

typedef uint64_t            word;
typedef std::string         string;
typedef std::vector<string> strings;

enum { LANES = 32 };

bool for_clients() { return getenv("EMU_PTX_CLIENT") != NULL; }

/* ---- Programs ---- */

struct warp;
struct instruction;

/* What becomes of the lanes. Lanes at a COLLECTIVE wait for those that its last operand names. */
enum flow { NEXT, BRANCH, END, BARRIER, COLLECTIVE };

const unsigned ANY = ~0u;

struct opcode {
    std::function<void(warp &, const instruction &, unsigned lanes)> run;
    unsigned to, from; /* registers that it writes and reads, or ANY */
    bool     strict;   /* none that was not written; else its result is as unwritten as they are */
    flow     kind;
};

/* Addresses are those of the host in GLOBAL; in other spaces they begin at 0, and as generic
   addresses in a window that is no address of the host. */
enum space { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };
const unsigned WINDOW = 56; /* bits of an address in its window */

struct instruction {
    string        text, label;
    const opcode *op;
    int           guard; /* a register, or -1 */
    bool          unless, selects, ran;
    unsigned      to[4], from[8], num_to, num_from; /* registers */
    word          keep;                             /* the bits that the first destination has */
    space         where;
    int64_t       offset; /* from the address in from[0] */
    unsigned      target;
    mutable char *begin, *end;  /* the allocation that it touched last, if none has changed since */
    mutable unsigned long seen; /* emu_heap_changes then */
};

struct byte_state { /* of a byte of shared memory, between two barriers */
    bool     written;
    unsigned writer, reader; /* 1 + the number of a warp; ANY: many readers */
    unsigned write_epoch, read_epoch;
};

struct kernel;

struct warp {
    kernel               *in;
    unsigned              number;
    std::vector<word>     values;       /* LANES for each register, zero above its width */
    std::vector<unsigned> written;      /* lanes, for each register */
    std::vector<char>     local[LANES];
    unsigned              exists, alive, waiting; /* lanes */
    unsigned              pc[LANES];

    word *at(unsigned r) { return &values[r * LANES]; }
};

struct kernel { /* a program, and the block that runs it */
    string                     name;
    size_t                     at, end; /* in the module's words, behind the name */
    std::vector<instruction>   code;
    std::vector<unsigned>      widths;    /* of registers, in bits */
    std::map<word, unsigned>   constants; /* registers by their value */
    std::vector<std::pair<long, unsigned> > special; /* numbers of names, and registers */
    std::vector<std::pair<size_t, size_t> > arguments; /* where in params, and bytes */
    size_t                     param_bytes, shared_bytes, local_bytes;
    unsigned                   max_threads;

    std::vector<warp>          warps;
    std::vector<char>          params, shared;
    std::vector<byte_state>    states; /* of shared */
    unsigned                   num_threads, num_warps, epoch, random; /* epoch: barriers so far */

    void start(const std::vector<char> &arguments);
    void run();
    void step(warp &w, unsigned able);
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

word ones(unsigned bits) { return bits >= 64 ? ~(word)0 : ((word)1 << bits) - 1; }

/* ---- Values in words ---- */

struct flushed { /* a float of an instruction with .ftz */
    float v;
    flushed(float x) : v(x) {}
    operator float() const { return v; }
};

template <class T> struct as {
    static T    get(word w) { return (T)w; }
    static word put(T v) { return (word)v; } /* a signed one is extended */
};
template <> struct as<bool> {
    static bool get(word w) { return (w & 1) != 0; }
    static word put(bool v) { return v; }
};
template <> struct as<float> {
    static float get(word w) { return emu_bits<float>((uint32_t)w); }
    static word  put(float v) { return v != v ? 0x7fffffffu : emu_bits<uint32_t>(v); }
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

/* ---- The table ---- */

std::map<string, opcode> table; /* types of bits, .b32, are there as .u32 */

/* An instruction that does the same in each lane: a function of the values of its operands. */
template <class F, class R, class... A, size_t... I>
opcode lanewise(F f, R (F::*)(A...) const, std::index_sequence<I...>) {
    const auto run = [f](warp &w, const instruction &i, unsigned lanes) {
        word *const       to     = w.at(i.to[0]);
        const word *const from[] = {w.at(i.from[I])...};
        const word        keep   = i.keep;
        each(lanes, [=](unsigned l) { to[l] = as<R>::put(f(as<A>::get(from[I][l])...)) & keep; });
    };
    return opcode{run, 1, sizeof...(A), false, NEXT};
}
template <class R, class F, class... A> std::index_sequence_for<A...> operands(R (F::*)(A...) const);

/* define("add.u32", [](uint32_t a, uint32_t b) -> uint32_t { return a + b; }) */
template <class F> void define(const string &name, F f) {
    table[name] = lanewise(f, &F::operator(), decltype(operands(&F::operator()))());
}

/* setp.CMP, and setp.CMP.BOOL with a third operand; .ltu and its likes are true of NaN, too */
template <class T, class F> void define_comparison(const string &compare, const string &type, F f) {
    define("setp." + compare + type, [f](T a, T b) -> bool { return f(a, b); });
    define("setp." + compare + ".and" + type, [f](T a, T b, bool c) -> bool { return f(a, b) && c; });
    define("setp." + compare + ".or" + type, [f](T a, T b, bool c) -> bool { return f(a, b) || c; });
    define("setp." + compare + ".xor" + type, [f](T a, T b, bool c) -> bool { return f(a, b) != c; });
}
template <class T> void define_comparisons(const string &type) {
    define_comparison<T>("eq", type, [](T a, T b) { return a == b; });
    define_comparison<T>("lt", type, [](T a, T b) { return a < b; });
    define_comparison<T>("le", type, [](T a, T b) { return a <= b; });
    define_comparison<T>("gt", type, [](T a, T b) { return a > b; });
    define_comparison<T>("ge", type, [](T a, T b) { return a >= b; });
}

template <class T, class D> void define_integers(const string &type) { /* D: products of two */
    const unsigned bits = 8 * sizeof(T);
    define("add" + type, [](T a, T b) -> T { return (T)((word)a + (word)b); });
    define("sub" + type, [](T a, T b) -> T { return (T)((word)a - (word)b); });
    define("mul.lo" + type, [](T a, T b) -> T { return (T)((word)a * (word)b); });
    define("mad.lo" + type, [](T a, T b, T c) -> T { return (T)((word)a * (word)b + (word)c); });
    define("mul.hi" + type, [](T a, T b) -> T { return (T)((D)a * (D)b >> bits); });
    define("mul.wide" + type, [](T a, T b) -> D { return (D)a * (D)b; });
    define("mad.wide" + type, [](T a, T b, D c) -> D { return (D)((word)((D)a * (D)b) + (word)c); });
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
    define("neg" + type, [](T a) -> T { return (T)(0 - (word)a); });
    define("abs" + type, [](T a) -> T { return a < 0 ? (T)(0 - (word)a) : a; });
    define("and" + type, [](T a, T b) -> T { return a & b; });
    define("or" + type, [](T a, T b) -> T { return a | b; });
    define("xor" + type, [](T a, T b) -> T { return a ^ b; });
    define("not" + type, [](T a) -> T { return (T)~a; });
    define("shl" + type, [](T a, uint32_t n) -> T { return n < bits ? (T)((word)a << n) : (T)0; });
    define("shr" + type, [](T a, uint32_t n) -> T { /* by the width or more: nothing but the sign */
        return n < bits ? (T)(a >> n) : (T)(a < 0 ? -1 : 0);
    });
    define("mov" + type, [](T a) -> T { return a; });
    define("selp" + type, [](T a, T b, bool p) -> T { return p ? a : b; });
    define_comparisons<T>(type);
    define_comparison<T>("ne", type, [](T a, T b) { return a != b; });
}
template <class T> void define_counts(const string &type) {
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
    /* len bits of a from pos on */
    define("bfe.u" + type.substr(2), [](T a, uint8_t pos, uint8_t len) -> T {
        const T low = len >= bits ? (T)-1 : (T)(((T)1 << len) - 1);
        return pos >= bits ? (T)0 : (T)(a >> pos & low);
    });
}

/* Quotients in fp32 of 0 and a number, which a GPU computes in a call. */
unsigned long num_zeros;

/* The one NaN is no number: the other operand. Zeros have an order: -0, 0. */
template <class N> N lesser(N a, N b, bool less) {
    if (a != a || b != b) return a != a ? b : a;
    if (a == b) return std::signbit(a) == less ? a : b;
    return (a < b) == less ? a : b;
}
template <class T, class N> void define_floats(const string &type) {
    define("add.rn" + type, [](T a, T b) -> T { return (N)a + (N)b; });
    define("sub.rn" + type, [](T a, T b) -> T { return (N)a - (N)b; });
    define("mul.rn" + type, [](T a, T b) -> T { return (N)a * (N)b; });
    define("fma.rn" + type, [](T a, T b, T c) -> T { return std::fma((N)a, (N)b, (N)c); });
    define("div.rn" + type, [](T a, T b) -> T {
        num_zeros += sizeof(N) == 4 && (N)a == 0 && (N)b == (N)b;
        return (N)a / (N)b;
    });
    define("rcp.rn" + type, [](T a) -> T { return (N)1 / (N)a; });
    define("sqrt.rn" + type, [](T a) -> T { return std::sqrt((N)a); });
    define("neg" + type, [](T a) -> T { return -(N)a; });
    define("abs" + type, [](T a) -> T { return std::fabs((N)a); });
    define("min" + type, [](T a, T b) -> T { return lesser<N>(a, b, true); });
    define("max" + type, [](T a, T b) -> T { return lesser<N>(a, b, false); });
    define_comparisons<T>(type);
    define_comparison<T>("ne", type, [](N a, N b) { return a < b || a > b; });
    define_comparison<T>("equ", type, [](N a, N b) { return !(a < b) && !(a > b); });
    define_comparison<T>("neu", type, [](N a, N b) { return !(a == b); });
    define_comparison<T>("ltu", type, [](N a, N b) { return !(a >= b); });
    define_comparison<T>("leu", type, [](N a, N b) { return !(a > b); });
    define_comparison<T>("gtu", type, [](N a, N b) { return !(a <= b); });
    define_comparison<T>("geu", type, [](N a, N b) { return !(a < b); });
    define_comparison<T>("num", type, [](N a, N b) { return a == a && b == b; });
    define_comparison<T>("nan", type, [](N a, N b) { return a != a || b != b; });
}

/* 'n' to nearest, ties to even; 'z' to zero; 'm' down; 'p' up. */
long double rounded(long double x, char how) {
    return how == 'n' ? rintl(x) : how == 'z' ? truncl(x) : how == 'm' ? floorl(x) : ceill(x);
}

/* Down: what nearest gives, or the float below it. In doubles the product is exact, and so is the error. */
inline float fma_down(float a, float b, float c) {
    const double x = (double)a * b, sum = x + c, part = sum - x, error = (x - (sum - part)) + (c - part);
    const float  near = (float)sum;
    return near > sum || (near == sum && error < 0) ? std::nextafter(near, -INFINITY) : near;
}
template <class T> void define_for_clients(const string &type) {
    const auto as_double = [&](const char *name, double (*f)(double)) {
        define(name + type, [f](T a) -> T { return (float)f((float)a); });
    };
    for (const string name : {"add", "sub", "mul"}) table[name + type] = table[name + ".rn" + type];
    for (const string name : {"div.full", "div.approx"}) table[name + type] = table["div.rn" + type];
    for (const string name : {"rcp", "sqrt"}) table[name + ".approx" + type] = table[name + ".rn" + type];
    as_double("rsqrt.approx", [](double a) { return 1 / sqrt(a); });
    as_double("ex2.approx", [](double a) { return exp2(a); });
    as_double("lg2.approx", [](double a) { return log2(a); });
    as_double("sin.approx", [](double a) { return sin(a); });
    as_double("cos.approx", [](double a) { return cos(a); });
    as_double("tanh.approx", [](double a) { return tanh(a); });
    for (const char how : {'n', 'z', 'm', 'p'})
        define("cvt.r" + string(1, how) + "i" + type + ".f32",
               [how](T a) -> T { return (float)rounded((float)a, how); });
    define("copysign" + type, [](T a, T b) -> T { return std::copysign((float)b, (float)a); });
    define("fma.rm" + type, [](T a, T b, T c) -> T { return fma_down(a, b, c); });
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

/* ---- cvt: between formats, by way of a long double, which holds all of their values ---- */

struct format { char kind; int bits, digits; }; /* digits: of floats, with the one in front */

bool format_of(const string &name, format *f) {
    static const std::map<string, int> digits = {
        {"u8", 0},  {"u16", 0}, {"u32", 0},  {"u64", 0},  {"s8", 0},   {"s16", 0},
        {"s32", 0}, {"s64", 0}, {"f16", 11}, {"bf16", 8}, {"f32", 24}, {"f64", 53}};
    const auto it = digits.find(name);
    if (it == digits.end()) return false;
    *f = format{name[0], atoi(name.c_str() + name.find_first_of("123468")), it->second};
    return true;
}

word extended(word w, const format &f) { /* an integer of f */
    const word low = w & ones((unsigned)f.bits), sign = (word)1 << (f.bits - 1);
    return f.kind == 's' ? (low ^ sign) - sign : low;
}
word infinity_of(const format &f) { return ones((unsigned)(f.bits - f.digits)) << (f.digits - 1); }
int  least_of(const format &f) { return 3 - (1 << (f.bits - f.digits - 1)) - f.digits; } /* 2^ */

long double decode(word w, const format &f) { /* NaN is another matter */
    if (f.kind == 's') return (int64_t)extended(w, f);
    if (f.kind == 'u') return extended(w, f);
    const word magnitude = w & ones((unsigned)f.bits - 1), top = (word)1 << (f.digits - 1);
    const int  biased    = (int)(magnitude >> (f.digits - 1));
    const long double m  = biased != 0 ? (magnitude & (top - 1)) | top : magnitude;
    const long double x  = magnitude == infinity_of(f) ? HUGE_VALL
                                                       : ldexpl(m, least_of(f) + std::max(biased - 1, 0));
    return w >> (f.bits - 1) & 1 ? -x : x;
}

word encode_float(long double x, const format &f, char how) {
    const word sign = (word)std::signbit(x) << (f.bits - 1), infinity = infinity_of(f);
    int        e    = 0;
    if (std::isinf(x) || x == 0) return x == 0 ? sign : sign | infinity;
    frexpl(x, &e);
    const int  last = std::max(e - f.digits, least_of(f)); /* 2^: the last digit that stays */
    const word m    = (word)fabsl(rounded(ldexpl(x, -last), how));
    const word bits = m + ((word)(last - least_of(f)) << (f.digits - 1)); /* the leading one carries */
    if (bits < infinity) return sign | bits;
    return sign | (how == 'n' || how == (sign != 0 ? 'm' : 'p') ? infinity : infinity - 1);
}

word encode_integer(long double x, const format &f, char how) { /* beyond the range: its end */
    const word        most = ones((unsigned)f.bits - (f.kind == 's')), least = f.kind == 's' ? most + 1 : 0;
    const long double y    = rounded(x, how);
    const word        m    = y < 0 ? std::fabs(y) >= least ? least : (word)-y : y >= most ? most : (word)y;
    return y < 0 ? 0 - m : m;
}

struct conversion {
    format to, from;
    char   how;
    bool   ftz, saturate;

    word operator()(word w) const {
        if (to.digits + from.digits == 0 && !saturate) return extended(extended(w, from), to);
        if (ftz && from.digits == 24) w = as<flushed>::flush(w);
        if (from.digits != 0 && (w & ones((unsigned)from.bits - 1)) > infinity_of(from)) return nan(w);
        const long double x = decode(w, from);
        if (to.digits == 0) return encode_integer(x, to, how);
        const word result = encode_float(!saturate ? x : x > 0 ? std::min(x, 1.0L) : 0, to, how);
        return ftz && to.digits == 24 ? as<flushed>::flush(result) : result;
    }
    /* As an integer 0, or the highest bit where 64 are involved; a double keeps the fraction. */
    word nan(word w) const {
        if (to.digits == 0) return to.bits == 64 || from.bits == 64 ? (word)1 << (to.bits - 1) : 0;
        if (saturate) return 0;
        if (to.digits != 53) return ones((unsigned)to.bits - 1);
        const word fraction = w << (64 - from.digits + 1) >> 12, sign = w >> (from.bits - 1) << 63;
        return sign | infinity_of(to) | (word)1 << 51 | fraction;
    }
};

/* cvt[.rounding][.ftz][.sat].to.from; to.x2: of two sources, the high half first */
void define_conversion(const string &name, const strings &parts) {
    conversion   c = conversion();
    const size_t n = parts.size();
    string       to = n < 3 ? "" : parts[n - 2], rounding;
    const bool   two = to == "f16x2" || to == "bf16x2";
    if (two) to.erase(to.size() - 2);
    if (!format_of(to, &c.to) || !format_of(parts[n - 1], &c.from)) return;
    for (size_t k = 1; k + 2 < n; k++)
        if (parts[k] == "ftz") c.ftz = true;
        else if (parts[k] == "sat") c.saturate = true;
        else rounding += parts[k];
    /* a rounding is told where digits may be lost, and only there */
    const bool narrower = c.to.digits != 0 && (c.from.digits == 0 || c.to.bits < c.from.bits);
    const bool whole    = c.to.digits == 0 && c.from.digits != 0;
    const strings all = narrower ? strings{"rn", "rz", "rm", "rp"}
                        : whole  ? strings{"rni", "rzi", "rmi", "rpi"}
                                 : strings{""};
    if (std::count(all.begin(), all.end(), rounding) == 0) return;
    c.how = rounding.empty() ? 'n' : rounding[1];
    if (!two) return define(name, [c](word a) -> word { return c(a); });
    define(name, [c](word a, word b) -> word { return c(a) << 16 | c(b); });
}

/* ---- Memory ---- */

enum access { READ, WRITE, ATOMIC };

void touch(byte_state &b, unsigned me, unsigned epoch, access how) {
    if (how != WRITE && !b.written) fault("shared memory is read before it was written");
    if (how == ATOMIC) return;
    if (b.write_epoch == epoch && b.writer != me)
        fault("shared memory that another warp writes, without a barrier between");
    if (how == WRITE && b.read_epoch == epoch && b.reader != me)
        fault("shared memory that another warp reads is written, without a barrier between");
    if (how == READ) {
        b.reader     = b.read_epoch == epoch && b.reader != me ? ANY : me;
        b.read_epoch = epoch;
    } else b.writer = me, b.write_epoch = epoch, b.written = true;
}

/* Where n bytes lie on the host that a lane accesses. */
char *reach(warp &w, const instruction &i, unsigned lane, size_t n, access how) {
    word    a     = w.at(i.from[0])[lane] + (word)i.offset;
    space   where = i.where;
    kernel &k     = *w.in;
    thread_of_block = w.number * LANES + lane;
    if (a % n != 0) fault("a misaligned address");
    if (where == GENERIC) {
        where = a >> WINDOW == 0 ? GLOBAL : (space)(a >> WINDOW);
        a &= ones(WINDOW);
    } else if (where != GLOBAL) a = (uint32_t)a;
    if (where == GLOBAL) {
        char *const p = (char *)a;
        if (i.seen == emu_heap_changes && p >= i.begin && p + n <= i.end) return p;
        i.seen = emu_heap_changes;
        if (!emu_allocation(p, &i.begin, &i.end) || p + n > i.end)
            fault("an address outside of every allocation");
        return p;
    }
    if (where == PARAM && how != READ) fault("a store to a parameter");
    std::vector<char> &room = where == SHARED ? k.shared : where == LOCAL ? w.local[lane] : k.params;
    if (where > PARAM || a + n > room.size()) fault("an address outside of its space");
    for (size_t b = a; where == SHARED && b < a + n; b++) touch(k.states[b], w.number + 1, k.epoch, how);
    return &room[a];
}

void load(const format &f, warp &w, const instruction &i, unsigned lanes) { /* a vector is one access */
    const size_t size = (size_t)f.bits / 8;
    in_turn(lanes, [&](unsigned l) {
        const char *const p = reach(w, i, l, size * i.num_to, READ);
        for (unsigned k = 0; k < i.num_to; k++) {
            word v = 0;
            memcpy(&v, p + k * size, size);
            w.at(i.to[k])[l] = extended(v, f) & i.keep;
        }
    });
}
void store(const format &f, warp &w, const instruction &i, unsigned lanes) { /* from[0]: the address */
    const size_t size = (size_t)f.bits / 8;
    in_turn(lanes, [&](unsigned l) {
        char *const p = reach(w, i, l, size * (i.num_from - 1), WRITE);
        for (unsigned k = 1; k < i.num_from; k++) memcpy(p + (k - 1) * size, &w.at(i.from[k])[l], size);
    });
}

template <class T> void define_atomic(const string &name, unsigned from, T (*next)(T old, T a, T b)) {
    const auto run = [next](warp &w, const instruction &i, unsigned lanes) { /* one after the other */
        in_turn(lanes, [&](unsigned l) {
            char *const p = reach(w, i, l, sizeof(T), ATOMIC);
            T           old;
            memcpy(&old, p, sizeof old);
            const T now = next(old, as<T>::get(w.at(i.from[1])[l]), as<T>::get(w.at(i.from[i.num_from - 1])[l]));
            memcpy(p, &now, sizeof now);
            if (i.num_to > 0) w.at(i.to[0])[l] = as<T>::put(old) & i.keep;
        });
    };
    table["atom." + name] = opcode{run, 1, from, true, NEXT};
    table["red." + name]  = opcode{run, 0, from, true, NEXT};
}
template <class T> void define_atomics(const string &type) {
    define_atomic<T>("add" + type, 2, [](T old, T a, T) -> T { return (T)((word)old + (word)a); });
    define_atomic<T>("min" + type, 2, [](T old, T a, T) -> T { return a < old ? a : old; });
    define_atomic<T>("max" + type, 2, [](T old, T a, T) -> T { return a > old ? a : old; });
    define_atomic<T>("and" + type, 2, [](T old, T a, T) -> T { return old & a; });
    define_atomic<T>("or" + type, 2, [](T old, T a, T) -> T { return old | a; });
    define_atomic<T>("xor" + type, 2, [](T old, T a, T) -> T { return old ^ a; });
    define_atomic<T>("inc" + type, 2, [](T old, T a, T) -> T { return old >= a ? 0 : old + 1; });
    define_atomic<T>("exch" + type, 2, [](T, T a, T) -> T { return a; });
    define_atomic<T>("cas" + type, 3, [](T old, T a, T b) -> T { return old == a ? b : old; });
}

/* ---- Between lanes ---- */

/* d|p = a of another lane, by b, c and the mode, up, down, bfly or idx; p: there is one */
void shuffle(char mode, warp &w, const instruction &i, unsigned lanes) {
    word a[LANES];
    memcpy(a, w.at(i.from[0]), sizeof a);
    each(lanes, [&](unsigned l) {
        const unsigned b = w.at(i.from[1])[l] & 31, c = (unsigned)w.at(i.from[2])[l];
        const unsigned segment = c >> 8 & 31, first = l & segment;
        const int      last = (int)(first | (c & 31 & ~segment));
        const int      j    = mode == 'u'   ? (int)l - (int)b
                              : mode == 'd' ? (int)(l + b)
                              : mode == 'b' ? (int)(l ^ b)
                                            : (int)(first | (b & ~segment));
        const bool     there  = mode == 'u' ? j >= last : j <= last;
        const unsigned source = there ? (unsigned)j : l;
        thread_of_block = w.number * LANES + l;
        if ((lanes >> source & 1) == 0) fault("a shuffle from a lane outside of the mask");
        w.at(i.to[0])[l] = a[source];
        if (i.num_to > 1) w.at(i.to[1])[l] = there;
    });
}

void vote(char mode, warp &w, const instruction &i, unsigned lanes) { /* ballot, any or all */
    const unsigned yes    = bits_of(w.at(i.from[0])) & lanes;
    const word     result = mode == 'b' ? yes : mode == 'n' ? yes != 0 : yes == lanes;
    each(lanes, [&](unsigned l) { w.at(i.to[0])[l] = result; });
}

/* mov.b64 d, {a, b} and mov.b64 {a, b}, d: the first is the lowest */
void move_parts(unsigned bits, warp &w, const instruction &i, unsigned lanes) {
    const unsigned width = bits / std::max(i.num_from, i.num_to);
    each(lanes, [&](unsigned l) {
        word all = 0;
        for (unsigned k = i.num_from; k-- > 0;) all = all << width | w.at(i.from[k])[l];
        for (unsigned k = 0; k < i.num_to; k++)
            w.at(i.to[k])[l] = i.num_to > 1 ? all >> k * width & ones(width) : all;
    });
}

/* ---- The opcode of a name ---- */

unsigned long num_fences, num_instructions, num_launches, num_others;

void define_all() {
    using namespace std::placeholders;
    const auto counted = [](const char *name, unsigned from, flow kind, unsigned long *count) {
        const auto run = [count](warp &, const instruction &, unsigned) { ++*count; };
        table[name]    = opcode{run, 0, from, true, kind};
    };
    define_integers<uint16_t, uint32_t>(".u16"), define_integers<int16_t, int32_t>(".s16");
    define_integers<uint32_t, uint64_t>(".u32"), define_integers<int32_t, int64_t>(".s32");
    define_integers<uint64_t, unsigned __int128>(".u64"), define_integers<int64_t, __int128>(".s64");
    define_counts<uint32_t>(".u32"), define_counts<uint64_t>(".u64");
    for (const string type : {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"}) {
        format f;
        format_of(type, &f);
        table["ld." + type] = opcode{std::bind(load, f, _1, _2, _3), ANY, 1, true, NEXT};
        table["st." + type] = opcode{std::bind(store, f, _1, _2, _3), 0, ANY, true, NEXT};
    }
    define_atomics<uint32_t>(".u32"), define_atomics<uint64_t>(".u64");
    define_atomics<int32_t>(".s32"), define_atomics<int64_t>(".s64");
    define_floats<float, float>(".f32"), define_floats<flushed, float>(".ftz.f32");
    define_floats<double, double>(".f64");
    define("prmt.u32", [](uint32_t a, uint32_t b, uint32_t c) -> uint32_t { return permute(a, b, c); });
    define("and.pred", [](bool a, bool b) -> bool { return a && b; });
    define("or.pred", [](bool a, bool b) -> bool { return a || b; });
    define("xor.pred", [](bool a, bool b) -> bool { return a != b; });
    define("not.pred", [](bool a) -> bool { return !a; });
    define("mov.pred", [](bool a) -> bool { return a; });
    define("cvta.global.u64", [](word a) -> word { return a; });
    define("cvta.to.global.u64", [](word a) -> word { return a; });
    define("cvta.shared.u64", [](word a) -> word { return a | (word)SHARED << WINDOW; });
    define("cvta.to.shared.u64", [](word a) -> word { return a ^ (word)SHARED << WINDOW; });
    define("cvta.local.u64", [](word a) -> word { return a | (word)LOCAL << WINDOW; });
    define("cvta.to.local.u64", [](word a) -> word { return a ^ (word)LOCAL << WINDOW; });
    for (const string mode : {"up", "down", "bfly", "idx"})
        table["shfl.sync." + mode + ".u32"] =
            opcode{std::bind(shuffle, mode[0], _1, _2, _3), ANY, 4, true, COLLECTIVE};
    for (const string mode : {"ballot.u32", "any.pred", "all.pred"})
        table["vote.sync." + mode] =
            opcode{std::bind(vote, mode == "any.pred" ? 'n' : mode[0], _1, _2, _3), 1, 2, true, COLLECTIVE};
    for (const unsigned bits : {32u, 64u})
        table["mov.parts.u" + std::to_string(bits)] =
            opcode{std::bind(move_parts, bits, _1, _2, _3), ANY, ANY, false, NEXT};
    counted("bar.warp.sync", 1, COLLECTIVE, &num_fences), counted("bar.sync", 1, BARRIER, &num_fences);
    counted("bra", 0, BRANCH, &num_fences), counted("bra.uni", 0, BRANCH, &num_fences);
    counted("ret", 0, END, &num_fences), counted("exit", 0, END, &num_fences);
    for (const char *fence : {"membar.cta", "membar.gl", "membar.sys", "fence.acq_rel.gpu", "fence.sc.gpu"})
        counted(fence, 0, NEXT, &num_fences);
}

void define_all_for_clients() {
    const auto stop = [](warp &, const instruction &, unsigned) { fault("an assertion that fails"); };
    define_for_clients<float>(".f32"), define_for_clients<flushed>(".ftz.f32");
    for (const string name : {"add", "sub", "mul"}) table[name + ".f64"] = table[name + ".rn.f64"];
    define_atomic<float>("add.f32", 2, [](float old, float a, float) -> float { return old + a; });
    table["barrier.sync"] = table["bar.sync"];
    table["call.uni.__assertfail"] = opcode{stop, 0, ANY, true, NEXT};
}

/* NULL: unknown. i: its operands; its space is found here. Of memory a name is
   [.volatile][.space][.hint][.v2|.v4], then an operation and a type. */
const opcode *find_opcode(const string &name, instruction *i) {
    static const std::map<string, space> spaces = {
        {"global", GLOBAL}, {"const", GLOBAL}, {"shared", SHARED}, {"local", LOCAL}, {"param", PARAM}};
    static const std::set<string> hints = {"ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc"};
    strings parts(1);
    for (char c : name)
        if (c == '.') parts.push_back("");
        else parts.back() += c;
    const string family  = parts[0];
    const bool   vectors = family == "ld" || family == "st";
    const auto   take    = [&](bool is) { return is && (parts.erase(parts.begin() + 1), true); };
    if (table.empty()) define_all();
    if (for_clients() && table.count("add.f32") == 0) define_all_for_clients();
    if (parts.size() > 1 && (vectors || family == "atom" || family == "red")) {
        take(vectors && parts[1] == "volatile");
        if (spaces.count(parts[1])) i->where = spaces.at(parts[1]), take(true);
        take(vectors && hints.count(parts[1]) != 0);
        take(vectors && (parts[1] == "v2" || parts[1] == "v4"));
    }
    string &type = parts.back();
    if (type[0] == 'b' && isdigit((unsigned char)type[1])) type[0] = 'u';
    if (type[0] == 'f' && (vectors || family == "mov" || family == "selp")) type[0] = 'u';
    if (family == "mov" && i->num_to + i->num_from > 2) parts[0] += ".parts";
    string key = parts[0];
    for (size_t k = 1; k < parts.size(); k++) key += "." + parts[k];
    if (family == "cvt" && table.count(key) == 0) define_conversion(key, parts);
    const auto it   = table.find(key);
    const auto fits = [](unsigned wanted, unsigned is) { return wanted == ANY || wanted == is; };
    if (it == table.end() || !fits(it->second.to, i->num_to) || !fits(it->second.from, i->num_from))
        return NULL;
    return &it->second;
}

} // namespace
