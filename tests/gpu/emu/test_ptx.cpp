/* test_ptx.cpp - tests of ptx.cpp: each instruction beside values that PTX's definition gives, what
   lanes do together, and what ends the program. Floats are written as their bits. */

#include "../../support/test.h"
#include "cuda_emu.h"

#include <sys/wait.h>
#include <unistd.h>
#include <string>
#include <vector>

typedef std::vector<uint64_t> numbers;
typedef std::string           string;

static size_t       shared_bytes; /* that a launch asks for */
static const string head = ".version 8.0\n.target sm_80\n.address_size 64\n";

static numbers launch(const string &text, unsigned threads, numbers data) {
    void        *device = NULL;
    const size_t bytes  = data.size() * 8;
    emu_ptx_read((head + text).c_str());
    CHECK_EQ_INT(cudaMalloc(&device, bytes), cudaSuccess);
    CHECK_EQ_INT(cudaMemcpy(device, data.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
    void *args[] = {&device};
    CHECK_EQ_INT(emu_launch([] {}, dim3(1), dim3(threads), shared_bytes, NULL, emu_ptx_body("k", args)),
                 cudaSuccess);
    CHECK_EQ_INT(cudaMemcpy(data.data(), device, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    cudaFree(device);
    return data;
}

/* A kernel of one thread's values: %at is where its 8 words are; of out, 32 bits are stored. */
static string kernel(const string &body, const string &declarations = "") {
    return declarations + ".entry k(.param .u64 data)\n{\n.reg .b64 %base, %at, %d<9>;\n"
           ".reg .b32 %t, %tid, %r<9>, %out;\n.reg .pred %q, %p<9>;\n.reg .b16 %h<9>;\n"
           "ld.param.u64 %base, [data];\nmov.u32 %tid, %tid.x;\nmul.wide.u32 %at, %tid, 64;\n"
           "add.s64 %at, %at, %base;\n" + body + "\nret;\n}\n";
}

/* ---------------------------------------------------------------- one instruction */

/* $0 is the result, $1 ... what it is of; types: h 16 bits, r 32, d 64, p a predicate. A row of
   values is the result, then the operands. */
struct line { const char *text, *types; std::vector<numbers> rows; };

static void check_line(const line &l) {
    string       text = l.text, body;
    const size_t count = strlen(l.types);
    for (size_t k = 0; k < count; k++) {
        const string name = string("%") + l.types[k] + std::to_string(k), at = std::to_string(8 * k);
        const char   type = l.types[k];
        const string slot = "$" + std::to_string(k);
        while (text.find(slot) != string::npos) text.replace(text.find(slot), 2, name);
        if (k == 0) continue;
        if (type == 'p') body += "ld.global.u32 %t, [%at+" + at + "];\nsetp.ne.s32 " + name + ", %t, 0;\n";
        else body += string("ld.global.u") + (type == 'h' ? "16 " : type == 'r' ? "32 " : "64 ") + name +
                     ", [%at+" + at + "];\n";
    }
    const string result = string("%") + l.types[0] + "0";
    body += text + ";\n";
    if (l.types[0] == 'p') body += "selp.u32 %t, 1, 0, %p0;\nst.global.u32 [%at], %t;";
    else body += string("st.global.u") + (l.types[0] == 'h' ? "16" : l.types[0] == 'r' ? "32" : "64") +
                 " [%at], " + result + ";";
    for (size_t lanes : {l.rows.size(), (size_t)32}) { /* one by one, and all at once */
        numbers data(8 * lanes);
        for (size_t n = 0; n < lanes; n++)
            for (size_t k = 1; k < count; k++) data[8 * n + k] = l.rows[n % l.rows.size()].at(k);
        data = launch(kernel(body), (unsigned)lanes, data);
        for (size_t n = 0; n < lanes; n++)
            if (data[8 * n] != l.rows[n % l.rows.size()][0]) {
                printf("     %s: row %zu\n", l.text, n % l.rows.size());
                CHECK_EQ_U64(data[8 * n], l.rows[n % l.rows.size()][0]);
            }
    }
}

static const uint64_t ALL = ~(uint64_t)0, TOP = (uint64_t)1 << 63;
static const uint32_t ONE = 0x3f800000, NAN1 = 0x7f800001, NaN = 0x7fffffff, INF = 0x7f800000;

static const line integers[] = {
    {"add.s32 $0, $1, $2", "rrr", {{0x80000000, 0x7fffffff, 1}, {1, 0xffffffff, 2}}},
    {"add.u16 $0, $1, $2", "hhh", {{0, 0xffff, 1}}},
    {"add.s64 $0, $1, $2", "ddd", {{0, ALL, 1}, {0x100000000, 0xffffffff, 1}}},
    {"sub.s32 $0, $1, $2", "rrr", {{0xffffffff, 0, 1}}},
    {"sub.s64 $0, $1, $2", "ddd", {{ALL, 0, 1}}},
    {"mul.lo.s32 $0, $1, $2", "rrr", {{0, 0x10000, 0x10000}, {1, 0xffffffff, 0xffffffff}}},
    {"mul.lo.s64 $0, $1, $2", "ddd", {{ALL - 1, ALL, 2}}},
    {"mul.hi.s32 $0, $1, $2", "rrr", {{0x40000000, 0x80000000, 0x80000000}, {0xffffffff, 0xffffffff, 1}}},
    {"mul.hi.u32 $0, $1, $2", "rrr", {{0xfffffffe, 0xffffffff, 0xffffffff}}},
    {"mul.hi.u64 $0, $1, $2", "ddd", {{ALL - 1, ALL, ALL}}},
    {"mul.wide.u32 $0, $1, $2", "drr", {{0xfffffffe00000001, 0xffffffff, 0xffffffff}}},
    {"mul.wide.s32 $0, $1, $2", "drr", {{ALL - 1, 0xffffffff, 2}}},
    {"mul.wide.u16 $0, $1, $2", "rhh", {{0xfffe0001, 0xffff, 0xffff}}},
    {"mad.lo.s32 $0, $1, $2, $3", "rrrr", {{22, 3, 5, 7}, {0, 0xffffffff, 1, 1}}},
    {"mad.lo.s64 $0, $1, $2, $3", "dddd", {{22, 3, 5, 7}}},
    {"mad.wide.u32 $0, $1, $2, $3", "drrd", {{0xfffffffe00000002, 0xffffffff, 0xffffffff, 1}}},
    {"div.u32 $0, $1, $2", "rrr", {{3, 7, 2}, {0x7fffffff, 0xffffffff, 2}}},
    {"div.s32 $0, $1, $2", "rrr", {{0xfffffffd, 0xfffffff9, 2}, {0x80000000, 0x80000000, 0xffffffff}}},
    {"div.u64 $0, $1, $2", "ddd", {{ALL / 10, ALL, 10}}},
    {"div.u16 $0, $1, $2", "hhh", {{0x1999, 0xffff, 10}}},
    {"rem.s32 $0, $1, $2", "rrr", {{0xffffffff, 0xfffffff9, 2}, {0, 0x80000000, 0xffffffff}}},
    {"rem.u32 $0, $1, $2", "rrr", {{5, 0xffffffff, 10}}},
    {"rem.u64 $0, $1, $2", "ddd", {{5, ALL, 10}}},
    {"min.s32 $0, $1, $2", "rrr", {{0xffffffff, 0xffffffff, 1}}},
    {"min.u32 $0, $1, $2", "rrr", {{1, 0xffffffff, 1}}},
    {"min.u64 $0, $1, $2", "ddd", {{1, ALL, 1}}},
    {"max.s32 $0, $1, $2", "rrr", {{1, 0xffffffff, 1}}},
    {"max.u32 $0, $1, $2", "rrr", {{0xffffffff, 0xffffffff, 1}}},
    {"max.u64 $0, $1, $2", "ddd", {{ALL, ALL, 1}}},
    {"neg.s32 $0, $1", "rr", {{0xffffffff, 1}, {0x80000000, 0x80000000}}},
    {"abs.s32 $0, $1", "rr", {{5, 0xfffffffb}, {0x80000000, 0x80000000}}},
    {"and.b32 $0, $1, $2", "rrr", {{0x0c, 0x3c, 0x0f}}},
    {"or.b64 $0, $1, $2", "ddd", {{TOP | 1, TOP, 1}}},
    {"xor.b16 $0, $1, $2", "hhh", {{0xfff0, 0xffff, 0x000f}}},
    {"not.b32 $0, $1", "rr", {{0xfffffffe, 1}}},
    {"not.b64 $0, $1", "dd", {{ALL - 1, 1}}},
    {"and.pred $0, $1, $2", "ppp", {{1, 1, 1}, {0, 1, 0}}},
    {"or.pred $0, $1, $2", "ppp", {{1, 1, 0}, {0, 0, 0}}},
    {"xor.pred $0, $1, $2", "ppp", {{0, 1, 1}, {1, 1, 0}}},
    {"not.pred $0, $1", "pp", {{0, 1}, {1, 0}}},
    {"shl.b32 $0, $1, $2", "rrr", {{0x80000000, 1, 31}, {0, 1, 32}, {0, 1, 0xffffffff}, {5, 5, 0}}},
    {"shl.b64 $0, $1, $2", "ddr", {{TOP, 1, 63}, {0, 1, 64}, {0x100000000, 1, 32}}},
    {"shl.b16 $0, $1, $2", "hhr", {{0x8000, 1, 15}, {0, 1, 16}}},
    {"shr.u32 $0, $1, $2", "rrr", {{1, 0x80000000, 31}, {0, 0x80000000, 32}, {0, 1, 0x100}}},
    {"shr.s32 $0, $1, $2", "rrr", {{0xffffffff, 0x80000000, 31}, {0xffffffff, 0x80000000, 40}, {0, 0x7fffffff, 40}}},
    {"shr.u64 $0, $1, $2", "ddr", {{1, TOP, 63}, {0, TOP, 64}}},
    {"shr.s64 $0, $1, $2", "ddr", {{ALL, TOP, 63}, {ALL, TOP, 100}}},
    {"shr.u16 $0, $1, $2", "hhr", {{1, 0x8000, 15}, {0, 0x8000, 16}}},
    {"popc.b32 $0, $1", "rr", {{32, 0xffffffff}, {1, 0x100}}},
    {"clz.b32 $0, $1", "rr", {{32, 0}, {31, 1}, {0, 0x80000000}}},
    {"clz.b64 $0, $1", "rd", {{64, 0}, {63, 1}}},
    {"bfi.b32 $0, $1, $2, $3, $4", "rrrrr", {{0xff0, 0xffffffff, 0, 4, 8}, {0xf0000000, 0xffffffff, 0, 28, 8},
        {7, 0xffffffff, 7, 4, 0}, {7, 0xffffffff, 7, 32, 8}, {0x12345678, 0x12345678, 0, 0, 32}}},
    {"bfe.u32 $0, $1, $2, $3", "rrrr", {{0xab, 0xcdab1234, 16, 8}, {0xffffffff, 0xffffffff, 0, 32},
        {1, 0x80000000, 31, 8}, {0, 0xffffffff, 32, 8}, {0, 0xffffffff, 0, 0}}},
    {"prmt.b32 $0, $1, $2, $3", "rrrr", {{0x77553311, 0x33221100, 0x77665544, 0x7531},
        {0x33221100, 0x33221100, 0x77665544, 0x3210}, {0x808080ff, 0x80, 0, 0x0008}, {0, 0x7f, 0, 0x8888}}},
    {"selp.b32 $0, $1, $2, $3", "rrrp", {{5, 5, 6, 1}, {6, 5, 6, 0}}},
    {"selp.f32 $0, $1, $2, $3", "rrrp", {{NAN1, NAN1, 6, 1}}},
    {"mov.f32 $0, $1", "rr", {{NAN1, NAN1}}},
    {"mov.b64 $0, {$1, $2}", "drr", {{0x0000000200000001, 1, 2}}},
    {"mov.b32 $0, {$1, $2}", "rhh", {{0x00020001, 1, 2}}},
    {"mov.b64 {_, $0}, $1", "rd", {{2, 0x0000000200000001}}},
    {"mov.b32 {$0, _}, $1", "hr", {{1, 0x00020001}}},
    {"mov.u64 $0, -1", "d", {{ALL}}},
    {"mov.b32 $0, 0f3F800000", "r", {{ONE}}},
    {"setp.lt.s32 $0, $1, $2", "prr", {{1, 0xffffffff, 0}, {0, 0, 0}}},
    {"setp.lt.u32 $0, $1, $2", "prr", {{0, 0xffffffff, 0}, {1, 0, 1}}},
    {"setp.ge.u64 $0, $1, $2", "pdd", {{1, ALL, 0}, {1, 5, 5}, {0, 4, 5}}},
    {"setp.gt.s16 $0, $1, $2", "phh", {{0, 0xffff, 0}, {1, 1, 0}}},
    {"setp.le.s32 $0, $1, $2", "prr", {{1, 5, 5}, {0, 6, 5}}},
    {"setp.eq.s64 $0, $1, $2", "pdd", {{0, 0x100000001, 1}, {1, ALL, ALL}}},
    {"setp.ne.s16 $0, $1, $2", "phh", {{1, 1, 2}, {0, 2, 2}}},
    {"setp.lt.and.s32 $0, $1, $2, $3", "prrp", {{0, 0, 1, 0}, {1, 0, 1, 1}}},
};

static const line floats[] = {
    {"add.rn.f32 $0, $1, $2", "rrr", {{ONE, ONE, 0x33800000}, {0x3f800002, 0x3f800001, 0x33800000},
        {NaN, INF, 0xff800000}, {1, 1, 0}, {0, 0, 0x80000000}}},
    {"add.rn.ftz.f32 $0, $1, $2", "rrr", {{0, 1, 0}, {0, 0x00800001, 0x80800000}}},
    {"sub.rn.f32 $0, $1, $2", "rrr", {{0, ONE, ONE}, {NaN, INF, INF}}},
    {"mul.rn.f32 $0, $1, $2", "rrr", {{0x00400000, 0x00800000, 0x3f000000}, {NaN, NAN1, ONE},
        {0x00800000, 0x00400000, 0x40000000}, {INF, 0x7f7fffff, 0x40000000}}},
    {"mul.rn.ftz.f32 $0, $1, $2", "rrr", {{0, 0x00800000, 0x3f000000}, {0x80000000, 0x80800000, 0x3f000000},
        {0, 0x00400000, 0x40000000}, {0x00800000, 0x00800000, ONE}}},
    {"fma.rn.f32 $0, $1, $2, $3", "rrrr", {{0x33800000, 0x3f800800, 0x3f800800, 0xbf801000}}},
    {"div.rn.f32 $0, $1, $2", "rrr", {{0x3eaaaaab, ONE, 0x40400000}, {INF, ONE, 0}, {NaN, 0, 0}}},
    {"rcp.rn.f32 $0, $1", "rr", {{0x3eaaaaab, 0x40400000}}},
    {"sqrt.rn.f32 $0, $1", "rr", {{0x3fb504f3, 0x40000000}, {NaN, 0xbf800000}, {0x80000000, 0x80000000}}},
    {"neg.f32 $0, $1", "rr", {{0x80000000, 0}, {ONE, 0xbf800000}}},
    {"abs.f32 $0, $1", "rr", {{ONE, 0xbf800000}}},
    {"abs.f64 $0, $1", "dd", {{0, TOP}}},
    {"min.f32 $0, $1, $2", "rrr", {{ONE, NAN1, ONE}, {0x80000000, 0, 0x80000000}, {NaN, NAN1, NAN1}}},
    {"max.f32 $0, $1, $2", "rrr", {{ONE, ONE, NAN1}, {0, 0x80000000, 0}, {ONE, 0, ONE}}},
    {"add.rn.f64 $0, $1, $2", "ddd", {{0x3ff0000000000000, 0x3ff0000000000000, 0x3ca0000000000000}}},
    {"sub.rn.f64 $0, $1, $2", "ddd", {{0x3ff0000000000000, 0x4000000000000000, 0x3ff0000000000000}}},
    {"mul.rn.f64 $0, $1, $2", "ddd", {{1, 2, 0x3fe0000000000000}}},
    {"div.rn.f64 $0, $1, $2", "ddd", {{0x3fd5555555555555, 0x3ff0000000000000, 0x4008000000000000}}},
    {"sqrt.rn.f64 $0, $1", "dd", {{0x3ff6a09e667f3bcd, 0x4000000000000000}}},
    {"setp.eq.f32 $0, $1, $2", "prr", {{0, NaN, NaN}, {1, 0, 0x80000000}}},
    {"setp.ne.f32 $0, $1, $2", "prr", {{0, NaN, ONE}, {1, 0, ONE}}},
    {"setp.neu.f32 $0, $1, $2", "prr", {{1, NaN, ONE}, {0, ONE, ONE}}},
    {"setp.equ.f64 $0, $1, $2", "pdd", {{1, 0x7ff8000000000000, 0}, {0, 0, 1}}},
    {"setp.lt.f32 $0, $1, $2", "prr", {{1, 0, 1}, {0, NaN, 1}}},
    {"setp.lt.ftz.f32 $0, $1, $2", "prr", {{0, 0, 1}}},
    {"setp.ltu.f32 $0, $1, $2", "prr", {{1, NaN, 1}, {0, ONE, ONE}}},
    {"setp.leu.f64 $0, $1, $2", "pdd", {{1, 0, 0}, {0, 1, 0}, {1, 0x7ff8000000000000, 0}}},
    {"setp.gtu.f64 $0, $1, $2", "pdd", {{0, 0, 0}, {1, 1, 0}, {1, 0x7ff8000000000000, 0}}},
    {"setp.geu.f64 $0, $1, $2", "pdd", {{1, 0, 0}, {0, 0, 1}, {1, 0, 0x7ff8000000000000}}},
    {"setp.num.f32 $0, $1, $2", "prr", {{0, 0, NAN1}, {1, 0, INF}}},
    {"setp.nan.f32 $0, $1, $2", "prr", {{1, 0, NAN1}, {0, 0, INF}}},
    {"setp.nan.or.f32 $0, $1, $2, $3", "prrp", {{1, 0, 0, 1}, {0, 0, 0, 0}, {1, NAN1, 0, 0}}},
};

static const line conversions[] = {
    {"cvt.u16.u32 $0, $1", "hr", {{0x2345, 0x12345}}},
    {"cvt.u16.u64 $0, $1", "hd", {{0x2345, ((uint64_t)1 << 40) + 0x12345}}},
    {"cvt.u32.u16 $0, $1", "rh", {{0xffff, 0xffff}}},
    {"cvt.s32.s16 $0, $1", "rh", {{0xffffffff, 0xffff}, {0x7fff, 0x7fff}}},
    {"cvt.u32.u64 $0, $1", "rd", {{0x89abcdef, 0x0123456789abcdef}}},
    {"cvt.u64.u32 $0, $1", "dr", {{0xffffffff, 0xffffffff}}},
    {"cvt.s64.s32 $0, $1", "dr", {{ALL, 0xffffffff}}},
    {"cvt.s8.s32 $0, $1", "rr", {{0xffffff80, 0x180}, {0x7f, 0x17f}}},
    {"cvt.sat.u8.s32 $0, $1", "rr", {{255, 300}, {0, 0xfffffffb}, {77, 77}}},
    {"cvt.sat.s8.s32 $0, $1", "rr", {{0xffffff80, 0xffffff38}, {127, 128}}},
    {"cvt.rn.f64.u64 $0, $1", "dd", {{0x4340000000000000, 0x20000000000001}, {0x43f0000000000000, ALL}, {0, 0}}},
    {"cvt.rn.f32.s32 $0, $1", "rr", {{0xbf800000, 0xffffffff}, {0x4b800000, 16777217}, {0x4b800002, 16777219}}},
    {"cvt.rz.f32.u32 $0, $1", "rr", {{0x4f7fffff, 0xffffffff}}},
    {"cvt.rp.f32.u32 $0, $1", "rr", {{0x4f800000, 0xffffff01}}},
    {"cvt.rn.f32.f64 $0, $1", "rd", {{NaN, 0x7ff0000000000001}, {0x7f7fffff, 0x47efffffe0000000},
        {INF, 0x47effffff0000000}, {1, 0x36a0000000000000}, {0, 0x3690000000000000}, {1, 0x3690000000000001}}},
    {"cvt.rz.f32.f64 $0, $1", "rd", {{0x7f7fffff, 0x47effffff0000000}, {0, 0x369fffffffffffff}}},
    {"cvt.rp.f32.f64 $0, $1", "rd", {{1, 0x3690000000000000}, {0x80000000, 0xb690000000000000}}},
    {"cvt.rm.f32.f64 $0, $1", "rd", {{0, 0x3690000000000000}, {0x80000001, 0xb690000000000000}}},
    {"cvt.rn.ftz.f32.f64 $0, $1", "rd", {{0, 0x36a0000000000000}}},
    {"cvt.f64.f32 $0, $1", "dr", {{0x36a0000000000000, 1}, {0x7ff8000000000000, 0x7fc00000}, {TOP, 0x80000000}}},
    {"cvt.f32.f16 $0, $1", "rh", {{0x33800000, 1}, {ONE, 0x3c00}, {INF, 0x7c00}, {NaN, 0x7c01},
        {0x80000000, 0x8000}, {0x387fc000, 0x03ff}, {0x477fe000, 0x7bff}}},
    {"cvt.f32.bf16 $0, $1", "rh", {{ONE, 0x3f80}, {0x00010000, 1}}},
    {"cvt.rn.f16.f32 $0, $1", "hr", {{0x7bff, 0x477fefff}, {0x7c00, 0x477ff000}, {0, 0x33000000},
        {1, 0x33000001}, {0x7fff, 0x7fc00001}, {0xfc00, 0xff800000}, {0x3c00, 0x3f801000}, {0x3c02, 0x3f803000}}},
    {"cvt.rz.f16.f32 $0, $1", "hr", {{0x7bff, 0x477ff000}, {0, 0x337fffff}}},
    {"cvt.rn.f16x2.f32 $0, $1, $2", "rrr", {{0x3c004000, ONE, 0x40000000}}},
    {"cvt.rn.bf16x2.f32 $0, $1, $2", "rrr", {{0x3f804000, ONE, 0x40000000}, {0x3f803f82, 0x3f808000, 0x3f818000},
        {0x7fff7f80, NAN1, 0x7f7fffff}}},
    {"cvt.rn.bf16.f32 $0, $1", "hr", {{0x0001, 0x0000ffff}, {0x8000, 0x80000000}}},
    {"cvt.rni.s32.f32 $0, $1", "rr", {{2, 0x40200000}, {4, 0x40600000}, {0xfffffffe, 0xc0200000},
        {0x7fffffff, 0x4f000000}, {0x80000000, 0xff800000}, {0, NaN}}},
    {"cvt.rzi.s32.f32 $0, $1", "rr", {{0xffffffff, 0xbfc00000}, {1, 0x3fffffff}}},
    {"cvt.rmi.s32.f32 $0, $1", "rr", {{0xfffffffe, 0xbfc00000}, {1, 0x3fc00000}}},
    {"cvt.rpi.s32.f32 $0, $1", "rr", {{2, 0x3fc00000}, {0xffffffff, 0xbfc00000}}},
    {"cvt.rzi.u32.f32 $0, $1", "rr", {{0, 0xbf800000}, {0xffffffff, 0x7f000000}}},
    {"cvt.rzi.u64.f64 $0, $1", "dd", {{TOP, 0x7ff8000000000000}, {(uint64_t)1 << 60, 0x43b0000000000000}}},
    {"cvt.sat.f32.f32 $0, $1", "rr", {{ONE, 0x40000000}, {0, 0xbf800000}, {0, NaN}, {0x3f000000, 0x3f000000}}},
};

TEST(values_of_integers, "PTX ISA 9.7.1, .4, .5, .9: integers, comparisons, logic, shifts, moves") {
    for (const line &l : integers) check_line(l);
}
TEST(values_of_floats, "PTX ISA 9.7.3: roundings, .ftz, NaN, the order of zeros") {
    for (const line &l : floats) check_line(l);
}
TEST(values_of_conversions, "PTX ISA 9.7.9: cvt: roundings, saturation, NaN, extension") {
    for (const line &l : conversions) check_line(l);
}

/* ---------------------------------------------------------------- lanes and memory */

static numbers outs(const string &body, unsigned threads, const string &declarations = "") {
    numbers data(8 * 64, 0), result;
    data = launch(kernel(body + "st.global.u32 [%at], %out;", declarations), threads, data);
    for (unsigned n = 0; n < threads; n++) result.push_back(data[8 * n]);
    return result;
}

TEST(shuffles, "shfl in its four modes, with segments; vote") {
    struct { const char *text; unsigned lane, from; } const all[] = {
        {"shfl.sync.bfly.b32 %out|%p1, %tid, 5, 31, -1;", 8, 13},
        {"shfl.sync.down.b32 %out|%p1, %tid, 4, 31, -1;", 3, 7},
        {"shfl.sync.down.b32 %out|%p1, %tid, 4, 31, -1;", 30, 30},
        {"shfl.sync.up.b32 %out|%p1, %tid, 4, 0, -1;", 9, 5},
        {"shfl.sync.up.b32 %out|%p1, %tid, 4, 0, -1;", 2, 2},
        {"shfl.sync.idx.b32 %out|%p1, %tid, 6, 31, -1;", 20, 6},
        {"shfl.sync.idx.b32 %out|%p1, %tid, 6, 6175, -1;", 20, 22}, /* segments of eight: 24 << 8 | 31 */
    };
    for (const auto &s : all) CHECK_EQ_U64(outs(s.text, 32)[s.lane], s.from);
    const string lead = "setp.gt.u32 %p1, %tid, 29;\n";
    CHECK_EQ_U64(outs(lead + "vote.sync.ballot.b32 %out, %p1, -1;", 32)[0], 0xc0000000);
    CHECK_EQ_U64(outs(lead + "vote.sync.any.pred %p2, %p1, -1;\nselp.u32 %out, 1, 0, %p2;", 32)[0], 1);
    CHECK_EQ_U64(outs(lead + "vote.sync.all.pred %p2, %p1, -1;\nselp.u32 %out, 1, 0, %p2;", 32)[31], 0);
}

TEST(divergence, "lanes that loop for another number of times meet again, and wait for each other") {
    const string loop = "mov.u32 %out, 0;\nmov.u32 %r1, %tid;\n$L1:\nsetp.eq.s32 %p1, %r1, 0;\n"
                        "@%p1 bra $L2;\nadd.s32 %out, %out, %r1;\nsub.s32 %r1, %r1, 1;\nbra.uni $L1;\n$L2:\n";
    CHECK_EQ_U64(outs(loop, 32)[31], 31 * 32 / 2);
    CHECK_EQ_U64(outs(loop + "shfl.sync.idx.b32 %out|%p1, %out, 3, 31, -1;", 32)[9], 6);
    CHECK_EQ_U64(outs("mov.u32 %out, 1;\nsetp.lt.u32 %p1, %tid, 7;\n@!%p1 add.s32 %out, %out, 4;", 20)[7], 5);
    const string apart = "setp.lt.u32 %p1, %tid, 16;\n@%p1 bra $A;\nmov.u32 %r1, 5;\n"
                         "shfl.sync.idx.b32 %out|%p2, %r1, 31, 31, -65536;\nbra.uni $B;\n$A:\n"
                         "mov.u32 %r1, 6;\nshfl.sync.idx.b32 %out|%p2, %r1, 0, 31, 65535;\n$B:\n";
    CHECK_EQ_U64(outs(apart, 32)[2], 6);
    CHECK_EQ_U64(outs(apart, 32)[20], 5);
}

static const char *const shared = ".shared .align 4 .b8 room[256];\n";

TEST(memory, "shared, local and vectors; barriers between warps; atomics; scopes") {
    const string put = "mov.u32 %r1, room;\nshl.b32 %r2, %tid, 2;\nadd.s32 %r3, %r1, %r2;\n"
                       "st.shared.u32 [%r3], %tid;\nbar.sync 0;\n";
    CHECK_EQ_U64(outs(put + "sub.s32 %r4, 252, %r2;\nadd.s32 %r4, %r1, %r4;\nld.shared.u32 %out, [%r4];",
                      64, shared)[3], 60);
    CHECK_EQ_U64(outs(".local .align 8 .b8 mine[16];\nst.local.u32 [mine+8], %tid;\n"
                      "mov.u64 %d1, mine;\nld.local.v2.u32 {%r1, %out}, [%d1+8];", 1).size(), 1);
    CHECK_EQ_U64(outs(".local .align 8 .b8 mine[16];\nst.local.u32 [mine+8], %tid;\n"
                      "mov.u64 %d1, mine;\ncvta.local.u64 %d1, %d1;\nld.u32 %out, [%d1+8];", 9)[7], 7);
    CHECK_EQ_U64(outs("st.global.v4.u32 [%at+16], {%tid, 2, 3, 4};\nld.global.v2.u32 {%r1, %out}, [%at+24];",
                      9)[5], 4);
    CHECK_EQ_U64(outs("st.global.u64 [%at+8], 33023;\nld.global.s8 %out, [%at+8];", 1)[0], 0xffffffff);
    CHECK_EQ_U64(outs("st.global.u16 [%at+8], 33023;\nld.global.u8 %out, [%at+9];", 1)[0], 0x80);
    CHECK_EQ_U64(outs("st.global.u64 [%at+8], 0;\natom.global.add.u32 %out, [%base+8], 3;\n"
                      "ld.global.u32 %out, [%base+8];", 32)[0], 96);
    CHECK_EQ_U64(outs("atom.global.inc.u32 %r1, [%base+8], 4;\nld.global.u32 %out, [%base+8];", 29)[0], 4);
    CHECK_EQ_U64(outs("atom.global.max.u32 %r1, [%base+8], %tid;\nld.global.u32 %out, [%base+8];", 32)[0], 31);
    CHECK_EQ_U64(outs("atom.global.max.s32 %r1, [%base+8], -1;\nld.global.u32 %out, [%base+8];", 1)[0], 0);
    CHECK_EQ_U64(outs("atom.global.cas.b32 %r1, [%base+8], %tid, 9;\nld.global.u32 %out, [%base+8];", 32)[0], 9);
    CHECK_EQ_U64(outs("red.global.or.b32 [%base+8], 5;\nred.global.and.b32 [%base+8], 6;\n"
                      "ld.global.u32 %out, [%base+8];", 2)[0], 4);
    CHECK_EQ_U64(outs("mov.u32 %out, 1;\n{ .reg .b32 %out, low; mov.u32 low, 2; mov.u32 %out, low; }\n", 1)[0], 1);
}

TEST(declarations, "extern shared memory begins behind the kernel's own; words of global and const memory") {
    const string two = string(shared) + ".extern .shared .align 16 .b8 more[];\n";
    const string put = "mov.u32 %r1, more;\nmov.u32 %r2, room;\nst.shared.u32 [more+8], %tid;\n"
                       "ld.shared.u32 %r3, [%r1+8];\nsub.s32 %out, %r1, %r2;\nadd.s32 %out, %out, %r3;";
    shared_bytes = 12;
    CHECK_EQ_U64(outs(put, 1, two)[0], 256);
    CHECK_EQ_U64(outs("st.shared.u64 [more], %at;\nmov.u32 %out, more;", 1, two)[0], 0); /* of room nothing is used */
    shared_bytes = 0;
    const string words = ".global .align 4 .u32 word = 5;\n.const .align 4 .b32 all[3] = {7, -8};\n";
    CHECK_EQ_U64(outs("ld.global.u32 %out, [word];", 1, words)[0], 5);
    CHECK_EQ_U64(outs("mov.u64 %d1, all;\nld.const.u32 %out, [%d1+4];", 1, words)[0], 0xfffffff8);
    CHECK_EQ_U64(outs("ld.const.u32 %out, [all+8];\nadd.s32 %out, %out, WARP_SZ;", 1, words)[0], 32);
}

/* ---------------------------------------------------------------- last words */

static void dies(const string &body, unsigned threads, const char *words,
                 const string &declarations = "") {
    int   pipes[2];
    char  said[1000] = "";
    if (pipe(pipes) != 0) SKIP("no pipe");
    const pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], 2);
        outs(body, threads, declarations);
        _exit(0);
    }
    close(pipes[1]);
    int     status = 0;
    ssize_t got    = 0;
    for (ssize_t n; (n = read(pipes[0], said + got, sizeof said - 1 - (size_t)got)) > 0;) got += n;
    close(pipes[0]);
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status) || strstr(said, words) == NULL)
        printf("     wanted: %s\n     said:   %s\n", words, said);
    CHECK(WIFSIGNALED(status));
    CHECK(strstr(said, words) != NULL);
}

TEST(last_words, "what hardware would punish or not define ends the program with a line") {
    const string out = "mov.u32 %out, 0;\n";
    dies(out + "ld.global.u32 %r1, [%at+2];", 1, "a misaligned address");
    dies(out + "ld.global.v2.u32 {%r1, %r2}, [%at+4];", 1, "a misaligned address");
    dies(out + "st.global.v4.u32 [%at+8], {%r1, %r1, %r1, %r1};", 1, "a register is used before it was written");
    dies(out + "st.global.v4.u32 [%at+8], {%tid, %tid, %tid, %tid};", 1, "a misaligned address");
    dies(out + "st.global.v2.u32 [%at+4], {%tid, %tid};", 1, "a misaligned address");
    dies(out + "st.global.u64 [%at+4], 1;", 1, "a misaligned address");
    dies(out + "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%at+8];", 1, "a misaligned address");
    dies(out + "ld.global.u32 %r1, [%base+4096];", 1, "an address outside of every allocation");
    dies(out + "ld.global.u32 %r1, [%base+-8];", 1, "an address outside of every allocation");
    dies(out + "ld.shared.u32 %r1, [room+256];", 1, "an address outside of its space", shared);
    dies(out + "ld.shared.u32 %r1, [room+4];", 1, "shared memory is read before it was written", shared);
    dies("add.s32 %out, %r1, 1;", 1, "a register is used before it was written");
    dies(out + "@%p1 bra $L;\n$L:\n", 1, "a register is used before it was written");
    dies(out + "setp.lt.u32 %p1, %tid, 40;\n@%p1 bra $L;\nbar.sync 0;\n$L:\n", 64,
         "a barrier that not all threads reach");
    dies(out + "setp.lt.u32 %p1, %tid, 4;\n@%p1 bra $L;\nbar.sync 0;\nbra.uni $M;\n$L:\nbar.sync 0;\n$M:\n", 32,
         "lanes of one warp at two barriers");
    dies(out + "mov.u32 %r1, room;\nst.shared.u32 [%r1], %tid;\nld.shared.u32 %out, [%r1];", 64,
         "another warp writes, without a barrier between", shared);
    dies(out + "mov.u32 %r1, room;\nst.shared.u32 [%r1], 1;\nbar.sync 0;\nld.shared.u32 %r2, [%r1];\n"
               "st.shared.u32 [%r1], %r2;", 64, "without a barrier between", shared);
    dies(out + "setp.lt.u32 %p1, %tid, 4;\n@%p1 bra $L;\nbar.warp.sync -1;\n$L:\n", 32,
         "a collective that not all lanes of its mask reach");
    dies(out + "shfl.sync.idx.b32 %out|%p1, %tid, 20, 31, 65535;", 16, "a shuffle from a lane outside of the mask");
    dies(out + "setp.lt.u32 %p1, %tid, 4;\nbar.warp.sync 15;\n", 32, "a lane that is not in its own mask");
    dies(out + "sub.s32 %r1, %tid, %tid;\ndiv.u32 %out, %tid, %r1;", 1, "a division by 0");
    dies(out + "st.param.u64 [data], 0;", 1, "a store to a parameter");
    dies(out + "ex2.approx.f32 %out, %out;", 1, "an instruction that is not known: k: ex2.approx.f32");
    dies(out + "add.f32 %out, %out, %out;", 1, "an instruction that is not known: k: add.f32");
    dies(out + "fma.f32 %out, %out, %out, %out;", 1, "an instruction that is not known");
    dies(out + "cvt.f16.f32 %h1, %out;", 1, "an instruction that is not known");
    dies(out + "cvt.rn.f32.f16 %out, %h1;", 1, "an instruction that is not known");
    dies(out + "add.s32 %out, %out;", 1, "an instruction that is not known");
    dies(out + "bar.sync 1;", 1, "a barrier that is not number 0");
    dies(out + "bra $NOWHERE;", 1, "an unknown label");
    dies(out + "mov.u32 %out, %nothing;", 1, "an unknown operand");
}

TEST(not_selected, "what selp does not take need not be written: compilers leave it so") {
    CHECK_EQ_U64(outs("setp.eq.s32 %p1, %tid, %tid;\nselp.b32 %out, 7, %r1, %p1;", 1)[0], 7);
    CHECK_EQ_U64(outs("add.s32 %r2, %r1, 1;\nmov.u32 %out, 3;", 1)[0], 3);
}

/* ---------------------------------------------------------------- clients, who may do more */

static const uint32_t TWO = 0x40000000, HALF = 0x3f000000, TINY = 0x30800000, LESS = 0xa1800000; /* 2^-30, -2^-60 */

static const line of_clients[] = {
    {"add.f32 $0, $1, $2", "rrr", {{TWO, ONE, ONE}}},
    {"mul.ftz.f32 $0, $1, $2", "rrr", {{ONE, TWO, HALF}, {0, TWO, 1}}},
    {"add.f64 $0, $1, $2", "ddd", {{0x3ff0000000000001, 0x3ff0000000000000, 0x3cb0000000000000}}}, /* 2^-52 */
    {"sub.f64 $0, $1, $2", "ddd", {{0x3cb0000000000000, 0x3ff0000000000001, 0x3ff0000000000000}}},
    {"mul.f64 $0, $1, $2", "ddd", {{0x3ff0000000000002, 0x3ff0000000000001, 0x3ff0000000000001}}},
    {"fma.rm.f32 $0, $1, $2, $3", "rrrr", {{ONE, ONE, ONE, TINY}, {0x3f7fffff, ONE, ONE, 0xb0800000},
     {0x3f7fffff, ONE, ONE, LESS}, {0xbf800001, 0xbf800000, ONE, LESS}, {TWO, ONE, ONE, ONE}}},
    {"div.approx.ftz.f32 $0, $1, $2", "rrr", {{TWO, ONE, HALF}}},
    {"rcp.approx.ftz.f32 $0, $1", "rr", {{HALF, TWO}}},
    {"rsqrt.approx.f32 $0, $1", "rr", {{HALF, 0x40800000}}},
    {"ex2.approx.ftz.f32 $0, $1", "rr", {{0x40800000, TWO}, {0, 0xc3480000}}},
    {"lg2.approx.f32 $0, $1", "rr", {{TWO, 0x40800000}}},
    {"cvt.rzi.f32.f32 $0, $1", "rr", {{0xbf800000, 0xbfc00000}}},
    {"cvt.rmi.f32.f32 $0, $1", "rr", {{0xc0000000, 0xbfc00000}}},
    {"cvt.rni.f32.f32 $0, $1", "rr", {{TWO, 0x40200000}}},
    {"copysign.f32 $0, $1, $2", "rrr", {{0xbf800000, 0x80000000, ONE}}},
};

TEST(clients, "EMU_PTX_CLIENT: what may be contracted or approximate; threads that end before a barrier") {
    setenv("EMU_PTX_CLIENT", "1", 1);
    for (const line &l : of_clients) check_line(l);
    CHECK_EQ_U64(outs("atom.global.add.f32 %r1, [%base+8], 0f3F800000;\nld.global.u32 %out, [%base+8];", 32)[0],
                 0x42000000);
    CHECK_EQ_U64(outs("mov.u32 %out, 3;\nsetp.lt.u32 %p1, %tid, 40;\n@%p1 bra $L;\nbarrier.sync 0;\n$L:\n", 64)[63], 3);
    dies("{ .param .b64 p;\nst.param.b64 [p], 0;\ncall.uni __assertfail, (p, p, p, p, p); }\n", 1,
         "an assertion that fails");
    unsetenv("EMU_PTX_CLIENT");
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(values_of_integers);
    RUN(values_of_floats);
    RUN(values_of_conversions);
    RUN(shuffles);
    RUN(divergence);
    RUN(memory);
    RUN(declarations);
    RUN(last_words);
    RUN(not_selected);
    RUN(clients); /* their instructions are known from there on */
    return test_end();
}
