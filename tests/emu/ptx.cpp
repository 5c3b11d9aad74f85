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

#include <fstream>
#include <iterator>
#include <memory>

namespace {

/* ---- Reading PTX ---- */

struct symbol { space where; word address; };

struct module { /* words: names, numbers and single characters; "%r<30>" is one */
    strings                               words;
    std::map<string, kernel>              kernels;
    std::map<string, symbol>              symbols;
    size_t                                shared_bytes;
    std::vector<std::unique_ptr<word[]> > data; /* of .const and .global */
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

struct reader { /* of a module, or of one of its kernels */
    module                                  &m;
    kernel                                  *k;
    size_t                                   at;      /* the next word */
    std::vector<std::map<string, symbol> >   symbols; /* by scope; the first is the module's */
    std::vector<std::map<string, unsigned> > names;   /* registers, by scope */
    std::map<string, unsigned>               labels;
    strings                                  targets; /* of branches, by instruction */

    reader(module &file, kernel *into) : m(file), k(into), at(into != NULL ? into->at : 0) {}

    const string &word_at(size_t n) {
        if (n >= m.words.size()) fault("the text ends too early");
        return m.words[n];
    }
    string next() { return word_at(at++); }
    bool   take(const char *text) { return word_at(at) == text && ++at; }
    void   skip_to(const char *text) { while (!take(text)) at++; }
    unsigned long number() { return strtoul(next().c_str(), NULL, 10); }

    unsigned new_register(unsigned width) {
        k->widths.push_back(width);
        return (unsigned)k->widths.size() - 1;
    }
    unsigned constant(word value) {
        const auto it = k->constants.find(value);
        return it != k->constants.end() ? it->second : k->constants[value] = new_register(64);
    }
    word literal() { /* -1, 0x1f, 0f3F800000, 0d3FF0000000000000 */
        const bool  minus  = take("-");
        const string text  = next();
        const bool  bits   = text.size() > 2 && text[0] == '0' && strchr("fFdD", text[1]) != NULL;
        char       *end;
        const word  value = strtoull(text.c_str() + (bits ? 2 : 0), &end, bits ? 16 : 0);
        if (!isdigit((unsigned char)text[0]) || (*end != '\0' && strcmp(end, "U") != 0))
            fault("an unknown operand " + text);
        return minus ? 0 - value : value;
    }
    unsigned operand(space *where) {
        static const std::set<string> specials = {
            "%tid.x",    "%tid.y",    "%tid.z",    "%ntid.x",   "%ntid.y",   "%ntid.z",  "%ctaid.x",
            "%ctaid.y",  "%ctaid.z",  "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid"};
        const string text = word_at(at);
        for (size_t s = names.size(); s-- > 0;)
            if (names[s].count(text)) return at++, names[s][text];
        for (size_t s = symbols.size(); s-- > 0;)
            if (symbols[s].count(text)) {
                at++;
                *where = symbols[s][text].where;
                return constant(symbols[s][text].address);
            }
        if (specials.count(text) == 0) return constant(literal());
        at++;
        const auto it = k->specials.find(text);
        return it != k->specials.end() ? it->second : k->specials[text] = new_register(32);
    }

    /* [.align 8] .b8 [.ptr ...] name [[24]]: bytes behind `end`, which moves */
    symbol declare(space where, size_t *end, string *name) {
        size_t align = take(".align") ? number() : 0, count = 1;
        const string type = next();
        const size_t width = strtoul(type.c_str() + std::min((size_t)2, type.size()), NULL, 10) / 8;
        if (align == 0) align = width;
        if (take(".ptr")) { /* what it points to is no business of ours */
            if (word_at(at)[0] == '.' && word_at(at) != ".align") at++;
            if (take(".align")) at++;
        }
        *name = next();
        if (take("[")) count = number(), at++;
        if (width == 0 || count == 0) fault("an unknown declaration of " + *name);
        *end = (*end + align - 1) / align * align + count * width;
        return symbol{where, *end - count * width};
    }
    void declare_registers() { /* .b32 %r<30>, x */
        const string   type  = next();
        const unsigned width = type == ".pred" ? 1 : (unsigned)atoi(type.c_str() + 2);
        do {
            const string name = next();
            const size_t many = name.find('<');
            if (width == 0) fault("registers of unknown type " + type);
            if (many == string::npos) names.back()[name] = new_register(width);
            else
                for (long n = 0; n < atol(name.c_str() + many + 1); n++)
                    names.back()[name.substr(0, many) + std::to_string(n)] = new_register(width);
        } while (take(","));
    }

    void read_instruction() {
        static const std::set<string> no_target = {"st", "red", "bra", "bar", "ret", "exit", "membar",
                                                   "fence", "call", "griddepcontrol"};
        instruction i = instruction();
        bool        target, address = false;
        int         depth = 0;
        space       where = GENERIC; /* of the symbol in an address */
        for (size_t n = at; word_at(n) != ";"; n++) i.text += word_at(n) + " ";
        current = &i;
        i.guard = -1;
        if (take("@")) i.unless = take("!"), i.guard = (int)operand(&where);
        const string name = next(), family = split(name)[0];
        target = no_target.count(family) == 0;
        targets.push_back(family == "bra" ? next() : "");
        if (family == "call") {
            if (name != "call.uni" || next() != "cudaGraphSetConditional") fault("an unknown function");
            i.op = new call_condition();
            at++;
        }
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
            else if (target && !address) i.to[i.num_to++] = operand(&where);
            else i.from[i.num_from++] = operand(&where);
        }
        if (i.num_to > 0) i.keep = ones(k->widths[i.to[0]]);
        i.selects = family == "selp";
        if (name == "mov.b32" || name == "mov.b64") i.op = find_vector_move(name == "mov.b32" ? 32 : 64, i);
        if (i.op == NULL) i.op = find_opcode(name, &i);
        if (i.op == NULL) fault("an instruction that is not known");
        if (address && where == LOCAL) i.where = LOCAL; /* .param of a call is a thread's own */
        if ((i.kind == BARRIER || i.kind == COLLECTIVE) && i.guard >= 0)
            fault("a barrier under a predicate");
        if (i.kind == BARRIER && i.from[0] != constant(0)) fault("a barrier that is not number 0");
        k->code.push_back(i);
        current = NULL;
    }
    static const opcode *find_vector_move(unsigned bits, const instruction &i) {
        if (i.num_to == 1 && i.num_from > 1) return new pack(bits);
        return i.num_to > 1 && i.num_from == 1 ? new unpack(bits) : NULL;
    }

    void read_kernel() { /* from behind its name */
        string name;
        names.resize(1), symbols.resize(2);
        symbols[0]      = m.symbols;
        k->shared_bytes = m.shared_bytes, k->max_threads = 1024;
        while (!take("{")) {
            const string text = next();
            if (text == ".maxntid" || text == ".reqntid") {
                k->max_threads = (unsigned)number();
                while (take(",")) k->max_threads *= (unsigned)number();
            } else if (text == ".param") {
                const symbol s   = declare(PARAM, &k->param_bytes, &name);
                symbols[1][name] = s;
                k->params.push_back(array{s.address, k->param_bytes - s.address});
            }
        }
        while (!names.empty()) {
            if (take("{")) names.resize(names.size() + 1), symbols.resize(symbols.size() + 1);
            else if (take("}")) names.pop_back(), symbols.pop_back();
            else if (word_at(at + 1) == ":") labels[word_at(at)] = (unsigned)k->code.size(), at += 2;
            else if (take(".pragma")) skip_to(";");
            else if (word_at(at)[0] != '.') read_instruction();
            else {
                const string what = next();
                if (what == ".reg") declare_registers();
                else if (what == ".shared" || what == ".local" || what == ".param") {
                    const bool   shared = what == ".shared";
                    const symbol s = declare(shared ? SHARED : LOCAL,
                                             shared ? &k->shared_bytes : &k->local_bytes, &name);
                    symbols.back()[name] = s;
                } else fault("an unknown directive " + what);
                if (!take(";")) fault("an unknown declaration: " + what);
            }
        }
        instruction end = instruction();
        end.text = "the end", end.guard = -1, end.kind = END, end.op = new nothing(&num_fences);
        k->code.push_back(end);
        targets.push_back("");
        for (size_t n = 0; n < k->code.size(); n++) {
            if (k->code[n].kind != BRANCH) continue;
            if (labels.count(targets[n]) == 0) fault("an unknown label " + targets[n]);
            k->code[n].target = labels[targets[n]];
        }
        k->local_bytes = (k->local_bytes + 15) / 16 * 16;
    }

    void read_module() { /* what stands outside of kernels, and where each of these begins */
        while (at < m.words.size()) {
            const string what = next();
            string       name;
            if (what == ".version" || what == ".address_size" || what == ".target") at++;
            else if (what == "," && m.words[at] == "debug") at++;
            else if (what == ".extern" && take(".func")) skip_to(";"); /* a call is refused by name */
            else if (what == ".entry") {
                name      = next();
                kernel &n = m.kernels[name];
                n.name = name, n.at = at;
                skip_to("{");
                for (int depth = 1; depth > 0; at++)
                    depth += (word_at(at) == "{") - (word_at(at) == "}");
            } else if (what == ".shared") {
                const symbol s    = declare(SHARED, &m.shared_bytes, &name);
                m.symbols[name] = s;
                skip_to(";");
            } else if (what == ".const" || what == ".global") {
                size_t bytes = 0;
                (void)declare(GLOBAL, &bytes, &name);
                if (!take(";")) fault("a variable with a value: " + name);
                m.data.emplace_back(new word[(bytes + 7) / 8]());
                m.symbols[name] = symbol{GLOBAL, (word)(uintptr_t)m.data.back().get()};
                emu_lend(m.data.back().get(), bytes);
            } else if (what != ".visible" && what != ".weak") fault("an unknown directive " + what);
        }
    }
};

/* ---- The machine ---- */

struct machine : block {
    std::vector<warp> warps;
    unsigned          num_threads, random;

    explicit machine(const kernel &code) : warps() { k = &code, random = 1; }

    void start(const std::vector<char> *arguments) {
        num_threads = emu_block_dim.x * emu_block_dim.y * emu_block_dim.z;
        params      = arguments;
        epoch       = 1;
        if (num_threads > k->max_threads) fault("more threads than .maxntid: " + k->name);
        shared.assign(k->shared_bytes, byte_state());
        const size_t count = (num_threads + LANES - 1) / LANES;
        while (warps.size() < count) {
            warp w = warp();
            w.values.resize(k->widths.size() * LANES);
            w.number = (unsigned)warps.size();
            for (const auto &c : k->constants)
                std::fill_n(w.at(c.second), (size_t)LANES, c.first);
            warps.push_back(std::move(w));
        }
        for (size_t n = 0; n < count; n++) {
            warp          &w    = warps[n];
            const unsigned here = std::min(num_threads - (unsigned)n * LANES, (unsigned)LANES);
            w.in = this;
            w.written.assign(k->widths.size(), 0);
            w.local.assign(k->local_bytes * LANES, 0);
            w.exists = w.alive = (unsigned)ones(here);
            w.at_barrier = w.gathered = 0;
            memset(w.pc, 0, sizeof w.pc);
            for (const auto &c : k->constants) w.written[c.second] = ~0u;
            for (const auto &s : k->specials) {
                w.written[s.second] = ~0u;
                for (unsigned l = 0; l < LANES; l++) w.at(s.second)[l] = special(w, s.first, l);
            }
        }
    }
    static word special(const warp &w, const string &name, unsigned lane) {
        const unsigned n = w.number * LANES + lane, dot = (unsigned)name.find('.');
        const dim3     size = emu_block_dim;
        const unsigned tid[]   = {n % size.x, n / size.x % size.y, n / size.x / size.y};
        const unsigned ntid[]  = {size.x, size.y, size.z};
        const unsigned ctaid[] = {emu_block.x, emu_block.y, emu_block.z};
        const unsigned count[] = {emu_grid_dim.x, emu_grid_dim.y, emu_grid_dim.z};
        if (name == "%laneid") return lane;
        const unsigned axis = (unsigned)(name[dot + 1] - 'x');
        return (name[1] == 't' ? tid : name[1] == 'c' ? ctaid : name[2] == 't' ? ntid : count)[axis];
    }

    /* Lanes that wait at a collective until all that its mask names are there. */
    static bool gather(warp &w, unsigned pc, unsigned lanes, const instruction &i) {
        const word *const masks = w.at(i.from[i.num_from - 1]);
        const unsigned    lane = (unsigned)__builtin_ctz(lanes);
        const unsigned    mask = (unsigned)masks[lane] & w.exists;
        unsigned          here = lanes;
        thread_of_block = w.number * LANES + lane;
        for (unsigned l = 0; l < LANES; l++)
            if ((w.gathered >> l & 1) != 0 && w.pc[l] == pc) here |= 1u << l;
        if ((mask >> lane & 1) == 0) fault("a lane that is not in its own mask");
        if ((mask & ~w.alive) != 0) fault("a lane that the mask names has ended");
        if ((mask & ~here) != 0) {
            w.gathered |= lanes;
            return false;
        }
        each(mask, [&](unsigned l) {
            if (((unsigned)masks[l] & w.exists) != mask) fault("lanes of one collective, two masks");
        });
        execute(w, i, mask);
        w.gathered &= ~mask;
        each(mask, [&](unsigned l) { w.pc[l] = pc + 1; });
        return mask == lanes;
    }

    static void execute(warp &w, const instruction &i, unsigned lanes) {
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

    /* The lanes of a warp that can go on and are at the lowest pc do, until others are as far. */
    void step(warp &w, unsigned able) {
        unsigned pc = ~0u, limit = ~0u, mask = 0;
        for (unsigned rest = able; rest != 0; rest &= rest - 1)
            pc = std::min(pc, w.pc[__builtin_ctz(rest)]);
        for (unsigned rest = able; rest != 0; rest &= rest - 1) {
            const unsigned l = (unsigned)__builtin_ctz(rest);
            if (w.pc[l] == pc) mask |= 1u << l;
            else limit = std::min(limit, w.pc[l]);
        }
        const auto leave = [&](unsigned lanes, unsigned at) {
            each(lanes, [&](unsigned l) { w.pc[l] = at; });
        };
        for (;;) {
            instruction &i     = const_cast<instruction &>(k->code[pc]);
            unsigned     lanes = mask;
            current            = &i;
            num_instructions++;
            if (i.guard >= 0) {
                if (const unsigned missing = mask & ~w.written[i.guard]) undefined(w, missing);
                const unsigned bits = bits_of(w.at((unsigned)i.guard));
                lanes &= i.unless ? ~bits : bits;
            }
            i.ran |= lanes != 0;
            switch (i.kind) {
            case NEXT:
                if (lanes != 0) execute(w, i, lanes);
                pc++;
                break;
            case BRANCH:
                if (lanes != 0 && lanes != mask) {
                    leave(lanes, i.target);
                    leave(mask & ~lanes, pc + 1);
                    return;
                }
                pc = lanes != 0 ? i.target : pc + 1;
                break;
            case END:
                w.alive &= ~lanes;
                mask &= ~lanes;
                if (mask == 0) return;
                pc++;
                break;
            case BARRIER:
                leave(mask, pc);
                w.at_barrier |= mask;
                return;
            case COLLECTIVE:
                leave(mask, pc);
                if (!gather(w, pc, mask, i)) return;
                pc++;
                break;
            }
            if (pc >= limit) return leave(mask, pc);
        }
    }

    void run() {
        const size_t count = (num_threads + LANES - 1) / LANES;
        random             = emu_seed == 0 ? 0 : (random + emu_seed) * 1664525u + 1013904223u;
        for (;;) {
            size_t ended = 0, waiting = 0;
            for (size_t n = 0; n < count; n++) { /* from any, in either direction */
                const size_t up = (n + (random >> 8)) % count;
                warp        &w  = warps[random >> 7 & 1 ? count - 1 - up : up];
                while (unsigned able = w.alive & ~w.at_barrier & ~w.gathered) step(w, able);
                if (w.gathered != 0) {
                    current = &k->code[w.pc[__builtin_ctz(w.gathered)]];
                    fault("a collective that not all lanes of its mask reach");
                }
                ended += w.alive == 0;
                waiting += (unsigned)__builtin_popcount(w.at_barrier);
                if (w.at_barrier == 0) continue;
                current = &k->code[w.pc[__builtin_ctz(w.at_barrier)]];
                each(w.at_barrier, [&](unsigned l) {
                    if (&k->code[w.pc[l]] != current) fault("lanes of one warp at two barriers");
                });
            }
            if (ended == count) return;
            if (waiting != num_threads) fault("a barrier that not all threads reach");
            epoch++;
            for (size_t n = 0; n < count; n++) {
                each(warps[n].at_barrier, [&](unsigned l) { warps[n].pc[l]++; });
                warps[n].at_barrier = 0;
            }
        }
    }
};

/* ---- In place of a kernel's C++ body ---- */

struct library { /* the file of EMU_PTX, and the names of this program's functions */
    module                                          m;
    std::map<const char *, string>                  names;
    std::map<string, std::unique_ptr<machine> >     machines;

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
        size_t      ran = 0, all = 0;
        if (file == NULL || num_launches == 0) return;
        for (auto &it : machines)
            for (const instruction &i : it.second->k->code) ran += i.ran, all++;
        std::ofstream(file, std::ios::app)
            << machines.size() << " of " << m.kernels.size() << " kernels, " << num_launches
            << " launches, " << num_instructions << " instructions of warps, " << ran << " of " << all
            << " lines, " << num_fences << " barriers and fences, " << num_grid_controls
            << " orders between grids, " << num_others << " launches of others\n";
    }

    void read(const string &source) {
        m = module();
        machines.clear();
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
        kernel &k = m.kernels[name];
        running   = &k;
        if (k.code.empty()) reader(m, &k).read_kernel();
        std::unique_ptr<machine> &on = machines[name];
        if (on == NULL) on.reset(new machine(k));
        std::vector<char> params(k.param_bytes);
        for (size_t n = 0; n < k.params.size(); n++)
            memcpy(&params[k.params[n].offset], arguments[n], k.params[n].size);
        num_launches++;
        running = NULL;
        machine *const by = on.get();
        return [by, params] {
            running = by->k;
            by->start(&params);
            by->run();
            running = NULL, current = NULL;
        };
    }
};

library &the_library() {
    static library one;
    return one;
}

} // namespace

void emu_ptx_read(const char *source) { the_library().read(source); }

std::function<void()> emu_ptx_body(const char *kernel, void **arguments) {
    if (the_library().m.kernels.count(kernel) == 0) fault(string("no kernel ") + kernel);
    return the_library().body(kernel, arguments);
}

std::function<void()> emu_ptx(const void *kernel, void **arguments) {
    const auto it = the_library().names.find((const char *)kernel);
    if (it == the_library().names.end()) return num_others++, std::function<void()>();
    return the_library().body(it->second, arguments);
}
