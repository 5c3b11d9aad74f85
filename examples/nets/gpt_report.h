/* gpt_report.h - the options of gpt.c and gpt_cuda.cu, the text, and the words for train_compare.h

   C and C++. PROGRAM, the program's name, is defined before this is included.                    */

#ifndef GPT_REPORT_H
#define GPT_REPORT_H

#include "../support/train_cli.h"
#include "../support/train_numbers.h"

#include <string.h>

#define PICTURE PROGRAM "_loss.svg"

enum { MAX_LAYERS = 48, HELD_WINDOWS = 64 };

/* -------------------------------------------------------------------------------------- options */

typedef struct options {
    const char *text, *prompt, *policy, *tier, *out, *save, *resume;
    int         layers, width, heads, context, batch, steps, seeds, dtype, write;
    int         save_every, stop_after, check, overflow;
    float       lr;
    int         gpu; /* nonzero: with --overflow, but neither policy, tier, writing, --check,
                        --report, --storage nor --muon */
    const char *report;
    int         storage; /* of masters and moments: a row of train_storage.h */
    int         muon;
} options;

#include "../support/train_compare.h" /* report, of all that have such options */
#include "../support/train_storage.h"

static const options *standard(void); /* the program's */

static void print_help(void) {
    const options *o = standard();
    char           steps[16];
    sprintf(steps, "%d", o->steps);
    printf("usage: " PROGRAM " [options]\n\n"
           "Train a GPT on a text's bytes in fp32, fp16 and bf16%s.\n\n"
           "  --text FILE       what to learn; a tenth of it is held out (%s)\n"
           "  --layers N  --width N  --heads N  --context N    the network (%d, %d, %d, %d)\n",
           o->gpu ? " on a GPU; compare" : "; compare, and let it write", o->text, o->layers, o->width,
           o->heads, o->context);
    print_first_options(o, steps);
    if (o->gpu)
        printf("  --overflow N      make the loss inf in the Nth turn, which must be skipped\n");
    else
        printf("  --prompt TEXT     what the writing continues (\"%s\")\n"
               "  --write N         bytes to write (%d)\n"
               "  --muon            Muon for the matrices of blocks, AdamW for the rest\n"
               "  --storage NAME    masters and moments in fewer bytes, as examples/state.c\n"
               "                    compares them (fp32); but for fp32+... with --dtype bf16:\n"
               "                   ",
               o->prompt, o->write);
    for (int s = 0; !o->gpu && s < NUM_STORAGES; s++)
        printf(" %s%s", storage_names[s], s + 1 == NUM_STORAGES ? "\n" : s == 5 ? "\n                   " : "");
    print_last_options(o, o->gpu ? NULL : "op:bmm=fp32, block0=fp32, head=fp32", "--dtype");
}

/* Products too small for tiles, and few steps: the machinery runs, and nothing is learned well. */
static void make_quick(options *o) {
    o->layers = 2, o->width = 64, o->heads = 4, o->context = 32;
    o->batch = 4, o->steps = 40, o->seeds = 2, o->write = 80;
}

static void make_check(options *o) {
    o->layers = 2, o->width = 32, o->heads = 2, o->context = 16;
    o->batch = 3, o->steps = 10, o->check = 1;
}

static options parse_options(int argc, char **argv) {
    options   o   = *standard();
    const int gpu = o.gpu;
    char      value[64];
    const known_option own[] = {
        word_option("--text", &o.text), size_option("--layers", &o.layers, MAX_LAYERS),
        size_option("--width", &o.width, 4096), size_option("--heads", &o.heads, 256),
        size_option("--context", &o.context, 4096),
        gpu ? count_option("--overflow", &o.overflow, 1000000)
            : count_option("--write", &o.write, 1000000),
        word_option("--prompt", &o.prompt),
        choice_option("--storage", storage_names, &o.storage), flag_option("--muon", &o.muon)};
    parse_all(&o, argc, argv, own, sizeof own / sizeof *own - (gpu ? 3 : 0), print_help,
              make_quick, gpu ? NULL : make_check);
    keep_inputs(o.text, o.resume, o.save, o.report);
    sprintf(value, "--width %d --heads %d", o.width, o.heads);
    if (o.width % o.heads != 0)
        fail(2, value, "the width is no multiple of the heads", "choose another --width");
    if (o.check && o.muon) fail(2, "--muon", "changes no gradient", "leave out it or --check");
    sprintf(value, "--storage %s", storage_names[o.storage]);
    if (storages[o.storage].master != AMP_FORMAT_F32 && o.dtype != AMP_BF16)
        fail(2, value, "has masters beside models in bf16 alone", "add --dtype bf16");
    return o;
}

/* ----------------------------------------------------------------------------------------- text */

typedef struct text {
    unsigned char *bytes, *train, *held;
    size_t         num_train, num_held;
    unsigned long  checksum; /* of the file */
} text;

static size_t held_windows(const text *t, size_t context) {
    const size_t windows = (t->num_held - 1) / context;
    return windows < HELD_WINDOWS ? windows : (size_t)HELD_WINDOWS;
}

/* Every tenth piece of 2048 bytes is held out (of less in a short text), so that both parts are of
   the same kind. */
static void load_text(text *t, const options *o) {
    char   problem[96];
    FILE  *f = fopen(o->text, "rb");
    size_t room = 1 << 16, size = 0, got, piece;
    if (!f)
        fail(1, o->text, strerror(errno),
             o->text == standard()->text ? "run this beside amp.h, or give a file with --text"
                                         : "give a file that can be read");
    unsigned char *all = (unsigned char *)need(room, 1);
    while ((got = fread(all + size, 1, room - size, f)) > 0) {
        size += got;
        if (size < room) continue;
        if (size > 200000000) fail(1, o->text, "is longer than 200 MB", "give a shorter --text");
        all = (unsigned char *)realloc(all, room *= 2);
        if (!all) fail(1, o->text, "is too large for memory", "give a smaller file");
    }
    if (ferror(f)) fail(1, o->text, "cannot be read", "give a text file with --text");
    fclose(f);
    piece = size / 10 < 2048 ? size / 10 : 2048;
    if (piece < (size_t)o->context + 2) {
        sprintf(problem, "has %lu bytes, fewer than ten contexts of %d", (unsigned long)size, o->context);
        fail(1, o->text, problem, "give a longer --text");
    }
    t->bytes = (unsigned char *)need(size, 1);
    t->train = t->bytes;
    for (int held = 0; held < 2; held++) {
        if (held) t->held = t->bytes + t->num_train;
        for (size_t i = 0; i < size; i += piece) {
            const size_t count = size - i < piece ? size - i : piece;
            if ((i / piece % 10 == 9) != held) continue;
            if (held) memcpy(t->held + t->num_held, all + i, count);
            else memcpy(t->train + t->num_train, all + i, count);
            *(held ? &t->num_held : &t->num_train) += count;
        }
    }
    t->checksum = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < size; i++)
        t->checksum = ((t->checksum ^ all[i]) * 16777619u) & 0xffffffffu;
    free(all);
}

/* --------------------------------------------------------------------------------------- report */

static const subject gpt_subject = {
    PROGRAM, "loss", " in nats per byte", 4, 3, 0.005, 0, "tokens", 0.0, PICTURE,
    "held-out loss, nats per byte", "loss in training, nats per byte"};

static void report_text(report *r, const text *t, const char *machine) {
    const options *o = &r->o;
    report_init(r, &gpt_subject, (double)o->batch * o->context, machine);
    printf("%s: %lu bytes to learn, %lu held out\n", o->text, (unsigned long)t->num_train,
           (unsigned long)t->num_held);
    printf("%s of width %d, %s; %s of %d x %d bytes; products by %s\n",
           counted((size_t)o->layers, "block"), o->width, counted((size_t)o->heads, "head"),
           counted((size_t)o->steps, "step"), o->batch, o->context, machine);
    fflush(stdout);
}

#endif /* GPT_REPORT_H */
