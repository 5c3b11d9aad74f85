/* thin.h - part of bench.c: products that are thin or small, and what a second thread brings.

   A matrix of 4096 x 4096 times a vector, beside a loop that reads the matrix: "rows" where sums
   lie side by side (m = 1, NN), "k" where the numbers of a sum do (m = 1, NT). Dot products and
   batches of n^3 beside the loops that one would write, in the order of k and in fp32, whatever
   the type of ours. Two threads beside one, after a loop that says what the machine has of them:
   less than 2 where other programs run, or where both threads share a core.                      */

enum { THIN = 4096, DOT = 4096, BATCH = 2000 };

static void     *thin_matrix[3], *thin_vector[3]; /* of each type */
static float    *thin_c;
static amp_dtype thin_type;
static size_t    thin_m, thin_n, thin_k, thin_count; /* the product: C is m x n, of which count */
static int       thin_trans;                         /* of B */

static void thin_run(void) {
    gemm_batched(NULL, 0, thin_trans, thin_m, thin_n, thin_k, 1.0f, thin_vector[thin_type],
                 thin_type, 0, thin_m * thin_k, thin_matrix[thin_type], thin_type, 0,
                 thin_k * thin_n, 0.0f, thin_c, AMP_F32, 0, thin_m * thin_n, thin_count);
}

static void thin_read(void) {
    sink = read_bytes(thin_matrix[thin_type], (size_t)THIN * THIN * amp_dtype_size(thin_type));
}

static void naive(const float *a, const float *b, float *c, size_t rows, size_t cols, size_t k) {
    size_t i, j, q;
    for (i = 0; i < rows; i++)
        for (j = 0; j < cols; j++) {
            float sum = 0.0f;
            for (q = 0; q < k; q++) sum += a[i * k + q] * b[q * cols + j];
            c[i * cols + j] = sum;
        }
}

static void naive_run(void) {
    const float *a = (const float *)thin_vector[0], *b = (const float *)thin_matrix[0];
    size_t       i;
    for (i = 0; i < thin_count; i++)
        naive(a + i * thin_m * thin_k, b + i * thin_k * thin_n, thin_c + i * thin_m * thin_n,
              thin_m, thin_n, thin_k);
}

static void thin_shape(size_t m_, size_t n_, size_t k_, size_t count, int trans) {
    thin_m     = m_;
    thin_n     = n_;
    thin_k     = k_;
    thin_count = count;
    thin_trans = trans;
}

static void thin_row(const char *what, const char *unit, double work, const char *beside,
                     void (*run)(void), void (*other)(void), int t) {
    char name[80];
    thin_type = (amp_dtype)t;
    sprintf(name, "%s %s", what, product_types[t]);
    compare(name, thin_k, work, unit, beside, work > 2e7 ? 1 : (int)(2e7 / work) + 1, run, other);
}

/* ------------------------------------------------------------------------------ a second thread */

#ifdef _OPENMP
enum { CHAIN = 1 << 20 };
static volatile float chain_end[2];

/* Two chains of additions. */
static void chains(int count) {
    int i, k;
    omp_set_num_threads(count);
#pragma omp parallel for private(k) schedule(static)
    for (i = 0; i < 2; i++) {
        float sum = 0.0f;
        for (k = 0; k < CHAIN; k++) sum += 1.5f;
        chain_end[i] = sum;
    }
}
static void chains_by_one(void) { chains(1); }
static void chains_by_two(void) { chains(2); }

static void in_threads(int count) {
    omp_set_num_threads(count);
    product_run(thin_type, AMP_F32);
}
static void by_one(void) { in_threads(1); }
static void by_two(void) { in_threads(2); }

static void second_thread(void) {
    static const product square = {1024, 1024, 1024, 0, 0};
    const double         work   = 2.0 * 1024 * 1024 * 1024;
    int                  t;
    if (omp_get_num_procs() < 2) {
        printf("skip two threads: there is one processor\n");
        return;
    }
    product_now = square;
    thin_shape(square.m, square.n, square.k, 1, 0);
    clock_used = CLOCK_MONOTONIC; /* processor time would count both */
    compare("two threads, a loop", CHAIN, 2.0 * CHAIN, "GFLOP/s", "one", 4, chains_by_two,
            chains_by_one);
    for (t = 0; t < 3; t++)
        thin_row("two threads 1024^2", "GFLOP/s", work, "one", by_two, by_one, t);
}
#else
static void second_thread(void) { printf("skip two threads: no -fopenmp\n"); }
#endif

static void thin(void) {
    const size_t room  = (size_t)THIN * THIN;
    const double numbers = (double)room;
    char         name[64];
    size_t       i;
    int          t, trans;
    thin_c = (float *)calloc(room / 16, 4);
    for (t = 0; t < 3; t++) {
        thin_matrix[t] = malloc(room * amp_dtype_size((amp_dtype)t));
        thin_vector[t] = malloc(room / 16 * amp_dtype_size((amp_dtype)t));
        if (!thin_c || !thin_matrix[t] || !thin_vector[t]) {
            printf("skip matrix times vector and what follows: no memory\n");
            return;
        }
        for (i = 0; i < room; i += PRODUCT_ROOM)
            MUST(amp_cast(ampi_to(thin_matrix[t], (amp_dtype)t, i), (amp_dtype)t, product_b[0], AMP_F32,
                          PRODUCT_ROOM));
        MUST(amp_cast(thin_vector[t], (amp_dtype)t, product_a[0], AMP_F32, room / 16));
    }
    for (trans = 0; trans < 2; trans++)
        for (t = 0; t < 3; t++) {
            thin_shape(1, THIN, THIN, 1, trans);
            thin_row(trans ? "gemv 4096^2 k" : "gemv 4096^2 rows", "GB/s",
                     numbers * (t ? 2.0 : 4.0), "read", thin_run, thin_read, t);
        }
    thin_shape(1, 1, DOT, 1, 0);
    for (t = 0; t < 3; t++)
        thin_row("dot", "GFLOP/s", 2.0 * DOT, "naive", thin_run, naive_run, t);
    for (i = 4; i <= 16; i *= 2)
        for (t = 0; t < 3; t++) {
            thin_shape(i, i, i, BATCH, 0);
            sprintf(name, "batch of %lu^3", (unsigned long)i);
            thin_row(name, "GFLOP/s", 2.0 * BATCH * (double)(i * i * i), "naive", thin_run,
                     naive_run, t);
        }
    second_thread();
}
