/* gpt_setup.h - what gpt.c and gpt_cuda.cu share: the tensors of a GPT, their first values, and the
   optimizer

   Both programs begin with the same numbers and see the same text, so their losses can be compared.
   C and C++.                                                                                     */

#ifndef GPT_SETUP_H
#define GPT_SETUP_H

#include "gpt_report.h" /* options, text */

/* The tensors: embeddings and the last norm, then PER_BLOCK of each block. A bias follows its
   weight, and of a norm its gain. */
enum { EMBEDDING, POSITIONS, LAST_GAIN, LAST_BIAS, FIRST_BLOCK };
enum { GAIN1, BIAS1, QKV, QKV_BIAS, OUT, OUT_BIAS, GAIN2, BIAS2, UP, UP_BIAS, DOWN, DOWN_BIAS,
       PER_BLOCK };
enum { MATRICES = 4 }; /* of a block */
enum { VOCABULARY = 256, MAX_TENSORS = FIRST_BLOCK + MAX_LAYERS * (PER_BLOCK + MATRICES) };

static int tensor_of(size_t l, int part) { return FIRST_BLOCK + (int)l * PER_BLOCK + part; }
static int num_tensors(const options *o) { return tensor_of((size_t)o->layers, 0); }

/* Which part of a block is tensor i? -1: it is of none. */
static int part_of(int i) { return i < FIRST_BLOCK ? -1 : (i - FIRST_BLOCK) % PER_BLOCK; }

/* With --muon: is tensor i Muon's, a matrix of a block? Behind the tensors are their momenta, then. */
static inline int is_muons(const options *o, int i) {
    const int k = i < num_tensors(o) ? part_of(i) : -1;
    return o->muon && (k == QKV || k == OUT || k == UP || k == DOWN);
}

/* Masters are random around mean; a norm or a bias has no deviation. */
typedef struct beginning {
    char   name[96];
    size_t count;
    float  mean, deviation;
} beginning;

/* What decides how a run ends, for name_run. */
static void describe_run(char run[RUN_SIZE], const options *o, const text *t, amp_dtype type) {
    sprintf(run, "run of " PROGRAM " --dtype %s --layers %d --width %d --heads %d --context %d "
                 "--batch %d --steps %d --lr %.6g --storage %s --muon %s --text of-checksum-%08lx;",
            type_names[type], o->layers, o->width, o->heads, o->context, o->batch, o->steps,
            (double)o->lr, storage_names[o->storage], o->muon ? "yes" : "no", t->checksum);
}

/* GPT-2's start: deviation 0.02, less for what is added to the stream, by the number of adders. */
static beginning beginning_of(const options *o, int i) {
    static const struct {
        const char *name;
        size_t      count; /* times width, but of weights times width again */
        int         weight, adds;
    } part[PER_BLOCK] = {{"norm1.gain", 1, 0, 0}, {"norm1.bias", 1, 0, 0}, {"qkv", 3, 1, 0},
                         {"qkv.bias", 3, 0, 0},   {"out", 1, 1, 1},        {"out.bias", 1, 0, 0},
                         {"norm2.gain", 1, 0, 0}, {"norm2.bias", 1, 0, 0}, {"up", 4, 1, 0},
                         {"up.bias", 4, 0, 0},    {"down", 4, 1, 1},       {"down.bias", 1, 0, 0}};
    const size_t c = (size_t)o->width;
    const int    k = part_of(i);
    beginning    b;
    b.count     = c;
    b.mean      = k == GAIN1 || k == GAIN2 || i == LAST_GAIN ? 1.0f : 0.0f;
    b.deviation = i <= POSITIONS ? 0.02f : 0.0f;
    if (i == EMBEDDING) {
        b.count = VOCABULARY * c;
        strcpy(b.name, "embedding");
    } else if (i == POSITIONS) {
        b.count = (size_t)o->context * c;
        strcpy(b.name, "positions");
    } else if (k < 0) {
        sprintf(b.name, "norm.%s", i == LAST_GAIN ? "gain" : "bias");
    } else {
        b.count = part[k].count * c * (part[k].weight ? c : 1);
        if (part[k].weight) b.deviation = 0.02f;
        if (part[k].adds) b.deviation = 0.02f / sqrtf(2.0f * (float)o->layers);
        sprintf(b.name, "block%d.%s", (i - FIRST_BLOCK) / PER_BLOCK, part[k].name);
    }
    return b;
}

static uint64_t seed_of_weights(int seed) { return (uint64_t)seed * 1000003u + 1; }

static float random_weight(const beginning *b, uint64_t *rng) {
    return b->mean + 1.7320508f * b->deviation * random_uniform(rng);
}

/* AdamW with clipping. */
static amp_optimizer_desc training_in(amp_dtype type) {
    amp_optimizer_desc desc = adamw_in(type);
    desc.beta2        = 0.95;
    desc.weight_decay = 0.1f;
    desc.max_norm     = 1.0f;
    return desc;
}

#endif /* GPT_SETUP_H */
