/* ddp_mpi.c - training on several ranks with MPI, with the same bits on any number of them

   Data parallelism with sharded state (ZeRO stage 1): every rank has the whole model, in halves,
   and about one part in N of masters, moments and accumulators, in fp32 (amp.h, >>api ranks). A
   step has M numbered micro-batches. An all-to-all sends gradients to their owners, who add them as
   a binary tree over the numbers; an all-gather brings models back. So neither the loss, nor a
   weight, nor a saved state depends on N.

   READ  from top to bottom: ranks (deadline and pulses), the trainer, two exchanges, micro-batches
   and steps, save and resume. The network is in ddp_net.h, options and tables in
   ddp_report.h, images in train_data.h. ddp_nccl.cu does the same on NVIDIA GPUs.

   RUN   mpicc -O3 -I. examples/ddp/ddp_mpi.c -o ddp_mpi -lm && mpirun -n 4 ./ddp_mpi
         in the directory of amp.h; without mpirun it is one rank. See also --help.

   OVERLAP  A layer's gradient is sent as soon as it is there, and backward goes on; owners wait
   only before they add. Forward waits for a layer's model only when it needs it. MPI moves data
   only while it is called, so products call it after every 256 rows. --late sends after backward, to
   compare: two ranks on two cores of a Zen 4 (Open MPI 4.1.4 on the loopback, gcc 12.2 -O3,
   --data digits --batch 256 --width 2048 --micro 2 --steps 8) waited 0.08 to 0.15 s for gradients,
   and 0.23 to 0.28 s with --late.

   WHO ADDS  If N is a power of two that divides M, a rank takes k = M / N micro-batches in a row
   and adds their gradients in fp32, as a tree whose sums wait for their pair: log2 k of them,
   where k is a power of two (k odd: one). It sends the sum while it is in the last backward. With
   k = 1, 16 bits travel. On any other N each gradient travels by itself, in rounds, rank r's of
   number t N + r in round t, and owners keep all M to add them at the end.

   HOW FAR IT SCALES  P parameters, N ranks. The link of each rank carries, in each direction,

       2 P (N-1)/N bytes in a step      gradients, if k is 1: those of a reduce-scatter
       4 P (N-1)/N bytes in a step      if it is more, however many
       2 P (N-1)/N bytes in a round     on any other N
       2 P (N-1)/N bytes in a step      models, by an all-gather
       P / 2048 bytes in a step         reduce_fn: a double for a chunk of 16384; left out below

   since amp.h gives each rank an equal part of every layer, to within a chunk. The program compares
   its counts with these at its end. The table is arithmetic on data sheets, not measured: H100s
   with 80 GB at 3.35 TB/s, 400 of their 989 Tflop/s in bf16, 450 GB/s of NVLink in each direction
   (N = 8), 50 GB/s of NDR InfiniBand for each GPU (N = 1024); 32 layers, micro-batches of b = 8192
   tokens, 6 P b flop each; k = 1.

          P     N    GB on a link     seconds:          compute    longer by, with   bytes for
                    grads + models  link    memory     6 P b     and without       each
                                                                   overlap           parameter
        7e9     1    0    +  0        0       0.100      0.86       12 %    12 %      20
        7e9     8   12.25 + 12.25     0.054   0.016      0.86        2 %     8 %       8
        7e9  1024   13.99 + 13.99     0.56    0.0043     0.86        3 %    66 %       6.02
       70e9     1    0    +  0        0       1.00       8.6        12 %    12 %      20
       70e9     8   122.5 + 122.5     0.54    0.16       8.6         2 %     8 %       8
       70e9  1024   139.9 + 139.9     5.6     0.043      8.6         3 %    66 %       6.02

   memory   2 P + 8 P / N bytes for the gradients, since an owner adds what all ranks sent in one
            call, and 38 P / N for AdamW, check, clearing. Longer by: memory, and what stays of the
            link.
   bytes    2 model, 2 gradient, 2 received (not with one rank), 16 / N: 140, 56, 42 GB for 7e9.
            With k above 1 sums are of 4 bytes: 4 log2 k more, and 4 received instead of 2.
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

#define PROGRAM "ddp_mpi"
#define END(code) end_all_ranks(code)
static void end_all_ranks(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

#define AMP_IMPLEMENTATION
#include "amp.h"

#include "../support/train_data.h"
#include "ddp_report.h" /* options, table, memory */

#include <sched.h>
#include <time.h>
#include <unistd.h>

static void check(amp_result r) {
    if (r != AMP_OK) fail(1, "amp.h", amp_result_string(r), "this is a bug in ddp_mpi.c");
}

#include "ddp_net.h" /* the network */

enum { TENSORS = 2 * LAYERS, HANG_SECONDS = 10 };
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

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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
    fail(3, subject, problem, "the last set that was saved is whole; --resume it");
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

/* amp_ranks.reduce_fn, and whatever else one rank knows and the others count as 0. */
static amp_result reduce_over_ranks(void *user, double *sums, size_t num_sums, uint32_t *maxima,
                                    size_t num_maxima) {
    MPI_Request r[2];
    (void)user;
    MPI_Iallreduce(MPI_IN_PLACE, sums, (int)num_sums, MPI_DOUBLE, MPI_SUM, ranks.work, &r[0]);
    MPI_Iallreduce(MPI_IN_PLACE, maxima, (int)num_maxima, MPI_UINT32_T, MPI_MAX, ranks.work, &r[1]);
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

/* How one tensor travels. Gradients: an all-to-all; models: an all-gather. */
typedef struct route {
    int        *count, *at;      /* of each rank's range: elements, and the first           */
    int        *sends, *sent_at; /* what each rank sends me; where it goes                  */
    void       *grad, *part;     /* of all elements; what all ranks sent of my range        */
    float      *sums;            /* of my micro-batches, n elements each                    */
    size_t      n, own;          /* elements; those in my range                             */
    MPI_Request gradient, model;
} route;

typedef struct trainer {
    const options *o;
    mlp            net;
    MPI_Datatype   wire;            /* as the bits of net.type                                */
    size_t         size;            /* bytes of one                                           */
    adding         adds;            /* micro-batches, on each rank                            */
    route          routes[TENSORS]; /* 2 l: the weight of layer l; 2 l + 1: its bias          */
    int           *nothing;         /* a 0 for each rank: what an idle rank sends             */
    double        *loss;            /* of each micro-batch of the step, 0 if it is elsewhere  */
    double         sent, got, model_bytes; /* on this rank's link                             */
    double         waited;          /* seconds for gradients                                  */
    amp_optimizer  opt;
    char           problem[AMP_PROBLEM_SIZE];
    size_t         num_params;
    memory         bytes;
} trainer;

static amp_status status_of(const trainer *t) {
    amp_status s;
    check(amp_optimizer_status(&t->opt, &s));
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

/* The weight is only read, in prepare; gradients come in parts, by amp_optimizer_accumulate. */
static void add_tensor(trainer *t, int i, size_t count, float *weight) {
    static const char *const names[TENSORS] = {"in", "in bias", "hidden", "hidden bias",
                                               "out", "out bias"};
    amp_tensor tensor = {0};
    tensor.name       = names[i];
    tensor.n          = count;
    tensor.weight     = weight;
    tensor.grad_later = 1;
    tensor.keep_fp32  = i % 2;
    check(amp_optimizer_add(&t->opt, &tensor));
    t->routes[i].n    = count;
    t->routes[i].grad = need(count, t->size);
    t->num_params += count;
    t->bytes.models += (double)(count * (i % 2 ? sizeof(float) : t->size));
    t->bytes.halves += (double)(count * t->size);
}

/* All ranks make the same weights from the same seed, and keep what is theirs. */
static void add_layers(trainer *t) {
    float   *weight[TENSORS];
    uint64_t rng = 1;
    for (int i = 0; i < TENSORS; i++) {
        const size_t l = (size_t)i / 2, in = t->net.width[l], out = t->net.width[l + 1];
        weight[i] = i % 2 ? need(out, sizeof(float)) : mlp_weight(&t->net, l, &rng);
        add_tensor(t, i, i % 2 ? out : in * out, weight[i]);
    }
    const amp_result result = amp_optimizer_prepare(&t->opt);
    if (result != AMP_OK) fail(1, amp_result_string(result), t->problem, "start all ranks alike");
    for (int i = 0; i < TENSORS; i++) free(weight[i]);
}

/* Room for the sums of this rank's micro-batches, and for what all ranks send it to add. */
static void plan_sums(trainer *t, route *w) {
    const size_t parts = (size_t)(t->o->micro / t->adds.each), sums = (size_t)t->adds.sums;
    const size_t size  = sums ? sizeof(float) : t->size, all = parts * w->own * size;
    if (sums) w->sums = need(sums * w->n, sizeof(float));
    w->part = ranks.count > 1 ? need(parts * w->own, size) : sums ? (void *)w->sums : w->grad;
    t->bytes.halves += (double)(sums * w->n * sizeof(float) + (ranks.count > 1 ? all : 0));
}

/* Ranks that are to send halves to each other have to know each other's ranges. */
static void plan_route(trainer *t, int i) {
    const size_t count = (size_t)ranks.count;
    route       *w = &t->routes[i];
    int         *all = need(2 * count, sizeof(int)), mine[2];
    size_t       first;
    amp_optimizer_range(&t->opt, i, &first, &w->own);
    mine[0] = (int)w->own; /* --width has a limit */
    mine[1] = (int)first;
    w->gradient = MPI_REQUEST_NULL;
    MPI_Iallgather(mine, 2, MPI_INT, all, 2, MPI_INT, ranks.work, &w->model);
    wait_for(1, &w->model, "the exchange of ranges");
    w->count   = need(4 * count, sizeof(int));
    w->at      = w->count + count;
    w->sends   = w->at + count;
    w->sent_at = w->sends + count;
    for (size_t r = 0; r < count; r++) {
        w->count[r]   = all[2 * r];
        w->at[r]      = all[2 * r + 1];
        w->sent_at[r] = (int)(r * w->own);
    }
    plan_sums(t, w);
    t->bytes.own += (double)w->own;
    free(all);
}

static void trainer_init(trainer *t, const options *o, const dataset *data) {
    const amp_ranks    shares = {ranks.rank, ranks.count, reduce_over_ranks, NULL, 0};
    amp_optimizer_desc desc   = {0};
    t->o    = o;
    t->wire = o->dtype == AMP_F32 ? MPI_FLOAT : MPI_UINT16_T;
    t->size = amp_dtype_size((amp_dtype)o->dtype);
    t->adds = adding_of(o->micro, ranks.count);
    mlp_init(&t->net, data, (amp_dtype)o->dtype, o->batch, o->width);
    t->net.pause = beat;

    desc.dtype     = t->net.type;
    desc.kind      = AMP_KIND_ADAMW;
    desc.max_norm  = o->clip;
    desc.ranks     = &shares;
    desc.allocator = (amp_allocator){count_malloc, count_free, &t->bytes.optimizer};
    desc.problem   = t->problem;
    if (o->dtype == AMP_F16) desc.scaler.growth_interval = 20; /* default 2000: for longer runs */
    else desc.scaler.preset = AMP_PRESET_NONE;
    check(amp_optimizer_init(&t->opt, &desc));
    add_layers(t);
    for (int i = 0; i < TENSORS; i++) plan_route(t, i);
    t->nothing = need((size_t)ranks.count, sizeof(int));
    t->loss    = need((size_t)o->micro, sizeof(double));
}

static void trainer_free(trainer *t) {
    for (int i = 0; i < TENSORS; i++) {
        route *w = &t->routes[i];
        if (ranks.count > 1) free(w->part);
        free(w->sums);
        free(w->grad);
        free(w->count);
    }
    free(t->nothing);
    free(t->loss);
    mlp_free(&t->net);
    amp_optimizer_free(&t->opt);
}

/* ------------------------------------------------------------------------------- two exchanges */

static int has_work(const trainer *t, int rank, int round) {
    return micro_of(&t->adds, ranks.count, rank, round) < t->o->micro;
}

static void add(float *sum, const void *x, amp_dtype type, size_t n) {
    float        wide[1024];
    const size_t size = amp_dtype_size(type);
    for (size_t i = 0, some; i < n; i += some) {
        some = n - i < 1024 ? n - i : 1024;
        check(amp_cast(wide, AMP_F32, (const char *)x + i * size, type, some));
        for (size_t k = 0; k < some; k++) sum[i + k] += wide[k];
    }
}

static void add_own(trainer *t, route *w, int round) {
    addend to  = addend_of(&t->adds, round);
    float *sum = w->sums + (size_t)to.sum * w->n;
    if (to.first) memset(sum, 0, w->n * sizeof *sum);
    add(sum, w->grad, t->net.type, w->n);
    for (; to.pairs; to.pairs--, sum -= w->n) add(sum - w->n, sum, AMP_F32, w->n);
}

/* Where backward writes a gradient: the one before has been sent. */
static void *gradient(trainer *t, size_t i) {
    wait_for(1, &t->routes[i].gradient, "the exchange of gradients");
    return t->routes[i].grad;
}

/* The gradient of a tensor is there: send each rank the part that it owns, while backward goes on;
   or add it, and send the sum of the last. In the last round some ranks have no micro-batch; they
   send nothing, not zeros. */
static void send_gradient(trainer *t, size_t i, int round) {
    route       *w     = &t->routes[i];
    const int    adds  = t->adds.each > 1;
    const int   *mine  = has_work(t, ranks.rank, round) ? w->count : t->nothing;
    const size_t size  = adds ? sizeof(float) : t->size;
    const size_t first = adds ? 0 : (size_t)(round * ranks.count) * w->own * size;
    MPI_Datatype wire  = adds ? MPI_FLOAT : t->wire;
    if (adds) add_own(t, w, round);
    if (ranks.count == 1 || (adds && round + 1 < t->adds.each)) return;
    for (int r = 0; r < ranks.count; r++) {
        w->sends[r] = has_work(t, r, round) ? (int)w->own : 0;
        if (r == ranks.rank) continue;
        t->sent += (double)mine[r] * (double)size;
        t->got += (double)w->sends[r] * (double)size;
    }
    MPI_Ialltoallv(adds ? (void *)w->sums : w->grad, mine, w->at, wire, (char *)w->part + first,
                   w->sends, w->sent_at, wire, ranks.work, &w->gradient);
}

/* Add what the ranks sent in their order, which is that of the micro-batches. */
static void add_parts(trainer *t, size_t i) {
    route       *w      = &t->routes[i];
    const double before = ranks.waited;
    wait_for(1, &w->gradient, "the exchange of gradients");
    t->waited += ranks.waited - before;
    check(amp_optimizer_accumulate(&t->opt, (int)i, w->part, w->own,
                                   (size_t)(t->o->micro / t->adds.each),
                                   t->adds.each > 1 ? AMP_F32 : t->net.type));
}

/* Each rank gives the part of the models that it has updated; forward waits, for a layer at a time.
   The models are the optimizer's, and this is where others write to them. */
static void gather_models(trainer *t) {
    for (int i = 0; i < TENSORS && ranks.count > 1; i++) {
        route       *w    = &t->routes[i];
        const size_t size = i % 2 ? sizeof(float) : t->size, others = (size_t)ranks.count - 1;
        const size_t out  = w->own * others, in = w->n - w->own;
        t->model_bytes += (double)((out > in ? out : in) * size);
        MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL,
                        (void *)(uintptr_t)amp_optimizer_model(&t->opt, i), w->count, w->at,
                        i % 2 ? MPI_FLOAT : t->wire, ranks.work, &w->model);
    }
}

static const void *model(trainer *t, size_t i) {
    if (ranks.count > 1) wait_for(1, &t->routes[i].model, "the exchange of models");
    return amp_optimizer_model(&t->opt, (int)i);
}

/* -------------------------------------------------------------------- micro-batches and steps */

static void forward(trainer *t, size_t rows, const uint64_t *number) {
    for (size_t l = 0; l < LAYERS; l++) {
        const void *weight = model(t, 2 * l), *bias = model(t, 2 * l + 1);
        mlp_forward(&t->net, l, rows, weight, (const float *)bias, number);
        beat();
    }
}

/* --plant: what this rank itself owns overflows, and nobody else's check will see it. */
static void plant(trainer *t, size_t i) {
    static const uint32_t infinity[] = {0x7f800000u, 0x7c00u, 0x7f80u};
    const route          *w = &t->routes[i];
    const uint16_t        half = (uint16_t)infinity[t->net.type];
    if (w->own > 0)
        memcpy((char *)w->grad + (size_t)w->at[ranks.rank] * t->size,
               t->net.type == AMP_F32 ? (const void *)&infinity[0] : &half, t->size);
}

static void backward(trainer *t, int round, int planted) {
    for (size_t l = LAYERS; l-- > 0;) {
        const size_t i = 2 * l;
        mlp_gradient(&t->net, l, gradient(t, i), gradient(t, i + 1));
        for (size_t k = i; k < i + 2; k++) {
            if (planted) plant(t, k);
            if (!t->o->late) send_gradient(t, k, round);
        }
        if (l > 0) mlp_back(&t->net, l, model(t, i));
        beat();
    }
}

/* The loss is a mean over all images of the step, so that no sum of gradients, wherever it is made,
   is larger than that of the whole. */
static void run_micro(trainer *t, uint64_t step, int micro, int round) {
    const options *o       = t->o;
    const uint64_t number  = step * (uint64_t)o->micro + (uint64_t)micro;
    const int      planted = round == 0 && (uint64_t)o->plant_step == step &&
                        o->plant_rank == ranks.rank;
    const float images = (float)o->batch * (float)o->micro;
    mlp_load(&t->net, number);
    forward(t, t->net.rows, &number);
    t->loss[micro] = mlp_loss(&t->net, amp_optimizer_loss_scale(&t->opt) / images);
    backward(t, round, planted);
}

static void train_step(trainer *t, uint64_t step) {
    const int rounds = rounds_of(&t->adds, t->o->micro, ranks.count);
    ranks.step = (long)step;
    memset(t->loss, 0, (size_t)t->o->micro * sizeof *t->loss);
    for (int round = 0; round < rounds; round++) {
        const int works = has_work(t, ranks.rank, round);
        if (works)
            run_micro(t, step, micro_of(&t->adds, ranks.count, ranks.rank, round), round);
        if (works && !t->o->late) continue;
        for (size_t i = TENSORS; i-- > 0;) { /* idle, but all ranks have to post the same */
            (void)gradient(t, i ^ 1);        /* exchanges in the same order */
            send_gradient(t, i ^ 1, round);
        }
    }
    for (size_t i = 0; i < TENSORS; i++) add_parts(t, i);
    check(amp_optimizer_step(&t->opt, learning_rate)); /* reduce_over_ranks is called in here */
    gather_models(t);
}

/* The mean of the step, of which each rank has a part: added in the order of micro-batches. */
static double loss_of_step(trainer *t) {
    double loss = 0.0;
    check(reduce_over_ranks(NULL, t->loss, (size_t)t->o->micro, NULL, 0));
    for (int i = 0; i < t->o->micro; i++) loss += t->loss[i];
    return loss / ((double)t->o->batch * t->o->micro);
}

/* ---------------------------------------------------------------------------- interrupted runs */

/* The state is amp.h's alone; the numbers of the micro-batches follow from its counts of steps. */
static void save(const trainer *t, const char *path) {
    errno = 0;
    const amp_result result = amp_optimizer_save_file(&t->opt, path);
    int              full   = errno == ENOSPC; /* on any rank */
    if (result == AMP_OK) return;
    MPI_Allreduce(MPI_IN_PLACE, &full, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    fail(1, path,
         full ? strerror(ENOSPC) : t->problem[0] ? t->problem : amp_result_string(result),
         "choose a file that can be written with --save");
}

static void resume(trainer *t, const char *path) {
    const amp_result result = amp_optimizer_load_file(&t->opt, path);
    if (result == AMP_ERROR_MISMATCH)
        fail(1, path, t->problem, "give the other options as when it was saved");
    if (result != AMP_OK)
        fail(1, path, t->problem[0] ? t->problem : amp_result_string(result),
             "give a file that --save wrote");
    gather_models(t);
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
    const double mine[3] = {t->bytes.optimizer, t->bytes.own, t->bytes.halves};
    double      *all     = of_all_ranks(mine, 3);
    memory       most    = t->bytes;
    for (int r = 0; r < ranks.count; r++) {
        if (all[3 * r] <= most.optimizer) continue;
        most.optimizer = all[3 * r];
        most.own       = all[3 * r + 1];
        most.halves    = all[3 * r + 2];
    }
    free(all);
    return most;
}

/* Bytes of a step on the busiest link, as a factor on the formulas above, and of all ranks the one
   that waited longest for gradients when backward had ended. */
static void print_links(const trainer *t, double steps) {
    const double mine[3] = {t->sent > t->got ? t->sent : t->got, t->model_bytes, t->waited};
    const double n = ranks.count, once = (double)t->num_params * (n - 1) / n;
    const int    rounds  = rounds_of(&t->adds, t->o->micro, ranks.count);
    const double formula = once * (t->adds.each > 1 ? 4.0 : (double)t->size * rounds);
    double      *all = of_all_ranks(mine, 3), most[3] = {0, 0, 0};
    for (int i = 0; i < 3 * ranks.count; i++)
        if (all[i] > most[i % 3]) most[i % 3] = all[i];
    free(all);
    if (ranks.rank || ranks.count == 1 || steps < 1.0) return;
    printf("link ddp: ranks %d micro %d bytes a step: gradients %.0f = %.3f of the formula's, "
           "models %.0f = %.3f; waited %.2f s for gradients\n", ranks.count, t->o->micro,
           most[0] / steps, most[0] / steps / formula, most[1] / steps,
           most[1] / steps / once / (double)t->size, most[2]);
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
    for (size_t i = 0; i < TENSORS; i++) model(t, i); /* that of the last step has arrived */
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
