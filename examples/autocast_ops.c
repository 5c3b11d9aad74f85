/* autocast_ops.c - what autocast says about an op, and a network that asks it

   Without options it prints the ops of the current policy, by rule. Then the forward pass of two
   layers asks for the type of every op, in nested scopes: one around everything, a disabled one
   inside it, and a layer that an override keeps in fp32.

   Build and run:
       cc -O2 -I. examples/autocast_ops.c -o autocast_ops -lm && ./autocast_ops
       ./autocast_ops --policy torch_cuda --op softmax --inputs fp16
       ./autocast_ops --override 'bf16 op:gelu=fp32'

   You should see eight ops, their errors against fp32 (none above 1%), and "ok". The program
   exits with 1 if its types or its loss are not as claimed. */

#define AMP_IMPLEMENTATION
#include "amp.h"
#define PROGRAM "autocast_ops"
#include "support/train_cli.h" /* options, fail, finish */
#include <math.h>      /* erff, expf, fabs, fmax, fmaxf, logf, sqrtf */

static const char *const usage =
    "usage: autocast_ops [OPTION]...\n"
    "Without --op and --table: the ops by rule, then a small network that asks them.\n"
    "  --policy NAME          default, torch_cuda, torch_cpu, tf, apex_o0 to apex_o3,\n"
    "                         keras_mixed_float16, keras_mixed_bfloat16\n"
    "  --override TEXT        change it: bf16, off, op:softmax=fp32, head.*=low, ...\n"
    "  --op NAME              in which type is it computed, and what does it return?\n"
    "    --inputs fp16,fp32   of inputs of these types (fp32),\n"
    "    --layer NAME         in this layer\n"
    "  --table all|differ     the whole table; the ops about which policies differ\n";

enum { NUM_TYPES = 3, NUM_LISTS = 5, NUM_RULES = 6, MAX_INPUTS = 8 };
static const char *const types[] = {"fp32", "fp16", "bf16"};
#define OP_NAME(id, rules) #id,
static const char *const op_names[] = {AMP_OP_LIST(OP_NAME)};
#undef OP_NAME
static const char *const policies[] = {
    "default", "torch_cuda", "torch_cpu", "tf", "apex_o1", /* the first NUM_LISTS have op lists */
    "apex_o0", "apex_o2", "apex_o3", "keras_mixed_float16", "keras_mixed_bfloat16", NULL};
static const char *const tables[] = {"all", "differ", NULL};
static const char *const rules[][2] = {
    {"low", "cast to the half type of the scope, returned in it"},
    {"fp32", "cast to fp32, returned in it"},
    {"keep", "computed in fp32 inside; types outside stay"},
    {"promote", "cast to the widest input, at least low"},
    {"pass", "as without autocast: the widest input"},
    {"banned", "refused until overridden"}};

/* ---------------------------------------------------------------------- the table of a policy */

/* What the dump says: the rule of each op, an index of rules, and whether it is an override's. */
typedef struct listing {
    int  rule[AMP_NUM_OPS], own[AMP_NUM_OPS];
    char title[80]; /* the first line */
} listing;

static bool read_line(void *user, const void *data, size_t num_bytes) {
    listing *l = (listing *)user;
    char     text[200], name[64], rule[16], reason[16];
    amp_op   op;
    snprintf(text, sizeof text, "%.*s", (int)num_bytes - 1, (const char *)data);
    if (!l->title[0]) snprintf(l->title, sizeof l->title, "%.79s", text);
    else if (sscanf(text, "%63s %15s %*s %*s %15s", name, rule, reason) == 3 &&
             amp_op_from_string(name, &op) == AMP_OK) {
        while (strcmp(rule, rules[l->rule[op]][0]) != 0) l->rule[op]++;
        l->own[op] = strcmp(reason, "override") == 0;
    }
    return true;
}

static bool print_line(void *user, const void *data, size_t num_bytes) {
    return fwrite(data, 1, num_bytes, (FILE *)user) == num_bytes;
}

/* Of a pattern that was about no layer: a spelling mistake? */
static bool note_unmatched(void *user, const void *data, size_t num_bytes) {
    char text[200], pattern[AMP_MAX_PATTERN];
    (void)user;
    snprintf(text, sizeof text, "%.*s", (int)num_bytes - 1, (const char *)data);
    if (strstr(text, "matched nothing yet") && sscanf(text, "layers %63s", pattern) == 1)
        printf("note: no layer that casts is named like %s\n", pattern);
    return true;
}

static void print_rules(const amp_autocast *ac) {
    listing l = {.title = ""};
    must(amp_autocast_dump(ac, read_line, &l));
    printf("%s (* by an override)\n", l.title);
    for (int r = 0; r < NUM_RULES; r++) {
        int column = 99;
        printf("\n%s: %s", rules[r][0], rules[r][1]);
        for (int op = 0; op < AMP_NUM_OPS; op++) {
            const char *name = op_names[op];
            if (l.rule[op] != r) continue;
            if (column + (int)strlen(name) > 79) column = printf("\n   ") - 1;
            column += printf(" %s%s", name, l.own[op] ? "*" : "");
        }
        printf("\n");
    }
}

static void compare(void) {
    static listing l[NUM_LISTS];
    printf("%-29s", "op");
    for (int p = 0; p < NUM_LISTS; p++) {
        amp_autocast ac;
        must(amp_autocast_init(&ac, AMP_POLICY_DEFAULT, AMP_F32));
        must(amp_autocast_override(&ac, policies[p]));
        must(amp_autocast_dump(&ac, read_line, &l[p]));
        printf(p + 1 < NUM_LISTS ? "%-11s" : "%s\n", policies[p]);
    }
    for (int op = 0; op < AMP_NUM_OPS; op++) {
        int same = 1;
        for (int p = 1; p < NUM_LISTS; p++) same &= l[p].rule[op] == l[0].rule[op];
        if (same) continue;
        printf("%-29s", op_names[op]);
        for (int p = 0; p < NUM_LISTS; p++)
            printf(p + 1 < NUM_LISTS ? "%-11s" : "%s\n", rules[l[p].rule[op]][0]);
    }
    puts("apex_o0: all fp32; apex_o3, keras_mixed_*: all low;\n"
         "apex_o2: so, but batch_norm keep");
}

/* The rule of an op at these inputs; one that is banned ends the program. */
static void ask(amp_autocast *ac, amp_op op, const amp_dtype *in, int count,
                amp_dtype *compute, amp_dtype *output) {
    const amp_result result = amp_autocast_dtype(ac, op, in, count, compute, output);
    char             remedy[96];
    snprintf(remedy, sizeof remedy, "give --override op:%s=fp32", op_names[op]);
    if (result != AMP_OK) fail(2, op_names[op], amp_problem(), remedy);
}

static void answer(amp_autocast *ac, const char *name, const char *inputs, const char *layer) {
    amp_dtype in[MAX_INPUTS], compute, output;
    amp_op    op;
    int       count = 0;
    listing   l     = {.title = ""};
    if (amp_op_from_string(name, &op) != AMP_OK) bad_option("--op", name, "one of --table all");
    for (const char *at = inputs; count == 0 || at[-1] == ','; at += 5) { /* names have length 4 */
        int type = 0;
        while (type < NUM_TYPES && strncmp(at, types[type], 4) != 0) type++;
        if (type == NUM_TYPES || (at[4] && at[4] != ',') || count == MAX_INPUTS)
            bad_option("--inputs", inputs, "up to eight of fp32, fp16, bf16");
        in[count++] = (amp_dtype)type;
    }
    must(amp_autocast_push(ac, &(amp_scope){.layer = layer}));
    amp_autocast_use(ac); /* the thread's: whoever computes need not be handed it */
    ask(NULL, op, in, count, &compute, &output);
    must(amp_autocast_dump(ac, read_line, &l));
    printf("%s of %s: compute in %s, return %s (%s; %s)\n", op_names[op], inputs,
           types[compute], types[output], layer ? layer : rules[l.rule[op]][0], l.title);
}

/* ----------------------------------------------------------------------------- the network
   Values are kept as floats that their type can hold. Every result is rounded to the type of the
   computation, also inside an op, but products are summed in fp32, as tensor cores do. */

enum { ROWS = 16, WIDTH = 32, CLASSES = 8, NUM_OPS = 8 };
typedef struct value { amp_dtype type, computed; int cols; float x[WIDTH * WIDTH]; } value;

static value results[2][NUM_OPS]; /* of the fp32 run, and of the one by the policy */
static int   run, next_op;

static float rounded(amp_dtype type, float x) {
    if (type == AMP_F16) return amp_f16_to_f32(amp_f32_to_f16(x));
    return type == AMP_BF16 ? amp_bf16_to_f32(amp_f32_to_bf16(x)) : x;
}
#define R(x) rounded(t, x)

static void compute_row(amp_op op, amp_dtype t, const float *in, int cols, const value *b,
                        int row, float *out, int out_cols) {
    float a[WIDTH] = {0.0f}, d[WIDTH], top = in[0], mean = 0.0f, sum = 0.0f;
    for (int j = 0; j < cols; j++) {
        a[j] = R(in[j]);
        top  = R(fmaxf(top, a[j]));
        mean = R(mean + R(a[j] / (float)cols));
    }
    for (int j = 0; j < cols; j++) { /* deviations and their squares, or exponentials */
        d[j] = op == AMP_OP_LAYER_NORM ? R(a[j] - mean) : R(expf(R(a[j] - top)));
        sum  = R(sum + (op == AMP_OP_LAYER_NORM ? R(d[j] * d[j]) : d[j]));
    }
    for (int j = 0; j < out_cols; j++) {
        float dot = 0.0f;
        for (int k = 0; k < cols && op == AMP_OP_LINEAR; k++) dot += a[k] * R(b->x[j * cols + k]);
        switch (op) {
        case AMP_OP_LINEAR: out[j] = R(dot); break;
        case AMP_OP_LAYER_NORM: out[j] = R(d[j] / R(sqrtf(R(sum / (float)cols)))); break;
        case AMP_OP_GELU: out[j] = R(a[j] * R(0.5f + R(0.5f * erff(0.70711f * a[j])))); break;
        case AMP_OP_ADD: out[j] = R(a[j] + R(b->x[row * cols + j])); break;
        case AMP_OP_SOFTMAX: out[j] = R(d[j] / sum); break;
        default: out[j] = R(R(R(logf(sum)) + top) - a[row % cols]); break; /* cross entropy */
        }
    }
}

/* Ask, compute accordingly, and show how far that is from the fp32 run. */
static const value *apply(amp_autocast *ac, amp_op op, const char *layer, const value *a,
                          const value *b, int cols) {
    const int       n     = next_op++;
    value          *out   = &results[run][n];
    const amp_dtype in[2] = {a->type, b ? b->type : AMP_F32};
    double          error = 0.0, most = 0.0;
    ask(ac, op, in, b ? 2 : 1, &out->computed, &out->type);
    out->cols = cols;
    for (int i = 0; i < ROWS; i++)
        compute_row(op, out->computed, a->x + i * a->cols, a->cols, b, i, out->x + i * cols, cols);
    for (int i = 0; i < ROWS * cols; i++) {
        out->x[i] = rounded(out->type, out->x[i]);
        error     = fmax(error, fabs((double)out->x[i] - (double)results[0][n].x[i]));
        most      = fmax(most, fabs((double)results[0][n].x[i]));
    }
    if (run)
        printf("%-9s%-15s%-5s%-7s%-10s%-10s%7.4f%%\n", layer, op_names[op], types[in[0]],
               b ? types[in[1]] : "", types[out->computed], types[out->type], 100.0 * error / most);
    return out;
}

static value noise(uint32_t state, int count, int cols, float size) {
    value v = {AMP_F32, AMP_F32, cols, {0.0f}};
    for (int i = 0; i < count * cols; i++, state = state * 1664525u + 1013904223u)
        v.x[i] = ((float)(state >> 8) / 8388608.0f - 1.0f) * size;
    return v;
}

/* The mean loss. What differs from a plain forward pass are the scopes; autocast is disabled for
   the router, since whom it chooses must not depend on rounding. */
static double forward(amp_autocast *ac, const value *x, const value weights[3]) {
    const value *v, *r;
    double       loss = 0.0;
    next_op = 0;
    must(amp_autocast_push(ac, &(amp_scope){.layer = "body"}));
    v = apply(ac, AMP_OP_LINEAR, "body", x, &weights[0], WIDTH);
    v = apply(ac, AMP_OP_LAYER_NORM, "body", v, NULL, WIDTH);
    v = apply(ac, AMP_OP_GELU, "body", v, NULL, WIDTH);
    v = apply(ac, AMP_OP_ADD, "body", v, x, WIDTH);
    must(amp_autocast_push(ac, &(amp_scope){.layer = "router", .mode = AMP_AUTOCAST_OFF}));
    r = apply(ac, AMP_OP_LINEAR, "router", x, &weights[1], CLASSES);
    apply(ac, AMP_OP_SOFTMAX, "router", r, NULL, CLASSES);
    must(amp_autocast_pop(ac));
    must(amp_autocast_push(ac, &(amp_scope){.layer = "head.out"}));
    v = apply(ac, AMP_OP_LINEAR, "head.out", v, &weights[2], CLASSES);
    v = apply(ac, AMP_OP_CROSS_ENTROPY, "head.out", v, NULL, 1);
    must(amp_autocast_pop(ac));
    must(amp_autocast_pop(ac));
    for (int i = 0; i < ROWS; i++) loss += (double)v->x[i] / ROWS;
    return loss;
}

static int run_network(amp_autocast *ac) {
    const value  x          = noise(1111111111u, ROWS, WIDTH, 2.0f);
    const value  weights[3] = {noise(2222222222u, WIDTH, WIDTH, 0.3f),
                               noise(3333333333u, CLASSES, WIDTH, 0.3f),
                               noise(4000000000u, CLASSES, WIDTH, 0.5f)};
    amp_autocast plain      = *ac;
    must(amp_autocast_override(&plain, "off"));
    must(amp_autocast_override(ac, "head.*=fp32"));
    printf("\nTwo layers, and a router with autocast disabled, after the override head.*=fp32:\n\n"
           "layer    op             inputs      computed  returned     error\n");
    const double exact = forward(&plain, &x, weights);
    run                = 1;
    const double loss  = forward(ac, &x, weights);
    int          ok    = fabs(loss / exact - 1.0) < 0.02;
    for (int i = 4; i < NUM_OPS; i++) ok = ok && results[1][i].computed == AMP_F32; /* not body */
    must(amp_autocast_dump(ac, note_unmatched, NULL));
    printf("%s: loss %.5f, in fp32 %.5f\n", ok ? "ok" : "NOT AS CLAIMED", loss, exact);
    return !ok;
}

static void override(amp_autocast *ac, const char *where, const char *text) {
    if (text && amp_autocast_override(ac, text) != AMP_OK)
        fail(2, where, amp_problem(), "types are fp32, fp16, bf16, low; ops: --table all");
}

static void print_help(void) { fputs(usage, stdout); }

int main(int argc, char **argv) {
    const char  *text = NULL, *op = NULL, *inputs = NULL, *layer = NULL;
    int          policy = -1, table = -1;
    amp_autocast ac;
    const known_option known[] = {
        choice_option("--policy", policies, &policy), word_option("--override", &text),
        word_option("--op", &op), word_option("--inputs", &inputs), word_option("--layer", &layer),
        choice_option("--table", tables, &table)};
    parse_known(argc, argv, known, sizeof known / sizeof *known, print_help);
    needs(argc, argv, "--inputs", "--op");
    needs(argc, argv, "--layer", "--op");
    if (op && table >= 0) fail(2, "--op", "cannot stand beside --table", "give one of them");
    if (table == 1 && (policy >= 0 || text))
        fail(2, "--policy, --override", "change nothing in --table differ", "leave them out");
    must(amp_autocast_init(&ac, AMP_POLICY_DEFAULT, AMP_F32));
    if (policy >= 0) override(&ac, "--policy", policies[policy]);
    override(&ac, "--override", text);
    if (table == 0) {
        const amp_result result = amp_autocast_dump(&ac, print_line, stdout);
        if (result != AMP_ERROR_WRITE) must(result); /* that one is told by finish */
    }
    if (table == 1) compare();
    if (op) answer(&ac, op, inputs ? inputs : "fp32", layer);
    if (op || table >= 0) return finish(0);
    print_rules(&ac);
    return finish(run_network(&ac));
}
