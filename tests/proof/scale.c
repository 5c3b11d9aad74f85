/* scale.c - the scale machine, one update from every state of a set that no update leaves: every preset, limits,
   factors and intervals of a table; of scales all powers of two that load accepts, 0 and inf among them, and what the
   table's limits bring; of the trackers every class. README.md says what follows from it.
       usage: scale [N]    one row of the table in N, and one float in 1000 N */

#define AMP_IMPLEMENTATION
#include "amp.h"

#include <math.h> /* INFINITY */
#include <stdio.h>

typedef unsigned long long ull;

/* ------------------------------------------------------------------------------------------ goals */

typedef enum goal {
    SANE, NUMBERS, RANGE, NORMAL, NO_GROWTH, INTERVAL, HYSTERESIS, COUNTS, ONE_SKIP, KEPT, UNCHECKED, DISABLED,
    CLOSED, EVERY_FLOAT, NUM_GOALS
} goal;

static const char *const promises[NUM_GOALS] = {
    "an update makes of a possible scaler a possible one",
    "no scale is NaN or negative",
    "the scale stays between its limits, and a step past one ends on it",
    "DEFAULT, STATIC, NONE: scale and 1 / scale stay normal numbers",
    "after found_inf the scale does not grow, and it moves by its factor",
    "it grows at the last good update of an interval, counted from growth or overflow, and then only",
    "hysteresis: 1 to N left; it backs off at the last one, and is refilled by the preset's rule",
    "good, skipped, in a row, growths, backoffs and stuck count what has happened",
    "1, 2 and 2^32 - 1 in found_inf are one skip, however much was checked",
    "factors, interval, limits and preset are kept; found_inf and checked cleared",
    "with nothing checked an update is refused, and nothing has changed",
    "a disabled scaler counts, and moves nothing",
    "the scales of the set lead to scales of the set",
    "DEFAULT: twice or half, up to its limits, from every float between these"};

static ull  goals_seen[NUM_GOALS], goals_failed[NUM_GOALS], rows, states, transitions;
static char first[NUM_GOALS][160];

static void show(const amp_scaler *s, char *text) {
    snprintf(text, 160, "preset %u scale %a (%a) tracker %d of %d hysteresis %d of %d found_inf %u checked %u",
             (unsigned)s->preset, (double)s->scale, s->next_scale, s->growth_tracker, s->growth_interval,
             s->hysteresis_tracker, s->hysteresis, (unsigned)s->found_inf, (unsigned)s->checked);
}

static void hold(goal g, int holds, const amp_scaler *s) {
    goals_seen[g]++;
    if (!holds && !goals_failed[g]++) show(s, first[g]);
}

/* -------------------------------------------------------------------------------- what is expected */

/* After how many good updates, from 1, the scale grows; 0: never. By the originals' rules, not amp.h's words. Counters
   stop at 2^31 - 1. */
static int64_t growth_in(const amp_scaler *s) {
    const int64_t n = s->growth_interval, raw = s->growth_tracker, t = raw < INT32_MAX ? raw : raw - 1;
    if (n <= 0) return 0;
    switch ((amp_preset)s->preset) {
    case AMP_PRESET_STATIC: case AMP_PRESET_NONE: return 0;
    case AMP_PRESET_TF_KERAS: return t < n ? n - t : 1;           /* an interval that was lowered: at once  */
    case AMP_PRESET_FLAX: return raw <= n ? n + 1 - raw : 0;      /* N good ones go before                  */
    case AMP_PRESET_JMP: return raw == n - 1 ? 1 : 1 + n - (raw + 1) % n;          /* counts modulo N       */
    case AMP_PRESET_DEEPSPEED:
    case AMP_PRESET_DEEPSPEED_CONSECUTIVE: return n - t % n;      /* multiples of N since the last overflow */
    case AMP_PRESET_DEEPSPEED_FUSED: return t ? n - (t - 1) % n : n + 1;
    default: return t < n ? n - t : 0;                            /* equal, so one that is beyond does not  */
    }
}

/* Positive or 0, and no NaN; inf counts. */
static int is_number(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits <= (uint64_t)0x7ff << 52;
}

static int is_normal(float x) { return x >= 0x1p-126f && x <= 0x1.fffffep127f; }

/* As many as a double holds: a float too, but where the original keeps a double. */
static double kept(const amp_scaler *s, double x) {
    switch ((amp_preset)s->preset) {
    case AMP_PRESET_APEX: case AMP_PRESET_DEEPSPEED: case AMP_PRESET_DEEPSPEED_CONSECUTIVE:
    case AMP_PRESET_DEEPSPEED_FUSED: case AMP_PRESET_MXNET: return x;
    default: return (double)(float)x;
    }
}

/* Growth that would be infinite is left out. */
static int is_guarded(const amp_scaler *s) {
    return s->preset == AMP_PRESET_TORCH || s->preset == AMP_PRESET_APEX_HYSTERESIS || s->preset == AMP_PRESET_JMP ||
           s->preset == AMP_PRESET_TF_KERAS;
}

static int is_refilled(const amp_scaler *s, int grows) {
    switch ((amp_preset)s->preset) {
    case AMP_PRESET_DEFAULT: case AMP_PRESET_APEX_HYSTERESIS: case AMP_PRESET_DEEPSPEED_CONSECUTIVE: return 1;
    case AMP_PRESET_MEGATRON: case AMP_PRESET_DEEPSPEED: return grows;
    default: return 0;
    }
}

static int is_fixed(const amp_scaler *s) { return s->preset == AMP_PRESET_STATIC || s->preset == AMP_PRESET_NONE; }
static int is_safe(const amp_scaler *s) { return s->preset == AMP_PRESET_DEFAULT || is_fixed(s); }

/* Where backing off ends: at min_scale. */
static double lowered(const amp_scaler *s, double live) {
    const double next = kept(s, s->backoff_factor > 0.0 ? live * s->backoff_factor : live / s->growth_factor);
    return next > (double)s->min_scale ? next : (double)s->min_scale;
}

/* ------------------------------------------------------------------------------------- one update */

static double larger(double a, double b) { return a > b ? a : b; }

/* What an update has made of a scaler that was not disabled. */
static void check_scale(const amp_scaler *a, const amp_scaler *b) {
    const double live = a->next_scale, next = b->next_scale, min = (double)a->min_scale;
    const double max = a->max_scale > 0.0f ? (double)a->max_scale : (double)INFINITY;
    const int    skip = a->found_inf != 0, grows = !skip && growth_in(a) == 1;
    const int    backs = skip && a->hysteresis_tracker == 1 && !is_fixed(a);
    double       expected = live;
    if (grows) {
        expected = live * a->growth_factor;
        if (expected > max) expected = max;
        expected = kept(a, expected);
        if (is_guarded(a) && (float)expected > 0x1.fffffep127f) expected = live;
    }
    if (backs) expected = lowered(a, live);
    hold(NUMBERS, is_number(b->next_scale) && is_number((double)b->scale), a);
    hold(RANGE, (live > max || next <= max) && (live < min || next >= (backs ? lowered(a, live) : min)), a);
    hold(RANGE, live < min || next >= min, a);
    if (is_safe(a)) {
        hold(RANGE, b->scale >= a->min_scale && b->scale <= a->max_scale, a);
        hold(NORMAL, is_normal(b->scale) && is_normal((float)(1.0 / (double)b->scale)), a);
    }
    if (skip) hold(NO_GROWTH, next <= larger(live, min), a);
    hold(NO_GROWTH, next >= expected && next <= expected, a);
    hold(NO_GROWTH, (float)(a->preset == AMP_PRESET_MXNET ? live : next) <= b->scale &&
                        (float)(a->preset == AMP_PRESET_MXNET ? live : next) >= b->scale, a);
    hold(INTERVAL, next <= larger(live, min) || grows, a);
    if (skip) hold(INTERVAL, b->growth_tracker == 0, a);
    else if (grows && a->growth_tracker < INT32_MAX - 1)
        hold(INTERVAL, growth_in(b) == a->growth_interval + (a->preset == AMP_PRESET_FLAX), a);
    else if (a->growth_tracker < INT32_MAX - 1) hold(INTERVAL, growth_in(b) == (growth_in(a) ? growth_in(a) - 1 : 0), a);
    hold(HYSTERESIS, b->hysteresis_tracker == (skip ? a->hysteresis_tracker - (a->hysteresis_tracker > 1)
                                               : is_refilled(a, grows) ? a->hysteresis : a->hysteresis_tracker), a);
    hold(COUNTS, b->growths == a->growths + (grows && next > live) && b->backoffs == a->backoffs + (backs && next < live) &&
                     b->stuck == (a->stuck || (backs && !(next < live))), a);
}

static int same(const amp_scaler *a, const amp_scaler *b) { return memcmp(a, b, sizeof *a) == 0; }

/* The scales of a table row: sorted, without doubles. */
enum { MAX_SCALES = 1 << 14 };
static double scales[MAX_SCALES];
static int    num_scales;

static int place_of(double x) {
    int low = 0, high = num_scales;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (scales[middle] < x) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Can init, updates and users have made this scaler? An interval may be any. */
static int sane(const amp_scaler *s) {
    const float next = (float)s->next_scale;
    if (!is_number(s->next_scale) || !is_number((double)s->scale) || s->growth_tracker < 0 || s->hysteresis < 1 ||
        s->hysteresis_tracker < 1 || s->hysteresis_tracker > s->hysteresis || s->stuck > 1 || s->growth_factor < 1.0)
        return 0;
    if (s->disabled) return s->scale >= 1.0f && s->scale <= 1.0f;
    if (is_safe(s) && !(s->scale >= s->min_scale && s->scale <= s->max_scale)) return 0;
    return s->preset == AMP_PRESET_MXNET || memcmp(&next, &s->scale, 4) == 0;
}

static int is_member(double x) { return place_of(x) < num_scales && scales[place_of(x)] <= x; }

static void check_update(const amp_scaler *a, const amp_scaler *b) {
    const unsigned skip = a->found_inf != 0;
    transitions++;
    hold(SANE, sane(b), a);
    hold(COUNTS, b->good == a->good + !skip && b->skipped == a->skipped + skip &&
                     b->skipped_in_a_row == (skip ? a->skipped_in_a_row + 1 : 0), a);
    hold(KEPT, memcmp(&a->growth_factor, &b->growth_factor, 16) == 0 && a->growth_interval == b->growth_interval &&
                   a->hysteresis == b->hysteresis && memcmp(&a->min_scale, &b->min_scale, 8) == 0 &&
                   a->preset == b->preset && a->disabled == b->disabled && b->found_inf == 0 && b->checked == 0, a);
    if (a->disabled) return;
    hold(CLOSED, is_member(b->next_scale), a);
    check_scale(a, b);
}

/* Every update from a state. */
static void check_state(amp_scaler *s) {
    static const uint32_t found[] = {0, 1, 2, UINT32_MAX}, checked[] = {0, UINT32_MAX};
    amp_scaler            a, b, skipped = *s;
    int                   f, c;
    states++;
    for (f = 0; f < 4; f++)
        for (c = 0; c < 2; c++) {
            a           = *s;
            a.found_inf = found[f];
            a.checked   = checked[c];
            b           = a;
            if (!found[f] && !checked[c] && !(a.disabled)) {
                hold(UNCHECKED, amp_scaler_update(&b) == AMP_ERROR_BAD_STATE && same(&a, &b), &a);
                continue;
            }
            hold(SANE, amp_scaler_update(&b) == AMP_OK, &a);
            check_update(&a, &b);
            if (f == 1 && c == 0) skipped = b;
            else if (f) hold(ONE_SKIP, same(&b, &skipped), &a);
            if (a.disabled)
                hold(DISABLED, b.scale >= 1.0f && b.scale <= 1.0f && b.growth_tracker == a.growth_tracker &&
                                   memcmp(&b.next_scale, &a.next_scale, 8) == 0 && b.growths == a.growths &&
                                   b.hysteresis_tracker == a.hysteresis_tracker && b.stuck == a.stuck &&
                                   b.backoffs == a.backoffs, &a);
        }
}

/* -------------------------------------------------------------------------------------- all states */

static void put(double x) {
    const int at = place_of(x);
    if (is_member(x) || num_scales == MAX_SCALES) return;
    memmove(scales + at + 1, scales + at, (size_t)(num_scales - at) * sizeof *scales);
    scales[at] = x;
    num_scales++;
}

/* Scale and next_scale; does load accept that? */
static int place(amp_scaler *s, double x) {
    s->next_scale = x;
    s->scale      = (float)x;
    return sane(s);
}

/* Powers of two, 0, inf and limits, and where updates lead from there, until they lead nowhere else. */
static void collect(amp_scaler s) {
    static double todo[MAX_SCALES];
    double        x;
    int           i, n;
    num_scales = 0;
    put(0.0);
    put((double)INFINITY);
    if (s.min_scale > 0.0f) put((double)s.min_scale);
    if (s.max_scale > 0.0f) put((double)s.max_scale);
    for (x = ampi_rules(&s) & AMPI_WIDE ? 0x1p-1074 : 0x1p-149; x <= (ampi_rules(&s) & AMPI_WIDE ? 0x1p1023 : 0x1p127); x *= 2.0)
        if (place(&s, x)) put(x);
    for (n = -1; n != num_scales;) {
        n = num_scales;
        memcpy(todo, scales, (size_t)n * sizeof *todo);
        for (i = 0; i < n; i++) {
            amp_scaler up = s, down = s;
            if (!place(&up, todo[i])) continue;
            down               = up;
            up.growth_interval = 1;
            up.growth_tracker  = s.preset == AMP_PRESET_FLAX || s.preset == AMP_PRESET_DEEPSPEED_FUSED;
            down.found_inf     = 1;
            ampi_scaler_transition(&up);
            ampi_scaler_transition(&down);
            put(up.next_scale);
            put(down.next_scale);
        }
    }
}

static void check_trackers(amp_scaler *s) {
    const int64_t n = s->growth_interval, seen[] = {0, 1, 2, 3, n - 2, n - 1, n, n + 1, 2 * n - 1, 2 * n, 2 * n + 1,
                                                    INT32_MAX - 1, INT32_MAX};
    int           i, k, h;
    for (i = 0; i < (int)(sizeof seen / sizeof seen[0]); i++) {
        for (k = 0; k < i && seen[k] != seen[i]; k++) {}
        if (k < i || seen[i] < 0 || seen[i] > INT32_MAX) continue;
        s->growth_tracker = (int)seen[i];
        s->stuck          = (uint32_t)i & 1u;
        for (h = 1; h <= s->hysteresis; h++) {
            s->hysteresis_tracker = h;
            check_state(s);
        }
    }
}

static void check_row(amp_scaler s) {
    static const float also[] = {0.0f, 0x1p-149f, 1.0f, (float)INFINITY};
    int                i, k;
    collect(s);
    for (i = 0; i < num_scales; i++) {
        if (!place(&s, scales[i])) continue;
        check_trackers(&s);
        for (k = 0; k < 4 && (ampi_rules(&s) & AMPI_DELAY); k++) { /* the scale is that of an update before */
            s.scale = also[k];
            check_trackers(&s);
        }
    }
}

/* Presets, and what a user or a file may have put into their fields. */
static void check_rows(int preset, int step, int *row) {
    static const int    intervals[]  = {INT32_MIN, 0, 1, 2, 3, 2000, INT32_MAX};
    static const float  limits[][2]  = {{-1.0f, -1.0f}, {0.0f, 0.0f}, {0.125f, 32.0f}}; /* -1: the preset's */
    const int           none         = preset == AMP_PRESET_NONE;
    const int           safe         = preset == AMP_PRESET_DEFAULT || preset == AMP_PRESET_STATIC;
    static const double factors[][2] = {{2.0, 0.5}, {4.0, 0.0}, {1.0, 1.0}, {0x1p1023, 0x1p-1074}};
    amp_scaler_desc     desc;
    amp_scaler          s;
    int                 i, k, f, h;
    ull                 before;
    memset(&desc, 0, sizeof desc);
    desc.preset = (amp_preset)preset;
    for (i = 0; i < 7; i++)
        for (k = 0; k < 3; k++)
            for (f = 0; f < 4; f++)
                for (h = 1; h <= 3; h += 2) {
                    hold(SANE, amp_scaler_init(&s, &desc) == AMP_OK && sane(&s), &s);
                    if (h > 1 && !(ampi_rules(&s) & (AMPI_REFILL_GOOD | AMPI_REFILL_GROWTH))) continue;
                    if ((*row)++ % step) continue;
                    rows++;
                    s.growth_interval = intervals[i];
                    s.hysteresis      = s.hysteresis_tracker = h;
                    s.growth_factor   = factors[f][0];
                    s.backoff_factor  = factors[f][1];
                    if (f == 1 && !ampi_presets[preset].one_factor) s.backoff_factor = 0.25;
                    if (limits[k][0] >= 0.0f && !none) s.min_scale = limits[k][0], s.max_scale = limits[k][1];
                    if (safe && k == 1) s.min_scale = 0x1p-126f, s.max_scale = 0x1p126f; /* none is not theirs */
                    s.skipped = UINT64_MAX; /* a counter goes round */
                    before = states;
                    check_row(s);
                    hold(CLOSED, states > before && num_scales < MAX_SCALES, &s);
                }
    desc.disabled = 1;
    amp_scaler_init(&s, &desc);
    for (i = 0; i < 7; i++) {
        s.growth_interval = intervals[i];
        check_trackers(&s);
    }
}

/* DEFAULT, from every float between 2^-14 and 2^24: one overflow, and one good update that ends an interval. */
static void check_floats(uint32_t step) {
    amp_scaler s, up, down;
    uint32_t   u;
    amp_scaler_init(&s, NULL);
    for (u = 0x38800000u; u <= 0x4b800000u; u += step) {
        const float x        = ampi_f32_from_bits(u);
        const float doubled  = x < 0x1p23f ? 2.0f * x : 0x1p24f;
        const float halved   = x > 0x1p-13f ? 0.5f * x : 0x1p-14f;
        s.scale              = x;
        s.next_scale         = (double)x;
        up = down            = s;
        up.growth_tracker    = s.growth_interval - 1;
        down.found_inf       = 1;
        ampi_scaler_transition(&up);
        ampi_scaler_transition(&down);
        hold(EVERY_FLOAT, memcmp(&up.scale, &doubled, 4) == 0 && memcmp(&down.scale, &halved, 4) == 0 &&
                              (double)up.scale - up.next_scale == 0.0 && (double)down.scale - down.next_scale == 0.0, &s);
    }
    states += goals_seen[EVERY_FLOAT];
    transitions += 2 * goals_seen[EVERY_FLOAT];
}

int main(int argc, char **argv) {
    const int step = argc > 1 ? atoi(argv[1]) : 1;
    int       preset, g, row = 0, failed = 0;
    if (step < 1) return 2;
    for (preset = 0; preset < AMPI_NUM_PRESETS; preset++) check_rows(preset, step, &row);
    check_floats(step > 1 ? 1000u * (uint32_t)step : 1u);
    for (g = 0; g < NUM_GOALS; g++) {
        const int proved = goals_seen[g] && !goals_failed[g];
        failed += !proved;
        printf("%s %s (%llu)\n", proved ? "ok  " : "FAIL", promises[g], (ull)goals_seen[g]);
        if (!proved) printf("     %llu times, first: %s\n", goals_failed[g], first[g]);
    }
    printf("     %d presets, %llu rows of limits, factors, intervals, hysteresis; %llu states, %llu transitions\n", AMPI_NUM_PRESETS, rows, states, transitions);
    printf("%d passed, %d failed\n", NUM_GOALS - failed, failed);
    return failed != 0;
}
