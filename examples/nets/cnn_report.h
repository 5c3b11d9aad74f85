/* cnn_report.h - the options of cnn.c, its images and pictures, and the words for train_compare.h

   Nothing here knows the networks.                                                               */

#ifndef CNN_REPORT_H
#define CNN_REPORT_H

#include "../support/train_data.h"

/* -------------------------------------------------------------------------------------- options */

typedef struct options {
    const char *data, *policy, *tier, *out, *save, *resume;
    int         task, width, batch, steps, seeds, dtype, save_every, stop_after, check;
    float       lr;
    const char *report;
} options;

#include "../support/train_compare.h" /* report, of all that have such options */

enum { CNN, UNET, NUM_TASKS };
static const char *const task_names[] = {"cnn", "unet", "both", NULL};
static const int         standard_steps[2][NUM_TASKS] = {{300, 200}, {150, 60}}; /* digits, else */
static const options     standard = {NULL, NULL, NULL, "build", NULL, NULL,
                                     NUM_TASKS, 64, 32, 0, 3, ALL_TYPES, 25, 0, 0, 2e-3f, NULL};
enum { ON_THE_WAY = 256 }; /* held-out images that are looked at while training goes on */
#define NOISE 0.25f /* deviation, of pixels of 0 to 1 */

static int task_on(const options *o, int t) { return o->task == NUM_TASKS || o->task == t; }

static void print_help(void) {
    const options *o = &standard;
    char           steps[96];
    sprintf(steps, "cnn %d, unet %d; Fashion-MNIST: %d, %d", standard_steps[0][CNN],
            standard_steps[0][UNET], standard_steps[1][CNN], standard_steps[1][UNET]);
    printf("usage: cnn [options]\n\n"
           "Train a residual classifier and a denoiser in fp32, fp16 and bf16, and compare.\n\n"
           "  --task cnn|unet|both                what to train (both)\n"
           "  --data digits|fashion|PATH          as build/train takes it: Debian's\n"
           "                                      dataset-fashion-mnist if installed, at\n"
           "                                      half the size, else examples/digits/digits.csv.gz\n"
           "  --width N         channels of the first layers (%d)\n", o->width);
    print_first_options(o, steps);
    print_last_options(o, "op:linear=fp32, stem=fp32, block1.*=fp32", "--task and one --dtype");
}

/* Products too small for tiles, and few steps: the machinery runs, and nothing is learned well. */
static void make_quick(options *o) {
    o->width = o->batch = 16, o->steps = 100, o->seeds = 2, o->lr = 5e-3f;
}

static void make_check(options *o) {
    o->width = 8, o->batch = 4, o->steps = 10, o->check = 1;
}

static options parse_options(int argc, char **argv) {
    options            o = standard;
    const known_option own[] = {word_option("--data", &o.data),
                                choice_option("--task", task_names, &o.task),
                                size_option("--width", &o.width, 512)};
    parse_all(&o, argc, argv, own, sizeof own / sizeof *own, print_help, make_quick, make_check);
    keep_inputs(data_path(o.data), o.resume, o.save, o.report);
    if (one_run(&o) && o.task == NUM_TASKS)
        fail(2, "--save, --resume, --stop-after", "need a single run",
             "add --task cnn or unet");
    return o;
}

/* How long a network is trained, if nobody says. */
static options options_of(const options *all, int task, const dataset *data) {
    options o = *all;
    o.task = task;
    if (all->task == NUM_TASKS && task != CNN) o.report = NULL; /* of both the first */
    if (!o.steps) o.steps = standard_steps[data->side != 8][task];
    refuse_stop(o.stop_after, o.steps, "step");
    return o;
}

/* --------------------------------------------------------------------------------------- images */

/* Images of 28x28 are shrunk to 14x14, by means of 2x2 pixels: a quarter of the time. */
static void load_images(dataset *data, const options *o) {
    load_data(data, o->data);
    refuse_batch(data->name, data->num_train, "image", o->batch);
    if (data->side == 8) return;
    const size_t side = data->side / 2, line = data->side;
    for (size_t i = 0; i < (data->num_train + data->num_test) * side * side; i++) {
        const float *x = data->image + i / side * 2 * line + i % side * 2;
        data->image[i] = 0.25f * (x[0] + x[1] + x[line] + x[line + 1]);
    }
    data->side   = side;
    data->pixels = side * side;
}

/* ----------------------------------------------------------------------------- report, pictures */

static const subject subjects[NUM_TASKS] = {
    {"cnn", "accuracy %", "", 2, 1, 0.4, 1, "images", 0.0, "cnn_loss.svg",
     "held-out cross-entropy", "cross-entropy in training"},
    {"unet", "loss", " (squared error of pixels of 0 to 1)", 5, 5, 0.02, 0, "images", 0.0,
     "unet_loss.svg", "held-out squared error", "squared error in training"}};

static void report_images(report *r, const dataset *data, int task) {
    const options *o = &r->o;
    report_init(r, &subjects[task], o->batch, amp_cpu_tier());
    printf("%s: %s,\nin %lux%lu; ", task_names[task], data->name, (unsigned long)data->side,
           (unsigned long)data->side);
    printf("width %d; %s of %s; products by %s\n", o->width, counted((size_t)o->steps, "step"),
           counted((size_t)o->batch, "image"), amp_cpu_tier());
    fflush(stdout);
}

/* An image of each class, with noise and as the networks clean it. */
typedef struct gallery {
    size_t shown[NUM_CLASSES];
    float *noisy[NUM_CLASSES], *result[3][NUM_CLASSES];
} gallery;

static void gallery_init(gallery *g, const dataset *data) {
    for (size_t i = 0; i < NUM_CLASSES; i++) { /* the first held-out image of class i */
        g->shown[i] = data->num_train;
        for (size_t k = data->num_test; k-- > 0;)
            if (data->label[data->num_train + k] == (int)i) g->shown[i] = data->num_train + k;
        g->noisy[i] = need(data->pixels, sizeof(float));
        for (int v = 0; v < 3; v++) g->result[v][i] = need(data->pixels, sizeof(float));
    }
}

static void gallery_free(gallery *g) {
    for (size_t i = 0; i < NUM_CLASSES; i++) {
        free(g->noisy[i]);
        for (int v = 0; v < 3; v++) free(g->result[v][i]);
    }
}

static void draw_gallery(const options *o, const dataset *data, const gallery *g) {
    image_row rows[5] = {{"noisy", {0}}, {"clean", {0}}};
    int       num_rows = 2;
    for (int i = 0; i < SHOWN; i++) {
        rows[0].image[i] = g->noisy[i];
        rows[1].image[i] = data->image + g->shown[i] * data->pixels;
    }
    for (int v = 0; v < 3; v++) {
        if (!type_on(o, v)) continue;
        for (int i = 0; i < SHOWN; i++) rows[num_rows].image[i] = g->result[v][i];
        rows[num_rows++].label = type_names[v];
    }
    draw_images(o->out, "unet_images.svg", "Held-out images, denoised", rows, num_rows,
                o->dtype == ALL_TYPES ? 2 : -1, data->side);
    printf("picture: %s/unet_images.svg\n\n", o->out);
}

#endif /* CNN_REPORT_H */
