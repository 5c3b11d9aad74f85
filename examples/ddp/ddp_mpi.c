/* ddp_mpi.c - training on several ranks with MPI, with the same bits on any number of them

   Data parallelism with sharded state (ZeRO stage 1): every rank has the whole model, in 16 bits,
   and about one part in N of masters, moments and gradient sums, in fp32 (zero.h, which this
   program gives a network). A step has M numbered micro-batches. An all-to-all sends gradients to
   their owners, who add them as a binary tree over the numbers; an all-gather brings models back.
   So neither the loss, nor a weight, nor a saved state depends on N.

   READ  from top to bottom: ranks (deadline and pulses), what zero.h asks of them, the trainer, its
   steps. The network of layers is in ddp_net.h, options and tables in ddp_report.h, images in
   train_data.h. ddp_nccl.cu does the same on NVIDIA GPUs.

   RUN   mpicc -O3 -I. examples/ddp/ddp_mpi.c -o ddp_mpi -lm && mpirun -n 4 ./ddp_mpi
         in the directory of amp.h; without mpirun it is one rank. See also --help.

   OVERLAP  A layer's gradient is sent as soon as it is there, and backward goes on; owners wait
   only before they add. Forward waits for a layer's model only when it needs it. MPI moves data
   only while it is called, so products call it after every 256 rows. --late sends after backward,
   to compare.

   HOW FAR IT SCALES  P parameters, N ranks, k = M / N. The link of each rank carries, in each
   direction,

       2 P (N-1)/N bytes in a step      gradients, if k is 1: those of a reduce-scatter
       4 P (N-1)/N bytes in a step      if k is another power of two
       2 or 4 P (N-1)/N for each block  else: zero.h says what a block is
       2 P (N-1)/N bytes in a step      models, by an all-gather
       P / 2048 bytes in a step         reduce: a double for a chunk of 16384; left out below

   since each rank has an equal part of every layer, to within a chunk. The program compares its
   counts with these at its end. The table is arithmetic on data sheets, not measured: H100s with 80
   GB at 3.35 TB/s, 400 of their 989 Tflop/s in bf16, 450 GB/s of NVLink in each direction (N = 8),
   50 GB/s of NDR InfiniBand for each GPU (N = 1024); 32 layers, micro-batches of b = 8192 tokens,
   6 P b flop each; k = 1.

          P     N    GB on a link     seconds:          compute    longer by, with   bytes for
                    grads + models  link    memory     6 P b     and without       each
                                                                   overlap           parameter
        7e9     1    0    +  0        0       0.092      0.86       11 %    11 %      20
        7e9     8   12.25 + 12.25     0.054   0.033      0.86        4 %    10 %       8
        7e9  1024   13.99 + 13.99     0.56    0.021      0.86        4 %    68 %       6.02
       70e9     1    0    +  0        0       0.92       8.6        11 %    11 %      20
       70e9     8   122.5 + 122.5     0.54    0.33       8.6         4 %    10 %       8
       70e9  1024   139.9 + 139.9     5.6     0.21       8.6         4 %    68 %       6.02

   memory   10 P + 8 P / N bytes to add what all ranks sent (6 P on one), and 38 P / N for AdamW,
            check, clearing. Longer by: memory, and what stays of the link.
   bytes    2 model, 2 gradient, 2 received (not with one rank), 16 / N: 140, 56, 42 GB for 7e9.
            With k above 1 sums are of 4 bytes: 4 log2 k more, and 4 received instead of 2. Sums
            that wait take 4 log2 N / N of the largest tensor.
   overlap  What stays of the exchanges: gradients of the layer next to the input, when backward
            ends, and its model, when forward begins: a 32nd. Messages get small: 47 KB on 1024
            ranks if a layer has 9 tensors that are sent one by one.

   Where it stops:
   - Memory. 6 bytes a parameter stay on each GPU for any N: some 13e9 parameters in 80 GB, less
     activations. 70e9 do not fit; cut in 8 by tensor parallelism over NVLink they are 8.75e9 for
     each of 128 ranks: 54 GB, 0.69 s of link beside 1.08 s of computing.
   - The link. Its bytes do not fall with N, and P cancels: gradients can hide behind backward, of
     4 P b flop, if b is at least flop/s / (2 bytes/s), and models behind forward if it is twice
     that: 4000 and 8000 tokens on InfiniBand, 444 and 889 on NVLink. A larger k shares both
     exchanges among k backwards.
   - M. A batch of a given size feeds at most M ranks; then a step takes one micro-batch and 4 P
     bytes on the link, and more ranks only idle.                                                 */

#define _POSIX_C_SOURCE 200809L /* for train_data.h; alarm, clock_gettime */

#include <mpi.h>
#include <stdlib.h>

#define PROGRAM "ddp_mpi"
#define END(code) end_all_ranks(code)
static void end_all_ranks(int code) {
    int count;
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    if (count > 1) MPI_Abort(MPI_COMM_WORLD, code); /* and says so in lines of its own */
    MPI_Finalize();
    exit(code);
}

#define AMP_IMPLEMENTATION
#include "amp.h"

#include "../support/train_data.h"
#include "ddp_report.h" /* options, table, memory; zero.h */

#include <sched.h>
#include <unistd.h>

static void check(amp_result r) {
    if (r != AMP_OK) fail(1, "amp.h", amp_problem(), "this is a bug in ddp_mpi.c");
}

#include "ddp_net.h" /* the network */

enum { TENSORS = 2 * LAYERS, OPEN = 4, HANG_SECONDS = 10 };
static const float learning_rate = 2e-3f;

/* --------------------------------------------------------------------------------------- ranks
   Whoever waits for others polls, and tells them that it is alive; whoever has waited for longer
   than the deadline says which rank was silent longest, and ends all. MPI_Init, MPI_Finalize and a
   file system that hangs cannot be polled: for these there is alarm, which ends a process that has
   not polled for long, whereupon mpirun ends the others.                                         */

typedef struct peer {
    double      heard;   /* when, in seconds                    */
    long        step;    /* the one it was in                   */
    MPI_Request sending; /* the pulse on its way there, or none */
    long        sent;    /* what it says                        */
} peer;

static struct ranks {
    int         rank, count;
    double      deadline, waited, beat; /* beat: when the last pulse was sent */
    long        step;
    MPI_Comm    work, pulse;            /* pulses do not mix with the work    */
    peer       *peers;
} ranks;

static void join_ranks(int *argc, char ***argv) {
    alarm(HANG_SECONDS); /* until the first pulse */
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &ranks.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks.count);
    MPI_Comm_dup(MPI_COMM_WORLD, &ranks.work);
    MPI_Comm_dup(MPI_COMM_WORLD, &ranks.pulse);
    ranks.deadline = HANG_SECONDS;
    ranks.peers    = need((size_t)ranks.count, sizeof *ranks.peers);
    for (int r = 0; r < ranks.count; r++) {
        ranks.peers[r].heard   = seconds();
        ranks.peers[r].sending = MPI_REQUEST_NULL;
    }
}

/* Hear the others. MPI moves its data on, too: it does so while it is called. */
static void hear(void) {
    MPI_Status status;
    int        there;
    long       step;
    for (;;) {
        MPI_Iprobe(MPI_ANY_SOURCE, 0, ranks.pulse, &there, &status);
        if (!there) return;
        MPI_Recv(&step, 1, MPI_LONG, status.MPI_SOURCE, 0, ranks.pulse, MPI_STATUS_IGNORE);
        ranks.peers[status.MPI_SOURCE].heard = seconds();
        ranks.peers[status.MPI_SOURCE].step  = step;
    }
}

/* Be heard: twenty times within a deadline, by each rank that has read what it was told before. */
static void beat(void) {
    const double now = seconds();
    hear();
    if (now - ranks.beat < ranks.deadline / 20) return;
    ranks.beat = now;
    alarm((unsigned)ranks.deadline + HANG_SECONDS);
    for (int r = 0; r < ranks.count; r++) {
        peer *p = &ranks.peers[r];
        int   read;
        MPI_Test(&p->sending, &read, MPI_STATUS_IGNORE);
        if (!read || r == ranks.rank) continue;
        p->sent = ranks.step;
        MPI_Issend(&p->sent, 1, MPI_LONG, r, 0, ranks.pulse, &p->sending);
    }
}

/* Of the others, the one that was silent longest: who still polls was heard of a moment ago. */
static void give_up(const char *what) {
    char subject[64], problem[160];
    int  silent = ranks.rank ? 0 : 1;
    for (int r = 0; r < ranks.count; r++)
        if (r != ranks.rank && ranks.peers[r].heard < ranks.peers[silent].heard) silent = r;
    sprintf(subject, "rank %d in step %ld", ranks.rank, ranks.step);
    sprintf(problem, "%.40s took longer than %g s, and rank %d was last heard of %.1f s ago, in "
            "step %ld", what, ranks.deadline, silent, seconds() - ranks.peers[silent].heard,
            ranks.peers[silent].step);
    fail(3, subject, problem, "the last checkpoint is whole; --resume it");
}

/* A pause of more than a second between two looks is no waiting: this process was stopped. */
static void wait_for(int count, MPI_Request *requests, const char *what) {
    double looked = seconds(), waited = 0.0;
    for (int done = 0;;) {
        MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
        if (done) break;
        if (waited > ranks.deadline) give_up(what);
        beat();
        sched_yield(); /* tests have more ranks than processors */
        const double now = seconds();
        if (now - looked < 1.0) waited += now - looked;
        looked = now;
    }
    ranks.waited += waited;
}

static void meet(void) {
    MPI_Request r;
    MPI_Ibarrier(ranks.work, &r);
    wait_for(1, &r, "a meeting");
}

/* For zero.h, and for what one rank knows and the others count as 0. */
static amp_result reduce_over_ranks(void *user, double *sums, size_t num_sums, uint32_t *maxima,
                                    size_t num_maxima) {
    MPI_Request r[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    (void)user;
    MPI_Iallreduce(MPI_IN_PLACE, sums, (int)num_sums, MPI_DOUBLE, MPI_SUM, ranks.work, &r[0]);
    if (num_maxima)
        MPI_Iallreduce(MPI_IN_PLACE, maxima, (int)num_maxima, MPI_UINT32_T, MPI_MAX, ranks.work,
                       &r[1]);
    wait_for(2, r, "the sum over the ranks");
    return AMP_OK;
}

/* Every pulse is read before anybody leaves: Issend is done when it was. */
static void leave_ranks(void) {
    ranks.beat = 1e300; /* no more of them */
    for (int r = 0; r < ranks.count; r++) wait_for(1, &ranks.peers[r].sending, "the last pulses");
    meet();
    MPI_Comm_free(&ranks.pulse);
    MPI_Comm_free(&ranks.work);
    free(ranks.peers);
    alarm(HANG_SECONDS);
    MPI_Finalize();
}

/* ------------------------------------------------------------------------------------- trainer */

/* What is open of a tensor, with four numbers for each rank, which MPI reads until it is over. */
typedef struct route {
    void       *grad;
    MPI_Request open[OPEN];
    int         num_open, *numbers[OPEN];
} route;

typedef struct trainer {
    const options *o;
    mlp            net;
    zero           z;
    route          routes[TENSORS]; /* 2 l: the weight of layer l; 2 l + 1: its bias            */
    double        *loss;            /* of each micro-batch of the step, 0 if it is elsewhere    */
    double         sent, got, model_bytes; /* on this rank's link                               */
    double         waited;          /* seconds for gradients, in zero_step                      */
    int            in_step;
    size_t         num_params;
    memory         bytes;
} trainer;

static amp_status status_of(const trainer *t) {
    amp_status s;
    check(amp_optimizer_status(&t->z.opt, &s));
    return s;
}

/* amp_optimizer's allocator: malloc that counts. */
static void *count_malloc(void *total, size_t num_bytes) {
    *(double *)total += (double)num_bytes;
    return malloc(num_bytes);
}

static void count_free(void *total, void *bytes) {
    (void)total;
    free(bytes);
}

static amp_result wait_for_tensor(void *user, int i) {
    trainer     *t = user;
    route       *w = &t->routes[i];
    const double before = ranks.waited;
    wait_for(w->num_open, w->open, "an exchange of gradients or models");
    if (t->in_step) t->waited += ranks.waited - before;
    w->num_open = 0;
    return AMP_OK;
}

/* Bytes and places of spans that are not empty, as MPI wants them; returns where they begin. (For
   Open MPI, what is sent from where something is received is MPI_IN_PLACE.) */
static char *numbers_of(const zero_span *spans, int *bytes, int *at) {
    char *begin = NULL;
    for (int r = 0; r < ranks.count; r++)
        if (spans[r].bytes && (!begin || spans[r].at < begin)) begin = spans[r].at;
    for (int r = 0; r < ranks.count; r++) {
        bytes[r] = (int)spans[r].bytes; /* --width has a limit */
        at[r]    = spans[r].bytes ? (int)(spans[r].at - begin) : 0;
    }
    return begin;
}

static amp_result exchange(void *user, int i, int model, const zero_span *to,
                           const zero_span *from) {
    const int n = ranks.count;
    trainer  *t = user;
    route    *w = &t->routes[i];
    double    out = 0, in = 0;
    if (w->num_open == OPEN) wait_for_tensor(t, i);
    int  *numbers = w->numbers[w->num_open];
    char *sends = numbers_of(to, numbers, numbers + n);
    char *gets = numbers_of(from, numbers + 2 * n, numbers + 3 * n);
    for (int r = 0; r < n; r++) {
        if (r == ranks.rank) continue;
        out += (double)to[r].bytes;
        in += (double)from[r].bytes;
    }
    if (model) t->model_bytes += out > in ? out : in;
    else t->sent += out, t->got += in;
    MPI_Ialltoallv(sends, numbers, numbers + n, MPI_BYTE, gets, numbers + 2 * n, numbers + 3 * n,
                   MPI_BYTE, ranks.work, &w->open[w->num_open++]);
    return AMP_OK;
}

/* All ranks make the same weights from the same seed, and keep what is theirs. */
static void add_layers(trainer *t) {
    float   *weight[TENSORS];
    uint64_t rng = 1;
    for (int i = 0; i < TENSORS; i++) {
        const size_t l = (size_t)i / 2, in = t->net.width[l], out = t->net.width[l + 1];
        amp_tensor   tensor = {0};
        weight[i]        = i % 2 ? need(out, sizeof(float)) : mlp_weight(&t->net, l, &rng);
        tensor.name      = tensor_names[i];
        tensor.n         = i % 2 ? out : in * out;
        tensor.weight    = weight[i];
        tensor.grad_type = t->net.type;
        tensor.keep_fp32 = i % 2;
        check(zero_add(&t->z, &tensor));
        t->routes[i].grad = need(tensor.n, amp_dtype_size(t->net.type));
        for (int k = 0; k < OPEN; k++)
            t->routes[i].numbers[k] = need(4 * (size_t)ranks.count, sizeof(int));
        t->num_params += tensor.n;
    }
    const amp_result result = zero_prepare(&t->z);
    if (result != AMP_OK) fail(1, amp_result_string(result), zero_problem(&t->z), "start all ranks alike");
    for (int i = 0; i < TENSORS; i++) free(weight[i]);
}

static void trainer_init(trainer *t, const options *o, const dataset *data) {
    const zero_ranks   network = {ranks.rank, ranks.count, t, reduce_over_ranks, exchange,
                                  wait_for_tensor, NULL, NULL, NULL, NULL, NULL};
    amp_optimizer_desc desc = {0};
    t->o = o;
    mlp_init(&t->net, data, (amp_dtype)o->dtype, o->batch, o->width);
    t->net.pause = beat;

    desc.dtype     = t->net.type;
    desc.kind      = AMP_KIND_ADAMW;
    desc.max_norm  = o->clip;
    desc.allocator = (amp_allocator){count_malloc, count_free, &t->bytes.optimizer};
    if (o->dtype == AMP_F16) desc.scaler.growth_interval = 20; /* default 2000: for longer runs */
    else desc.scaler.preset = AMP_PRESET_NONE;
    check(zero_init(&t->z, &desc, &network, o->micro));
    add_layers(t);
    count_memory(&t->bytes, &t->z);
    t->loss = need((size_t)o->micro, sizeof(double));
}

static void trainer_free(trainer *t) {
    for (int i = 0; i < TENSORS; i++) {
        free(t->routes[i].grad);
        for (int k = 0; k < OPEN; k++) free(t->routes[i].numbers[k]);
    }
    free(t->loss);
    mlp_free(&t->net);
    zero_free(&t->z);
}

/* -------------------------------------------------------------------- micro-batches and steps */

static void forward(trainer *t, size_t rows, const uint64_t *number) {
    for (size_t l = 0; l < LAYERS; l++) {
        const void *weight = zero_model(&t->z, 2 * (int)l);
        const void *bias   = zero_model(&t->z, 2 * (int)l + 1);
        mlp_forward(&t->net, l, rows, weight, (const float *)bias, number);
        beat();
    }
}

/* --plant: what this rank itself owns overflows, and nobody else's check will see it. */
static void plant(trainer *t, int i) {
    const size_t size = amp_dtype_size(t->net.type);
    if (t->z.tensors[i].own > 0)
        memcpy((char *)t->routes[i].grad + t->z.tensors[i].first * size,
               infinity_of(t->net.type), size);
}

/* The gradients of a layer are there: their owners get them, while backward goes on. */
static void give_gradients(trainer *t, int l) {
    for (int i = 2 * l + 1; i >= 2 * l; i--) check(zero_gradient(&t->z, i, t->routes[i].grad));
}

static void backward(trainer *t, int planted) {
    for (int l = LAYERS; l-- > 0;) {
        route *w = &t->routes[2 * l];
        for (int i = 2 * l; i < 2 * l + 2; i++) check(zero_wait(&t->z, i)); /* the one before */
        mlp_gradient(&t->net, (size_t)l, w[0].grad, w[1].grad);
        for (int i = 2 * l; i < 2 * l + 2 && planted; i++) plant(t, i);
        if (!t->o->late) give_gradients(t, l);
        if (l > 0) mlp_back(&t->net, (size_t)l, zero_model(&t->z, 2 * l));
        beat();
    }
    for (int l = LAYERS; l-- > 0 && t->o->late;) give_gradients(t, l);
}

/* The loss is a mean over all images of the step, so that no sum of gradients, wherever it is made,
   is larger than that of the whole. */
static void run_micro(trainer *t, uint64_t step, int micro) {
    const options *o       = t->o;
    const uint64_t number  = step * (uint64_t)o->micro + (uint64_t)micro;
    const int      planted = micro == t->z.first && (uint64_t)o->plant_step == step &&
                        o->plant_rank == ranks.rank;
    const float images = (float)o->batch * (float)o->micro;
    mlp_load(&t->net, number);
    forward(t, t->net.rows, &number);
    t->loss[micro] = mlp_loss(&t->net, amp_optimizer_loss_scale(&t->z.opt) / images);
    backward(t, planted);
}

static void train_step(trainer *t, uint64_t step) {
    ranks.step = (long)step;
    memset(t->loss, 0, (size_t)t->o->micro * sizeof *t->loss);
    for (int m = t->z.first; m < t->z.first + t->z.each; m++) run_micro(t, step, m);
    t->in_step = 1;
    check(zero_step(&t->z, learning_rate));
    t->in_step = 0;
}

/* The mean of the step, of which each rank has a part: added in the order of micro-batches. */
static double loss_of_step(trainer *t) {
    double loss = 0.0;
    check(reduce_over_ranks(NULL, t->loss, (size_t)t->o->micro, NULL, 0));
    for (int i = 0; i < t->o->micro; i++) loss += t->loss[i];
    return loss / ((double)t->o->batch * t->o->micro);
}

/* ---------------------------------------------------------------------------- interrupted runs */

/* The numbers of the micro-batches follow from the counts of steps, which are saved. */
static void save(trainer *t, const char *path) {
    errno = 0;
    const amp_result result = zero_save(&t->z, path);
    int              full   = errno == ENOSPC; /* on any rank */
    if (result == AMP_OK) return;
    MPI_Allreduce(MPI_IN_PLACE, &full, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    cannot_save(&t->z, path, full);
}

static void resume(trainer *t, const char *path) {
    const amp_result result = zero_load(&t->z, path);
    if (result != AMP_OK) cannot_resume(&t->z, path, result);
}

/* --------------------------------------------------------------------------- what rank 0 says */

/* Percent of the images that training never sees; every rank has all of the model. */
static double evaluate(trainer *t) {
    const size_t all = t->net.data->num_test;
    size_t       right = 0;
    for (size_t first = 0, rows; first < all; first += rows) {
        rows = mlp_load_held_out(&t->net, first);
        forward(t, rows, NULL);
        right += mlp_right(&t->net, rows);
    }
    return 100.0 * (double)right / (double)all;
}

/* What each rank has, rank by rank: sums in which every rank but one has 0. The caller frees it. */
static double *of_all_ranks(const double *mine, size_t count) {
    double *all = need(count * (size_t)ranks.count, sizeof *all);
    memcpy(all + count * (size_t)ranks.rank, mine, count * sizeof *mine);
    check(reduce_over_ranks(NULL, all, count * (size_t)ranks.count, NULL, 0));
    return all;
}

/* That of the rank which has most. */
static memory largest_memory(const trainer *t) {
    const double mine[] = {t->bytes.optimizer, t->bytes.own, t->bytes.slices, t->bytes.sent};
    double      *all    = of_all_ranks(mine, 4);
    memory       most   = t->bytes;
    for (int r = 0; r < ranks.count; r++) {
        if (all[4 * r] <= most.optimizer) continue;
        most.optimizer = all[4 * r];
        most.own       = all[4 * r + 1];
        most.slices    = all[4 * r + 2];
        most.sent      = all[4 * r + 3];
    }
    free(all);
    return most;
}

/* Bytes of a step on the busiest link, as a factor on the formulas above, and of all ranks the one
   that waited longest for gradients when backward had ended. */
static void print_links(const trainer *t, double steps) {
    const double mine[3] = {t->sent > t->got ? t->sent : t->got, t->model_bytes, t->waited};
    const double n = ranks.count, once = (double)t->num_params * (n - 1) / n;
    const int    most = (t->z.blocks - 1) / ranks.count + 1; /* blocks of a rank */
    const double formula = once * (double)t->z.tensors[0].sent_size * most;
    double      *all = of_all_ranks(mine, 3), largest[3] = {0, 0, 0};
    for (int i = 0; i < 3 * ranks.count; i++)
        if (all[i] > largest[i % 3]) largest[i % 3] = all[i];
    free(all);
    if (ranks.rank || ranks.count == 1 || steps < 1.0) return;
    printf("link ddp: ranks %d micro %d bytes a step: gradients %.0f = %.3f of the formula's, "
           "models %.0f = %.3f; waited %.2f s for gradients\n", ranks.count, t->o->micro,
           largest[0] / steps, largest[0] / steps / formula, largest[1] / steps,
           largest[1] / steps / once / (double)t->z.tensors[0].wide, largest[2]);
}

static void train(trainer *t) {
    const options *o     = t->o;
    const int      says  = ranks.rank == 0;
    const double   start = seconds();
    double         loss  = 0.0;
    amp_status     s     = status_of(t);
    const double first = (double)(s.steps + s.skipped);
    ranks.waited = 0.0; /* until now to get ready */
    t->model_bytes = 0.0;
    for (uint64_t step = s.steps + s.skipped; step < (uint64_t)o->steps; step++) {
        train_step(t, step);
        if (o->save && (step + 1) % (uint64_t)o->save_every == 0) save(t, o->save);
        if (!has_row(o, (int)step)) continue;
        loss = loss_of_step(t);
        s    = status_of(t);
        if (says) print_row((int)step, loss, &s);
    }
    if (o->save) save(t, o->save);
    for (int i = 0; i < TENSORS; i++) check(zero_wait(&t->z, i)); /* the last models have come */
    print_links(t, (double)o->steps - first);
    if (!says) return;
    printf("\n  %.2f s, of which rank 0 waited %.2f s for others\n", seconds() - start,
           ranks.waited);
    print_end(o, ranks.count, loss, evaluate(t), &s);
}

int main(int argc, char **argv) {
    static trainer t;
    static dataset data;
    join_ranks(&argc, &argv);
    if (ranks.rank > 0) meet(); /* rank 0 looks first, so that what is wrong is said once */
    const options o = parse_options(argc, argv);
    refuse_contradictions(&o, ranks.count);
    if (!o.help) load_data(&data, o.data);
    if (ranks.rank == 0) meet();
    if (o.help) {
        if (ranks.rank == 0) print_help("mpirun -n RANKS ddp_mpi [options]");
    } else {
        ranks.deadline = o.deadline;
        trainer_init(&t, &o, &data);
        const memory most = largest_memory(&t); /* before others are allocated for a while */
        if (ranks.rank == 0) print_plan(&o, ranks.count, t.num_params, data.name);
        if (o.resume) resume(&t, o.resume);
        if (o.save) save(&t, o.save); /* what cannot be written shall be said now */
        train(&t);
        if (ranks.rank == 0) print_memory(&most, ranks.count, t.num_params);
        trainer_free(&t);
        free(data.image);
        free(data.label);
    }
    finish(0);
    leave_ranks();
    return 0;
}
