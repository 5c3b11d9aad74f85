/* What AMP_NO_RANKS, AMP_NO_ROWS, AMP_NO_REPORT and AMP_NO_STORAGE leave out says so, and nothing else
   changes.
   usage: left_out DIR: with no macro it writes the files (set, report, stored) that the others are given.
   It prints the sizes of what users hold, and of what two files of a program share. */
#define AMP_IMPLEMENTATION
#include "amp.h"

#ifdef AMP_NO_RANKS
#define RANKS 0
#else
#define RANKS 1
#endif
#ifdef AMP_NO_ROWS
#define ROWS 0
#else
#define ROWS 1
#endif
#ifdef AMP_NO_REPORT
#define REPORT 0
#else
#define REPORT 1
#endif
#ifdef AMP_NO_STORAGE
#define STORAGE 0
#else
#define STORAGE 1
#endif
#define ALL (RANKS && ROWS && REPORT && STORAGE)

static char               problem[AMP_PROBLEM_SIZE];
static float              weight[4], grad[4] = {65536, 65536, 65536, 65536};
static amp_optimizer_desc desc;
static amp_tensor         tensor;
static int                failed;

/* Did it answer as a build must that has the room, or not? */
static void expect(int there, amp_result result, const char *macro, const char *what) {
    if (there ? result == AMP_OK : result == AMP_ERROR_UNSUPPORTED && strstr(problem, macro)) return;
    printf("%s: %s (%s)\n", what, amp_result_string(result), problem);
    failed = 1;
}

/* Two ranks of one process, one behind the other: there is nobody to meet, and tables are the same. In prepare both
   are there, each with the hash of its number; in a save the second adds its file's sum to the first one's. */
static int meetings;
static amp_result alone(void *user, double *sums, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    static double brought[2];
    double        other[2] = {0.0, 0.0};
    size_t        i;
    (void)maxima;
    (void)num_maxima;
#if RANKS
    if (meetings == 0) ampi_split_sum(other, ampi_hash(1, 1u - (unsigned)((const amp_ranks *)user)->rank));
#else
    (void)user;
#endif
    for (i = 0; i < num_sums && num_sums == 2; i++) sums[i] = meetings ? brought[i] += sums[i] : sums[i] + other[i];
    meetings++;
    return AMP_OK;
}

static amp_result start(amp_optimizer *opt) {
    amp_result result;
    int        i;
    for (i = 0; i < 4; i++) weight[i] = 1.0f;
    result = amp_optimizer_init(opt, &desc);
    if (result == AMP_OK) result = amp_optimizer_add(opt, &tensor);
    if (result == AMP_OK) result = amp_optimizer_prepare(opt);
    (void)amp_optimizer_loss_scale_ptr(opt);
    return result;
}

static bool read_some(void *file, void *data, size_t num_bytes) { return fread(data, 1, num_bytes, (FILE *)file) == num_bytes; }

/* By a function that reads. */
static amp_result load_by(amp_optimizer *opt, const char *path) {
    FILE      *file   = fopen(path, "rb");
    amp_result result = file ? amp_optimizer_load(opt, read_some, file) : AMP_ERROR_NOT_FOUND;
    if (file) fclose(file);
    return result;
}

static void load(const char *path, int there, const char *macro) {
    amp_optimizer opt;
    memset(&opt, 0, sizeof opt);
    expect(1, start(&opt), "", "a desc with nothing");
    expect(there, amp_optimizer_load_file(&opt, path), macro, path);
    if (!there) expect(0, load_by(&opt, path), macro, path);
    expect(1, amp_optimizer_step(&opt, 1.0f), "", "a step behind it");
    amp_optimizer_free(&opt);
}

int main(int argc, char **argv) {
    const uint32_t  at[1] = {1};
    uint32_t        num = 1;
    const amp_rows  rows = {2, 1, at, &num};
    const amp_storage s = {AMP_FORMAT_SR, AMP_FORMAT_BF16};
    amp_ranks       ranks;
    amp_report_desc watch;
    amp_optimizer   opt;
    char            set[4096], report[4096], stored[4096];
    int             k;
    if (argc != 2 || strlen(argv[1]) > 4000) return 2;
    strcat(strcpy(set, argv[1]), "/set");
    strcat(strcpy(report, argv[1]), "/report");
    strcat(strcpy(stored, argv[1]), "/stored");
    memset(&watch, 0, sizeof watch);
    memset(&ranks, 0, sizeof ranks);
    memset(&opt, 0, sizeof opt);
    desc.kind    = AMP_KIND_SGD;
    desc.problem = problem;
    tensor.n = 4, tensor.weight = weight, tensor.grad = grad;
    expect(1, start(&opt), "", "a desc with nothing");
    expect(1, amp_optimizer_step(&opt, 0.5f), "", "a step");
    failed |= weight[3] < 0.4f || weight[3] > 0.6f;
    amp_optimizer_free(&opt);

    tensor.rows = &rows;
    expect(ROWS, start(&opt), "AMP_NO_ROWS", "amp_tensor.rows");
    if (ROWS) expect(1, amp_optimizer_step(&opt, 0.5f), "", "a step of rows");
    failed |= ROWS && (weight[1] < 0.9f || weight[2] > 0.6f);
    amp_optimizer_free(&opt);
    tensor.rows = NULL;

    desc.report = &watch;
    expect(REPORT, start(&opt), "AMP_NO_REPORT", "desc.report");
    if (ALL) expect(1, amp_optimizer_save_file(&opt, report), "", report);
    amp_optimizer_free(&opt);
    desc.report = NULL;

    desc.ranks   = &ranks;
    ranks.reduce_fn = alone;
    ranks.user   = &ranks;
    ranks.whole  = 1;
    expect(RANKS, start(&opt), "AMP_NO_RANKS", "ranks that are whole");
    if (RANKS) expect(1, amp_optimizer_step(&opt, 0.5f), "", "a step of such a rank");
    amp_optimizer_free(&opt);
    ranks.whole = 0;
    ranks.count = 2;
    for (k = 1; k >= 0; k--) {
        ranks.rank = k;
        meetings   = 0;
        expect(RANKS, start(&opt), "AMP_NO_RANKS", "desc.ranks");
        if (ALL) expect(1, amp_optimizer_save_file(&opt, set), "", set);
        amp_optimizer_free(&opt);
    }
    desc.ranks = NULL;
    load(set, RANKS, "a set of files needs what AMP_NO_RANKS has left out");
    load(report, REPORT, "the report in the file needs what AMP_NO_REPORT has left out");

    desc.dtype    = AMP_BF16;
    desc.momentum = 0.5;
    tensor.storage = &s;
    expect(STORAGE, start(&opt), "AMP_NO_STORAGE", "amp_tensor.storage");
    amp_optimizer_free(&opt);
    tensor.storage = NULL;
    desc.storage   = &s;
    expect(STORAGE, start(&opt), "AMP_NO_STORAGE", "desc.storage");
    if (ALL) expect(1, amp_optimizer_save_file(&opt, stored), "", stored);
    amp_optimizer_free(&opt);
    desc.storage = NULL;
    expect(1, start(&opt), "", "moments of fp32");
    if (!STORAGE) expect(0, amp_optimizer_load_file(&opt, stored), "AMP_NO_STORAGE", stored);
    else failed |= amp_optimizer_load_file(&opt, stored) != AMP_ERROR_MISMATCH;
    failed |= strstr(problem, "desc.storage") == NULL;
    amp_optimizer_free(&opt);
    printf("%d %d %d %d %d %d\n", (int)sizeof(amp_optimizer), (int)sizeof(amp_optimizer_desc),
           (int)sizeof(amp_tensor), (int)sizeof(amp_plan), (int)sizeof(ampi_slot),
           (int)sizeof(ampi_functions));
    return failed;
}
