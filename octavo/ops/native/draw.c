/* The random choice of a token; octavo/ops/draw.py says what it is. Without a sort: a row's few candidates are gathered by a bound that the
 * threshold cannot fall under, and the threshold is selected among them. */
#include "simd.h"
#include "team.h"

#define BLOCK 64  /* weights whose sum and maximum are kept */
#define MANY 1024 /* candidates */

struct draw {
    const float *logits, *peaks; /* [rows, n], [rows] */
    const double *numbers;
    const float *temperature;
    const int32_t *top_k;      /* may be null, as the next two */
    const float *top_p, *min_p;
    int64_t *out;
    int64_t rows, n, ld;
};

INLINE void swap(float *x, int64_t i, int64_t j) {
    float kept = x[i];
    x[i] = x[j];
    x[j] = kept;
}

/* The largest t for which the values >= t come to `goal`, each counting 1, or itself if `by_mass`; the smallest value if all do not.
 * Reorders x. */
static float select_largest(float *x, int64_t n, double goal, int by_mass) {
    int64_t begin = 0, end = n;
    double before = 0; /* what the values larger than x[begin .. end) come to */
    for (;;) {
        float a = x[begin], b = x[begin + (end - begin) / 2], c = x[end - 1];
        float pivot = a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b);
        int64_t larger = begin, i = begin, smaller = end;
        double of_larger = 0, of_equal = 0;
        while (i < smaller) {
            float v = x[i];
            if (v > pivot) {
                of_larger += by_mass ? v : 1;
                swap(x, larger++, i++);
            } else if (v < pivot) {
                swap(x, i, --smaller);
            } else {
                of_equal += by_mass ? v : 1;
                i++;
            }
        }
        if (larger > begin && before + of_larger >= goal) {
            end = larger;
        } else if (before + of_larger + of_equal >= goal || smaller == end) {
            return pivot;
        } else {
            before += of_larger + of_equal;
            begin = smaller;
        }
    }
}

/* Weights [padded to blocks, zeros at the end] of a row, and the sum and the maximum of each block. Returns the sum of all. */
static double weigh(const float *logits, int64_t n, float peak, float temperature, float *weights, float *sums, float *maxima) {
    double total = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        vf added = {0}, most = {0};
        for (int64_t i = start; i < start + BLOCK; i += LANES) {
            int64_t left = n - i;
            vf x = {0};
            if (left > 0) {
                x = vexp(((left < LANES ? load_part(logits, i, F32, left) : load(logits, i, F32)) - peak) / temperature);
                if (left < LANES)
                    x = choose(LANE_INDEX < (int32_t)left, x, splat(0.0f));
            }
            store(weights, i, F32, x);
            added += x;
            most = vmax(most, x);
        }
        total += sums[start / BLOCK] = sum(added);
        maxima[start / BLOCK] = vmax_of(most);
    }
    return total;
}

/* Copies the weights >= least; returns how many there are. */
static int64_t collect(const float *weights, int64_t blocks, const float *maxima, float least, float *to) {
    int64_t count = 0;
    for (int64_t b = 0; b < blocks; b++) {
        if (maxima[b] < least)
            continue;
        for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK; i++) {
            to[count] = weights[i];
            count += weights[i] >= least;
        }
    }
    return count;
}

/* What the values >= least of x [n, and zeros up to a block] come to. */
static double mass_from(const float *x, int64_t n, float least) {
    double total = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        vf added = {0};
        for (int64_t i = start; i < start + BLOCK; i += LANES) {
            vf v = load(x, i, F32);
            added += choose(v >= least, v, splat(0.0f));
        }
        total += sum(added);
    }
    return total;
}

/* Leaves in x only values in a narrow range with the t that select_largest would return by mass, and in `goal` what is left of it. Passes
 * over vectors, where many candidates would cost a selection many wrong guesses. Returns how many values are left. */
static int64_t narrow_down(float *x, int64_t n, float least, double *goal) {
    union {
        float value;
        int32_t bits; /* order like the values, which are not negative */
    } low = {.value = least}, high = {.value = 1}, middle;
    high.bits++;
    memset(x + n, 0, BLOCK * 4);
    for (int round = 0; round < 10; round++) {
        middle.bits = low.bits + (high.bits - low.bits) / 2;
        *(mass_from(x, n, middle.value) >= *goal ? &low : &high) = middle;
    }
    *goal -= mass_from(x, n, high.value);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        float v = x[i];
        x[count] = v;
        count += v >= low.value && v < high.value;
    }
    return count;
}

/* The weight under which tokens are dropped. `room` [BLOCK * (blocks + 1)] is for copies. */
static float threshold(const float *weights, int64_t n, int64_t blocks, const float *maxima, double total, int64_t k, float p, float min_p,
                       float *room) {
    float least = min_p, bound = min_p;
    if (k > 0 && k < n && k <= blocks) { /* k blocks hold a weight of at least the k-th largest maximum, so the k-th largest weight is no less */
        memcpy(room, maxima, (size_t)blocks * 4);
        float kth = select_largest(room, blocks, (double)k, 0);
        bound = kth > bound ? kth : bound;
    } else if (p < 1 && !(k > 0 && k < n) && min_p == 0) { /* what is under this weighs less than (1 - p) total together */
        bound = (float)(0.999 * (1 - (double)p) * total / (double)n);
    }
    int64_t count = collect(weights, blocks, maxima, bound, room);
    if (k > 0 && k < n && k <= count) { /* else min_p leaves fewer than k */
        float kth = select_largest(room, count, (double)k, 0);
        least = kth > least ? kth : least;
    }
    if (p < 1) {
        if (least > 0) {
            total = 0;
            for (int64_t i = 0; i < count; i++)
                total += room[i] >= least ? room[i] : 0;
        }
        double goal = (double)p * total;
        if (count > MANY)
            count = narrow_down(room, count, least > bound ? least : bound, &goal);
        float last = count ? select_largest(room, count, goal, 1) : least;
        least = last > least ? last : least;
    }
    return least;
}

/* The first index at which the running sum of the weights >= least exceeds `number` of their sum. */
static int64_t invert(const float *weights, int64_t blocks, float *sums, const float *maxima, float least, double total, double number) {
    if (least > 0) {
        total = 0;
        for (int64_t b = 0; b < blocks; b++) {
            vf added = {0};
            if (maxima[b] >= least)
                for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK; i += LANES) {
                    vf x = load(weights, i, F32);
                    added += choose(x >= least, x, splat(0.0f));
                }
            total += sums[b] = sum(added);
        }
    }
    double place = number * total, before = 0;
    int64_t found = 0;
    for (int64_t b = 0; b < blocks; b++) {
        if (sums[b] == 0)
            continue;
        int last = before + sums[b] > place; /* the place lies in this block, but rounding may put it past its end */
        for (int64_t i = b * BLOCK; last && i < (b + 1) * BLOCK; i++)
            if (weights[i] >= least && weights[i] > 0) {
                found = i;
                before += weights[i];
                if (before > place)
                    return found;
            }
        if (last)
            return found;
        before += sums[b];
    }
    return found;
}

/* The memory that one draw works in. */
struct draw_memory {
    float *weights, *sums, *maxima, *room;
    int64_t blocks;
};

INLINE int64_t draw_floats(int64_t n) { return (2 * ((n + BLOCK - 1) / BLOCK) + 1) * BLOCK + 2 * ((n + BLOCK - 1) / BLOCK); }

INLINE struct draw_memory draw_memory(float *at, int64_t n) {
    struct draw_memory m = {.weights = at, .blocks = (n + BLOCK - 1) / BLOCK};
    m.sums = m.weights + m.blocks * BLOCK, m.maxima = m.sums + m.blocks, m.room = m.maxima + m.blocks;
    return m;
}

static int64_t draw_one(const float *logits, int64_t n, float peak, double number, float temperature, int64_t k, float p, float min_p,
                        const struct draw_memory *m) {
    if (!(fabsf(peak) < INFINITY))
        return 0;
    double total = weigh(logits, n, peak, temperature > 0 ? temperature : 1, m->weights, m->sums, m->maxima);
    float least = min_p;
    if ((k > 0 && k < n) || p < 1)
        least = threshold(m->weights, n, m->blocks, m->maxima, total, k, p, min_p, m->room);
    return invert(m->weights, m->blocks, m->sums, m->maxima, least, total, number);
}

static void draw(struct lane *lane, const void *args) {
    const struct draw *a = args;
    struct draw_memory m = draw_memory(lane_scratch(lane, (size_t)draw_floats(a->n) * 4), a->n);
    for (int64_t r; (r = lane_claim(lane)) < a->rows;)
        a->out[r] = draw_one(a->logits + r * a->ld, a->n, a->peaks[r], a->numbers[r], a->temperature[r], a->top_k ? a->top_k[r] : 0,
                             a->top_p ? a->top_p[r] : 1, a->min_p ? a->min_p[r] : 0, &m);
}

/* Choice and draw together, with the settings and the random number of each row found here. */
struct draw_rows {
    const char *logits;
    const int64_t *rows, *positions, *at;
    const float *temperature; /* of all rows, as the next four */
    const int64_t *stream;
    const int32_t *top_k; /* may be null, as the next two */
    const float *top_p, *min_p;
    int64_t *tokens;
    float *peaks;
    int64_t num, n, ld, type;
};

/* The number that octavo/ops/noise.py counts to. */
INLINE double uniform(int64_t stream, int64_t position) {
    uint64_t z = (uint64_t)stream + (uint64_t)position * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 12) * 0x1p-52;
}

static void draw_rows(struct lane *lane, const void *args) {
    const struct draw_rows *a = args;
    float *wide = lane_scratch(lane, (size_t)(draw_floats(a->n) + a->n) * 4);
    struct draw_memory m = draw_memory(wide + a->n, a->n);
    for (int64_t i; (i = lane_claim(lane)) < a->num;) {
        int64_t row = a->rows[i];
        const float *x = (const float *)a->logits + i * a->ld;
        if (a->type != F32) {
            convert(wide, a->logits + i * a->ld * 2, (int)a->type, a->n);
            x = wide;
        }
        a->tokens[i] = largest_at(x, a->n);
        a->peaks[i] = x[a->tokens[i]];
        if (a->temperature[row] > 0)
            a->tokens[i] = draw_one(x, a->n, a->peaks[i], uniform(a->stream[row], a->positions[a->at[i]] + 1), a->temperature[row],
                                    a->top_k ? a->top_k[row] : 0, a->top_p ? a->top_p[row] : 1, a->min_p ? a->min_p[row] : 0, &m);
    }
}
