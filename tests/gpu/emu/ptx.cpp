/* ptx.cpp - kernels as nvcc translated them, run on the CPU. Linked with cuda_emu.cpp and told by
   the environment where PTX lies (EMU_PTX=FILE), it runs that of a kernel wherever the kernel is
   launched, in place of its C++ body; streams, graphs and memory stay the emulator's.

   A warp is 32 lanes in lock-step. Of lanes at different instructions those at the first one go
   on, so that they meet the others again. A register is a word of 64 bits for each lane, zero above
   its width, and knows which lanes have written it; a constant is a register that nobody writes.

   What an instruction does stands in ptx_ops.h; here a text becomes a program, and warps run it. What
   hardware would punish, or not define, ends the program with one line on stderr, as in
   cuda_emu.cpp: addresses outside of allocations or not aligned; registers and shared memory read
   before they were written, or while another warp writes; barriers that not all threads reach;
   instructions that are not known, when their kernel is first launched.

   It cannot show what ptxas makes of PTX, what the caches of two multiprocessors make of memory, or
   how long anything takes. The NaN of single precision is 0x7fffffff. */

#include "ptx_ops.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <memory>

namespace {

/* ---- Reading PTX ---- */

struct module { /* words: names, numbers and single characters; "%r<30>" is one */
    strings                  words;
    std::vector<size_t>      shared, dynamic; /* where declarations for all kernels stand */
    std::map<string, std::vector<char> > globals;
    std::map<string, kernel> kernels;
};

strings words_of(const string &text) {
    strings words;
    for (size_t at = 0, end; at < text.size(); at = end) {
        end = at + 1;
        if (text.compare(at, 2, "//") == 0) end = std::min(text.find('\n', at), text.size());
        else if (text[at] == '"') end = text.find('"', end) + 1;
        else if (!isspace((unsigned char)text[at])) {
            const auto in_name = [](char c) { return isalnum((unsigned char)c) || strchr("_$%.<>", c); };
            while (in_name(text[at]) && end < text.size() && in_name(text[end])) end++;
            words.push_back(text.substr(at, end - at));
        }
    }
    return words;
}

/* The last but one is where extern shared memory begins: no word of PTX. */
const strings specials = {"%tid.x",   "%tid.y",   "%tid.z",   "%ntid.x",   "%ntid.y",   "%ntid.z",   "%laneid",
                          "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "extern[]", "WARP_SZ"};

struct reader { /* of a module, or of one of its kernels */
    struct operand { unsigned reg; space where; };

    module                                 &m;
    kernel                                 *k;
    size_t                                  at;    /* the next word */
    std::vector<std::map<string, operand> > names; /* by scope; the first is the module's */
    std::map<string, unsigned>              labels;

    reader(module &file, kernel *into) : m(file), k(into), at(into != NULL ? into->at : 0) {}

    const string &word_at(size_t n) {
        if (n >= m.words.size()) fault("the text ends too early");
        return m.words[n];
    }
    string next() { return word_at(at++); }
    bool   take(const char *text) { return word_at(at) == text && ++at; }
    void   skip_to(const char *text) { while (!take(text)) at++; }
    size_t number() { return strtoul(next().c_str(), NULL, 10); }

    unsigned new_register(unsigned width) {
        k->widths.push_back(width);
        return (unsigned)k->widths.size() - 1;
    }
    unsigned constant(word value) {
        const auto it = k->constants.find(value);
        return it != k->constants.end() ? it->second : k->constants[value] = new_register(64);
    }
    word literal() { /* -1, 0x1f, 0f3F800000, 0d3FF0000000000000 */
        const bool   minus = take("-");
        const string text  = next();
        const bool   bits  = text.size() > 2 && text[0] == '0' && strchr("fFdD", text[1]) != NULL;
        char        *end;
        const word   value = strtoull(text.c_str() + (bits ? 2 : 0), &end, bits ? 16 : 0);
        if (!isdigit((unsigned char)text[0]) || (*end != '\0' && strcmp(end, "U") != 0))
            fault("an unknown operand " + text);
        return minus ? 0 - value : value;
    }
    operand read_operand() {
        const string text = word_at(at);
        for (size_t s = names.size(); s-- > 0;)
            if (names[s].count(text)) return at++, names[s][text];
        if (m.globals.count(text)) return operand{constant((word)&m.globals[next()][0]), GLOBAL};
        const auto it = std::find(specials.begin(), specials.end(), text);
        if (it == specials.end()) return operand{constant(literal()), GENERIC};
        return names[0][next()] = special_operand((size_t)(it - specials.begin()), GENERIC);
    }
    operand special_operand(size_t number, space where) {
        k->special.push_back(std::make_pair((long)number, new_register(32)));
        return operand{k->special.back().second, where};
    }

    /* [.align 8] .b8 [.ptr ...] name [[24]]: bytes behind `end`, which moves; where they begin */
    size_t declare(space where, size_t *end) {
        size_t align = 0, width = 0, count = 1;
        string name;
        while (strchr(",;)[", word_at(at)[0]) == NULL) {
            name = next();
            if (name == ".align" && width == 0) align = number();
            else if (name[0] == '.' && width == 0) width = (size_t)atoi(name.c_str() + 2) / 8;
        }
        if (take("[")) count = number(), at++;
        if (width == 0 || count == 0) fault("an unknown declaration of " + name);
        align = std::max(align, width);
        const size_t begin = (*end + align - 1) / align * align;
        *end = begin + count * width;
        names.back()[name] = operand{constant(begin), where};
        return begin;
    }
    void declare_registers() { /* .b32 %r<30>, x */
        const string   type  = next();
        const unsigned width = type == ".pred" ? 1 : (unsigned)atoi(type.c_str() + 2);
        const auto     add   = [&](const string &name) { names.back()[name] = {new_register(width), GENERIC}; };
        if (width == 0) fault("registers of unknown type " + type);
        do {
            const string name = next();
            const size_t many = std::min(name.find('<'), name.size());
            for (long n = 0; many < name.size() && n < atol(name.c_str() + many + 1); n++)
                add(name.substr(0, many) + std::to_string(n));
            if (many == name.size()) add(name);
        } while (take(","));
    }

    void read_instruction() {
        static const std::set<string> no_target = {"st", "red", "bra", "bar", "barrier", "ret", "exit",
                                                   "membar", "fence", "call"};
        instruction i = instruction();
        bool        local = false;
        int         depth = 0;
        for (size_t n = at; word_at(n) != ";"; n++) i.text += word_at(n) + " ";
        current = &i;
        i.guard = -1;
        if (take("@")) i.unless = take("!"), i.guard = (int)read_operand().reg;
        string       name    = next();
        const string family  = name.substr(0, name.find('.'));
        bool         target  = no_target.count(family) == 0, address = false;
        if (family == "bra") i.label = next();
        if (family == "call") name += "." + next();
        while (!take(";")) { /* the first operand, with all in its braces, is written to */
            const string text = word_at(at);
            if (strchr("{}[]()", text[0]) != NULL) {
                depth += strchr("{[(", text[0]) != NULL ? 1 : -1;
                address |= text == "[";
                at++;
            } else if (take(",")) target &= depth > 0;
            else if (take("|")) continue;
            else if (take("+")) i.offset = (int64_t)literal();
            else if (target && take("_")) i.to[i.num_to++] = new_register(64);
            else if ((target ? i.num_to : i.num_from) == (target ? 4u : 8u)) fault("too many operands");
            else {
                const operand o = read_operand();
                if (target && !address) i.to[i.num_to++] = o.reg;
                else i.from[i.num_from++] = o.reg;
                local |= address && o.where == LOCAL;
            }
        }
        if (i.num_to > 0) i.keep = ones(k->widths[i.to[0]]);
        i.selects = family == "selp";
        i.op      = find_opcode(name, &i);
        if (local) i.where = LOCAL; /* .param of a call is a thread's own */
        if (i.op == NULL) fault("an instruction that is not known");
        if ((i.op->kind == BARRIER || i.op->kind == COLLECTIVE) && i.guard >= 0)
            fault("a barrier under a predicate");
        if (i.op->kind == BARRIER && i.from[0] != constant(0)) fault("a barrier that is not number 0");
        k->code.push_back(i);
        current = NULL;
    }

    string name_at(size_t place) { /* that is declared there */
        while (strchr("[;", word_at(place + 1)[0]) == NULL) place++;
        return word_at(place);
    }

    void read_kernel() { /* from behind its name */
        k->max_threads = 1024;
        names.resize(1);
        const std::set<string> used(m.words.begin() + (long)k->at, m.words.begin() + (long)k->end);
        for (const size_t place : m.shared)
            if (used.count(name_at(place))) at = place, declare(SHARED, &k->shared_bytes);
        for (const size_t place : m.dynamic)
            names[0][name_at(place)] = special_operand(specials.size() - 2, SHARED);
        at = k->at;
        while (!take("{")) {
            const string text = next();
            if (text == ".maxntid" || text == ".reqntid") {
                k->max_threads = (unsigned)number();
                while (take(",")) k->max_threads *= (unsigned)number();
            } else if (text == ".param") {
                const size_t from = declare(PARAM, &k->param_bytes);
                k->arguments.push_back(std::make_pair(from, k->param_bytes - from));
            }
        }
        for (names.resize(2); names.size() > 1;) {
            if (take("{")) names.resize(names.size() + 1);
            else if (take("}")) names.pop_back();
            else if (word_at(at + 1) == ":") labels[word_at(at)] = (unsigned)k->code.size(), at += 2;
            else if (take(".pragma")) skip_to(";");
            else if (word_at(at)[0] != '.') read_instruction();
            else {
                const string what = next();
                if (what == ".reg") declare_registers();
                else if (what == ".shared") declare(SHARED, &k->shared_bytes);
                else if (what == ".local" || what == ".param") declare(LOCAL, &k->local_bytes);
                else fault("an unknown directive " + what);
                if (!take(";")) fault("an unknown declaration: " + what);
            }
        }
        instruction end = instruction();
        end.text = "the end", end.guard = -1, end.op = find_opcode("ret", &end);
        k->code.push_back(end);
        for (instruction &i : k->code) {
            if (i.op->kind == BRANCH && labels.count(i.label) == 0) fault("an unknown label " + i.label);
            i.target = labels[i.label];
        }
    }

    void read_global() { /* .align 4 .b32 name[6] = {1, 2}; the rest is 0 */
        size_t width = 1, count = 1;
        string name;
        while (strchr("[=;", word_at(at)[0]) == NULL) {
            name = next();
            if (name == ".align") at++;
            else if (name[0] == '.') width = (size_t)atoi(name.c_str() + 2) / 8;
        }
        if (take("[")) count = number(), at++;
        std::vector<char> &room = m.globals[name];
        room.assign(width * count, 0);
        emu_lend(&room[0], room.size());
        if (take("=")) /* one word, or all in braces */
            for (size_t n = 0; word_at(at) != ";"; n += width) {
                take("{");
                const word value = literal();
                if (n + width > room.size()) fault("too many values for " + name);
                memcpy(&room[n], &value, width);
                while (take(",") || take("}")) continue;
            }
        skip_to(";");
    }

    void read_module() { /* what stands outside of kernels, and where each of these begins */
        static const std::set<string> numbers = {".version", ".address_size", ".target"};
        while (at < m.words.size()) {
            const string what = next();
            if (what == ".extern" || what == ".shared") {
                if (what == ".shared") m.shared.push_back(at);
                else if (take(".shared")) m.dynamic.push_back(at);
                skip_to(";"); /* .func: only a call is refused, by name */
            } else if (what == ".global" || what == ".const") {
                read_global();
            } else if (what == ".entry") {
                kernel &n = m.kernels[word_at(at)];
                n.name = next(), n.at = at;
                skip_to("{");
                for (int depth = 1; depth > 0; at++)
                    depth += (word_at(at) == "{") - (word_at(at) == "}");
                n.end = at;
            } else if (numbers.count(what)) at++;
            else if (what != ".visible" && what != ".weak") fault("an unknown directive " + what);
        }
    }
};

/* ---- The machine ---- */

void kernel::start(const std::vector<char> &arguments_of_launch) {
    num_threads = emu_block_dim.x * emu_block_dim.y * emu_block_dim.z;
    num_warps   = (num_threads + LANES - 1) / LANES;
    params      = arguments_of_launch;
    epoch       = 1;
    if (num_threads > max_threads) fault("more threads than .maxntid: " + name);
    const size_t behind = (shared_bytes + 15) / 16 * 16; /* the launch's own begins there */
    shared.assign(behind + emu_dynamic_bytes, 0);
    states.assign(shared.size(), byte_state());
    warps.resize(std::max(warps.size(), (size_t)num_warps));
    for (unsigned n = 0; n < num_warps; n++) {
        warp &w = warps[n];
        w.in = this, w.number = n;
        w.values.resize(widths.size() * LANES);
        w.written.assign(widths.size(), 0);
        for (std::vector<char> &mine : w.local) mine.assign(local_bytes, 0);
        w.exists = w.alive = (unsigned)ones(std::min(num_threads - n * LANES, (unsigned)LANES));
        w.waiting = 0;
        memset(w.pc, 0, sizeof w.pc);
        for (const auto &c : constants) {
            w.written[c.second] = ~0u;
            std::fill_n(w.at(c.second), (size_t)LANES, c.first);
        }
        for (unsigned l = 0; l < LANES; l++) {
            const unsigned t = n * LANES + l;
            const dim3     size = emu_block_dim, count = emu_grid_dim;
            const unsigned all[] = {t % size.x,  t / size.x % size.y, t / size.x / size.y, size.x,
                                    size.y,      size.z,              l,                   emu_block.x,
                                    emu_block.y, emu_block.z,         count.x,             count.y,
                                    count.z,     (unsigned)behind,    LANES};
            for (const auto &s : special) w.written[s.second] = ~0u, w.at(s.second)[l] = all[s.first];
        }
    }
}

void execute(warp &w, const instruction &i, unsigned lanes) {
    unsigned defined = lanes;
    for (unsigned n = i.selects ? 2 : 0; n < i.num_from; n++) defined &= w.written[i.from[n]];
    if (i.selects) { /* what is not selected need not be there */
        const unsigned first = bits_of(w.at(i.from[2]));
        defined &= (first & w.written[i.from[0]]) | (~first & w.written[i.from[1]]);
    }
    if (i.op->strict && defined != lanes) undefined(w, lanes & ~defined);
    i.op->run(w, i, lanes);
    for (unsigned n = 0; n < i.num_to; n++)
        w.written[i.to[n]] = (w.written[i.to[n]] & ~lanes) | defined;
}

/* Lanes wait at a collective until all that its mask names are there. True: these go on. */
bool gather(warp &w, unsigned pc, unsigned lanes, const instruction &i) {
    const word *const masks = w.at(i.from[i.num_from - 1]);
    const unsigned    lane = (unsigned)__builtin_ctz(lanes), mask = (unsigned)masks[lane] & w.exists;
    unsigned          here = lanes;
    thread_of_block = w.number * LANES + lane;
    in_turn(w.waiting, [&](unsigned l) { here |= (w.pc[l] == pc ? 1u : 0u) << l; });
    if ((mask >> lane & 1) == 0) fault("a lane that is not in its own mask");
    if ((mask & ~w.alive) != 0) fault("a lane that the mask names has ended");
    if ((mask & ~here) != 0) return w.waiting |= lanes, false;
    in_turn(mask, [&](unsigned l) {
        if (((unsigned)masks[l] & w.exists) != mask) fault("lanes of one collective, two masks");
    });
    execute(w, i, mask);
    w.waiting &= ~mask;
    in_turn(mask, [&](unsigned l) { w.pc[l] = pc + 1; });
    return mask == lanes;
}

/* The lanes of a warp that can go on and are at the lowest pc do, until others are as far. */
void kernel::step(warp &w, unsigned able) {
    unsigned   pc = ~0u, limit = ~0u, mask = 0;
    const auto leave = [&](unsigned lanes, unsigned at) { in_turn(lanes, [&](unsigned l) { w.pc[l] = at; }); };
    in_turn(able, [&](unsigned l) { pc = std::min(pc, w.pc[l]); });
    in_turn(able, [&](unsigned l) {
        if (w.pc[l] == pc) mask |= 1u << l;
        else limit = std::min(limit, w.pc[l]);
    });
    do {
        instruction &i     = code[pc];
        unsigned     lanes = mask;
        current            = &i;
        num_instructions++;
        if (i.guard >= 0) {
            const unsigned missing = mask & ~w.written[(size_t)i.guard];
            if (missing != 0) undefined(w, missing);
            lanes &= bits_of(w.at((unsigned)i.guard)) ^ (i.unless ? ~0u : 0u);
        }
        i.ran |= lanes != 0;
        pc++;
        switch (i.op->kind) {
        case NEXT:
            if (lanes != 0) execute(w, i, lanes);
            break;
        case BRANCH:
            if (lanes != 0 && lanes != mask) {
                leave(lanes, i.target);
                return leave(mask & ~lanes, pc);
            }
            if (lanes != 0) pc = i.target;
            break;
        case END:
            w.alive &= ~lanes;
            mask &= ~lanes;
            if (mask == 0) return;
            break;
        case BARRIER:
            leave(mask, pc - 1);
            w.waiting |= mask;
            return;
        case COLLECTIVE:
            leave(mask, pc - 1);
            if (!gather(w, pc - 1, mask, i)) return;
            break;
        }
    } while (pc < limit);
    leave(mask, pc);
}

void kernel::run() {
    random = emu_seed == 0 ? 0 : (random + emu_seed) * 1664525u + 1013904223u;
    for (;; epoch++) {
        unsigned ended = 0, waiting = 0, alive = 0;
        for (unsigned n = 0; n < num_warps; n++) { /* from any, in either direction */
            const unsigned up = (n + (random >> 8)) % num_warps;
            warp          &w  = warps[random >> 7 & 1 ? num_warps - 1 - up : up];
            while (const unsigned able = w.alive & ~w.waiting) step(w, able);
            ended += w.alive == 0;
            waiting += (unsigned)__builtin_popcount(w.waiting);
            alive += (unsigned)__builtin_popcount(w.alive);
            if (w.waiting != 0) current = &code[w.pc[__builtin_ctz(w.waiting)]];
            if (w.waiting != 0 && current->op->kind == COLLECTIVE)
                fault("a collective that not all lanes of its mask reach");
            in_turn(w.waiting, [&](unsigned l) {
                if (&code[w.pc[l]] != current) fault("lanes of one warp at two barriers");
            });
        }
        if (ended == num_warps) return;
        if (waiting != (for_clients() ? alive : num_threads)) fault("a barrier that not all threads reach");
        for (unsigned n = 0; n < num_warps; n++) {
            in_turn(warps[n].waiting, [&](unsigned l) { warps[n].pc[l]++; });
            warps[n].waiting = 0;
        }
    }
}

/* ---- In place of a kernel's C++ body ---- */

struct library { /* the file of EMU_PTX, and the names of this program's functions */
    module                         m;
    std::map<const char *, string> names;

    library() {
        const char *file = getenv("EMU_PTX");
        if (file == NULL) return;
        std::ifstream in(file);
        read(string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()));
        if (m.kernels.empty()) fault(string("no kernel in ") + file);
        read_names();
    }
    ~library() { /* what there was, for who asks: a line in the file EMU_PTX_COUNTS */
        const char *file = getenv("EMU_PTX_COUNTS");
        size_t      kernels = 0, ran = 0, all = 0;
        if (file == NULL || num_launches == 0) return;
        for (const auto &k : m.kernels) {
            kernels += !k.second.code.empty();
            for (const instruction &i : k.second.code) ran += i.ran, all++;
        }
        std::ofstream(file, std::ios::app)
            << kernels << " of " << m.kernels.size() << " kernels, " << num_launches << " launches, "
            << num_instructions << " instructions of warps, " << ran << " of " << all << " lines, "
            << num_fences << " barriers and fences, " << num_others << " launches of others, " << num_zeros << " divisions of 0\n";
    }

    void read(const string &source) {
        m       = module();
        m.words = words_of(source);
        reader(m, NULL).read_module();
    }

    /* Kernels are static functions, of which only nm knows the names. */
    void read_names() {
        char          path[4096], line[4096], name[4000], type;
        unsigned long address, reset = 0;
        const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
        path[std::max((ssize_t)0, length)] = '\0';
        FILE *in = popen((string("nm '") + path + "'").c_str(), "r");
        std::vector<std::pair<unsigned long, string> > all;
        while (in != NULL && fgets(line, sizeof line, in) != NULL) {
            if (sscanf(line, "%lx %c %3999s", &address, &type, name) != 3) continue;
            if (strcmp(name, "emu_reset") == 0) reset = address;
            if (strncmp(name, "_ZL", 3) == 0) memmove(name + 2, name + 3, strlen(name + 2));
            if (m.kernels.count(name)) all.push_back(std::make_pair(address, string(name)));
        }
        if (in == NULL || pclose(in) != 0 || reset == 0) fault("nm does not tell names");
        for (const auto &it : all) names[(const char *)&emu_reset + (it.first - reset)] = it.second;
    }

    /* A closure that runs one block, with a copy of the arguments. */
    std::function<void()> body(const string &name, void **arguments) {
        const auto it = m.kernels.find(name);
        if (it == m.kernels.end()) fault("no kernel " + name);
        kernel &k = it->second;
        running   = &k;
        if (k.code.empty()) reader(m, &k).read_kernel();
        std::vector<char> params(k.param_bytes);
        for (const auto &to : k.arguments) memcpy(&params[to.first], *arguments++, to.second);
        num_launches++;
        running = NULL;
        return [&k, params] {
            running = &k;
            k.start(params);
            k.run();
            running = NULL, current = NULL;
        };
    }
};

library &the_library() {
    static library one;
    return one;
}

} // namespace

std::function<void()> emu_ptx(const void *kernel, void **arguments) {
    const auto it = the_library().names.find((const char *)kernel);
    if (it == the_library().names.end()) return num_others++, std::function<void()>();
    return the_library().body(it->second, arguments);
}
