/* libtorch.cpp - mixed precision in C++ LibTorch, which has autocast, but neither GradScaler nor a
   fused AdamW

   COPY  Autocast, GradScaler and FusedAdamW, the first hundred lines below. The first two are
   PyTorch's, with amp.h's scaler inside. The third does check, unscale, clipping, AdamW and the new
   scale in one call, for the parameters of any module, wherever their gradients lie.

   HERE  a small convolutional network learns digits (or Fashion-MNIST) three ways from the same
   seeds: by LibTorch in fp32; with autocast and GradScaler around LibTorch's own AdamW; with
   autocast and FusedAdamW. Then each mixed run meets a planted overflow, is saved right after it,
   and resumed.

   RUN   in the directory of amp.h, T being the directory of the package torch
         (python3 -c 'import torch; print(torch.__path__[0])'), or that of LibTorch from pytorch.org:
       g++ -std=c++20 -O2 -I. -I$T/include -I$T/include/torch/csrc/api/include examples/libtorch.cpp \
           -o libtorch -L$T/lib -Wl,-rpath,$T/lib -ltorch_cpu -lc10 && ./libtorch
   (C++17 is enough for a LibTorch before 2.10.) It takes half a minute if LibTorch has fast products
   in fp16, and three on a Zen 4, where they run at 1 GFLOP/s and fp16 trains at .12 of fp32's speed.
   It prints a table, its reading, a line for each mixed run, and two lines of parity, and exits with
   1 if anything is not as it says.

   COLUMNS  loss, accuracy: held-out images, means over the seeds. d: the difference to LibTorch in
   fp32, in % of its loss, and in points. skipped: steps, of all seeds. ms/step: processor time of
   one thread, medians, the trainers in turns.

   ON A GPU (untried)  amp_kernels.cu is linked too, desc.backend is made by amp_cuda_backend with
   at::cuda::getCurrentCUDAStream(), kCPU in Autocast and values becomes kCUDA, and the rest of
   FusedAdamW stays; GradScaler keeps its state in device memory (amp_cuda_scaler_unscale, _update). */

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#define AMP_IMPLEMENTATION
#define AMP_STATIC
#include "amp.h"

/* ------------------------------------------------------------------------------- copy from here */

static void require(amp_result result) {
    TORCH_CHECK(result == AMP_OK, "amp.h: ", amp_problem());
}

/* The values of a parameter or of its gradient, as they lie in memory, in any order of dimensions. */
static float *values(const torch::Tensor &t) {
    TORCH_CHECK(t.device().is_cpu() && t.is_non_overlapping_and_dense(), "dense CPU tensors only");
    return t.data_ptr<float>(); /* says so if it is not fp32 */
}

/* torch.autocast: while it lives, products are computed in type. Parameters, the loss and what
   backward gives for the parameters stay fp32. */
class Autocast {
  public:
    explicit Autocast(at::ScalarType type)
        : on_(at::autocast::is_autocast_enabled(at::kCPU)),
          type_(at::autocast::get_autocast_dtype(at::kCPU)) {
        at::autocast::set_autocast_enabled(at::kCPU, type != at::kFloat);
        if (type != at::kFloat) at::autocast::set_autocast_dtype(at::kCPU, type);
        at::autocast::increment_nesting();
    }
    ~Autocast() { /* the outermost one forgets the half copies of the parameters */
        if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, on_);
        at::autocast::set_autocast_dtype(at::kCPU, type_);
    }
    Autocast(const Autocast &) = delete;
    Autocast &operator=(const Autocast &) = delete;

  private:
    bool           on_;
    at::ScalarType type_;
};

/* torch.amp.GradScaler: scale, unscale_, your clipping, step, update. Its state is plain bytes. */
class GradScaler {
  public:
    explicit GradScaler(const amp_scaler_desc &desc = {}) { require(amp_scaler_init(&state, &desc)); }
    torch::Tensor scale(const torch::Tensor &loss) const { return loss * state.scale; }
    void unscale_(torch::optim::Optimizer &optimizer) {
        for (auto &group : optimizer.param_groups())
            for (auto &p : group.params())
                if (p.grad().defined())
                    require(amp_scaler_unscale(&state, values(p.grad()), values(p.grad()), AMP_F32,
                                            (size_t)p.numel()));
    }
    bool step(torch::optim::Optimizer &optimizer) { /* after unscale_; false: skipped */
        if (!state.found_inf) optimizer.step();
        return !state.found_inf;
    }
    void update() { require(amp_scaler_update(&state)); }
    amp_scaler state;
};

/* AdamW, with a loss scale and clipping, in one pass over the gradients and one over the rest. */
class FusedAdamW {
  public:
    FusedAdamW(std::vector<torch::Tensor> parameters, amp_optimizer_desc desc)
        : parameters_(std::move(parameters)) {
        desc.kind = AMP_KIND_ADAMW;
        require(amp_optimizer_init(&state, &desc));
        for (auto &p : parameters_) {
            amp_tensor t = {};
            t.n          = (size_t)p.numel();
            t.weight     = values(p); /* the fp32 master is the parameter itself; step brings grad */
            require(amp_optimizer_add(&state, &t));
        }
        require(amp_optimizer_prepare(&state));
    }
    ~FusedAdamW() { amp_optimizer_free(&state); }
    FusedAdamW(const FusedAdamW &) = delete;
    FusedAdamW &operator=(const FusedAdamW &) = delete;

    torch::Tensor scale(const torch::Tensor &loss) const {
        return loss * amp_optimizer_loss_scale(&state);
    }
    amp_status step(float lr) { /* LibTorch makes new gradients every time: say where they are */
        std::vector<void *> grads;
        for (auto &p : parameters_) {
            const torch::Tensor &g = p.grad();
            TORCH_CHECK(!g.defined() || g.strides() == p.strides(), "a gradient lies otherwise");
            grads.push_back(g.defined() ? values(g) : AMP_NO_GRAD); /* stands still */
        }
        amp_status status;
        require(amp_optimizer_rebind_all(&state, nullptr, grads.data()));
        require(amp_optimizer_step(&state, lr));
        require(amp_optimizer_status(&state, &status));
        return status;
    }
    amp_optimizer state; /* amp_optimizer_save_file keeps parameters, moments and scale */

  private:
    std::vector<torch::Tensor> parameters_;
};

/* --------------------------------------------------------------------------------- copy to here */

#define PROGRAM "libtorch"
#include "support/train_data.h"

#include <ctime>
#include <memory>
#include <string>

struct options {
    const char *data = nullptr, *out = "build";
    int         seeds = 5, steps = 120, batch = 128;
};

enum trainer { LIBTORCH, SCALER, FUSED };

struct variant {
    const char    *name;
    at::ScalarType type;
    trainer        how;
};

static const variant variants[] = {
    {"fp32  LibTorch", at::kFloat, LIBTORCH},
    {"fp32  fused step", at::kFloat, FUSED},
    {"fp16  scaler, LibTorch's AdamW", at::kHalf, SCALER},
    {"fp16  fused step", at::kHalf, FUSED},
    {"bf16  scaler, LibTorch's AdamW", at::kBFloat16, SCALER},
    {"bf16  fused step", at::kBFloat16, FUSED},
};
enum { NUM_VARIANTS = sizeof variants / sizeof *variants, WIDTH = 512, MAX_SEEDS = 20 };

static const double learning_rate = 0.0003, max_norm = 1.0, decay = 0.01;

/* ---------------------------------------------------------------------------- network, one run */

/* A convolution, two residual layers with norms (which autocast leaves in fp32), and a head. */
struct net_module : torch::nn::Module {
    torch::nn::Conv2d    stem{nullptr};
    torch::nn::Linear    first{nullptr}, layer[2] = {nullptr, nullptr}, head{nullptr};
    torch::nn::LayerNorm norm[2] = {nullptr, nullptr};
    net_module() {
        const auto halving = torch::nn::Conv2dOptions(1, 16, 3).stride(2).padding(1);
        const auto row     = torch::nn::LayerNormOptions({WIDTH});
        stem  = register_module("stem", torch::nn::Conv2d(halving));
        first = register_module("first", torch::nn::Linear(16 * 4 * 4, WIDTH));
        for (int i = 0; i < 2; i++) {
            const std::string n = std::to_string(i);
            norm[i]  = register_module("norm" + n, torch::nn::LayerNorm(row));
            layer[i] = register_module("layer" + n, torch::nn::Linear(WIDTH, WIDTH));
        }
        head  = register_module("head", torch::nn::Linear(WIDTH, NUM_CLASSES));
    }
    torch::Tensor forward(torch::Tensor x) {
        x = first(torch::adaptive_avg_pool2d(torch::relu(stem(x)), {4, 4}).flatten(1));
        for (int i = 0; i < 2; i++) x = x + layer[i](torch::relu(norm[i](x)));
        return head(torch::relu(x));
    }
};

static amp_scaler_desc scaler_settings(at::ScalarType type) {
    amp_scaler_desc desc = {}; /* for fp16 and, though it needs none, bf16: 65536, halved by overflows */
    desc.disabled = type == at::kFloat;
    return desc;
}

/* A network and both its optimizers, of which one is used. */
struct run {
    const variant                     &v;
    std::shared_ptr<net_module>        net;
    std::vector<torch::Tensor>         parameters;
    torch::optim::AdamW                adamw;
    GradScaler                         scaler;
    std::unique_ptr<FusedAdamW>        fused;
    uint64_t                           taken = 0, skipped = 0;
    std::vector<double>                time;

    run(const variant &which, int seed)
        : v(which), net((torch::manual_seed((uint64_t)seed), std::make_shared<net_module>())),
          parameters(net->parameters()),
          adamw(parameters, torch::optim::AdamWOptions(learning_rate).weight_decay(decay)),
          scaler(scaler_settings(v.type)) {
        amp_optimizer_desc desc = {};
        desc.scaler       = scaler_settings(v.type);
        desc.weight_decay = (float)decay;
        desc.max_norm     = (float)max_norm;
        if (v.how == FUSED) fused.reset(new FusedAdamW(parameters, desc));
    }
    float scale() const {
        return v.how == FUSED ? amp_optimizer_loss_scale(&fused->state) : scaler.state.scale;
    }
};

/* ------------------------------------------------------------------------------------ the step */

/* The loss of a batch: the network under autocast, the loss itself in fp32. */
static torch::Tensor loss_of(run &r, const torch::Tensor &image, const torch::Tensor &label) {
    torch::Tensor logits;
    {
        Autocast scope(r.v.type);
        logits = r.net->forward(image);
    }
    return torch::cross_entropy_loss(logits.to(at::kFloat), label);
}

/* The three trainers. Returns whether the step was taken. */
static bool train_step(run &r, torch::Tensor loss, float lr) {
    r.adamw.zero_grad(); /* sets gradients to none */
    if (r.v.how == FUSED) {
        r.fused->scale(loss).backward();
        return r.fused->step(lr).did_step;
    }
    static_cast<torch::optim::AdamWOptions &>(r.adamw.param_groups()[0].options()).lr(lr);
    if (r.v.how == LIBTORCH) {
        loss.backward();
        torch::nn::utils::clip_grad_norm_(r.parameters, max_norm);
        r.adamw.step();
        return true;
    }
    r.scaler.scale(loss).backward();
    r.scaler.unscale_(r.adamw);
    torch::nn::utils::clip_grad_norm_(r.parameters, max_norm); /* of unscaled gradients */
    const bool taken = r.scaler.step(r.adamw);
    r.scaler.update();
    return taken;
}

struct images {
    torch::Tensor image, label, held_image, held_label;
};

static images tensors_of(const dataset &d) {
    const int64_t all = (int64_t)(d.num_train + d.num_test), side = (int64_t)d.side;
    const int64_t train = (int64_t)d.num_train;
    const torch::Tensor image = torch::from_blob(d.image, {all, 1, side, side});
    const torch::Tensor label = torch::from_blob(d.label, {all}, at::kInt).to(at::kLong);
    return {image.slice(0, 0, train), label.slice(0, 0, train), image.slice(0, train),
            label.slice(0, train)};
}

/* Step number r.taken: batch and rate follow from it and the seed, so that a step which was skipped
   is done again, and a resumed run meets the batches it would have met. */
static bool next_step(run &r, const images &data, const options &o, int seed, bool spoil) {
    uint64_t      rng = (uint64_t)seed * 1000003u + r.taken * 0x9e3779b9u;
    torch::Tensor at_random = torch::empty({o.batch}, at::kLong);
    for (int i = 0; i < o.batch; i++)
        at_random[i] = (int64_t)(random_u64(&rng) % (uint64_t)data.label.size(0));
    torch::Tensor loss = loss_of(r, data.image.index_select(0, at_random),
                                 data.label.index_select(0, at_random));
    if (spoil) loss = loss * INFINITY; /* an overflow on purpose: all gradients are inf or NaN */
    const double share = (double)r.taken / o.steps;
    const bool   taken = train_step(r, loss, (float)(learning_rate * (1.0 - share)));
    (taken ? r.taken : r.skipped)++;
    return taken;
}

/* Until it has taken so many steps. */
static void advance(run &r, uint64_t steps, const images &data, const options &o, int seed) {
    for (int tries = 0; r.taken < steps;) { /* halving goes from the first scale to the least in 30 */
        if (next_step(r, data, o, seed, false)) tries = 0;
        else if (++tries > 40)
            fail(1, r.v.name, "gradients are not finite, at any loss scale", "this is a bug in libtorch.cpp");
    }
}

/* -------------------------------------------------------------------------------- save, resume */

/* LibTorch's archive holds the network, its optimizer's moments, and the scaler's bytes; the fused
   step's state is one file of amp.h (with the parameters; a module's buffers would be saved beside). */
static void save(const run &r, const std::string &path) {
    if (r.v.how == FUSED) {
        const amp_result result = amp_optimizer_save_file(&r.fused->state, path.c_str());
        if (result != AMP_OK) fail(1, path.c_str(), amp_problem(), "choose another --out");
        return;
    }
    torch::serialize::OutputArchive archive, net, adamw;
    amp_scaler state = r.scaler.state;
    r.net->save(net);
    r.adamw.save(adamw);
    archive.write("net", net);
    archive.write("adamw", adamw);
    archive.write("scaler", torch::from_blob(&state, {(int64_t)sizeof state}, at::kByte).clone());
    archive.save_to(path);
}

static void resume(run &r, const std::string &path) {
    if (r.v.how == FUSED) {
        amp_status       status;
        const amp_result result = amp_optimizer_load_file(&r.fused->state, path.c_str());
        if (result != AMP_OK) fail(1, path.c_str(), amp_problem(), "run it anew");
        require(amp_optimizer_status(&r.fused->state, &status));
        r.taken = status.steps;
        return;
    }
    torch::serialize::InputArchive archive, net, adamw;
    torch::Tensor                  state;
    archive.load_from(path);
    archive.read("net", net);
    archive.read("adamw", adamw);
    archive.read("scaler", state);
    r.net->load(net);
    r.adamw.load(adamw);
    TORCH_CHECK((size_t)state.numel() == sizeof r.scaler.state, "the scaler of another amp.h");
    memcpy(&r.scaler.state, state.data_ptr(), sizeof r.scaler.state);
    r.taken = r.scaler.state.good; /* updates without an overflow */
}

/* Each mixed trainer, interrupted: step 10 overflows, and must change no weight and halve the scale;
   the state is saved there, and a new network that loads it must come to the same bits. */
static bool same_weights(const run &a, const std::vector<torch::Tensor> &b) {
    for (size_t i = 0; i < b.size(); i++)
        if (memcmp(values(a.parameters[i]), values(b[i]), b[i].nbytes()) != 0) return false;
    return true;
}

static bool interrupt(const variant &v, const images &data, const options &o) {
    const std::string path = std::string(o.out) + "/libtorch.state";
    run  whole(v, 1), resumed(v, 2);
    advance(whole, 10, data, o, 1);
    std::vector<torch::Tensor> before;
    for (auto &p : whole.parameters) before.push_back(p.detach().clone());
    const float scale   = whole.scale();
    const bool  skipped = !next_step(whole, data, o, 1, true);
    const bool  kept    = skipped && same_weights(whole, before), halved = whole.scale() == 0.5f * scale;
    printf("  %-30s  overflow at step 10: %s, scale %.0f -> %.0f; ", v.name,
           kept ? "no weight changed" : "WEIGHTS CHANGED", (double)scale, (double)whole.scale());
    save(whole, path);
    resume(resumed, path);
    advance(whole, 30, data, o, 1);
    advance(resumed, 30, data, o, 1);
    const bool same = same_weights(resumed, whole.parameters) && resumed.scale() == whole.scale();
    printf("resumed there, %s at step 30\n", same ? "the same bits" : "OTHER BITS");
    remove(path.c_str());
    return kept && halved && same;
}

/* -------------------------------------------------------------------------------------- report */

struct column {
    double loss[MAX_SEEDS], accuracy[MAX_SEEDS], skipped, scale;
    std::vector<double> time;
    bool   left_out;
};

static void evaluate(run &r, const images &data, double *loss, double *accuracy) {
    torch::NoGradGuard  no_grad;
    Autocast            scope(r.v.type);
    const torch::Tensor logits = r.net->forward(data.held_image).to(at::kFloat);
    *loss     = torch::cross_entropy_loss(logits, data.held_label).item<double>();
    *accuracy = 100.0 * logits.argmax(1).eq(data.held_label).to(at::kDouble).mean().item<double>();
}

static double seconds() { return (double)std::clock() / CLOCKS_PER_SEC; }

/* Does this LibTorch have the ops of the network in this type, on this CPU? fp16 came late. */
static bool type_works(const variant &v, const images &data, const options &o) {
    try {
        run r(v, 1);
        next_step(r, data, o, 1, false);
        return true;
    } catch (const c10::Error &e) {
        const std::string words = e.what_without_backtrace();
        printf("%s: left out: %s\n", v.name, words.substr(0, words.find('\n')).c_str());
        return false;
    }
}

/* All trainers from one seed, in turns, so that all meet the same machine. */
static void train_seed(column *table, const images &data, const options &o, int seed) {
    std::vector<std::unique_ptr<run>> runs;
    for (auto &v : variants) runs.emplace_back(new run(v, seed));
    for (int step = 0; step < o.steps; step++) {
        for (int i = 0; i < NUM_VARIANTS; i++) {
            if (table[i].left_out) continue;
            const double start = seconds();
            advance(*runs[i], (uint64_t)step + 1, data, o, seed);
            table[i].time.push_back(seconds() - start);
        }
        char now[96];
        snprintf(now, sizeof now, "LibTorch and amp.h, seed %d/%d  step %d/%d", seed, o.seeds,
                 step + 1, o.steps);
        progress((seed - 1 + (step + 1.0) / o.steps) / o.seeds, now);
    }
    for (int i = 0; i < NUM_VARIANTS; i++) {
        if (table[i].left_out) continue;
        evaluate(*runs[i], data, &table[i].loss[seed - 1], &table[i].accuracy[seed - 1]);
        table[i].skipped += (double)runs[i]->skipped;
        table[i].scale = (double)runs[i]->scale();
    }
}

/* Returns whether loss and accuracy of all are within 1 % of LibTorch's in fp32. */
static bool print_table(column *table, const options &o) {
    bool         within = true;
    double       fp32_ms = 0.0;
    const double loss     = over_seeds(table[0].loss, NULL, o.seeds).mean;
    const double accuracy = over_seeds(table[0].accuracy, NULL, o.seeds).mean;
    printf("\n%-32s %8s %8s  %10s %6s %8s %6s %8s %6s\n", "", "loss", "d %", "accuracy %", "d", "skipped",
           "scale", "ms/step", "speed");
    for (int i = 0; i < NUM_VARIANTS; i++) {
        column &c = table[i];
        if (c.left_out) continue;
        const double dl = 100.0 * over_seeds(c.loss, table[0].loss, o.seeds).mean / loss;
        const double da = over_seeds(c.accuracy, table[0].accuracy, o.seeds).mean;
        qsort(c.time.data(), c.time.size(), sizeof(double), by_value);
        const double ms = 1000.0 * c.time[c.time.size() / 2];
        if (i == 0) fp32_ms = ms;
        printf("%-32s %8.4f %+8.2f  %10.2f %+6.2f %8.0f %6.0f %8.2f %5.2fx\n", variants[i].name,
               over_seeds(c.loss, NULL, o.seeds).mean, dl, accuracy + da, da, c.skipped, c.scale, ms,
               fp32_ms / ms);
        within = within && fabs(dl) <= 1.0 && fabs(da) <= 0.01 * accuracy;
    }
    printf("\n  loss and accuracy of all trainers are %s 1 %% of LibTorch's in fp32\n\n",
           within ? "within" : "NOT within");
    return within;
}

/* In a form that does not change, for programs: a trainer's losses beside LibTorch's in fp32. */
static void print_parity(const column *table, const options &o, trainer how, const char *name) {
    printf("parity libtorch %s: fp32 %.4f", name, over_seeds(table[0].loss, NULL, o.seeds).mean);
    for (int i = 0; i < NUM_VARIANTS; i++) {
        if (table[i].left_out || variants[i].how != how || variants[i].type == at::kFloat) continue;
        const spread d = over_seeds(table[i].loss, table[0].loss, o.seeds);
        printf(" %.4s %.4f", variants[i].name, over_seeds(table[i].loss, NULL, o.seeds).mean);
        print_difference(&d, 4, o.seeds);
    }
    printf(" seeds %d\n", o.seeds);
}

static void print_help() {
    const options o = options();
    printf("usage: libtorch [options]\n\n"
           "Train a LibTorch module in mixed precision with amp.h; compare with fp32.\n\n"
           "  --data NAME   digits, fashion, or files as train.c reads them\n"
           "  --seeds N     runs of each trainer (%d)\n"
           "  --steps N     optimizer steps, at least 40 (%d)\n"
           "  --batch N     images in a step (%d)\n"
           "  --out DIR     where states of interrupted runs go, for a moment (%s)\n",
           o.seeds, o.steps, o.batch, o.out);
}

static options parse_options(int argc, char **argv) {
    options     o;
    const known_option known[] = {
        word_option("--data", &o.data), word_option("--out", &o.out),
        count_option("--seeds", &o.seeds, MAX_SEEDS), count_option("--steps", &o.steps, 100000),
        count_option("--batch", &o.batch, 1024)};
    parse_known(argc, argv, known, sizeof known / sizeof *known, print_help);
    if (o.steps < 40) bad_option("--steps", std::to_string(o.steps).c_str(), "at least 40");
    return o;
}

static int compare(int argc, char **argv) {
    static dataset d;
    static column  table[NUM_VARIANTS];
    const options  o = parse_options(argc, argv);
    bool           good;
    load_data(&d, o.data);
    torch::set_num_threads(1); /* the same sums and comparable times, whatever else runs */
    const images data = tensors_of(d);
    printf("%s\nLibTorch %s, %d steps of %s, %s\n", d.name, TORCH_VERSION, o.steps,
           counted((size_t)o.batch, "image"), counted((size_t)o.seeds, "seed"));
    for (int i = 0; i < NUM_VARIANTS; i++) table[i].left_out = !type_works(variants[i], data, o);
    for (int seed = 1; seed <= o.seeds; seed++) train_seed(table, data, o, seed);
    progress_end();
    good = print_table(table, o);
    for (int i = 0; i < NUM_VARIANTS; i++)
        if (!table[i].left_out && variants[i].type != at::kFloat)
            good = interrupt(variants[i], data, o) && good;
    printf("\n");
    print_parity(table, o, SCALER, "scaler");
    print_parity(table, o, FUSED, "fused");
    return finish(good ? 0 : 1);
}

int main(int argc, char **argv) {
    try {
        return compare(argc, argv);
    } catch (const std::exception &e) { /* LibTorch's: the first line says what, the others where */
        const std::string words = e.what();
        fail(1, "LibTorch", words.substr(0, words.find('\n')).c_str(), "see --help");
    }
}
