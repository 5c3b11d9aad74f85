/* test_policy.c - autocast: op lists against their sources, rules, scopes, threads, overrides,
   names, the dump, and random sequences against an independent model. */

#define _POSIX_C_SOURCE 200112L /* setenv, unsetenv */
#include "amp.h"
#include "../support/posix.h"
#include "../support/random.h"
#include "../support/test.h"

/* Threads only where they are part of libc, since the tests are linked with -lm alone. */
#if defined(__GLIBC__)
#define HAVE_THREADS __GLIBC_PREREQ(2, 34)
#elif defined(__APPLE__)
#define HAVE_THREADS 1
#else
#define HAVE_THREADS 0
#endif
#if HAVE_THREADS
#include <pthread.h>
#endif

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { NUM_POLICIES = 10, NUM_TYPES = 3, BAD = 99 };
#define OP_NAME(id, rules) #id,
static const char *const op_names[] = {AMP_OP_LIST(OP_NAME)};
#undef OP_NAME
typedef enum op_rule {
    RULE_PASS = 0, RULE_LOW, RULE_FP32, RULE_KEEP, RULE_PROMOTE, RULE_BANNED, NUM_RULES
} op_rule;

static const char *const rule_words[] = {"pass", "low", "fp32", "keep", "promote", "banned"};
static const char *const type_words[] = {"fp32", "fp16", "bf16"};
static const char *const policy_words[] = {
    "default", "torch_cuda", "torch_cpu", "tf", "apex_o0", "apex_o1", "apex_o2", "apex_o3",
    "keras_mixed_float16", "keras_mixed_bfloat16"};

static const amp_scope plain_scope; /* inherits everything */

/* A check that names an op. */
#define CHECK_OP(cond, policy, name)                                                    \
    do {                                                                                \
        char test_values[160];                                                          \
        snprintf(test_values, sizeof test_values, "%s, %s", policy_words[policy], name); \
        if (!(cond)) test_fail(__FILE__, __LINE__, "CHECK(" #cond ")", test_values);    \
    } while (0)

/* --------------------------------------------------------------------------------- op lists
   As the sources have them, by their own names. "a=b": the source says a, amp.h says b.
   "~a": amp.h has no such op. What a list does not name passes (TensorFlow: is fp32). */

typedef struct op_list { amp_policy policy; op_rule rule; const char *names; } op_list;

static const op_list source_lists[] = {
    /* PyTorch, aten/src/ATen/autocast_mode.h: AT_FORALL_LOWER_PRECISION_FP, and in the .cpp */
    {AMP_POLICY_TORCH_CUDA, RULE_LOW,
     "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d "
     "conv_transpose3d convolution ~cudnn_convolution ~cudnn_convolution_transpose prelu addmm "
     "addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul "
     "linalg_multi_dot _thnn_fused_lstm_cell=lstm_cell _thnn_fused_gru_cell=gru_cell lstm_cell "
     "gru_cell rnn_tanh_cell rnn_relu_cell "
     "_scaled_dot_product_flash_attention=scaled_dot_product_attention "
     "scaled_dot_product_attention"},
    /* AT_FORALL_FP32; rms_norm since 2.12 */
    {AMP_POLICY_TORCH_CUDA, RULE_FP32,
     "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus "
     "layer_norm native_layer_norm group_norm frobenius_norm nuclear_norm cosine_similarity "
     "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div "
     "l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
     "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist "
     "pdist cdist renorm logsumexp upsample_nearest1d=upsample_nearest "
     "upsample_nearest2d=upsample_nearest upsample_nearest3d=upsample_nearest "
     "_upsample_nearest_exact2d=upsample_nearest upsample_linear1d=upsample_linear "
     "upsample_bilinear2d=upsample_bilinear upsample_trilinear3d=upsample_trilinear "
     "upsample_bicubic2d=upsample_bicubic rms_norm"},
    /* AT_FORALL_FP32_SET_OPT_DTYPE, and norm, to which a dtype is appended */
    {AMP_POLICY_TORCH_CUDA, RULE_FP32,
     "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm"},
    /* AT_FORALL_PROMOTE */
    {AMP_POLICY_TORCH_CUDA, RULE_PROMOTE,
     "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"},
    {AMP_POLICY_TORCH_CUDA, RULE_BANNED, "binary_cross_entropy"},

    /* PyTorch, autocast_mode.cpp, AutocastCPU */
    {AMP_POLICY_TORCH_CPU, RULE_LOW,
     "_convolution conv1d conv2d conv3d bmm mm linalg_vecdot baddbmm addmm "
     "_addmm_activation=addmm addbmm "
     "linear matmul conv_tbc ~mkldnn_rnn_layer conv_transpose1d conv_transpose2d conv_transpose3d "
     "prelu scaled_dot_product_attention "
     "_native_multi_head_attention=scaled_dot_product_attention"},
    {AMP_POLICY_TORCH_CPU, RULE_FP32,
     "avg_pool3d binary_cross_entropy grid_sampler ~grid_sampler_3d polar prod quantile "
     "nanquantile=quantile stft cdist trace ~view_as_complex cholesky ~cholesky_inverse "
     "~cholesky_solve inverse ~lu_solve ~orgqr ~ormqr pinverse max_pool3d ~max_unpool2d "
     "~max_unpool3d ~adaptive_avg_pool3d ~adaptive_max_pool3d ~fractional_max_pool2d "
     "reflection_pad1d=reflection_pad reflection_pad2d=reflection_pad "
     "replication_pad1d=replication_pad replication_pad3d=replication_pad mse_loss "
     "cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss poisson_nll_loss "
     "smooth_l1_loss cross_entropy_loss=cross_entropy l1_loss huber_loss margin_ranking_loss "
     "soft_margin_loss triplet_margin_loss multi_margin_loss ctc_loss kl_div "
     "multilabel_margin_loss binary_cross_entropy_with_logits fft_fft=fft fft_ifft=fft "
     "fft_rfftn=fft fft_hfft=fft ~linalg_cond ~linalg_matrix_rank ~linalg_solve "
     "linalg_cholesky=cholesky linalg_svdvals=svd linalg_eigvals=eig linalg_eigvalsh=eig "
     "linalg_inv=inverse ~linalg_householder_product ~linalg_tensorinv ~linalg_tensorsolve "
     "fake_quantize_per_tensor_affine=fake_quantize ~geqrf _lu_with_info=lu qr svd "
     "~triangular_solve linalg_qr=qr linalg_svd=svd linalg_eig=eig linalg_eigh=eig "
     "linalg_lstsq=lstsq"},
    {AMP_POLICY_TORCH_CPU, RULE_PROMOTE, "stack cat index_copy"},

    /* Apex, apex/amp/lists: torch, functional and Tensor overrides */
    {AMP_POLICY_APEX_O1, RULE_LOW,
     "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc linear "
     "prelu addmm addmv addr matmul mm mv addbmm baddbmm bmm"},
    {AMP_POLICY_APEX_O1, RULE_FP32,
     "interpolate grid_sample=grid_sampler softplus softmin log_softmax softmax gelu layer_norm "
     "group_norm local_response_norm normalize cosine_similarity poisson_nll_loss "
     "cosine_embedding_loss cross_entropy hinge_embedding_loss kl_div l1_loss mse_loss "
     "margin_ranking_loss multilabel_margin_loss ~multilabel_soft_margin_loss multi_margin_loss "
     "nll_loss binary_cross_entropy_with_logits smooth_l1_loss soft_margin_loss "
     "triplet_margin_loss ctc_loss acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt "
     "sinh tan pow cumprod cumsum dist norm prod std sum var renorm ~cpu"},
    {AMP_POLICY_APEX_O1, RULE_PROMOTE,
     "addcdiv addcmul atan2 cross bilinear dot add div mul __sub__ eq=compare equal=compare "
     "ge=compare gt=compare le=compare lt=compare ne=compare cat stack"},
    {AMP_POLICY_APEX_O1, RULE_BANNED, "binary_cross_entropy"},

    /* TensorFlow, auto_mixed_precision_lists.h: allow, infer, deny, clear. What takes several
       tensors and may run in half has promote: they must agree in type. */
    {AMP_POLICY_TF, RULE_LOW,
     "BlockLSTM=lstm_cell LSTMBlockCell=lstm_cell GRUBlockCell=gru_cell Conv2D "
     "Conv2DBackpropInput Conv3D Conv3DBackpropInputV2 ~Conv2DBackpropFilter ~CudnnRNN Einsum "
     "MatMul BatchMatMul BatchMatMulV2 Mha ~Tmlp DepthwiseConv2dNative "
     "~FusedConv2DBiasActivation"},
    {AMP_POLICY_TF, RULE_PROMOTE,
     "Add AddV2 AddN=add Sub Mul RealDiv FloorDiv=div BiasAdd BiasAddV1=bias_add"},
    {AMP_POLICY_TF, RULE_PASS,
     "AvgPool AvgPool3D Elu Erf ~Erfc FusedBatchNormV2 FusedBatchNormV3 Inv LeakyRelu Log Log1p "
     "LogSoftmax Prod Reciprocal Selu Sigmoid Softmax Softplus ~Softsign Sqrt Tanh"},
    {AMP_POLICY_TF, RULE_FP32,
     "Exp Expm1 L2Loss Mean Pow ~SaveV2 SoftmaxCrossEntropyWithLogits "
     "SparseSoftmaxCrossEntropyWithLogits Sum"},
    {AMP_POLICY_TF, RULE_PASS,
     "Abs ArgMax ~ArgMin Equal=compare Greater=compare GreaterEqual=compare Less=compare "
     "LessEqual=compare NotEqual=compare Concat ConcatV2 Gather GatherV2=gather MaxPool "
     "MaxPoolV2=max_pool2d MaxPool3D Maximum Minimum MirrorPad=reflection_pad Neg Pack=stack Pad "
     "PadV2=pad Relu ~Relu6 Reshape ResizeNearestNeighbor Select SelectV2=select Slice "
     "StridedSlice=slice ~Split ~Squeeze Transpose ~Tile"},

    /* The default: what can be fused keeps its halves outside, elementwise ops of several tensors
       promote, statistics, losses and linear algebra are fp32. */
    {AMP_POLICY_DEFAULT, RULE_LOW,
     "gemm linear matmul mm mv bmm addmm addmv addr addbmm baddbmm einsum chain_matmul "
     "linalg_multi_dot linalg_vecdot convolution conv1d conv2d conv3d conv_transpose1d "
     "conv_transpose2d conv_transpose3d conv_tbc attention lstm_cell gru_cell rnn_tanh_cell "
     "rnn_relu_cell prelu"},
    {AMP_POLICY_DEFAULT, RULE_FP32,
     "exp expm1 log log10 log2 log1p pow rsqrt reciprocal tan sinh cosh acos asin erfinv softplus"},
    {AMP_POLICY_DEFAULT, RULE_FP32,
     "cross_entropy nll_loss bce_with_logits mse_loss l1_loss smooth_l1_loss huber_loss kl_div "
     "ctc_loss poisson_nll_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss "
     "multi_margin_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss sum mean prod "
     "cumsum cumprod norm normalize frobenius_norm nuclear_norm linalg_vector_norm "
     "linalg_matrix_norm var std quantile logsumexp dist pdist cdist renorm cosine_similarity"},
    {AMP_POLICY_DEFAULT, RULE_FP32,
     "upsample_linear upsample_bilinear upsample_trilinear upsample_bicubic fft stft cholesky "
     "inverse pinverse lu qr svd eig lstsq trace polar fake_quantize"},
    {AMP_POLICY_DEFAULT, RULE_KEEP,
     "softmax log_softmax softmin layer_norm rms_norm group_norm batch_norm local_response_norm "
     "gelu silu"},
    {AMP_POLICY_DEFAULT, RULE_PROMOTE,
     "add sub mul div compare bias_add cat stack addcdiv addcmul dot vdot tensordot cross atan2 "
     "bilinear index_put index_copy scatter_add grid_sampler"},
    {AMP_POLICY_DEFAULT, RULE_BANNED, "binary_cross_entropy"},
};

/* Not on the source's lists, and yet not as what is unlisted; why. */
static const struct deviation {
    amp_policy  policy;
    op_rule    rule;
    const char *names, *reason;
} deviations[] = {
    {AMP_POLICY_TORCH_CUDA, RULE_LOW, "gemm", "the BLAS name of mm"},
    {AMP_POLICY_TORCH_CPU, RULE_LOW, "gemm", "the BLAS name of mm"},
    {AMP_POLICY_APEX_O1, RULE_LOW, "gemm", "the BLAS name of mm"},
    {AMP_POLICY_TORCH_CUDA, RULE_FP32, "cross_entropy", "log_softmax, then nll_loss"},
    {AMP_POLICY_TORCH_CUDA, RULE_FP32, "softmin", "softmax of the negated input"},
    {AMP_POLICY_TORCH_CUDA, RULE_FP32, "normalize", "x / norm(x): norm returns fp32"},
    {AMP_POLICY_TORCH_CUDA, RULE_FP32, "local_response_norm", "x / pow(...), in fp32"},
    {AMP_POLICY_TORCH_CPU, RULE_LOW, "einsum tensordot chain_matmul linalg_multi_dot",
     "nothing but mm or bmm"},
    {AMP_POLICY_TORCH_CPU, RULE_LOW, "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
     "two linear, then elementwise"},
    {AMP_POLICY_APEX_O1, RULE_LOW, "convolution", "conv1d to conv3d in one"},
    {AMP_POLICY_APEX_O1, RULE_FP32, "huber_loss", "younger than the lists; all losses are"},
    {AMP_POLICY_APEX_O1, RULE_FP32,
     "upsample_nearest upsample_linear upsample_trilinear upsample_bicubic",
     "modes of interpolate"},
    {AMP_POLICY_TF, RULE_LOW, "gemm linear mm mv addmm addmv addbmm baddbmm",
     "MatMul or BatchMatMul, then perhaps Add"},
    {AMP_POLICY_TF, RULE_LOW, "chain_matmul linalg_multi_dot dot tensordot", "MatMul alone"},
    {AMP_POLICY_TF, RULE_LOW, "rnn_tanh_cell rnn_relu_cell", "MatMul, Add, Tanh or Relu"},
    {AMP_POLICY_TF, RULE_LOW, "convolution conv1d conv_transpose1d", "Conv2D of one row"},
    {AMP_POLICY_TF, RULE_PASS, "softmin silu dropout",
     "Neg and Softmax; Sigmoid and Mul; SelectV2 and Mul"},
    {AMP_POLICY_TF, RULE_PASS, "embedding", "GatherV2"},
    {AMP_POLICY_TF, RULE_PASS, "replication_pad", "a pad op"},
};

static unsigned char wanted[NUM_POLICIES][AMP_NUM_OPS]; /* filled from the lists by want_all */

/* The next blank-separated word of *text in word, or 0. */
static int next_word(const char **text, char *word, size_t room) {
    size_t n = 0;
    while (**text == ' ') ++*text;
    while (**text && **text != ' ' && n + 1 < room) word[n++] = *(*text)++;
    word[n] = '\0';
    return n > 0;
}

static void want(amp_policy policy, op_rule rule, const char *names, int once) {
    unsigned char *w = wanted[policy];
    char           word[80], *other;
    while (next_word(&names, word, sizeof word)) {
        amp_op     op = (amp_op)BAD, named = (amp_op)BAD;
        amp_result found;
        if (word[0] == '~') {
            CHECK_OP(amp_op_from_string(word + 1, &op) == AMP_ERROR_INVALID_ARGUMENT, policy, word);
            continue;
        }
        other = strchr(word, '=');
        if (other) *other++ = '\0';
        found = amp_op_from_string(word, &op);
        if (other) {
            CHECK_OP(amp_op_from_string(other, &named) == AMP_OK, policy, other);
            CHECK_OP(found != AMP_OK || op == named, policy, word);
            op = named;
        } else {
            CHECK_OP(found == AMP_OK, policy, word);
            if (found) continue;
        }
        CHECK_OP(w[op] == BAD || (!once && w[op] == (unsigned char)rule), policy, word);
        w[op] = (unsigned char)rule;
    }
}

static void want_all(void) {
    size_t i;
    int    p, op;
    memset(wanted, BAD, sizeof wanted);
    for (i = 0; i < COUNT_OF(source_lists); i++)
        want(source_lists[i].policy, source_lists[i].rule, source_lists[i].names, 0);
    for (i = 0; i < COUNT_OF(deviations); i++)
        want(deviations[i].policy, deviations[i].rule, deviations[i].names, 1);
    for (p = 0; p < NUM_POLICIES; p++) {
        for (op = 0; op < AMP_NUM_OPS; op++) {
            op_rule rule = RULE_PASS;
            if (wanted[p][op] != BAD) continue;
            if (p == AMP_POLICY_TF || p == AMP_POLICY_APEX_O0) rule = RULE_FP32;
            if (p >= AMP_POLICY_APEX_O2) rule = RULE_LOW;
            if (p == AMP_POLICY_APEX_O2 && op == AMP_OP_BATCH_NORM)
                rule = RULE_KEEP;
            wanted[p][op] = (unsigned char)rule;
        }
    }
}

/* ------------------------------------------------------------------------------------- helpers */

static amp_autocast make(amp_policy policy, amp_dtype dtype) {
    amp_autocast ac;
    memset(&ac, 0x55, sizeof ac);
    CHECK_EQ_INT(amp_autocast_init(&ac, policy, dtype), AMP_OK);
    return ac;
}

/* What a rule says, by counting types. */
static amp_result model(op_rule rule, amp_dtype low, const amp_dtype *inputs, int count,
                        amp_dtype *compute, amp_dtype *output) {
    int       seen[NUM_TYPES] = {0, 0, 0}, i;
    amp_dtype widest          = AMP_F32;
    for (i = 0; i < count; i++) seen[inputs[i]]++;
    if (count && seen[AMP_F16] == count) widest = AMP_F16;
    if (count && seen[AMP_BF16] == count) widest = AMP_BF16;
    *compute = *output = widest;
    if (rule == RULE_BANNED) return AMP_ERROR_BANNED;
    if (rule == RULE_LOW) *compute = *output = low;
    if (rule == RULE_FP32) *compute = *output = AMP_F32;
    if (rule == RULE_KEEP) *compute = AMP_F32;
    if (rule == RULE_PROMOTE) {
        if (seen[low == AMP_F16 ? AMP_BF16 : AMP_F16]) return AMP_ERROR_MIXED_TYPES;
        *compute = *output = seen[AMP_F32] ? AMP_F32 : low;
    }
    return AMP_OK;
}

/* The i-th of the 1 + 3 + 9 + 27 combinations of up to three input types. */
enum { COMBINATIONS = 40 };
static int combination(int i, amp_dtype *inputs) {
    int count = 0, of = 1, k;
    inputs[0] = inputs[1] = inputs[2] = AMP_F32;
    while (i >= of) {
        i -= of;
        of *= NUM_TYPES;
        count++;
    }
    for (k = 0; k < count; k++, i /= NUM_TYPES) inputs[k] = (amp_dtype)(i % NUM_TYPES);
    return count;
}

/* Does ac treat op by this rule, for all combinations? 0 if so, or 1 + the first that differs. */
static int differs(amp_autocast *ac, amp_op op, op_rule rule, amp_dtype low) {
    int i;
    for (i = 0; i < COMBINATIONS; i++) {
        amp_dtype  in[3], c = (amp_dtype)BAD, o = (amp_dtype)BAD, mc, mo;
        const int  n       = combination(i, in);
        amp_result result  = model(rule, low, in, n, &mc, &mo);
        if (result) mc = mo = (amp_dtype)BAD; /* nothing is written */
        if (amp_autocast_dtype(ac, op, n ? in : NULL, n, &c, &o) != result) return i + 1;
        if (c != mc || o != mo) return i + 1;
    }
    return 0;
}

#define CHECK_RULE(ac, op, rule, low) CHECK_EQ_INT(differs(ac, op, rule, low), 0)

/* Not cast at all? Every op passes its inputs. */
#define CHECK_NOTHING_CAST(ac)                                        \
    do {                                                              \
        CHECK_RULE(ac, AMP_OP_LINEAR, RULE_PASS, AMP_F16);        \
        CHECK_RULE(ac, AMP_OP_BINARY_CROSS_ENTROPY, RULE_PASS, AMP_F16); \
        CHECK_RULE(ac, AMP_OP_SOFTMAX, RULE_PASS, AMP_F16);       \
        CHECK_RULE(ac, AMP_OP_ADD, RULE_PASS, AMP_F16);           \
    } while (0)

static amp_dtype compute_of(amp_autocast *ac, amp_op op, amp_dtype input) {
    amp_dtype compute = (amp_dtype)BAD;
    CHECK_EQ_INT(amp_autocast_dtype(ac, op, &input, 1, &compute, NULL), AMP_OK);
    return compute;
}

static amp_result push(amp_autocast *ac, int mode, amp_dtype dtype, const char *layer) {
    amp_scope s;
    memset(&s, 0, sizeof s);
    s.mode  = (amp_autocast_mode)mode;
    s.dtype = dtype;
    s.layer = layer;
    return amp_autocast_push(ac, &s);
}

/* The i-th pattern of which the dump says that it has matched nothing yet, or NULL. */
static struct { int left; char pattern[AMP_MAX_PATTERN]; } sought;

static bool seek(void *user, const void *text, size_t num_bytes) {
    static const char end[]     = ", matched nothing yet\n";
    char              line[200] = "";
    (void)user;
    memcpy(line, text, num_bytes < sizeof line ? num_bytes : sizeof line - 1);
    if (num_bytes < sizeof end || strcmp(line + num_bytes - (sizeof end - 1), end) != 0 || sought.left-- != 0)
        return true;
    CHECK_EQ_INT(sscanf(line, "layers %63s", sought.pattern), 1);
    return false;
}

static const char *unmatched(const amp_autocast *ac, int i) {
    sought.left = i;
    return amp_autocast_dump(ac, seek, NULL) == AMP_OK ? NULL : sought.pattern;
}

static amp_result say(amp_autocast *ac, const char *text) {
    return amp_autocast_override(ac, text);
}

/* --------------------------------------------------------------------------------------- lists */

TEST(lists, "every op of every policy has the rule that its source gives it, in both directions") {
    int p, op;
    want_all();
    for (p = 0; p < NUM_POLICIES; p++) {
        amp_autocast ac  = make((amp_policy)p, AMP_F32);
        const int    bf  = p == AMP_POLICY_TORCH_CPU || p == AMP_POLICY_KERAS_MIXED_BFLOAT16;
        CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK);
        for (op = 0; op < AMP_NUM_OPS; op++) {
            const op_rule rule = (op_rule)wanted[p][op];
            CHECK_OP(differs(&ac, (amp_op)op, rule, bf ? AMP_BF16 : AMP_F16) == 0, p, op_names[op]);
        }
    }
}

TEST(rules, "each rule: result and both types for 0 to 3 inputs of all types, both halves") {
    int rule, low, i;
    for (low = AMP_F16; low <= AMP_BF16; low++) {
        amp_autocast ac = make(AMP_POLICY_DEFAULT, (amp_dtype)low);
        CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK);
        for (rule = 0; rule < NUM_RULES; rule++) {
            char text[40];
            snprintf(text, sizeof text, "op:relu=%s", rule_words[rule]);
            CHECK_EQ_INT(say(&ac, text), AMP_OK);
            CHECK_RULE(&ac, AMP_OP_RELU, (op_rule)rule, (amp_dtype)low);
        }
    }
    { /* a few by hand, so that the model itself is checked */
        const amp_dtype half[3] = {AMP_F16, AMP_F16, AMP_F32}, mixed[2] = {AMP_F16, AMP_BF16};
        amp_dtype       c, o;
        amp_autocast    ac = make(AMP_POLICY_DEFAULT, AMP_F16);
        CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_ADD, half, 3, &c, &o), AMP_OK);
        CHECK(c == AMP_F32 && o == AMP_F32);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_ADD, half, 2, &c, &o), AMP_OK);
        CHECK(c == AMP_F16 && o == AMP_F16);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_SOFTMAX, half, 1, &c, &o), AMP_OK);
        CHECK(c == AMP_F32 && o == AMP_F16);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_LINEAR, half, 3, &c, &o), AMP_OK);
        CHECK(c == AMP_F16 && o == AMP_F16);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_EXP, half, 1, &c, &o), AMP_OK);
        CHECK(c == AMP_F32 && o == AMP_F32);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_RELU, mixed, 2, &c, &o), AMP_OK);
        CHECK(c == AMP_F32 && o == AMP_F32);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_ADD, mixed, 2, &c, &o),
                     AMP_ERROR_MIXED_TYPES);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_ADD, NULL, 0, &c, &o), AMP_OK);
        CHECK(c == AMP_F16 && o == AMP_F16);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_RELU, NULL, 0, &c, &o), AMP_OK);
        CHECK(c == AMP_F32 && o == AMP_F32);
    }
    { /* what is not wanted may be NULL; more inputs than three; both results in one place */
        amp_autocast ac = make(AMP_POLICY_DEFAULT, AMP_BF16);
        amp_dtype    many[100], c = (amp_dtype)BAD, o = (amp_dtype)BAD;
        for (i = 0; i < 100; i++) many[i] = AMP_BF16;
        CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_GELU, many, 1, NULL, NULL), AMP_OK);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_GELU, many, 1, &c, NULL), AMP_OK);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_GELU, many, 1, NULL, &o), AMP_OK);
        CHECK(c == AMP_F32 && o == AMP_BF16);
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_CAT, many, 100, &c, &o), AMP_OK);
        CHECK(c == AMP_BF16 && o == AMP_BF16);
        many[99] = AMP_F32;
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_CAT, many, 100, &c, &o), AMP_OK);
        CHECK(c == AMP_F32 && o == AMP_F32);
        many[99] = AMP_F16;
        CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_CAT, many, 100, NULL, NULL),
                     AMP_ERROR_MIXED_TYPES);
    }
}

TEST(banned, "binary cross entropy is refused where its source refuses it, until overridden") {
    const amp_policy refusing[] = {AMP_POLICY_DEFAULT, AMP_POLICY_TORCH_CUDA, AMP_POLICY_APEX_O1};
    const amp_op     bce        = AMP_OP_BINARY_CROSS_ENTROPY;
    size_t           i;
    for (i = 0; i < COUNT_OF(refusing); i++) {
        amp_autocast ac = make(refusing[i], AMP_F32);
        CHECK_RULE(&ac, bce, RULE_PASS, AMP_F16); /* no scope: nobody asks */
        CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK);
        CHECK_RULE(&ac, bce, RULE_BANNED, AMP_F16);
        CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_OFF, AMP_F32, NULL), AMP_OK);
        CHECK_RULE(&ac, bce, RULE_PASS, AMP_F16);
        CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
        CHECK_EQ_INT(say(&ac, "op:bce=fp32"), AMP_OK);
        CHECK_RULE(&ac, bce, RULE_FP32, AMP_F16);
        CHECK_EQ_INT(say(&ac, "op:bce=banned,op:relu=banned"), AMP_OK);
        CHECK_RULE(&ac, bce, RULE_BANNED, AMP_F16);
        CHECK_RULE(&ac, AMP_OP_RELU, RULE_BANNED, AMP_F16);
    }
}

TEST(refused_init, "manual: an init that is refused leaves its object zeroed, whatever it held; nothing is cast by it") {
    static const struct { int policy, dtype; } bad[] = {{NUM_POLICIES, AMP_F32}, {-1, AMP_F32}, {AMP_POLICY_TF, 3},
                                                        {AMP_POLICY_TF, -1}};
    static const amp_autocast zero;
    size_t                    i;
    for (i = 0; i < COUNT_OF(bad); i++) {
        amp_autocast ac;
        memset(&ac, 0xa5, sizeof ac);
        CHECK_EQ_INT(amp_autocast_init(&ac, (amp_policy)bad[i].policy, (amp_dtype)bad[i].dtype),
                     AMP_ERROR_INVALID_ENUM);
        CHECK_MEM(&ac, &zero, sizeof ac);
        CHECK_NOTHING_CAST(&ac);
    }
}

TEST(invalid, "invalid arguments are named, and nothing is written") {
    amp_autocast  ac = make(AMP_POLICY_DEFAULT, AMP_F32), before;
    amp_dtype     in[2] = {AMP_F16, AMP_F32}, c = (amp_dtype)BAD, o = (amp_dtype)BAD;
    size_t        position = 77;
    amp_op        op       = (amp_op)BAD;
    const int     bad_ops[] = {-1, AMP_NUM_OPS, 1 << 30};
    size_t        i;
    CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK);
    before = ac;

    CHECK_EQ_INT(amp_autocast_init(NULL, AMP_POLICY_TF, AMP_F32), AMP_ERROR_INVALID_ARGUMENT);

    CHECK_EQ_INT(amp_autocast_push(NULL, &plain_scope), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_autocast_push(&ac, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(push(&ac, 3, AMP_F32, NULL), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(push(&ac, -1, AMP_F32, NULL), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(push(&ac, 0, (amp_dtype)3, NULL), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(amp_autocast_pop(NULL), AMP_ERROR_INVALID_ARGUMENT);

    for (i = 0; i < COUNT_OF(bad_ops); i++) {
        CHECK_EQ_INT(amp_autocast_dtype(&ac, (amp_op)bad_ops[i], in, 1, &c, &o),
                     AMP_ERROR_INVALID_ENUM);
        CHECK_EQ_INT(amp_autocast_dtype(NULL, (amp_op)bad_ops[i], in, 1, &c, &o),
                     AMP_ERROR_INVALID_ENUM);
    }
    CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_ADD, in, -1, &c, &o),
                 AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_ADD, NULL, 1, &c, &o),
                 AMP_ERROR_INVALID_ARGUMENT);
    in[1] = (amp_dtype)3;
    CHECK_EQ_INT(amp_autocast_dtype(&ac, AMP_OP_ADD, in, 2, &c, &o), AMP_ERROR_INVALID_ENUM);
    in[1] = (amp_dtype)-1;
    CHECK_EQ_INT(amp_autocast_dtype(NULL, AMP_OP_ADD, in, 2, &c, &o), AMP_ERROR_INVALID_ENUM);

    CHECK_EQ_INT(amp_autocast_override(NULL, "fp16"), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_autocast_override(&ac, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_op_from_string(NULL, &op), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_op_from_string("relu", NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_autocast_dump(&ac, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_autocast_dump(NULL, seek, NULL), AMP_ERROR_INVALID_ARGUMENT);

    CHECK(c == (amp_dtype)BAD && o == (amp_dtype)BAD);
    CHECK(op == (amp_op)BAD && position == 77);
    CHECK_MEM(&ac, &before, sizeof ac);
}

TEST(presets, "a dtype given to init is low; without one it is the policy's own") {
    static const amp_dtype own[NUM_POLICIES] = {AMP_F16, AMP_F16, AMP_BF16, AMP_F16, AMP_F16,
                                                AMP_F16, AMP_F16, AMP_F16, AMP_F16, AMP_BF16};
    int p, dtype;
    for (p = 0; p < NUM_POLICIES; p++) {
        for (dtype = AMP_F32; dtype <= AMP_BF16; dtype++) {
            amp_autocast    ac  = make((amp_policy)p, (amp_dtype)dtype);
            const amp_dtype low = dtype != AMP_F32 ? (amp_dtype)dtype : own[p];
            CHECK_NOTHING_CAST(&ac);
            CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK);
            CHECK_RULE(&ac, AMP_OP_LINEAR, p == AMP_POLICY_APEX_O0 ? RULE_FP32 : RULE_LOW,
                       low);
        }
    }
    { /* the levels of Apex, and Keras, by hand */
        amp_autocast o0 = make(AMP_POLICY_APEX_O0, AMP_F32);
        amp_autocast o2 = make(AMP_POLICY_APEX_O2, AMP_F32);
        amp_autocast o3 = make(AMP_POLICY_APEX_O3, AMP_F32);
        amp_autocast kb = make(AMP_POLICY_KERAS_MIXED_BFLOAT16, AMP_F32);
        CHECK_EQ_INT(amp_autocast_push(&o0, &plain_scope), AMP_OK);
        CHECK_EQ_INT(amp_autocast_push(&o2, &plain_scope), AMP_OK);
        CHECK_EQ_INT(amp_autocast_push(&o3, &plain_scope), AMP_OK);
        CHECK_EQ_INT(amp_autocast_push(&kb, &plain_scope), AMP_OK);
        CHECK_EQ_INT(compute_of(&o0, AMP_OP_RELU, AMP_F16), AMP_F32);
        CHECK_EQ_INT(compute_of(&o2, AMP_OP_EXP, AMP_F32), AMP_F16);
        CHECK_EQ_INT(compute_of(&o2, AMP_OP_BATCH_NORM, AMP_F16), AMP_F32);
        CHECK_EQ_INT(compute_of(&o2, AMP_OP_LAYER_NORM, AMP_F32), AMP_F16);
        CHECK_EQ_INT(compute_of(&o3, AMP_OP_BATCH_NORM, AMP_F32), AMP_F16);
        CHECK_EQ_INT(compute_of(&kb, AMP_OP_SOFTMAX, AMP_F32), AMP_BF16);
    }
}

/* -------------------------------------------------------------------------------------- scopes */

TEST(scopes, "modes, types and layers are inherited or set; leaving restores every byte") {
    amp_autocast ac = make(AMP_POLICY_TORCH_CUDA, AMP_F32), around, copy;
    CHECK_EQ_INT(say(&ac, "dec=fp32"), AMP_OK);
    around = ac;
    CHECK_NOTHING_CAST(&ac);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_ERROR_BAD_STATE);
    CHECK_MEM(&ac, &around, sizeof ac);

    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_INHERIT, AMP_F32, NULL), AMP_OK); /* outermost: on */
    CHECK_EQ_INT(compute_of(&ac, AMP_OP_MM, AMP_F32), AMP_F16);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    CHECK_MEM(&ac, &around, sizeof ac);

    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_ON, AMP_BF16, NULL), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_BF16);
    CHECK_RULE(&ac, AMP_OP_DOT, RULE_PROMOTE, AMP_BF16);
    copy = ac;
    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_OFF, AMP_F32, NULL), AMP_OK);
    CHECK_NOTHING_CAST(&ac);
    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_INHERIT, AMP_F32, "x"), AMP_OK); /* inside off: off */
    CHECK_NOTHING_CAST(&ac);
    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_ON, AMP_F32, NULL), AMP_OK); /* type from three outside */
    CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_BF16);
    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_INHERIT, AMP_F16, "dec"), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_MM, RULE_FP32, AMP_F16);
    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_INHERIT, AMP_F32, NULL), AMP_OK); /* layer inherited */
    CHECK_RULE(&ac, AMP_OP_MM, RULE_FP32, AMP_F16);
    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_INHERIT, AMP_F32, "enc"), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_F16);
    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_INHERIT, AMP_F32, ""), AMP_OK); /* a layer without a name */
    CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_F16);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_MM, RULE_FP32, AMP_F16);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_BF16);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    CHECK_NOTHING_CAST(&ac);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    CHECK(unmatched(&copy, 0) != NULL && unmatched(&ac, 0) == NULL);
    copy.overrides[0].matched = ac.overrides[0].matched; /* what a query marks is no part of a scope */
    CHECK_MEM(&ac, &copy, sizeof ac);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    CHECK_NOTHING_CAST(&ac);
}

TEST(scope_limit, "AMP_MAX_SCOPES nest, one more is refused, and all can be left again") {
    amp_autocast ac = make(AMP_POLICY_DEFAULT, AMP_F32), at[AMP_MAX_SCOPES + 1];
    int          i;
    for (i = 0; i < AMP_MAX_SCOPES; i++) {
        at[i] = ac;
        CHECK_EQ_INT(push(&ac, i % 3 == 2 ? AMP_AUTOCAST_OFF : AMP_AUTOCAST_ON,
                          i % 2 ? AMP_BF16 : AMP_F16, i % 5 ? "a" : "b"), AMP_OK);
    }
    at[i] = ac;
    CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_ERROR_TOO_LARGE);
    for (i = AMP_MAX_SCOPES; i-- > 0;) {
        CHECK_MEM(&ac, &at[i + 1], sizeof ac);
        if (i % 3 == 2) CHECK_NOTHING_CAST(&ac);
        else CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, i % 2 ? AMP_BF16 : AMP_F16);
        CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    }
    CHECK_MEM(&ac, &at[0], sizeof ac);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_ERROR_BAD_STATE);
}

TEST(copies, "a copy of the object is independent of it") {
    amp_autocast a = make(AMP_POLICY_DEFAULT, AMP_F32), b, kept;
    CHECK_EQ_INT(say(&a, "head.*=fp32"), AMP_OK);
    CHECK_EQ_INT(push(&a, 0, AMP_F32, "body"), AMP_OK);
    b    = a;
    kept = a;
    CHECK_EQ_INT(say(&b, "apex_o0,op:relu=low,*=bf16"), AMP_OK);
    CHECK_EQ_INT(push(&b, AMP_AUTOCAST_OFF, AMP_F32, "head.x"), AMP_OK);
    CHECK_EQ_INT(amp_autocast_pop(&b), AMP_OK);
    CHECK_RULE(&b, AMP_OP_EXP, RULE_LOW, AMP_BF16);
    CHECK_MEM(&a, &kept, sizeof a);
    CHECK_RULE(&a, AMP_OP_EXP, RULE_FP32, AMP_F16);
    CHECK_EQ_INT(amp_autocast_pop(&a), AMP_OK);
    CHECK_NOTHING_CAST(&a);
    CHECK_RULE(&b, AMP_OP_EXP, RULE_LOW, AMP_BF16);
}

/* ------------------------------------------------------------------------------------- threads */

TEST(current, "the calling thread's autocast: none at first; use returns the one before") {
    amp_autocast    a = make(AMP_POLICY_TORCH_CUDA, AMP_F32);
    amp_autocast    b = make(AMP_POLICY_TORCH_CPU, AMP_F32);
    const amp_dtype in = AMP_F32;
    amp_dtype       c  = (amp_dtype)BAD, o = (amp_dtype)BAD;
    CHECK_EQ_INT(amp_autocast_push(&a, &plain_scope), AMP_OK);
    CHECK_EQ_INT(amp_autocast_push(&b, &plain_scope), AMP_OK);
    CHECK_EQ_INT(amp_autocast_dtype(NULL, AMP_OP_LINEAR, &in, 1, &c, &o), AMP_OK);
    CHECK(c == AMP_F32 && o == AMP_F32);
    CHECK(amp_autocast_use(&a) == NULL);
    if (amp_autocast_use(&a) == NULL) SKIP("this compiler has no thread-local storage");
    CHECK_EQ_INT(amp_autocast_dtype(NULL, AMP_OP_LINEAR, &in, 1, &c, &o), AMP_OK);
    CHECK(c == AMP_F16 && o == AMP_F16);
    {
        amp_autocast *before = amp_autocast_use(&b); /* a function with a policy of its own */
        CHECK(before == &a);
        CHECK_EQ_INT(amp_autocast_dtype(NULL, AMP_OP_LINEAR, &in, 1, &c, NULL), AMP_OK);
        CHECK_EQ_INT(c, AMP_BF16);
        CHECK(amp_autocast_use(before) == &b);
    }
    CHECK_EQ_INT(amp_autocast_dtype(NULL, AMP_OP_LINEAR, &in, 1, &c, NULL), AMP_OK);
    CHECK_EQ_INT(c, AMP_F16);
    CHECK_EQ_INT(amp_autocast_dtype(NULL, AMP_OP_BINARY_CROSS_ENTROPY, &in, 1, &c, NULL),
                 AMP_ERROR_BANNED);
    CHECK(amp_autocast_use(NULL) == &a);
    CHECK_EQ_INT(amp_autocast_dtype(NULL, AMP_OP_LINEAR, &in, 1, &c, NULL), AMP_OK);
    CHECK_EQ_INT(c, AMP_F32);
    CHECK(amp_autocast_use(NULL) == NULL);
}

#if HAVE_THREADS
enum { TURNS = 40 };

static pthread_mutex_t turn_lock   = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  turn_passed = PTHREAD_COND_INITIALIZER;
static int             turn;

typedef struct worker { /* checks may not jump out of a thread: it counts its faults */
    int       id, faults;
    amp_policy policy;
    amp_dtype low;
} worker;

static void *work(void *arg) { /* takes turns with the other, so that both are surely at work */
    worker         *w = (worker *)arg;
    const amp_dtype in = AMP_F32;
    amp_dtype       c  = AMP_F32;
    amp_autocast    ac;
    int             i;
    w->faults += amp_autocast_use(NULL) != NULL; /* a thread starts with none */
    w->faults += amp_autocast_dtype(NULL, AMP_OP_MM, &in, 1, &c, NULL) != AMP_OK || c != AMP_F32;
    w->faults += amp_autocast_init(&ac, w->policy, AMP_F32) != AMP_OK;
    w->faults += amp_autocast_push(&ac, &plain_scope) != AMP_OK;
    for (i = 0; i < TURNS; i++) {
        pthread_mutex_lock(&turn_lock);
        while (turn % 2 != w->id) pthread_cond_wait(&turn_passed, &turn_lock);
        if (i == 0) w->faults += amp_autocast_use(&ac) != NULL;
        w->faults += amp_autocast_dtype(NULL, AMP_OP_MM, &in, 1, &c, NULL) != AMP_OK || c != w->low;
        turn++;
        pthread_cond_broadcast(&turn_passed);
        pthread_mutex_unlock(&turn_lock);
    }
    w->faults += amp_autocast_use(NULL) != &ac;
    return NULL;
}
#endif

TEST(threads, "two threads with different policies do not see each other's, nor the first one's") {
#if HAVE_THREADS
    worker       w[2] = {{0, 0, AMP_POLICY_TORCH_CUDA, AMP_F16},
                         {1, 0, AMP_POLICY_TORCH_CPU, AMP_BF16}};
    amp_autocast ac   = make(AMP_POLICY_APEX_O3, AMP_F32);
    pthread_t    thread[2];
    int          i;
    CHECK(amp_autocast_use(&ac) == NULL);
    if (amp_autocast_use(&ac) == NULL) SKIP("this compiler has no thread-local storage");
    turn = 0;
    for (i = 0; i < 2; i++) CHECK_EQ_INT(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    for (i = 0; i < 2; i++) CHECK_EQ_INT(pthread_join(thread[i], NULL), 0);
    for (i = 0; i < 2; i++) CHECK_EQ_INT(w[i].faults, 0);
    CHECK_EQ_INT(turn, 2 * TURNS);
    CHECK(amp_autocast_use(NULL) == &ac);
#else
    SKIP("no threads in this C library");
#endif
}

/* ----------------------------------------------------------------------------------- overrides */

TEST(words, "types, off, policies and op rules; later words over earlier ones") {
    static amp_session session; /* only its address is used */
    static const char  enc[] = "enc", dec[] = "dec"; /* two literals might differ in address */
    amp_autocast ac = make(AMP_POLICY_DEFAULT, AMP_F32);
    int          p, r;
    CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK);
    CHECK_EQ_INT(say(&ac, ""), AMP_OK);
    CHECK_EQ_INT(say(&ac, " ,;\t\n\r, "), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_F16);
    CHECK_EQ_INT(say(&ac, "bf16"), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_BF16);
    CHECK_EQ_INT(say(&ac, "bf16 , FP16"), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_F16);
    CHECK_EQ_INT(say(&ac, "op:softmax=fp32,op:softmax=low,OP:GELU=BF16"), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_SOFTMAX, RULE_LOW, AMP_F16);
    CHECK_RULE(&ac, AMP_OP_GELU, RULE_LOW, AMP_BF16);
    CHECK_EQ_INT(say(&ac, "op:softmax=low\top:softmax=fp32\nop:gelu=low"), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_SOFTMAX, RULE_FP32, AMP_F16);
    CHECK_RULE(&ac, AMP_OP_GELU, RULE_LOW, AMP_F16); /* low alone forgets bf16 */
    for (r = 0; r < NUM_RULES; r++) {
        char text[64];
        snprintf(text, sizeof text, "op:MatMul=%s", rule_words[r]);
        CHECK_EQ_INT(say(&ac, text), AMP_OK);
        CHECK_RULE(&ac, AMP_OP_MATMUL, (op_rule)r, AMP_F16);
        CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_F16);
    }

    /* a scope's own type is more than a word's, and an op's type more than a scope's */
    CHECK_EQ_INT(push(&ac, 0, AMP_BF16, NULL), AMP_OK);
    CHECK_EQ_INT(say(&ac, "fp16,op:linear=fp16"), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_BF16);
    CHECK_RULE(&ac, AMP_OP_LINEAR, RULE_LOW, AMP_F16);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);

    /* off is for every scope, also those that say on, until another policy is named */
    CHECK_EQ_INT(say(&ac, "off"), AMP_OK);
    CHECK_NOTHING_CAST(&ac);
    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_ON, AMP_BF16, NULL), AMP_OK);
    CHECK_NOTHING_CAST(&ac);
    CHECK_EQ_INT(say(&ac, "bf16 op:linear=fp16"), AMP_OK);
    CHECK_NOTHING_CAST(&ac);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);

    for (p = 0; p < NUM_POLICIES; p++) {
        amp_autocast fresh = make((amp_policy)p, AMP_F32);
        char         text[120];
        CHECK_EQ_INT(push(&fresh, 0, AMP_F32, enc), AMP_OK);
        CHECK_EQ_INT(push(&fresh, AMP_AUTOCAST_OFF, AMP_F16, dec), AMP_OK);
        ac = make(AMP_POLICY_TF, AMP_BF16);
        CHECK_EQ_INT(push(&ac, 0, AMP_F32, enc), AMP_OK);
        CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_OFF, AMP_F16, dec), AMP_OK);
        ac.session = fresh.session = &session;
        snprintf(text, sizeof text, "op:mm=fp32,*=keep,bf16,off,tf32,%s", policy_words[p]);
        CHECK_EQ_INT(say(&ac, text), AMP_OK);
        CHECK_MEM(&ac, &fresh, sizeof ac); /* all forgotten but open scopes and whose it is */
        CHECK(unmatched(&ac, 0) == NULL);
        snprintf(text, sizeof text, "%s op:mm=fp32", policy_words[p]); /* what follows is kept */
        CHECK_EQ_INT(say(&ac, text), AMP_OK);
        CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
        CHECK_RULE(&ac, AMP_OP_MM, RULE_FP32, AMP_F16);
        CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
        CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_ERROR_BAD_STATE);
    }
    CHECK_EQ_INT(say(&ac, "TorchCUDA KERAS_mixedBFloat16 ApexO2"), AMP_OK);
    CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_BATCH_NORM, RULE_KEEP, AMP_F16);
}

TEST(patterns, "layer patterns: * anywhere, repeated, with backtracking; nothing else is special") {
    static const struct { const char *pattern, *name; int match; } cases[] = {
        {"*", "", 1}, {"*", "a", 1}, {"*", "a.b.c", 1}, {"**", "", 1}, {"***", "xyz", 1},
        {"a", "a", 1}, {"a", "", 0}, {"a", "b", 0}, {"a", "aa", 0}, {"aa", "a", 0},
        {"a", "A", 0}, {"a_b", "ab", 0}, {"?", "a", 0}, {"?", "?", 1}, {"[ab]", "a", 0},
        {"a*", "a", 1}, {"a*", "abc", 1}, {"a*", "ba", 0}, {"a*", "", 0},
        {"*a", "a", 1}, {"*a", "bca", 1}, {"*a", "ab", 0}, {"*a", "", 0},
        {"*ab", "aab", 1}, {"*ab", "abab", 1}, {"*ab", "aba", 0}, {"*aab", "aaaab", 1},
        {"a*b*c", "abc", 1}, {"a*b*c", "axxbyyc", 1}, {"a*b*c", "acb", 0}, {"a*b*c", "abcd", 0},
        {"a*b*c", "abcbc", 1}, {"a*b*c", "ab", 0}, {"*a*", "a", 1}, {"*a*", "xay", 1},
        {"*a*", "xy", 0}, {"*a*b*", "ba", 0}, {"*a*b*", "xaxbx", 1}, {"a**b", "ab", 1},
        {"a**b", "axb", 1}, {"a**b", "axbx", 0}, {"*abc*", "ababc", 1}, {"*abc*", "ababab", 0},
        {"*a*a*a", "aaa", 1}, {"*a*a*a", "aa", 0}, {"a*a", "a", 0}, {"a*a", "aa", 1},
        {"a*a", "aba", 1}, {"*ab*ab", "abab", 1}, {"*ab*ab", "aab", 0}, {"*.norm", "x.norm", 1},
        {"*.norm", "norm", 0}, {"decoder.*.norm", "decoder.3.norm", 1},
        {"decoder.*.norm", "decoder.3.attn.norm", 1}, {"decoder.*.norm", "decoder.norm", 0},
        {"decoder.*.norm", "decoder.3.norm2", 0}, {"head.*", "head.", 1}, {"head.*", "head", 0},
        {"op", "op", 1}, {"fp16", "fp16", 1}, {"off", "off", 1}, {"torch_cuda", "torch_cuda", 1},
    };
    char   text[AMP_MAX_PATTERN + 16], longest[AMP_MAX_PATTERN], name[4096];
    size_t i;
    for (i = 0; i < COUNT_OF(cases); i++) {
        amp_autocast ac = make(AMP_POLICY_DEFAULT, AMP_F32);
        snprintf(text, sizeof text, "%s=low", cases[i].pattern);
        CHECK_EQ_INT(say(&ac, text), AMP_OK);
        CHECK_EQ_INT(push(&ac, 0, AMP_F32, cases[i].name), AMP_OK);
        if (differs(&ac, AMP_OP_EXP, cases[i].match ? RULE_LOW : RULE_FP32, AMP_F16))
            test_fail(__FILE__, __LINE__, cases[i].pattern, cases[i].name);
        CHECK_EQ_INT(unmatched(&ac, 0) == NULL, cases[i].match);
    }
    { /* the longest pattern, which must match to its last character; a long name */
        amp_autocast ac = make(AMP_POLICY_DEFAULT, AMP_F32);
        memset(longest, 'x', sizeof longest - 1);
        longest[sizeof longest - 1] = '\0';
        snprintf(text, sizeof text, "%s=low", longest);
        CHECK_EQ_INT(say(&ac, text), AMP_OK);
        CHECK_EQ_INT(push(&ac, 0, AMP_F32, longest), AMP_OK);
        CHECK_RULE(&ac, AMP_OP_EXP, RULE_LOW, AMP_F16);
        longest[sizeof longest - 2] = 'y';
        CHECK_RULE(&ac, AMP_OP_EXP, RULE_FP32, AMP_F16);
        memset(name, 'a', sizeof name - 1);
        name[sizeof name - 1] = '\0';
        CHECK_EQ_INT(say(&ac, "*aaaaaaaaaaaaaaab=bf16 *a*a*a*a*a*a=fp16"), AMP_OK);
        CHECK_EQ_INT(push(&ac, 0, AMP_F32, name), AMP_OK);
        CHECK_RULE(&ac, AMP_OP_EXP, RULE_LOW, AMP_F16);
        name[sizeof name - 2] = 'b';
        CHECK_RULE(&ac, AMP_OP_EXP, RULE_LOW, AMP_BF16);
    }
}

TEST(layers, "a layer's rule is for all its ops, over an op's rule; later patterns over earlier") {
    amp_autocast ac = make(AMP_POLICY_DEFAULT, AMP_F32);
    int          r;
    CHECK_EQ_INT(say(&ac, "dec.*=fp32,op:linear=bf16"), AMP_OK);
    CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK); /* without a layer */
    CHECK_RULE(&ac, AMP_OP_LINEAR, RULE_LOW, AMP_BF16);
    CHECK_RULE(&ac, AMP_OP_MM, RULE_LOW, AMP_F16);
    CHECK_EQ_INT(push(&ac, 0, AMP_F32, "dec.1"), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_LINEAR, RULE_FP32, AMP_F16);
    CHECK_RULE(&ac, AMP_OP_RELU, RULE_FP32, AMP_F16);
    CHECK_EQ_INT(say(&ac, "*.1=bf16"), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_RELU, RULE_LOW, AMP_BF16);
    CHECK_EQ_INT(say(&ac, "dec*=low"), AMP_OK); /* low of the scope again */
    CHECK_RULE(&ac, AMP_OP_RELU, RULE_LOW, AMP_F16);
    CHECK_RULE(&ac, AMP_OP_LINEAR, RULE_LOW, AMP_F16);
    CHECK_EQ_INT(push(&ac, 0, AMP_BF16, "dec.2"), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_RELU, RULE_LOW, AMP_BF16);
    CHECK_EQ_INT(say(&ac, "dec.2=fp16"), AMP_OK); /* a layer's type over its scope's */
    CHECK_RULE(&ac, AMP_OP_RELU, RULE_LOW, AMP_F16);
    for (r = 0; r < NUM_RULES; r++) {
        char text[64];
        snprintf(text, sizeof text, "d*2=%s", rule_words[r]);
        CHECK_EQ_INT(say(&ac, text), AMP_OK);
        CHECK_RULE(&ac, AMP_OP_BINARY_CROSS_ENTROPY, (op_rule)r, AMP_BF16);
        CHECK_RULE(&ac, AMP_OP_ADD, (op_rule)r, AMP_BF16);
    }
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_RELU, RULE_LOW, AMP_F16);
}

TEST(unmatched_patterns, "manual: the dump says of patterns that no layer has matched that they matched nothing yet, "
                         "until one does") {
    amp_autocast ac = make(AMP_POLICY_DEFAULT, AMP_F32);
    CHECK(unmatched(&ac, 0) == NULL);
    CHECK_EQ_INT(say(&ac, "op:relu=fp32,a*=fp32,b=low,*c=keep"), AMP_OK);
    CHECK(strcmp(unmatched(&ac, 0), "a*") == 0);
    CHECK(strcmp(unmatched(&ac, 1), "b") == 0);
    CHECK(strcmp(unmatched(&ac, 2), "*c") == 0);
    CHECK(unmatched(&ac, 3) == NULL);
    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_OFF, AMP_F32, "b"), AMP_OK);
    CHECK_NOTHING_CAST(&ac); /* off: not even looked up */
    CHECK(unmatched(&ac, 2) != NULL);
    CHECK_EQ_INT(push(&ac, AMP_AUTOCAST_ON, AMP_F32, NULL), AMP_OK);
    CHECK_RULE(&ac, AMP_OP_EXP, RULE_LOW, AMP_F16);
    CHECK(strcmp(unmatched(&ac, 0), "a*") == 0);
    CHECK(strcmp(unmatched(&ac, 1), "*c") == 0);
    CHECK(unmatched(&ac, 2) == NULL);
    CHECK_EQ_INT(push(&ac, 0, AMP_F32, "abc"), AMP_OK); /* both, though only the last decides */
    CHECK_RULE(&ac, AMP_OP_EXP, RULE_KEEP, AMP_F16);
    CHECK(unmatched(&ac, 0) == NULL);
    CHECK_EQ_INT(say(&ac, "b=fp32"), AMP_OK); /* the same pattern again is another one */
    CHECK(strcmp(unmatched(&ac, 0), "b") == 0);
    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
}

/* Where the last mistake in a text was, from 0. */
static size_t told_position(void) {
    unsigned at = 0;
    CHECK_EQ_INT(sscanf(amp_problem(), "text, character %u: ", &at), 1);
    return at - 1;
}

TEST(mistakes, "a mistake is told by its position, and nothing of the text is done") {
    static const struct { const char *text; size_t position; } cases[] = {
        {"nosuch", 0}, {"fp16 nosuch", 5}, {",, nosuch", 3}, {"bf16,op:relu=low,torch_cudaa", 17},
        {"fp32", 0}, {"low", 0}, {"on", 0}, {"fp", 0}, {"fp161", 0}, {"f16", 0}, {"_", 0},
        {"op:nosuch=fp32", 3}, {"op:=fp32", 3}, {"apex_o0,op:softmaxx=fp32", 11}, {"op:_=low", 3},
        {"op:nosuch=wrong", 3}, {"OP:nosuch=", 3}, {"=wrong", 0}, /* the first mistake of two */
        {"op:soft*=fp32", 3}, {"op:softmax", 0}, {"bf16 op:", 5}, {"op:", 0}, {"softmax", 0},
        {"op:softmax=", 11}, {"op:softmax= fp32", 11}, {"op:softmax =fp32", 0},
        {"op:softmax=wrong", 11}, {"op:softmax=fp32=", 11}, {"op:softmax=fp3", 11},
        {"op:softmax=off", 11}, {"op:softmax=torch_cuda", 11}, {"op:softmax=_", 11},
        {"=fp32", 0}, {"fp16 =", 5}, {"=", 0}, {"*=", 2}, {"a.b=", 4}, {"a.b=fp33", 4},
        {"a=b=fp32", 2}, {"*=fp32,*=fp32x", 9}, {"*", 0}, {"a.*", 0}, {"off,bf16,*=low:x", 11},
        {"torch_cuda.", 0}, {"\"fp16\"", 0}, {"fp16|bf16", 0}, {"\xc3\xa9", 0},
    };
    amp_autocast ac = make(AMP_POLICY_TORCH_CUDA, AMP_BF16), before;
    char         text[4 * AMP_MAX_PATTERN + 600];
    size_t       i;
    CHECK_EQ_INT(say(&ac, "op:relu=fp32,b.*=fp16"), AMP_OK);
    CHECK_EQ_INT(push(&ac, 0, AMP_F32, "b.c"), AMP_OK);
    before = ac;
    for (i = 0; i < COUNT_OF(cases); i++) {
        CHECK_EQ_INT(amp_autocast_override(&ac, cases[i].text), AMP_ERROR_PARSE);
        snprintf(text, sizeof text, "text, character %d: not understood: \"%s\"", (int)cases[i].position + 1,
                 cases[i].text + cases[i].position);
        if (strcmp(amp_problem(), text) != 0) test_fail(__FILE__, __LINE__, text, amp_problem());
        CHECK_MEM(&ac, &before, sizeof ac);
    }

    memset(text, 'x', sizeof text); /* a pattern that is one too long, after other words */
    memcpy(text, "off bf16 ", 9);
    memcpy(text + 9 + AMP_MAX_PATTERN, "=low", 5);
    CHECK_EQ_INT(amp_autocast_override(&ac, text), AMP_ERROR_PARSE);
    CHECK(strstr(amp_problem(), "text, character 10: not understood: \"xxx") == amp_problem());
    CHECK_MEM(&ac, &before, sizeof ac);
    memcpy(text + 9 + AMP_MAX_PATTERN - 1, "=low", 5);
    CHECK_EQ_INT(amp_autocast_override(&before, text), AMP_OK);

    before = ac; /* holds one pattern; all but one more of them fit, and then none */
    for (i = 0; i < (size_t)AMP_MAX_OVERRIDES; i++) memcpy(text + 6 * i, "a=low ", 6);
    text[6 * i] = '\0';
    CHECK_EQ_INT(amp_autocast_override(&ac, text), AMP_ERROR_PARSE);
    CHECK_EQ_U64(told_position(), 6 * (AMP_MAX_OVERRIDES - 1));
    CHECK_MEM(&ac, &before, sizeof ac);
    text[6 * (i - 1)] = '\0';
    CHECK_EQ_INT(amp_autocast_override(&ac, text), AMP_OK);
    before = ac;
    CHECK_EQ_INT(amp_autocast_override(&ac, "b=low"), AMP_ERROR_PARSE);
    CHECK_EQ_U64(told_position(), 0);
    CHECK_MEM(&ac, &before, sizeof ac);
    CHECK_EQ_INT(say(&ac, "op:relu=low tf b=low"), AMP_OK); /* a policy makes room */
    CHECK_EQ_INT(compute_of(&ac, AMP_OP_RELU, AMP_F32), AMP_F32);
}

/* --------------------------------------------------------------------------------------- names */

static amp_op op_of(const char *name) {
    amp_op op = (amp_op)BAD;
    if (amp_op_from_string(name, &op) != AMP_OK) CHECK_EQ_INT(op, BAD);
    return op;
}

TEST(names, "every op's name is its own; capitals and underscores do not matter; others do") {
    static const struct { const char *name; amp_op op; } aliases[] = {
        {"LayerNorm", AMP_OP_LAYER_NORM}, {"_layer__norm_", AMP_OP_LAYER_NORM},
        {"MatMul", AMP_OP_MATMUL}, {"BatchMatMulV2", AMP_OP_BMM}, {"attention",
        AMP_OP_SCALED_DOT_PRODUCT_ATTENTION}, {"SDPA", AMP_OP_SCALED_DOT_PRODUCT_ATTENTION},
        {"mha", AMP_OP_SCALED_DOT_PRODUCT_ATTENTION}, {"DepthwiseConv2dNative", AMP_OP_CONV2D},
        {"Conv2DBackpropInput", AMP_OP_CONV_TRANSPOSE2D}, {"FusedBatchNormV3", AMP_OP_BATCH_NORM},
        {"native_layer_norm", AMP_OP_LAYER_NORM}, {"Inv", AMP_OP_RECIPROCAL},
        {"swish", AMP_OP_SILU}, {"AddV2", AMP_OP_ADD}, {"RealDiv", AMP_OP_DIV},
        {"ConcatV2", AMP_OP_CAT}, {"SparseSoftmaxCrossEntropyWithLogits", AMP_OP_CROSS_ENTROPY},
        {"nll_loss2d", AMP_OP_NLL_LOSS}, {"mse", AMP_OP_MSE_LOSS},
        {"BCELoss", AMP_OP_BINARY_CROSS_ENTROPY}, {"bce_with_logits", AMP_OP_BCE_WITH_LOGITS},
        {"binary_cross_entropy_with_logits", AMP_OP_BCE_WITH_LOGITS},
        {"BCEWithLogitsLoss", AMP_OP_BCE_WITH_LOGITS}, {"MaxPool", AMP_OP_MAX_POOL2D},
        {"ResizeBilinear", AMP_OP_UPSAMPLE_BILINEAR}, {"interpolate", AMP_OP_UPSAMPLE_BILINEAR},
        {"MaxPoolV2", AMP_OP_MAX_POOL2D}, {"upsample_nearest1d", AMP_OP_UPSAMPLE_NEAREST},
        {"upsample_nearest2d", AMP_OP_UPSAMPLE_NEAREST}, {"Pack", AMP_OP_STACK},
        {"upsample_nearest3d", AMP_OP_UPSAMPLE_NEAREST}, {"GatherV2", AMP_OP_GATHER},
        {"upsample_linear1d", AMP_OP_UPSAMPLE_LINEAR}, {"SelectV2", AMP_OP_SELECT},
        {"upsample_bilinear2d", AMP_OP_UPSAMPLE_BILINEAR}, {"PadV2", AMP_OP_PAD},
        {"upsample_trilinear3d", AMP_OP_UPSAMPLE_TRILINEAR}, {"fft_fft", AMP_OP_FFT},
        {"upsample_bicubic2d", AMP_OP_UPSAMPLE_BICUBIC}, {"BiasAddV1", AMP_OP_BIAS_ADD},
        {"cross_entropy_loss", AMP_OP_CROSS_ENTROPY}, {"MirrorPad", AMP_OP_REFLECTION_PAD},
        {"grid_sample", AMP_OP_GRID_SAMPLER}, {"linalg_cholesky", AMP_OP_CHOLESKY},
        {"linalg_inv", AMP_OP_INVERSE}, {"linalg_pinv", AMP_OP_PINVERSE},
        {"linalg_lu", AMP_OP_LU}, {"linalg_qr", AMP_OP_QR}, {"linalg_svd", AMP_OP_SVD},
        {"linalg_eig", AMP_OP_EIG}, {"linalg_lstsq", AMP_OP_LSTSQ},
        {"batch_matmul", AMP_OP_BMM}, {"Conv3DBackpropInputV2", AMP_OP_CONV_TRANSPOSE3D},
        {"FusedBatchNorm", AMP_OP_BATCH_NORM}, {"FusedBatchNormV2", AMP_OP_BATCH_NORM},
        {"Concat", AMP_OP_CAT}, {"SoftmaxCrossEntropyWithLogits", AMP_OP_CROSS_ENTROPY},
        {"L2Loss", AMP_OP_MSE_LOSS}, {"bce", AMP_OP_BINARY_CROSS_ENTROPY},
        {"AvgPool", AMP_OP_AVG_POOL2D}, {"ResizeNearestNeighbor", AMP_OP_UPSAMPLE_NEAREST},
    };
    static const char *const unknown[] = {"", "_", "___", "nosuch", "softma", "softmaxx",
                                          "soft max", " softmax", "softmax ", "soft-max", "*",
                                          "op:softmax", "AMP_OP_SOFTMAX"};
    size_t i;
    int    op;
    CHECK_EQ_INT(COUNT_OF(op_names), AMP_NUM_OPS);
    for (op = 0; op < AMP_NUM_OPS; op++) {
        const char *name = op_names[op];
        char        squeezed[64];
        size_t      n = 0, k;
        CHECK_EQ_INT(op_of(name), op);
        for (k = 0; name[k]; k++) /* BatchNorm2d style: no underscores, every second a capital */
            if (name[k] != '_')
                squeezed[n] = (char)(n % 2 && name[k] >= 'A' ? name[k] - 'A' + 'a' : name[k]), n++;
        squeezed[n] = '\0';
        CHECK_EQ_INT(op_of(squeezed), op);
    }
    for (i = 0; i < COUNT_OF(aliases); i++) CHECK_EQ_INT(op_of(aliases[i].name), aliases[i].op);
    for (i = 0; i < COUNT_OF(unknown); i++) CHECK_EQ_INT(op_of(unknown[i]), BAD);
}

/* ---------------------------------------------------------------------------------------- dump */

enum { MAX_LINES = AMP_NUM_OPS + AMP_MAX_OVERRIDES + 2, LINE_ROOM = 200 };

static struct {
    char line[MAX_LINES][LINE_ROOM];
    int  count, fail_at; /* fail_at: from this line on, or -1 */
} dumped;

static bool keep_line(void *user, const void *data, size_t num_bytes) {
    const char *text = (const char *)data;
    CHECK(user == (void *)&dumped);
    CHECK(dumped.count < MAX_LINES && num_bytes > 1 && num_bytes < LINE_ROOM);
    CHECK(text[num_bytes - 1] == '\n' && !memchr(text, '\n', num_bytes - 1));
    CHECK(!memchr(text, '\0', num_bytes) && text[num_bytes - 2] != ' ');
    memcpy(dumped.line[dumped.count], text, num_bytes - 1);
    dumped.line[dumped.count][num_bytes - 1] = '\0';
    return dumped.count++ != dumped.fail_at;
}

static amp_result dump(const amp_autocast *ac, int fail_at) {
    dumped.count   = 0;
    dumped.fail_at = fail_at;
    return amp_autocast_dump(ac, keep_line, &dumped);
}

/* Which word is it? */
static int word_index(const char *word, const char *const *words, int count) {
    int i;
    for (i = 0; i < count && strcmp(word, words[i]) != 0; i++) {}
    return i;
}

/* A line's "rule compute return reason", whose types must follow from the rule and low. */
static op_rule read_row(const char *row, amp_dtype low, const char *reason) {
    char        rule[40], compute[40], output[40];
    const char *type;
    int         r;
    CHECK(next_word(&row, rule, sizeof rule));
    CHECK(next_word(&row, compute, sizeof compute));
    CHECK(next_word(&row, output, sizeof output));
    while (*row == ' ') row++;
    if (strcmp(row, reason) != 0) test_fail(__FILE__, __LINE__, reason, row);
    r    = word_index(rule, rule_words, NUM_RULES);
    type = r == RULE_LOW ? type_words[low] : r == RULE_FP32 ? "fp32" : "inputs'";
    if (r == RULE_BANNED) type = "-";
    if (strcmp(output, type) != 0) test_fail(__FILE__, __LINE__, type, output);
    if (r == RULE_KEEP) type = "fp32";
    if (strcmp(compute, type) != 0) test_fail(__FILE__, __LINE__, type, compute);
    return (op_rule)r;
}

TEST(dump_rows, "the dump says of every op what amp_autocast_dtype does, and why") {
    int p, op, low;
    for (p = 0; p < NUM_POLICIES; p++) {
        for (low = AMP_F16; low <= AMP_BF16; low++) {
            amp_autocast ac = make((amp_policy)p, (amp_dtype)low);
            char         text[120];
            CHECK_EQ_INT(say(&ac, "op:softmax=promote op:tanh=bf16 op:mm=fp16 op:add=fp32 "
                                  "op:svd=keep op:relu=banned op:bce=low op:exp=pass"), AMP_OK);
            CHECK_EQ_INT(dump(&ac, -1), AMP_OK);
            CHECK_EQ_INT(dumped.count, AMP_NUM_OPS + 2);
            snprintf(text, sizeof text, "policy %s, low %s", policy_words[p], type_words[low]);
            CHECK(strcmp(dumped.line[0], text) == 0);
            CHECK_EQ_INT(amp_autocast_push(&ac, &plain_scope), AMP_OK);
            for (op = 0; op < AMP_NUM_OPS; op++) {
                const char *row = dumped.line[op + 2];
                const int   own = op == AMP_OP_SOFTMAX || op == AMP_OP_TANH || op == AMP_OP_MM ||
                                  op == AMP_OP_ADD || op == AMP_OP_SVD || op == AMP_OP_RELU ||
                                  op == AMP_OP_BINARY_CROSS_ENTROPY || op == AMP_OP_EXP;
                amp_dtype low_of = (amp_dtype)low;
                char      name[64];
                op_rule  rule;
                if (op == AMP_OP_TANH) low_of = AMP_BF16;
                if (op == AMP_OP_MM) low_of = AMP_F16;
                CHECK(next_word(&row, name, sizeof name));
                CHECK_EQ_INT(op_of(name), op);
                rule = read_row(row, low_of, own ? "override" : "policy");
                CHECK_OP(differs(&ac, (amp_op)op, rule, low_of) == 0, p, name);
            }
        }
    }
}

TEST(dump_layers, "layer patterns follow, with their types, and whether they have matched yet") {
    static const char *const patterns[] = {"a*", "b.c", "*"};
    amp_autocast             ac         = make(AMP_POLICY_DEFAULT, AMP_F32);
    char                     text[AMP_MAX_PATTERN + 40], word[AMP_MAX_PATTERN + 1];
    int                      length, i, r;
    CHECK_EQ_INT(say(&ac, "a*=bf16,b.c=keep,*=low,off"), AMP_OK);
    CHECK_EQ_INT(dump(&ac, -1), AMP_OK);
    CHECK(strcmp(dumped.line[0], "policy default, low fp16, off") == 0);
    CHECK_EQ_INT(say(&ac, "default,tf32"), AMP_OK);
    CHECK_EQ_INT(dump(&ac, -1), AMP_OK);
    CHECK(strcmp(dumped.line[0], "policy default, low fp16, tf32") == 0);
    CHECK_EQ_INT(say(&ac, "default,bf16,a*=fp16,b.c=keep,*=low"), AMP_OK);
    CHECK_EQ_INT(push(&ac, 0, AMP_F32, "b.c"), AMP_OK);
    (void)compute_of(&ac, AMP_OP_MM, AMP_F32);
    CHECK_EQ_INT(dump(&ac, -1), AMP_OK);
    CHECK(strcmp(dumped.line[0], "policy default, low bf16") == 0);
    CHECK_EQ_INT(dumped.count, AMP_NUM_OPS + 2 + 3);
    for (i = 0; i < 3; i++) {
        const op_rule rules[] = {RULE_LOW, RULE_KEEP, RULE_LOW};
        const char    *row     = dumped.line[AMP_NUM_OPS + 2 + i];
        CHECK(next_word(&row, word, sizeof word) && strcmp(word, "layers") == 0);
        CHECK(next_word(&row, word, sizeof word) && strcmp(word, patterns[i]) == 0);
        CHECK_EQ_INT(read_row(row, i == 0 ? AMP_F16 : AMP_BF16,
                              i == 0 ? "override, matched nothing yet" : "override"), rules[i]);
    }
    for (length = 1; length < AMP_MAX_PATTERN; length++) { /* columns stay apart for every length */
        for (r = 0; r < NUM_RULES; r++) {
            const char *row = dumped.line[AMP_NUM_OPS + 2];
            memset(text, 'x', sizeof text);
            snprintf(text + length, sizeof text - (size_t)length, "=%s", rule_words[r]);
            ac = make(AMP_POLICY_DEFAULT, AMP_F32);
            CHECK_EQ_INT(say(&ac, text), AMP_OK);
            CHECK_EQ_INT(dump(&ac, -1), AMP_OK);
            text[length] = '\0';
            CHECK(next_word(&row, word, sizeof word) && strcmp(word, "layers") == 0);
            CHECK(next_word(&row, word, sizeof word) && strcmp(word, text) == 0);
            CHECK_EQ_INT(read_row(row, AMP_F16, "override, matched nothing yet"), r);
        }
    }
}

TEST(dump_fails, "a writer that fails at any line ends the dump there, with AMP_ERROR_WRITE") {
    amp_autocast ac = make(AMP_POLICY_TF, AMP_F32), before;
    int          i;
    CHECK_EQ_INT(say(&ac, "a=low,b=low"), AMP_OK);
    before = ac;
    for (i = 0; i < AMP_NUM_OPS + 4; i++) {
        CHECK_EQ_INT(dump(&ac, i), AMP_ERROR_WRITE);
        CHECK_EQ_INT(dumped.count, i + 1);
    }
    CHECK_EQ_INT(dump(&ac, i), AMP_OK);
    CHECK_EQ_INT(dumped.count, i);
    CHECK_MEM(&ac, &before, sizeof ac);
}

/* -------------------------------------------------------------------------------------- random
   A model that shares nothing with amp.h but wanted[]: it keeps what was said as a list, and
   answers by going through it from the start. */

typedef struct saying { int layer, op, rule, low; char pattern[16]; } saying;

static struct {
    int         policy, low, off, num_said, num_layers, depth;
    saying      said[4096];
    amp_scope   scope[AMP_MAX_SCOPES];
} m;

static int m_matches(const char *p, const char *s) {
    if (!*p) return !*s;
    if (*p == '*') return m_matches(p + 1, s) || (*s && m_matches(p, s + 1));
    return *p == *s && m_matches(p + 1, s + 1);
}

static void m_policy(int policy, int low) {
    m.policy = policy;
    m.low    = low ? low
                   : policy == AMP_POLICY_TORCH_CPU || policy == AMP_POLICY_KERAS_MIXED_BFLOAT16
                         ? AMP_BF16 : AMP_F16;
    m.off = m.num_said = m.num_layers = 0;
}

static amp_result m_query(int op, const amp_dtype *in, int n, amp_dtype *c, amp_dtype *o) {
    int         rule = RULE_PASS, low = m.low, on = 1, i, pass;
    const char *layer = NULL;
    for (i = 0; i < m.depth; i++) {
        if (m.scope[i].mode) on = m.scope[i].mode == AMP_AUTOCAST_ON;
        if (m.scope[i].dtype) low = (int)m.scope[i].dtype;
        if (m.scope[i].layer) layer = m.scope[i].layer;
    }
    if (m.depth && on && !m.off) {
        int type = 0;
        rule     = wanted[m.policy][op];
        for (pass = 0; pass < 2; pass++) /* ops, then layers */
            for (i = 0; i < m.num_said; i++) {
                const saying *s = &m.said[i];
                if (s->layer != pass) continue;
                if (s->layer ? !layer || !m_matches(s->pattern, layer) : s->op != op) continue;
                rule = s->rule;
                type = s->low;
            }
        if (type) low = type;
    }
    return model((op_rule)rule, (amp_dtype)low, in, n, c, o);
}

static int dice(int sides) { return (int)random_below((size_t)sides); }

static const char *const layer_names[] = {"", "a", "ab", "aab", "b.a", "enc.1", "enc.norm"};

/* One to three words, said to both. Some texts end in a mistake: then neither changes. */
static void random_override(amp_autocast *ac) {
    static const char *const patterns[] = {"*", "a", "a*", "*ab", "*a*b*", "enc.*", "*norm", "zz"};
    char                     text[200];
    size_t                   used = 0, position = 999;
    amp_result               expected = AMP_OK;
    int                      words = 1 + dice(3), mistake = dice(6) == 0;
    const int                num_said = m.num_said, num_layers = m.num_layers;
    const int                policy = m.policy, low = m.low, off = m.off;
    saying                   kept[3]; /* what these words may write over */
    memcpy(kept, m.said, sizeof kept);
    while (words-- && !expected) {
        saying    *s    = &m.said[m.num_said];
        const int  kind = dice(20), r = dice(NUM_RULES + 2);
        const char *rule = r < NUM_RULES ? rule_words[r] : type_words[r - NUM_RULES + 1];
        if (used) text[used++] = " ,;\n"[dice(4)];
        if (kind == 0) {
            m_policy(dice(NUM_POLICIES), 0);
            used += (size_t)sprintf(text + used, "%s", policy_words[m.policy]);
            continue;
        }
        if (kind == 1) {
            m.off = 1;
            used += (size_t)sprintf(text + used, "off");
            continue;
        }
        if (kind < 5) {
            m.low = 1 + dice(2);
            used += (size_t)sprintf(text + used, "%s", type_words[m.low]);
            continue;
        }
        s->layer = kind < 11;
        s->op    = dice(AMP_NUM_OPS);
        s->rule  = r < NUM_RULES ? r : RULE_LOW;
        s->low   = r < NUM_RULES ? 0 : r - NUM_RULES + 1;
        strcpy(s->pattern, patterns[dice((int)COUNT_OF(patterns))]);
        if (s->layer && m.num_layers == AMP_MAX_OVERRIDES) {
            expected = AMP_ERROR_PARSE;
            position = used;
        }
        used += (size_t)sprintf(text + used, "%s%s=%s", s->layer ? "" : "op:",
                                s->layer ? s->pattern : op_names[s->op], rule);
        m.num_layers += s->layer;
        m.num_said++;
    }
    if (mistake && !expected) {
        text[used++] = ' ';
        position     = used + (size_t)(dice(2) ? 2 : 0); /* in the pattern's rule, or in the word */
        used += (size_t)sprintf(text + used, "%s", position > used ? "x=y" : "oops");
        expected = AMP_ERROR_PARSE;
    }
    text[used] = '\0';
    {
        const amp_autocast before = *ac;
        CHECK_EQ_INT(amp_autocast_override(ac, text), expected);
        if (!expected) return;
        CHECK_EQ_U64(told_position(), position);
        CHECK_MEM(ac, &before, sizeof before);
    }
    m.policy     = policy;
    m.low        = low;
    m.off        = off;
    m.num_said   = num_said;
    m.num_layers = num_layers;
    memcpy(m.said, kept, sizeof kept);
}

TEST(random, "100000 random sequences of scopes, overrides and queries agree with a model") {
    const long sequences = test_state.quick ? 10000 : 100000;
    long       i, queries = 0, cast = 0;
    int        step;
    want_all();
    random_state = 1;
    for (i = 0; i < sequences; i++) {
        const int    dtype = dice(3), policy = dice(NUM_POLICIES), steps = 1 + dice(40);
        amp_autocast ac = make((amp_policy)policy, (amp_dtype)dtype);
        m.depth         = 0;
        m_policy(policy, dtype);
        for (step = 0; step < steps; step++) {
            const int what = dice(10);
            if (what < 3) {
                amp_scope *s = &m.scope[m.depth];
                memset(s, 0, sizeof *s);
                s->mode  = (amp_autocast_mode)(dice(4) ? dice(2) : AMP_AUTOCAST_OFF);
                s->dtype = (amp_dtype)dice(NUM_TYPES);
                s->layer = dice(2) ? layer_names[dice((int)COUNT_OF(layer_names))] : NULL;
                CHECK_EQ_INT(amp_autocast_push(&ac, s), AMP_OK);
                m.depth++;
                if (m.depth == AMP_MAX_SCOPES) {
                    CHECK_EQ_INT(amp_autocast_push(&ac, s), AMP_ERROR_TOO_LARGE);
                    m.depth--;
                    CHECK_EQ_INT(amp_autocast_pop(&ac), AMP_OK);
                }
            } else if (what == 3) {
                CHECK_EQ_INT(amp_autocast_pop(&ac), m.depth ? AMP_OK : AMP_ERROR_BAD_STATE);
                m.depth -= m.depth > 0;
            } else if (what < 6) {
                random_override(&ac);
            } else {
                amp_dtype  in[3], c = (amp_dtype)BAD, o = (amp_dtype)BAD, mc, mo;
                const int  op = dice(AMP_NUM_OPS), n = combination(dice(COMBINATIONS), in);
                const amp_result result = m_query(op, in, n, &mc, &mo);
                if (result) mc = mo = (amp_dtype)BAD;
                CHECK_EQ_INT(amp_autocast_dtype(&ac, (amp_op)op, in, n, &c, &o), result);
                CHECK(c == mc && o == mo);
                queries++;
                cast += n && c != in[0];
            }
        }
    }
    CHECK(queries > sequences && cast > queries / 20); /* the sequences did visit something */
}

TEST(low_of_a_session, "manual: no word of a session's policy is against its dtype; AMP_ERROR_MIXED_TYPES says where one is") {
    static const struct { amp_dtype dtype; const char *policy; const char *at; } cases[] = {
        {AMP_BF16, "torch_cuda", NULL},
        {AMP_BF16, "keras_mixed_bfloat16", NULL},
        {AMP_BF16, "apex_o1 op:gemm=bf16 head*=fp32", NULL},
        {AMP_BF16, "op:softmax=fp16", NULL},
        {AMP_BF16, "bfloat16", NULL},
        {AMP_F16, "torch_cpu, op:softmax=fp32", ": \"torch_cpu, "},
        {AMP_BF16, "off,keras_mixed_float16", ": \"keras_mixed_float16\""},
        {AMP_F16, "tf32 op:gemm=bf16", ": \"op:gemm=bf16\""},
        {AMP_BF16, "torch_cuda fp16", ": \"fp16\""},
        {AMP_F16, "tf32,bf16", ": \"bf16\""}};
    size_t i;
    for (i = 0; i < COUNT_OF(cases); i++) {
        static amp_session session;
        amp_session_desc   desc;
        memset(&desc, 0, sizeof desc);
        desc.dtype   = cases[i].dtype;
        desc.policy  = cases[i].policy;
        CHECK_EQ_INT(amp_session_start(&session, &desc), cases[i].at ? AMP_ERROR_MIXED_TYPES : AMP_OK);
        CHECK(cases[i].at ? strstr(amp_problem(), cases[i].at) != NULL && !session.scaler : session.autocast.dtype == desc.dtype);
        amp_session_end(&session);
    }
}

TEST(session_desc, "manual: a session's desc says low, words and a scaler, and AMP_DTYPE and AMP_ENABLE have the last word; where "
                   "anything is in fp16 there is a loss scale, unless who asked for fp16 has said otherwise") {
    enum { OWN = AMP_PRESET_DEFAULT, NONE = AMP_PRESET_NONE, ONE = AMP_PRESET_STATIC }; /* of scale 1 */
    static const struct { amp_dtype dtype; const char *words; int preset; const char *env_dtype, *enable;
                          amp_dtype gemm; float loss_scale; } cases[] = {
        {AMP_F32, NULL, OWN, NULL, NULL, AMP_F16, 65536.0f},
        {AMP_F16, NULL, OWN, NULL, NULL, AMP_F16, 65536.0f},
        {AMP_BF16, NULL, OWN, NULL, NULL, AMP_BF16, 1.0f},
        {AMP_F32, "bf16", OWN, NULL, NULL, AMP_BF16, 1.0f},
        {AMP_F32, "torch_cpu", OWN, NULL, NULL, AMP_BF16, 1.0f},
        {AMP_BF16, "torch_cuda", OWN, NULL, NULL, AMP_BF16, 1.0f},
        {AMP_F32, "off", OWN, NULL, NULL, AMP_F32, 1.0f},
        {AMP_F32, "apex_o0", OWN, NULL, NULL, AMP_F32, 1.0f},
        {AMP_BF16, "op:gemm=fp32", OWN, NULL, NULL, AMP_F32, 1.0f},
        {AMP_F16, "op:gemm=fp32", OWN, NULL, NULL, AMP_F32, 65536.0f}, /* other ops */
        {AMP_F32, "bf16 op:gemm=fp16", OWN, NULL, NULL, AMP_F16, 65536.0f},
        {AMP_F32, "bf16 head.*=fp16", OWN, NULL, NULL, AMP_BF16, 65536.0f},
        {AMP_F16, NULL, NONE, NULL, NULL, AMP_F16, 1.0f},
        {AMP_F16, NULL, OWN, "bf16", NULL, AMP_BF16, 1.0f}, /* a user's AMP_DTYPE */
        {AMP_F16, NULL, OWN, "fp16", NULL, AMP_F16, 65536.0f},
        {AMP_BF16, NULL, OWN, "bf16", NULL, AMP_BF16, 1.0f},
        {AMP_BF16, NULL, NONE, "fp16", NULL, AMP_F16, 65536.0f},
        {AMP_BF16, NULL, ONE, "fp16", NULL, AMP_F16, 1.0f},
        {AMP_F16, NULL, NONE, "fp16", NULL, AMP_F16, 1.0f}, /* the program's choice for fp16 */
        {AMP_F16, "head.*=fp16", OWN, "bf16", NULL, AMP_BF16, 65536.0f},
        {AMP_F32, "off", OWN, "fp16", NULL, AMP_F16, 65536.0f},
        {AMP_F32, "off", OWN, "bf16", NULL, AMP_BF16, 1.0f},
        {AMP_F32, "op:gemm=fp16", OWN, "bf16", NULL, AMP_BF16, 1.0f},
        {AMP_F32, "op:gemm=fp32", OWN, "bf16", NULL, AMP_BF16, 1.0f},
        {AMP_BF16, "op:gemm=fp32 tf32", OWN, "fp16", NULL, AMP_F16, 65536.0f},
        {AMP_BF16, "apex_o0", OWN, "fp16", NULL, AMP_F32, 1.0f},
        {AMP_F16, NULL, OWN, "fp32", NULL, AMP_F32, 1.0f},
        {AMP_F16, "op:gemm=fp16", NONE, "fp32", NULL, AMP_F32, 1.0f},
        {AMP_F16, "off", OWN, NULL, "1", AMP_F16, 65536.0f}, /* AMP_ENABLE */
        {AMP_F16, "off", NONE, NULL, "1", AMP_F16, 65536.0f},
        {AMP_BF16, "off", OWN, NULL, "1", AMP_BF16, 1.0f},
        {AMP_BF16, "op:gemm=fp32", OWN, NULL, "1", AMP_F32, 1.0f},
        {AMP_F16, "off", OWN, "fp32", "1", AMP_F32, 1.0f},
        {AMP_F16, NULL, OWN, NULL, "1", AMP_F16, 65536.0f},
        {AMP_F16, NULL, OWN, "fp16", "0", AMP_F32, 1.0f},
        {AMP_F16, NULL, OWN, "junk", "0", AMP_F32, 1.0f}};
    const uint32_t inf = 0x7f800000u;
    amp_capability cpu;
    size_t         i;
    int            cached;
    CHECK_EQ_INT(amp_capability_of(0, 0, &cpu), AMP_OK);
    for (i = 0; i < COUNT_OF(cases); i++)
        for (cached = 0; cached < 2; cached++) {
            static amp_session session;
            amp_session_desc   desc;
            if (cpu.bf16 && cases[i].dtype == AMP_F32) continue; /* where low is not fp16 */
            memset(&desc, 0, sizeof desc);
            desc.num_bytes     = cached ? 1 << 12 : 0;
            desc.dtype         = cases[i].dtype;
            desc.policy        = cases[i].words;
            desc.scaler.preset = (amp_preset)cases[i].preset;
            if (cases[i].preset == ONE) desc.scaler.init_scale = 1.0f;
            if (cases[i].env_dtype) setenv("AMP_DTYPE", cases[i].env_dtype, 1);
            if (cases[i].enable) setenv("AMP_ENABLE", cases[i].enable, 1);
            CHECK_EQ_INT(amp_session_start(&session, &desc), AMP_OK);
            unsetenv("AMP_DTYPE");
            unsetenv("AMP_ENABLE");
            CHECK_EQ_INT(compute_of(&session.autocast, AMP_OP_GEMM, AMP_F32), cases[i].gemm);
            CHECK_EQ_F32(session.scaler->scale, cases[i].loss_scale);
            CHECK_EQ_INT(amp_scaler_unscale(session.scaler, NULL, &inf, AMP_F32, 1), AMP_OK);
            CHECK_EQ_INT(session.scaler->found_inf, !cases[i].enable || strcmp(cases[i].enable, "0") != 0);
            amp_session_end(&session);
        }
}

TEST(session_low, "laws 5, 17: a session's low is bf16 where that pays, with a scale of 1; fp16 of AMP_DTYPE or of words has one") {
    static const struct { const char *dtype, *words; int fp16; } cases[] = {
        {NULL, NULL, 0}, {NULL, "fp16", 1}, {NULL, "default", 1}, {NULL, "op:gemm=fp16", 1},
        {"fp16", NULL, 1}, {"bf16", NULL, 0}, {"fp16", "op:relu=fp32", 1}};
    amp_capability cpu;
    size_t         i;
    CHECK_EQ_INT(amp_capability_of(0, 0, &cpu), AMP_OK);
    if (!cpu.bf16) SKIP("bf16 does not pay here");
    for (i = 0; i < 2 * COUNT_OF(cases); i++) { /* without a cache, and with one */
        static amp_session session;
        amp_session_desc   desc;
        const size_t       k = i % COUNT_OF(cases);
        memset(&desc, 0, sizeof desc);
        desc.policy    = cases[k].words;
        desc.num_bytes = i == k ? 0 : 1 << 12;
        if (cases[k].dtype) setenv("AMP_DTYPE", cases[k].dtype, 1);
        CHECK_EQ_INT(amp_session_start(&session, &desc), AMP_OK);
        unsetenv("AMP_DTYPE");
        CHECK_EQ_INT(compute_of(&session.autocast, AMP_OP_GEMM, AMP_F32) == AMP_F16, cases[k].fp16);
        CHECK_EQ_F32(session.scaler->scale, cases[k].fp16 ? 65536.0f : 1.0f);
        amp_session_end(&session);
    }
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(lists);
    RUN(rules);
    RUN(banned);
    RUN(refused_init);
    RUN(invalid);
    RUN(presets);
    RUN(scopes);
    RUN(scope_limit);
    RUN(copies);
    RUN(current);
    RUN(threads);
    RUN(words);
    RUN(patterns);
    RUN(layers);
    RUN(unmatched_patterns);
    RUN(mistakes);
    RUN(names);
    RUN(dump_rows);
    RUN(dump_layers);
    RUN(dump_fails);
    RUN(random);
    RUN(low_of_a_session);
    RUN(session_desc);
    RUN(session_low);
    return test_end();
}
