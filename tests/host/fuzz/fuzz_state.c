/* fuzz_state.c - amp_optimizer_load and whatever a file may hold. A case is not a file: behind the
   sums nothing would be reached. It is an optimizer, the state of one, and edits of that state,
   after which the sums are made right again (or not).

       case   loader, writer, how, edits
       how    bit 0: leave the sums wrong; bit 1: leave the length in the header; bit 2: the loader
              has done steps before; bit 3: instead of edits one byte, a number that is put in the
              place of every word in turn, so that no case must know where in a file a number is
              (only where the loader is the writer)
       edit   what, where (2 bytes), and what it takes (see edit_once) */

#define AMP_IMPLEMENTATION
#include "amp.h"
#include "fuzz.h"

#include <math.h> /* INFINITY */

enum { MAX_TENSORS = 4, MAX_ELEMENTS = 8, FILE_SIZE = 4096 };

/* ---------------------------------------------------------------------------------- optimizers */

/* A letter per tensor: p plain, f frozen, e empty, m half model and no master, k keep_fp32; behind
   a | the tensors are parts of one flat array. */
typedef struct setup {
    const char *tensors;
    amp_kind    kind;
    double      momentum;
    amp_dtype   dtype;
    amp_preset  preset;
    int         disabled, shared, named;
} setup;

static const setup setups[] = {
    {"", AMP_KIND_OWN, 0.0, AMP_F16, AMP_PRESET_DEFAULT, 0, 0, 0},
    {"p", AMP_KIND_ADAMW, 0.0, AMP_F16, AMP_PRESET_DEFAULT, 0, 0, 1},
    {"pfk", AMP_KIND_ADAMW, 0.0, AMP_BF16, AMP_PRESET_TORCH, 0, 0, 1},
    {"|ppk", AMP_KIND_ADAMW, 0.0, AMP_F16, AMP_PRESET_MEGATRON, 0, 0, 0},
    {"pp", AMP_KIND_SGD, 0.0, AMP_F16, AMP_PRESET_STATIC, 0, 0, 0},
    {"pem", AMP_KIND_SGD, 0.9, AMP_F16, AMP_PRESET_DEEPSPEED_FUSED, 0, 0, 1},
    {"|pf", AMP_KIND_SGD, 0.5, AMP_F32, AMP_PRESET_KERAS, 0, 0, 0},
    {"ppkf", AMP_KIND_OWN, 0.0, AMP_F16, AMP_PRESET_APEX, 0, 0, 1},
    {"p", AMP_KIND_OWN, 0.0, AMP_BF16, AMP_PRESET_DEFAULT, 1, 0, 0},
    {"pp", AMP_KIND_ADAMW, 0.0, AMP_F16, AMP_PRESET_DEFAULT, 0, 1, 0},
    {"p", AMP_KIND_ADAMW, 0.0, AMP_F16, AMP_PRESET_MXNET, 0, 0, 1},
    {"p", AMP_KIND_ADAMW, 0.0, AMP_F16, AMP_PRESET_JMP, 0, 0, 1},
    {"f", AMP_KIND_ADAMW, 0.0, AMP_F16, AMP_PRESET_FLAX, 0, 0, 0},
    {"p", AMP_KIND_SGD, 0.9, AMP_F16, AMP_PRESET_TF_KERAS, 1, 1, 0},
    {"p", AMP_KIND_ADAMW, 0.0, AMP_F16, AMP_PRESET_DEEPSPEED_CONSECUTIVE, 0, 0, 1},
    {"p", AMP_KIND_ADAMW, 0.0, AMP_F16, AMP_PRESET_APEX_HYSTERESIS, 0, 0, 1}};

enum { NUM_SETUPS = sizeof setups / sizeof setups[0] };

/* Everything that an optimizer works on. */
typedef struct machine {
    const setup  *setup;
    int           num_tensors;
    amp_optimizer opt;
    amp_scaler    shared;
    size_t        n[MAX_TENSORS];
    float         weight[MAX_TENSORS][MAX_ELEMENTS], flat_weight[MAX_TENSORS * MAX_ELEMENTS];
    float         grad[MAX_TENSORS][MAX_ELEMENTS], flat_grad[MAX_TENSORS * MAX_ELEMENTS];
    amp_f16       half[MAX_TENSORS][MAX_ELEMENTS];
} machine;

/* A save asks for a large block each time; to make a new one for a sanitizer costs more than all
   the rest. */
static union { unsigned char bytes[1 << 18]; double aligned; } block;
static int block_is_lent;

static void *lend(void *user, size_t num_bytes) {
    (void)user;
    if (num_bytes != sizeof block || block_is_lent) return malloc(num_bytes);
    block_is_lent = 1;
    return &block;
}

static void take_back(void *user, void *memory) {
    (void)user;
    if (memory == &block) block_is_lent = 0;
    else free(memory);
}

static amp_tensor tensor_of(machine *m, char letter, int i) {
    static const char *const names[] = {"embedding", "b", "layer.0.w", "h"};
    static const size_t      sizes[] = {5, 3, 8, 1};
    amp_tensor               t;
    memset(&t, 0, sizeof t);
    m->n[i] = letter == 'e' ? 0 : sizes[i];
    t.n     = m->n[i];
    t.name  = m->setup->named ? names[i] : NULL;
    if (letter != 'm') t.weight = m->weight[i];
    else t.model = m->half[i];
    t.model_type = AMP_F16;
    t.grad       = m->grad[i];
    t.frozen     = letter == 'f';
    t.keep_fp32  = letter == 'k';
    t.lr_scale   = i == 1 ? 0.5f : 0.0f;
    t.weight_decay = i == 2 ? 0.25f : 0.0f;
    return t;
}

static void add_tensors(machine *m) {
    const char *letters = m->setup->tensors;
    const int   flat    = letters[0] == '|';
    amp_tensor  parts[MAX_TENSORS], whole;
    int         i;
    memset(&whole, 0, sizeof whole);
    for (letters += flat; letters[m->num_tensors]; m->num_tensors++) {
        i        = m->num_tensors;
        parts[i] = tensor_of(m, letters[i], i);
        whole.n += m->n[i];
        if (!flat) PROPERTY(amp_optimizer_add(&m->opt, &parts[i]) == AMP_OK, "add");
    }
    whole.weight = m->flat_weight;
    whole.grad   = m->flat_grad;
    if (flat)
        PROPERTY(amp_optimizer_add_flat(&m->opt, &whole, parts, (size_t)m->num_tensors) == AMP_OK,
                 "add_flat");
}

static void machine_start(machine *m, const setup *s) {
    amp_optimizer_desc desc;
    int                i, k;
    memset(m, 0, sizeof *m);
    m->setup = s;
    for (i = 0; i < MAX_TENSORS; i++)
        for (k = 0; k < MAX_ELEMENTS; k++) {
            m->weight[i][k]                     = (float)(k - 3 * i) * 0.25f;
            m->flat_weight[MAX_ELEMENTS * i + k] = m->weight[i][k];
            m->half[i][k]                       = amp_f32_to_f16(m->weight[i][k]);
        }
    memset(&desc, 0, sizeof desc);
    desc.dtype                  = s->dtype;
    desc.kind                   = s->kind;
    desc.momentum               = s->momentum;
    desc.nesterov               = s->momentum > 0.75;
    desc.weight_decay           = 0.125f;
    desc.max_norm               = s->kind == AMP_KIND_ADAMW ? 2.0f : 0.0f;
    desc.scaler.preset          = s->preset;
    desc.scaler.disabled        = s->disabled;
    desc.scaler.growth_interval = 2;
    desc.allocator.allocate_fn  = lend;
    desc.allocator.release_fn   = take_back;
    PROPERTY(amp_scaler_init(&m->shared, &desc.scaler) == AMP_OK, "scaler_init");
    if (s->shared) desc.shared_scaler = &m->shared;
    PROPERTY(amp_optimizer_init(&m->opt, &desc) == AMP_OK, "init");
    add_tensors(m);
    PROPERTY(amp_optimizer_prepare(&m->opt) == AMP_OK, "prepare");
}

/* One step with gradients that are finite but for the first, if inf. */
static void machine_step(machine *m, uint32_t k, int inf) {
    int i, e;
    for (i = 0; i < MAX_TENSORS; i++)
        for (e = 0; e < MAX_ELEMENTS; e++) {
            m->grad[i][e] = (float)((int)(k * 7u + (unsigned)(3 * i + 5 * e)) % 11 - 5) * 64.0f;
            if (inf) m->grad[i][e] = INFINITY;
            m->flat_grad[MAX_ELEMENTS * i + e] = m->grad[i][e];
        }
    if (m->setup->kind == AMP_KIND_OWN) {
        const int go = amp_optimizer_begin_step(&m->opt);
        for (i = 0; go && i < m->num_tensors; i++) {
            const float *grad = amp_optimizer_grad(&m->opt, i);
            for (e = 0; grad && e < (int)m->n[i]; e++)
                amp_optimizer_master(&m->opt, i)[e] -= 0.01f * grad[e];
        }
        amp_optimizer_end_step(&m->opt);
    } else if (m->setup->kind == AMP_KIND_SGD) {
        amp_optimizer_step(&m->opt, 0.01f);
    } else {
        amp_optimizer_step(&m->opt, 0.01f);
    }
    if (m->setup->shared) amp_scaler_update(&m->shared);
}

/* --------------------------------------------------------------------------------------- files */

typedef struct state {
    unsigned char bytes[FILE_SIZE];
    size_t        size, at;
} state;

static bool state_write(void *user, const void *data, size_t num_bytes) {
    state *s = (state *)user;
    if (num_bytes > FILE_SIZE - s->size) return false;
    memcpy(s->bytes + s->size, data, num_bytes);
    s->size += num_bytes;
    return true;
}

static bool state_read(void *user, void *data, size_t num_bytes) {
    state *s = (state *)user;
    if (num_bytes > s->size - s->at) return false;
    memcpy(data, s->bytes + s->at, num_bytes);
    s->at += num_bytes;
    return true;
}

static void save(const machine *m, state *s) {
    memset(s, 0, sizeof *s);
    PROPERTY(amp_optimizer_save(&m->opt, state_write, s) == AMP_OK, "a save works");
}

static amp_result load(machine *m, state *s) {
    s->at = 0;
    return amp_optimizer_load(&m->opt, state_read, s);
}

/* Make the header's length and both sums right, as far as the file is long enough to have them. */
static void seal(state *s, int length_too) {
    const size_t ends = AMPI_STATE_HEADER + 8;
    size_t       body;
    if (s->size < ends) return;
    body = (s->size - ends) / 8 * 8;
    if (length_too) ampi_put_le(s->bytes + 16, body);
    ampi_put_le(s->bytes + 24, ampi_sum_bytes(0, s->bytes, 24));
    ampi_put_le(s->bytes + AMPI_STATE_HEADER + body,
                ampi_sum_bytes(0, s->bytes + AMPI_STATE_HEADER, body));
}

/* Is the file as long as its header says, but a sum in it wrong? */
static int sums_are_wrong(const state *s) {
    static state sealed;
    const size_t ends = AMPI_STATE_HEADER + 8;
    if (s->size < ends || s->size % 8 || ampi_get_le(s->bytes + 16) != s->size - ends) return 0;
    sealed = *s;
    seal(&sealed, 0);
    return memcmp(sealed.bytes, s->bytes, s->size) != 0;
}

static state saved[NUM_SETUPS];

/* The states are made once; what seal says of them must be what amp.h says. */
static void make_states(void) {
    static int     made;
    static machine m;
    static state   sealed;
    uint32_t       i, k;
    if (made++) return;
    for (i = 0; i < NUM_SETUPS; i++) {
        machine_start(&m, &setups[i]);
        for (k = 0; k < 6; k++) machine_step(&m, k, k == 3);
        save(&m, &saved[i]);
        amp_optimizer_free(&m.opt);
        sealed = saved[i];
        seal(&sealed, 1);
        PROPERTY(memcmp(&sealed, &saved[i], sizeof sealed) == 0, "seal knows the format");
    }
}

/* --------------------------------------------------------------------------------------- edits */

static const uint64_t numbers[] = {
    0, 1, 2, 3, 7, 0x7fffffff, 0x80000000u, 0xffffffffu, 0x3f800000, 0xbf800000u, 0x7f800000,
    0xff800000u, 0x7fc00000, 0x7f7fffff, 0x00800000, 1, 0x3ff0000000000000u, 0x4000000000000000u,
    0xbff0000000000000u, 0x7ff0000000000000u, 0xfff0000000000000u, 0x7ff8000000000000u,
    0x7fefffffffffffffu, 0x8000000000000000u, 0xffffffffffffffffu, 0x4b800001u, 0x38000000u};

enum { NUM_NUMBERS = sizeof numbers / sizeof numbers[0] };

static void edit_once(state *s, fuzz_bytes *b) {
    const unsigned what  = fuzz_u8(b) % 9;
    const size_t   where = fuzz_u16(b);
    const size_t   word  = s->size >= 8 ? where % (s->size / 8) * 8 : 0;
    const state   *other;
    size_t         n;
    if (s->size < 8) return;
    switch (what) {
    case 0: /* a word becomes a number of the list */
        ampi_put_le(s->bytes + word, numbers[fuzz_u8(b) % NUM_NUMBERS]);
        break;
    case 1: ampi_put_le(s->bytes + word, fuzz_u64(b)); break;
    case 2: s->bytes[where % s->size] = (unsigned char)fuzz_u8(b); break;
    case 3: s->size = where % s->size; break;
    case 4: /* so many more bytes */
        for (n = fuzz_u8(b); n && s->size < FILE_SIZE; n--)
            s->bytes[s->size++] = (unsigned char)where;
        break;
    case 5: /* a word of the header */
        ampi_put_le(s->bytes + word % AMPI_STATE_HEADER, fuzz_u64(b));
        break;
    case 6:
        ampi_put_le(s->bytes + word, ampi_get_le(s->bytes + word) + fuzz_u8(b) - 128u);
        break;
    case 7: /* the rest is that of another state */
        other = &saved[fuzz_u8(b) % NUM_SETUPS];
        if (word >= other->size) break;
        memcpy(s->bytes + word, other->bytes + word, other->size - word);
        s->size = other->size;
        break;
    default: /* words cut out of the middle */
        n = 8 * (size_t)(fuzz_u8(b) % 16);
        if (n > s->size - word) n = s->size - word;
        memmove(s->bytes + word, s->bytes + word + n, s->size - word - n);
        s->size -= n;
        break;
    }
}

/* ---------------------------------------------------------------------------------- properties */

/* All that can be seen of a machine. */
typedef struct view {
    state         file;
    unsigned char masters[MAX_TENSORS][4 * MAX_ELEMENTS], models[MAX_TENSORS][4 * MAX_ELEMENTS];
    float         grads[MAX_TENSORS][MAX_ELEMENTS], flat_grads[MAX_TENSORS * MAX_ELEMENTS];
    amp_grad_stats     stats[MAX_TENSORS];
    amp_status    status;
    amp_scaler    scaler;
    amp_gate      gate;
    float         loss_scale;
} view;

static size_t model_size(const machine *m, int i) {
    const char *letters = m->setup->tensors + (m->setup->tensors[0] == '|');
    if (letters[i] == 'k') return 4;
    return amp_dtype_size(letters[i] == 'm' ? AMP_F16 : m->setup->dtype);
}

static void look(const machine *m, view *v) {
    int i;
    memset(v, 0, sizeof *v);
    save(m, &v->file);
    for (i = 0; i < m->num_tensors; i++) {
        const size_t n = m->n[i];
        if (n) memcpy(v->masters[i], amp_optimizer_master(&m->opt, i), 4 * n);
        if (n) memcpy(v->models[i], amp_optimizer_model(&m->opt, i), n * model_size(m, i));
        amp_optimizer_stats(&m->opt, i, &v->stats[i]);
    }
    memcpy(v->grads, m->grad, sizeof v->grads);
    memcpy(v->flat_grads, m->flat_grad, sizeof v->flat_grads);
    amp_optimizer_status(&m->opt, &v->status);
    memcpy(&v->scaler, amp_optimizer_scaler(&m->opt), sizeof v->scaler);
    v->gate       = *amp_optimizer_gate(&m->opt);
    v->loss_scale = amp_optimizer_loss_scale(&m->opt);
}

/* Numbers may be any; what indexes an array may not, and both copies of a table are alike. */
static void check_numbers(const machine *m) {
    const amp_plan *plan = m->opt.plan;
    amp_status      status;
    int             i;
    PROPERTY(amp_optimizer_status(&m->opt, &status) == AMP_OK, "AMP_OK: there is a status");
    PROPERTY(plan->scaler->preset < (uint32_t)AMPI_NUM_PRESETS, "AMP_OK: the preset is one of the list");
    for (i = 0; i < m->num_tensors; i++)
        PROPERTY(memcmp(&plan->table[i].lr_scale, &plan->host_slots[i].lr_scale, 4) == 0 &&
                     memcmp(&plan->table[i].weight_decay, &plan->host_slots[i].weight_decay, 4) == 0,
                 "AMP_OK: backend and host agree on rates");
}

/* A save of m can be loaded, and is what is saved then, but for a scaler that the loader does not take. */
static void check_saves(const machine *m) {
    static machine again;
    static state   first, second, third;
    save(m, &first);
    machine_start(&again, m->setup);
    PROPERTY(load(&again, &first) == AMP_OK, "what is saved after a load can be loaded");
    save(&again, &second);
    PROPERTY(load(&again, &second) == AMP_OK, "and again");
    save(&again, &third);
    PROPERTY(memcmp(third.bytes, second.bytes, FILE_SIZE) == 0 && third.size == second.size,
             "what is saved, loaded and saved has the same bytes");
    amp_optimizer_free(&again.opt);
}

static void check_status(const amp_status *before, const amp_status *after) {
    PROPERTY(after->did_step <= 1u && after->found_inf <= 1u && after->stuck <= 1u,
             "a step's flags are 0 or 1");
    PROPERTY(after->steps == before->steps + after->did_step, "steps counts the steps taken");
    PROPERTY(after->skipped == before->skipped + !after->did_step, "skipped counts the others");
    if (before->loss_scale >= 1.17549435e-38f && before->loss_scale <= 8.5e37f)
        PROPERTY(after->norm >= 0.0 && after->clip_factor >= 0.0f && after->clip_factor <= 1.0f,
                 "the norm is no NaN, and the clip factor in [0, 1], where 1 / scale is normal");
}

/* Three more steps, the second with infinite gradients. */
static void check_steps(machine *m) {
    static view before, after;
    uint32_t    k;
    for (k = 0; k < 3; k++) {
        const int enabled = !amp_optimizer_scaler(&m->opt)->disabled;
        int       i, grads = 0;
        for (i = 0; i < m->num_tensors; i++)
            if (m->opt.plan->table[i].grad && m->n[i]) grads = 1;
        look(m, &before);
        machine_step(m, k, k == 1);
        look(m, &after);
        if (!grads) continue; /* whether such a step is one is not told in a state */
        check_status(&before.status, &after.status);
        if (k == 1 && enabled)
            PROPERTY(!after.status.did_step, "a step with an infinite gradient is skipped");
        if (!after.status.did_step)
            PROPERTY(memcmp(before.masters, after.masters, sizeof after.masters) == 0 &&
                         memcmp(before.models, after.models, sizeof after.models) == 0,
                     "a skipped step changes no weight");
    }
}

/* Load one file into a loader, and see what has become of it. */
static void check_load(const setup *loader, const setup *writer, unsigned how, state *file,
                       int is_edited) {
    static machine m;
    static view    before, after;
    amp_result     result;
    uint32_t       k;
    machine_start(&m, loader);
    for (k = 0; k < 5 && (how & 4u); k++) machine_step(&m, k, k == 1);
    look(&m, &before);
    result = load(&m, file);
    PROPERTY(strlen(amp_problem()) < 200 && (result == AMP_OK || amp_problem()[0]), "an error is told");
    PROPERTY(strcmp(amp_result_string(result), amp_result_string((amp_result)12345)) != 0,
             "the result is one that amp_result_string knows");
    if (sums_are_wrong(file)) PROPERTY(result != AMP_OK, "a file whose sums are wrong is refused");
    if (!is_edited && loader == writer)
        PROPERTY_OF(result == AMP_OK, "an optimizer loads its own state",
                    amp_result_string(result));
    if (!is_edited && loader->kind != writer->kind)
        PROPERTY(result != AMP_OK, "a state of another kind is refused");
    if (result != AMP_OK) {
        look(&m, &after);
        PROPERTY_OF(memcmp(&before, &after, sizeof before) == 0, "an error changes nothing",
                    amp_result_string(result));
        check_steps(&m);
    } else {
        check_numbers(&m);
        check_saves(&m);
        check_steps(&m);
        check_saves(&m);
    }
    amp_optimizer_free(&m.opt);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static state file, swept;
    fuzz_bytes   b      = {data, data + size};
    const setup *loader = &setups[fuzz_u8(&b) % NUM_SETUPS];
    const setup *writer = &setups[fuzz_u8(&b) % NUM_SETUPS];
    const unsigned how    = fuzz_u8(&b);
    const int      sweeps = (how & 8u) && loader == writer && b.end - b.at == 1;
    const uint64_t number = sweeps ? numbers[fuzz_u8(&b) % NUM_NUMBERS] : 0;
    size_t         word;
    int            edits;
    make_states();
    file = saved[writer - setups];
    for (edits = 0; b.at < b.end && edits < 32; edits++) edit_once(&file, &b);
    if (!sweeps) {
        if (edits && !(how & 1u)) seal(&file, !(how & 2u));
        check_load(loader, writer, how, &file, edits > 0);
    }
    for (word = 0; sweeps && word < file.size / 8; word++) {
        snprintf(fuzz_where, sizeof fuzz_where, ", at word %d", (int)word);
        swept = file;
        ampi_put_le(swept.bytes + 8 * word, number);
        if (!(how & 1u)) seal(&swept, !(how & 2u));
        check_load(loader, writer, how, &swept, 1);
    }
    fuzz_where[0] = '\0';
    return 0;
}
