/* Products with weights of 4 or 8 bits that have a scale (and an offset) for every 32 values along k: w = scale * code + offset. What comes
 * directly before and after is done with them: a norm of x, and a gate and a residual of the result.
 *
 * x is rounded to 8 bits with a scale of its own for the same 32 values, so that a group's products are added in integers. Groups with larger
 * numbers than most of their row keep 15 bits: a code is 128 * high + low, two bytes, each with a byte product of its own. A few such groups
 * make most of the error, so twice the work for a fifth of them leaves a third of it.
 *     y[n] = sum over groups of  xscale * (scale[n] * sum(xcode * code[n]) + offset[n] * sum(xcode)).
 * The weights are laid out so that one load holds 4 values along k of 16 outputs, which is what the machines' byte products add up:
 *     codes   [n / 16, k / 32, 4, 16, 4] of 4 bits: byte (j, output, i) holds k = 8 j + i in its low half and 8 j + 4 + i in its high half
 *             [n / 16, k / 32, 8, 16, 4] of 8 bits, signed
 *     scales  [n / 16, k / 32, 1 or 2, 16] float16: scales, then offsets where there are any. */
#include "simd.h"
#include "team.h"

#define GROUP 32
#define LARGEST (127 * 128)
#define AHEAD 1536     /* bytes of codes that one row asks for before it comes to them */
#define PACKED_ROWS 64 /* of x that pass by while a group of weights is in registers; bits of a mask */

enum packing { BITS4, BITS4_OFFSET, BITS8 }; /* BITS4 without offsets stands for scale * (code - 8); the numbers are known to twins.py */
enum activation { NO_GATE, SILU, GELU_TANH }; /* likewise */

struct packed {
    const char *x;
    const uint8_t *codes;
    const uint16_t *scales;
    const char *bias;     /* may be null, as the next two */
    const float *norm;    /* [k]: x is divided by its root mean square and multiplied by this first */
    const char *residual; /* added to the result in the end */
    char *out;            /* [m, n], or with a gate [m, n / 2] */
    int64_t m, n, k, ldx, ldr, ldo;
    int64_t packing, gate, xtype, btype, otype; /* with a gate, n / 2 is a multiple of 16 */
    double eps, scale;                          /* scale: of the result, before the residual */
};

/* x in codes: high and low [k / 32, m, 32]; scale [k / 32, m], of the low ones; and scale times the sum of the whole codes, likewise. */
struct rounded {
    int8_t *high, *low;
    float *scale, *scaled_sum;
    uint64_t *both; /* [k / 32, blocks of rows]: a bit for each row whose low codes count */
    int64_t rows, blocks;
    int32_t done; /* rows that are ready */
};

INLINE int64_t row_blocks(int64_t m) { return (m + PACKED_ROWS - 1) / PACKED_ROWS; }

INLINE size_t rounded_bytes(int64_t m, int64_t k) { return (size_t)(k / GROUP) * (size_t)(row_blocks(m) * 8 + m * (2 * GROUP + 8)); }

static struct rounded rounded_at(char *memory, int64_t m, int64_t k) {
    int64_t groups = k / GROUP, masks = groups * row_blocks(m), entries = groups * m;
    struct rounded x = {.both = (uint64_t *)memory, .rows = m, .blocks = row_blocks(m)};
    x.scale = (float *)(x.both + masks);
    x.scaled_sum = x.scale + entries;
    x.high = (int8_t *)(x.scaled_sum + entries);
    x.low = x.high + entries * GROUP;
    memset(memory, 0, (size_t)masks * 8);
    return x;
}

static void prepare_packed(struct lane *lane, const void *args) {
    const struct packed *a = args;
    if (a->m <= 1) /* each lane rounds the row for itself, which is quicker than to wait for another */
        return;
    char *shared = lane_shared(lane, 64 + rounded_bytes(a->m, a->k));
    *(struct rounded *)shared = rounded_at(shared + 64, a->m, a->k);
}

/* A group of whole numbers that fit a byte each. */
INLINE void store_group(int8_t *to, const vi *x) {
#if LANES == 8 && defined(__AVX2__)
    __m256i low = _mm256_packs_epi32((__m256i)x[0], (__m256i)x[1]), high = _mm256_packs_epi32((__m256i)x[2], (__m256i)x[3]);
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
#else
    for (int i = 0; i < GROUP / LANES; i++)
        store_bytes(to + i * LANES, x[i]);
#endif
}

/* scale[g] of m: what a group's codes of 15 bits are multiples of, and the sum of their largest numbers' squares. A row with a number that is
 * none or infinite gets a scale that is NaN, which every output then becomes. */
static float group_scales(const struct rounded *to, int64_t m, const float *row, int64_t groups) {
    float squares = 0;
    vf odd = {0};
    for (int64_t g = 0; g < groups; g++) {
        vf most = {0};
        for (int i = 0; i < GROUP; i += LANES) {
            vf v = load(row, g * GROUP + i, F32);
            most = vmax((vf)((vi)v & 0x7fffffff), most);
            odd += v * 0.0f;
        }
        float largest = vmax_of(most);
        to->scale[g * to->rows + m] = largest / LARGEST;
        squares += largest * largest;
    }
    to->scale[m] += sum(odd);
    return squares;
}

static void round_row(const struct packed *a, const struct rounded *to, int64_t m, float *row) {
    int64_t groups = a->k / GROUP;
    convert(row, a->x + m * a->ldx * dtype_bytes((int)a->xtype), (int)a->xtype, a->k);
    if (a->norm)
        scale_by(row, a->k, inverse_rms(row, a->k, (float)a->eps), a->norm);
    float squares = group_scales(to, m, row, groups);
    for (int64_t g = 0; g < groups; g++) {
        int64_t at = g * to->rows + m;
        float scale = to->scale[at], divisor = scale > 0 ? scale : 1, largest = scale * LARGEST;
        int both = largest * largest * (float)groups > squares;
        vi codes[GROUP / LANES], high[GROUP / LANES], total = {0};
#pragma GCC unroll 8
        for (int i = 0; i < GROUP / LANES; i++) {
            codes[i] = (vi)(load(row, g * GROUP + i * LANES, F32) / divisor + 12582912.0f) - 0x4b400000; /* 1.5 * 2^23 and the code in its low bits */
            high[i] = (codes[i] + 64) >> 7;
            codes[i] -= high[i] << 7;
            total += (high[i] << 7) + (both ? codes[i] : (vi){0});
        }
        store_group(to->high + at * GROUP, high);
        store_group(to->low + at * GROUP, codes);
        to->scaled_sum[at] = scale * sum(__builtin_convertvector(total, vf));
        if (both)
            __atomic_fetch_or(&to->both[g * to->blocks + m / PACKED_ROWS], (uint64_t)1 << m % PACKED_ROWS, __ATOMIC_RELAXED);
    }
}

INLINE int32_t quad(const int8_t *x, int q) {
    int32_t four;
    memcpy(&four, x + 4 * q, 4);
    return four;
}

/* Of LANES outputs: four values along k each. `codes_at(from, packing, q)` gives the values 4 q to 4 q + 4 of a group, `quads_at` those of a
 * row of x for every output; `add_quads` adds the products of both to sums, which `whole` makes one number for each output. */
#if defined(__AVX512VNNI__)
typedef __m512i packed_vector;
#define UNSIGNED_CODES 1 /* 8-bit codes have 128 added, which the offset takes back */
#define CHAINS 2         /* of sums that do not wait for one another */

INLINE packed_vector codes_at(const uint8_t *from, int packing, int q) {
    if (packing == BITS8)
        return _mm512_xor_si512(_mm512_loadu_si512(from + q * 64), _mm512_set1_epi8((char)0x80));
    __m512i both = _mm512_loadu_si512(from + q / 2 * 64);
    return _mm512_and_si512(q % 2 ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15));
}

INLINE packed_vector quads_at(const int8_t *x, int q) { return _mm512_set1_epi32(quad(x, q)); }

INLINE vi add_quads(vi sums, packed_vector codes, int packing, packed_vector quads) {
    (void)packing;
    return (vi)_mm512_dpbusd_epi32((__m512i)sums, codes, quads);
}

INLINE vi whole(vi sums, int packing) {
    (void)packing;
    return sums;
}
#elif defined(__AVX2__)
typedef __m256i packed_vector;
#define UNSIGNED_CODES 0
#define CHAINS 1

INLINE packed_vector codes_at(const uint8_t *from, int packing, int q) {
    if (packing == BITS8)
        return _mm256_loadu_si256((const __m256i *)(from + q * 64));
    __m256i both = _mm256_loadu_si256((const __m256i *)(from + q / 2 * 64));
    return _mm256_and_si256(q % 2 ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
}

INLINE packed_vector quads_at(const int8_t *x, int q) { return _mm256_set1_epi32(quad(x, q)); }

/* Sums of codes of 4 bits are of 16 bits, two for each output: sixteen products of at most 15 * 127 fit. Of 8 bits only two products do,
 * |w| times x with the sign of w. */
INLINE vi add_quads(vi sums, packed_vector codes, int packing, packed_vector quads) {
    if (packing != BITS8)
        return (vi)_mm256_add_epi16((__m256i)sums, _mm256_maddubs_epi16(codes, quads));
    __m256i two = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(quads, codes));
    return sums + (vi)_mm256_madd_epi16(two, _mm256_set1_epi16(1));
}

INLINE vi whole(vi sums, int packing) { return packing == BITS8 ? sums : (vi)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1)); }
#elif defined(__ARM_FEATURE_DOTPROD)
typedef int8x16_t packed_vector;
#define UNSIGNED_CODES 0
#define CHAINS 2

INLINE packed_vector codes_at(const uint8_t *from, int packing, int q) {
    if (packing == BITS8)
        return vreinterpretq_s8_u8(vld1q_u8(from + q * 64));
    uint8x16_t both = vld1q_u8(from + q / 2 * 64);
    return vreinterpretq_s8_u8(q % 2 ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15)));
}

INLINE packed_vector quads_at(const int8_t *x, int q) { return vreinterpretq_s8_s32(vdupq_n_s32(quad(x, q))); }

INLINE vi add_quads(vi sums, packed_vector codes, int packing, packed_vector quads) {
    (void)packing;
    return (vi)vdotq_s32((int32x4_t)sums, codes, quads);
}

INLINE vi whole(vi sums, int packing) {
    (void)packing;
    return sums;
}
#else
typedef struct {
    int8_t of[LANES * 4];
} packed_vector;
#define UNSIGNED_CODES 0
#define CHAINS 1

INLINE packed_vector codes_at(const uint8_t *from, int packing, int q) {
    packed_vector codes;
    for (int i = 0; i < LANES * 4; i++)
        codes.of[i] = (int8_t)(packing == BITS8 ? from[q * 64 + i] : q % 2 ? from[q / 2 * 64 + i] >> 4 : from[q / 2 * 64 + i] & 15);
    return codes;
}

INLINE packed_vector quads_at(const int8_t *x, int q) {
    packed_vector quads;
    for (int i = 0; i < LANES * 4; i += 4)
        memcpy(quads.of + i, x + 4 * q, 4);
    return quads;
}

INLINE vi add_quads(vi sums, packed_vector codes, int packing, packed_vector quads) {
    (void)packing;
    for (int n = 0; n < LANES; n++)
        for (int i = 0; i < 4; i++)
            sums[n] += codes.of[n * 4 + i] * quads.of[n * 4 + i];
    return sums;
}

INLINE vi whole(vi sums, int packing) {
    (void)packing;
    return sums;
}
#endif

INLINE vi joined(const vi *sums, int packing) { return whole(CHAINS == 2 ? sums[0] + sums[CHAINS - 1] : sums[0], packing); }

/* The products of a whole group with one row of x, added up. */
INLINE vf dot_group(const packed_vector *codes, int packing, const int8_t *x) {
    vi sums[CHAINS] = {{0}};
#pragma GCC unroll 8
    for (int q = 0; q < GROUP / 4; q++)
        sums[q % CHAINS] = add_quads(sums[q % CHAINS], codes[q], packing, quads_at(x, q));
    return __builtin_convertvector(joined(sums, packing), vf);
}

/* scale (and offset) of LANES outputs in a group. */
struct factors {
    vf scale, offset;
};

#define HAS_OFFSET(packing) ((packing) != BITS8 || UNSIGNED_CODES)

INLINE struct factors factors_at(const uint16_t *scales, int packing, int v) {
    vf scale = load(scales, v * LANES, F16);
    if (packing == BITS4_OFFSET)
        return (struct factors){scale, load(scales, WIDTH + v * LANES, F16)};
    return (struct factors){scale, scale * (packing == BITS4 ? -8.0f : -128.0f)};
}

/* Where the weights of a panel and what goes with them lie, from group to group. */
struct panel_weights {
    const uint8_t *codes;
    const uint16_t *scales;
    int64_t code_bytes, numbers;
};

INLINE struct panel_weights weights_of(const struct packed *a, int packing, int64_t panel) {
    int64_t groups = a->k / GROUP, code_bytes = packing == BITS8 ? 512 : 256, numbers = packing == BITS4_OFFSET ? 2 * WIDTH : WIDTH;
    return (struct panel_weights){a->codes + panel * groups * code_bytes, a->scales + panel * groups * numbers, code_bytes, numbers};
}

/* What a group adds to the outputs of a panel for one row, whose codes are `high` and, if they count, `low`. */
INLINE void add_group(const struct panel_weights *w, int packing, const int8_t *high, const int8_t *low, float scale, float scaled_sum, vf *sums) {
    const uint8_t *from = w->codes;
    vi parts[2][VECTORS][CHAINS] = {{{{0}}}};
    APART(from);
#pragma GCC unroll 8
    for (int64_t line = 0; line < w->code_bytes; line += 64)
        __builtin_prefetch(from + AHEAD + line);
    __builtin_prefetch((const char *)w->scales + AHEAD / 4);
#pragma GCC unroll 8
    for (int q = 0; q < GROUP / 4; q++) {
        packed_vector quads = quads_at(high, q), rest = low ? quads_at(low, q) : quads;
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            packed_vector codes = codes_at(from + v * LANES * 4, packing, q);
            parts[0][v][q % CHAINS] = add_quads(parts[0][v][q % CHAINS], codes, packing, quads);
            KEEP(parts[0][v][q % CHAINS]);
            if (low) {
                parts[1][v][q % CHAINS] = add_quads(parts[1][v][q % CHAINS], codes, packing, rest);
                KEEP(parts[1][v][q % CHAINS]);
            }
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        struct factors f = factors_at(w->scales, packing, v);
        vi total = joined(parts[0][v], packing);
        if (low)
            total = (total << 7) + joined(parts[1][v], packing);
        sums[v] += __builtin_convertvector(total, vf) * (f.scale * (low ? scale : scale * 128.0f));
        if (HAS_OFFSET(packing))
            sums[v] += f.offset * scaled_sum;
    }
}

/* The outputs of one panel for a single row: acc [16]. */
INLINE void panel_of_one(const struct packed *a, int packing, const struct rounded *x, int64_t panel, float *acc) {
    struct panel_weights w = weights_of(a, packing, panel);
    vf sums[VECTORS] = {{0}};
    for (int64_t g = 0; g < a->k / GROUP; g++, w.codes += w.code_bytes, w.scales += w.numbers) {
        const int8_t *high = x->high + g * GROUP;
        if (x->both[g])
            add_group(&w, packing, high, x->low + g * GROUP, x->scale[g], x->scaled_sum[g], sums);
        else
            add_group(&w, packing, high, NULL, x->scale[g], x->scaled_sum[g], sums);
    }
    for (int v = 0; v < VECTORS; v++)
        store(acc, v * LANES, F32, sums[v]);
}

/* The outputs of one panel for `rows` rows from m on: acc [rows, 16]. */
INLINE void panel_of_rows(const struct packed *a, int packing, const struct rounded *x, int64_t panel, int64_t m, int64_t rows, float *acc) {
    struct panel_weights w = weights_of(a, packing, panel);
    for (int64_t g = 0; g < a->k / GROUP; g++, w.codes += w.code_bytes, w.scales += w.numbers) {
        int64_t at = g * x->rows + m;
        const int8_t *high = x->high + at * GROUP, *low = x->low + at * GROUP;
        const float *xscale = x->scale + at, *xsum = x->scaled_sum + at;
        uint64_t both = x->both[g * x->blocks + m / PACKED_ROWS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            packed_vector codes[8];
#pragma GCC unroll 8
            for (int q = 0; q < 8; q++)
                codes[q] = codes_at(w.codes + v * LANES * 4, packing, q);
            struct factors f = factors_at(w.scales, packing, v);
            vf coarse = f.scale * 128.0f;
            for (int64_t r = 0; r < rows; r++) {
                vf sum = load(acc, r * WIDTH + v * LANES, F32) + dot_group(codes, packing, high + r * GROUP) * (coarse * xscale[r]);
                if (HAS_OFFSET(packing))
                    sum += f.offset * xsum[r];
                store(acc, r * WIDTH + v * LANES, F32, sum);
            }
            for (uint64_t left = both; left; left &= left - 1) {
                int r = __builtin_ctzll(left);
                vf sum = load(acc, r * WIDTH + v * LANES, F32) + dot_group(codes, packing, low + r * GROUP) * (f.scale * xscale[r]);
                store(acc, r * WIDTH + v * LANES, F32, sum);
            }
        }
    }
}

INLINE void packed_panel(const struct packed *a, int packing, const struct rounded *x, int64_t panel, int64_t m, int64_t rows, float *acc) {
    if (x->rows == 1) {
        panel_of_one(a, packing, x, panel, acc);
        return;
    }
    memset(acc, 0, (size_t)(rows * WIDTH) * sizeof(float));
    panel_of_rows(a, packing, x, panel, m, rows, acc);
}

static void packed_sums(const struct packed *a, const struct rounded *x, int64_t panel, int64_t m, int64_t rows, float *acc) {
    switch (a->packing) {
    case BITS8: packed_panel(a, BITS8, x, panel, m, rows, acc); break;
    case BITS4: packed_panel(a, BITS4, x, panel, m, rows, acc); break;
    default: packed_panel(a, BITS4_OFFSET, x, panel, m, rows, acc); break;
    }
}

static void add_bias(const struct packed *a, int64_t n, int64_t rows, float *acc) {
    int64_t columns = least(WIDTH, a->n - n);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < columns; i++)
            acc[r * WIDTH + i] += get(a->bias, n + i, (int)a->btype);
}

/* acc, and the residual on it, to the outputs n to n + columns. */
INLINE void put_rows(const struct packed *a, int type, int64_t n, int64_t columns, int64_t m, int64_t rows, const float *acc) {
    const char *residual = a->residual;
    char *out = a->out;
    int64_t ldr = a->ldr, ldo = a->ldo;
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (m + r) * ldr + n, to = (m + r) * ldo + n;
        for (int64_t i = 0; columns == WIDTH && i < WIDTH; i += LANES) {
            vf y = load(acc, r * WIDTH + i, F32);
            store(out, to + i, type, residual ? y + load(residual, at + i, type) : y);
        }
        for (int64_t i = 0; columns < WIDTH && i < columns; i++)
            put(out, to + i, type, acc[r * WIDTH + i] + (residual ? get(residual, at + i, type) : 0));
    }
}

/* What follows the sums of a panel: acc [rows, 16], and `up`, with a gate, those of the panel that it multiplies. */
static void finish_packed(const struct packed *a, int64_t panel, int64_t m, int64_t rows, float *acc, float *up) {
    int64_t n = panel * WIDTH, columns = least(WIDTH, a->n - n);
    if (a->bias)
        add_bias(a, n, rows, acc);
    if (a->bias && a->gate)
        add_bias(a, n + a->n / 2, rows, up);
    for (int64_t i = 0; a->gate && i < rows * WIDTH; i += LANES) {
        vf g = load(acc, i, F32);
        store(acc, i, F32, (a->gate == SILU ? silu(g) : gelu_tanh(g)) * load(up, i, F32));
    }
    if (a->scale != 1)
        multiply(acc, (float)a->scale, rows * WIDTH);
    switch (a->otype) {
    case BF16: put_rows(a, BF16, n, columns, m, rows, acc); break;
    case F32: put_rows(a, F32, n, columns, m, rows, acc); break;
    default: put_rows(a, F16, n, columns, m, rows, acc); break;
    }
}

/* The outputs of one panel, or with a gate of the panel of gates and the panel that they multiply. */
static void packed_block(const struct packed *a, const struct rounded *x, int64_t panel, int64_t m, int64_t rows) {
    float acc[PACKED_ROWS * WIDTH], up[PACKED_ROWS * WIDTH];
    packed_sums(a, x, panel, m, rows, acc);
    if (a->gate)
        packed_sums(a, x, panel + a->n / (2 * WIDTH), m, rows, up);
    finish_packed(a, panel, m, rows, acc, up);
}

static void packed(struct lane *lane, const void *args) {
    const struct packed *a = args;
    int64_t step = 4, first = 0, item = lane_claim(lane);
    struct rounded own, *x = &own;
    if (a->m > 1) {
        x = lane_shared(lane, 0);
        first = (a->m + step - 1) / step;
        float *row = lane_scratch(lane, (size_t)a->k * sizeof(float));
        for (; item < first; item = lane_claim(lane)) {
            int64_t begin = item * step, end = least(a->m, begin + step);
            for (int64_t m = begin; m < end; m++)
                round_row(a, x, m, row);
            __atomic_add_fetch(&x->done, (int32_t)(end - begin), __ATOMIC_RELEASE);
        }
        lane_wait(&x->done, (int32_t)a->m); /* the last rows are under way in other lanes */
    } else if (a->m == 1) {
        char *memory = lane_scratch(lane, rounded_bytes(1, a->k) + (size_t)a->k * sizeof(float));
        own = rounded_at(memory, 1, a->k);
        round_row(a, &own, 0, (float *)(memory + rounded_bytes(1, a->k)));
    }
    int64_t total = ((a->gate ? a->n / 2 : a->n) + WIDTH - 1) / WIDTH, block = (total + 8 * lane->count - 1) / (8 * lane->count);
    int64_t across = (total + block - 1) / block, down = (a->m + PACKED_ROWS - 1) / PACKED_ROWS;
    for (; item < first + across * down; item = lane_claim(lane)) {
        int64_t m = (item - first) / across * PACKED_ROWS, panel = (item - first) % across * block, rows = least(PACKED_ROWS, a->m - m);
        for (int64_t end = least(total, panel + block); panel < end; panel++)
            packed_block(a, x, panel, m, rows);
    }
}

/* The layout above out of a file's blocks of 32 values: [n, k / 32] of them, each its numbers (scale, then offset) and then its codes. Those of
 * 4 bits stand as values 0 to 15 in low halves and 16 to 31 in high ones. Rows that fill up the last panel are zeros. */
struct pack_blocks {
    const uint8_t *blocks;
    uint8_t *codes;
    uint16_t *scales;
    int64_t n, groups, packing;
};

INLINE void pack_block(const uint8_t *block, int packing, uint32_t *codes, uint16_t *scales) {
    int numbers = packing == BITS4_OFFSET ? 2 : 1;
    uint32_t words[8];
    for (int i = 0; i < numbers; i++)
        memcpy(scales + i * WIDTH, block + i * 2, 2);
    memcpy(words, block + numbers * 2, packing == BITS8 ? 32 : 16);
    for (int j = 0; packing == BITS8 && j < 8; j++)
        codes[j * WIDTH] = words[j];
    for (int j = 0; packing != BITS8 && j < 4; j++) {
        uint32_t first = words[j % 2 * 2] >> (j < 2 ? 0 : 4), second = words[j % 2 * 2 + 1] >> (j < 2 ? 0 : 4);
        codes[j * WIDTH] = (first & 0x0f0f0f0f) | (second & 0x0f0f0f0f) << 4;
    }
}

static void pack_blocks(struct lane *lane, const void *args) {
    const struct pack_blocks *a = args;
    int packing = (int)a->packing;
    int64_t numbers = packing == BITS4_OFFSET ? 2 : 1, words = packing == BITS8 ? 8 : 4, block_bytes = numbers * 2 + words * 4;
    for (int64_t panel; (panel = lane_claim(lane)) < (a->n + WIDTH - 1) / WIDTH;) {
        int64_t columns = least(WIDTH, a->n - panel * WIDTH);
        uint32_t *codes = (uint32_t *)a->codes + panel * a->groups * words * WIDTH;
        uint16_t *scales = a->scales + panel * a->groups * numbers * WIDTH;
        if (columns < WIDTH) {
            memset(codes, 0, (size_t)(a->groups * words * WIDTH) * 4);
            memset(scales, 0, (size_t)(a->groups * numbers * WIDTH) * 2);
        }
        for (int64_t g = 0; g < a->groups; g++, codes += words * WIDTH, scales += numbers * WIDTH)
            for (int64_t i = 0; i < columns; i++)
                pack_block(a->blocks + ((panel * WIDTH + i) * a->groups + g) * block_bytes, packing, codes + i, scales + i);
    }
}
