/* ncf_report.h - the options of ncf.c, and the words for train_compare.h

   Nothing here knows the network.                                                                */

#ifndef NCF_REPORT_H
#define NCF_REPORT_H

#include "ncf_data.h"

#define PICTURE "ncf_hits.svg"

enum { NEGATIVES = 4, ON_THE_WAY = 1000 }; /* users who are asked while training goes on */

/* -------------------------------------------------------------------------------------- options */

typedef struct options {
    const char *data, *policy, *tier, *out, *save, *resume;
    int         users, items, width, batch, steps, seeds, dtype, save_every, stop_after, check;
    float       lr;
    const char *report;
} options;

#include "../support/train_compare.h" /* report, of all that have such options */

static const options standard = {NULL, NULL, NULL, "build", NULL, NULL,
                                 6000, 3000, 128, 256, 2000, 3, ALL_TYPES, 100, 0, 0, 3e-3f, NULL};

static void print_help(void) {
    const options *o = &standard;
    char           steps[16];
    sprintf(steps, "%d", o->steps);
    printf("usage: ncf [options]\n\n"
           "Train a recommender (neural collaborative filtering) in fp32, fp16 and bf16;\n"
           "compare.\n\n"
           "  --data FILE       who liked what: lines of a user and an item, those of a user\n"
           "                    in the order of time; other columns are ignored\n"
           "                    (without it a random process makes them)\n"
           "  --users N  --items N                of that process (%d, %d)\n"
           "  --width N         of the first layer; tables and other layers follow (%d;\n"
           "                    256 is MLPerf's)\n", o->users, o->items, o->width);
    print_first_options(o, steps);
    print_last_options(o, "layer0=fp32, predict=fp32", "--dtype");
}

/* Few users and products too small for tiles: the machinery runs, and a little is learned. */
static void make_quick(options *o) {
    o->users = 1000, o->items = 500, o->width = 32;
    o->batch = 128, o->steps = 800, o->seeds = 2, o->lr = 1e-2f;
}

static void make_check(options *o) {
    o->users = 60, o->items = 150, o->width = 32;
    o->batch = 128, o->steps = 10, o->check = 1;
}

static options parse_options(int argc, char **argv) {
    options            o = standard;
    char               value[32];
    const known_option own[] = {word_option("--data", &o.data),
                                size_option("--users", &o.users, 10000000),
                                size_option("--items", &o.items, 10000000),
                                size_option("--width", &o.width, 1024)};
    parse_all(&o, argc, argv, own, sizeof own / sizeof *own, print_help, make_quick, make_check);
    keep_inputs(o.data, o.resume, o.save, o.report);
    sprintf(value, "--width %d", o.width);
    if (o.width % 4 != 0) fail(2, value, "a quarter of it is no whole number", "choose another");
    sprintf(value, "--items %d", o.items);
    if (o.items < MOST + CANDIDATES)
        fail(2, value, "is fewer than a user meets and is asked about", "choose at least 147");
    return o;
}

/* --------------------------------------------------------------------------------------- report */

static void load_interactions(interactions *d, const options *o) {
    char users[32];
    if (o->data) read_interactions(d, o->data);
    else draw_interactions(d, (size_t)o->users, (size_t)o->items);
    sprintf(users, "--users %d", o->users);
    refuse_batch(o->data ? o->data : users, d->num_train, "interaction", o->batch);
}

static const subject ncf_subject = {
    "ncf", "hit rate at 10, %", "", 2, 1, 0.5, 1, "interactions", 0.0, PICTURE,
    "hit rate at 10 in %, of 1000 users, held out", "cross-entropy in training"};

static void report_interactions(report *r, const interactions *d) {
    const options *o = &r->o;
    report_init(r, &ncf_subject, (double)o->batch * (1 + NEGATIVES), amp_cpu_tier());
    printf("%s:\n%s, %s, %s to learn, %lu held out\n", d->name, counted(d->num_users, "user"),
           counted(d->num_items, "item"), counted(d->num_train, "interaction"), (unsigned long)d->num_held);
    printf("hit rate at 10 of what is popular: %.1f", d->by_popularity);
    if (!o->data) printf("; of the process itself: %.1f", d->by_process);
    printf("\nwidth %d; %s of %s and %d sampled for each; products by %s\n", o->width,
           counted((size_t)o->steps, "step"), counted((size_t)o->batch, "interaction"), NEGATIVES,
           amp_cpu_tier());
    fflush(stdout);
}

/* What train_compare.h does not know. */
typedef struct summary {
    double ndcg[3];           /* of held-out interactions */
    double touched, speed[3]; /* rows in a step, in percent; of such a step, beside a dense one */
} summary;

static void print_summary(const report *r, const summary *s) {
    printf("NDCG at 10:");
    for (int v = 0; v < 3; v++)
        if (type_on(&r->o, v)) printf(" %s %.4f", type_names[v], s->ndcg[v]);
    printf("\na step of the tables, with %.1f %% of the rows, beside a dense one:\n ", s->touched);
    for (int v = 0; v < 3; v++)
        if (type_on(&r->o, v)) printf(" %s %.1fx", type_names[v], s->speed[v]);
    printf("\n\n");
}

#endif /* NCF_REPORT_H */
