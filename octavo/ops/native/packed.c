/* Products with weights of 4 or 8 bits that have a scale (and an offset) for every 32 values along k: w = scale * code + offset.
 *
 * x is rounded to 15 bits with a scale of its own for the same 32 values, so that a group's products are added in integers. A code of x is
 * 128 * high + low, two bytes, each with a byte product of its own: rounded to 8 bits alone, x would be off by a hundredth.
 *     y[n] = sum over groups of  xscale * (scale[n] * sum(xcode * code[n]) + offset[n] * sum(xcode)).
 * The weights are laid out so that one load holds 4 values along k of 16 outputs, which is what the machines' byte products add up:
 *     codes   [n / 16, k / 32, 4, 16, 4] of 4 bits: byte (j, output, i) holds k = 8 j + i in its low half and 8 j + 4 + i in its high half
 *             [n / 16, k / 32, 8, 16, 4] of 8 bits, signed
 *     scales  [n / 16, k / 32, 1 or 2, 16] float16: scales, then offsets where there are any. */
#include "simd.h"
#include "team.h"

#define GROUP 32
#define CODE_BYTES (2 * GROUP) /* of x: the high bytes, then the low ones */
#define LARGEST (127 * 128)
#define PACKED_ROWS 64 /* of x that pass by while a group of weights is in registers */

enum packing { BITS4, BITS4_OFFSET, BITS8 }; /* BITS4 without offsets stands for scale * (code - 8); the numbers are known to twins.py */

struct packed {
    const char *x;
    const uint8_t *codes;
    const uint16_t *scales;
    const char *bias; /* may be null */
    char *out;
    int64_t m, n, k, ldx, ldo;
    int64_t packing, xtype, btype, otype;
};

/* x in 15 bits: codes [k / 32, m, 2, 32]; scale [k / 32, m]; and scale times the sum of the codes, likewise. */
struct rounded {
    int8_t *codes;
    float *scale, *scaled_sum;
    int32_t done; /* rows that are ready */
};

static void prepare_packed(struct lane *lane, const void *args) {
    const struct packed *a = args;
    size_t entries = (size_t)(a->m * (a->k / GROUP)), codes = entries * CODE_BYTES, numbers = entries * sizeof(float);
    char *shared = lane_shared(lane, 64 + codes + 2 * numbers);
    *(struct rounded *)shared = (struct rounded){(int8_t *)(shared + 64), (float *)(shared + 64 + codes), (float *)(shared + 64 + codes + numbers), 0};
}

static void round_row(const struct packed *a, const struct rounded *to, int64_t m, float *row) {
    convert(row, a->x + m * a->ldx * dtype_bytes((int)a->xtype), (int)a->xtype, a->k);
    for (int64_t g = 0; g < a->k / GROUP; g++) {
        const float *x = row + g * GROUP;
        int8_t *codes = to->codes + (g * a->m + m) * CODE_BYTES;
        vf most = {0};
        for (int i = 0; i < GROUP; i += LANES) {
            vf v = load(x, i, F32);
            most = vmax((vf)((vi)v & 0x7fffffff), most);
        }
        float scale = vmax_of(most) / LARGEST, divisor = scale > 0 ? scale : 1;
        vi total = {0};
        for (int i = 0; i < GROUP; i += LANES) {
            vi code = (vi)(load(x, i, F32) / divisor + 12582912.0f) - 0x4b400000; /* the sum is 1.5 * 2^23 and the code in its low bits */
            total += code;
            vi high = (code + 64) >> 7, low = code - (high << 7);
            for (int j = 0; j < LANES; j++) {
                codes[i + j] = (int8_t)high[j];
                codes[GROUP + i + j] = (int8_t)low[j];
            }
        }
        int32_t sum = 0;
        for (int j = 0; j < LANES; j++)
            sum += total[j];
        to->scale[g * a->m + m] = scale;
        to->scaled_sum[g * a->m + m] = scale * (float)sum;
    }
}

INLINE int32_t quad(const int8_t *x, int q) {
    int32_t four;
    memcpy(&four, x + 4 * q, 4);
    return four;
}

/* One group of LANES outputs against one row of x after the other: `codes` as unpacked by unpack(). */
#if defined(__AVX512VNNI__)
typedef __m512i packed_vector;
#define UNSIGNED_CODES 1 /* 8-bit codes have 128 added, which the offset takes back */

INLINE vi dot_group(const packed_vector *codes, int packing, const int8_t *x) {
    (void)packing;
    __m512i even = _mm512_setzero_si512(), odd = even;
#pragma GCC unroll 4
    for (int q = 0; q < 8; q += 2) {
        even = _mm512_dpbusd_epi32(even, codes[q], _mm512_set1_epi32(quad(x, q)));
        odd = _mm512_dpbusd_epi32(odd, codes[q + 1], _mm512_set1_epi32(quad(x, q + 1)));
    }
    return (vi)_mm512_add_epi32(even, odd);
}

INLINE void unpack(const uint8_t *from, int packing, packed_vector *codes) {
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        if (packing == BITS8) {
            codes[q] = _mm512_xor_si512(_mm512_loadu_si512(from + q * 64), _mm512_set1_epi8((char)0x80));
        } else {
            __m512i both = _mm512_loadu_si512(from + q / 2 * 64);
            codes[q] = _mm512_and_si512(q % 2 ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15));
        }
    }
}
#elif defined(__AVX2__)
typedef __m256i packed_vector;
#define UNSIGNED_CODES 0

INLINE vi dot_group(const packed_vector *codes, int packing, const int8_t *x) {
    __m256i sum = _mm256_setzero_si256(), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        __m256i xs = _mm256_set1_epi32(quad(x, q));
        if (packing == BITS8) { /* |w| times x with the sign of w: two products of at most 128 * 127 fit 16 bits */
            __m256i two = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[q]), _mm256_sign_epi8(xs, codes[q]));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(two, ones));
        } else { /* sixteen products of at most 15 * 127 fit 16 bits */
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[q], xs));
        }
    }
    return (vi)(packing == BITS8 ? sum : _mm256_madd_epi16(sum, ones));
}

INLINE void unpack(const uint8_t *from, int packing, packed_vector *codes) {
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        if (packing == BITS8) {
            codes[q] = _mm256_loadu_si256((const __m256i *)(from + q * 64));
        } else {
            __m256i both = _mm256_loadu_si256((const __m256i *)(from + q / 2 * 64));
            codes[q] = _mm256_and_si256(q % 2 ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
        }
    }
}
#else
typedef int8_t packed_vector[LANES * 4];
#define UNSIGNED_CODES 0

INLINE vi dot_group(packed_vector *codes, int packing, const int8_t *x) {
    (void)packing;
    vi sum = {0};
    for (int n = 0; n < LANES; n++) {
        int32_t total = 0;
        for (int q = 0; q < 8; q++)
            for (int i = 0; i < 4; i++)
                total += codes[q][n * 4 + i] * x[q * 4 + i];
        sum[n] = total;
    }
    return sum;
}

INLINE void unpack(const uint8_t *from, int packing, packed_vector *codes) {
    for (int q = 0; q < 8; q++)
        for (int i = 0; i < LANES * 4; i++)
            codes[q][i] = (int8_t)(packing == BITS8 ? from[q * 64 + i] : q % 2 ? from[q / 2 * 64 + i] >> 4 : from[q / 2 * 64 + i] & 15);
}
#endif

/* The outputs of one panel for `rows` rows from m on: acc [rows, 16]. `one`: there is one row, whose sums stay in registers. */
INLINE void packed_panel(const struct packed *a, int packing, int one, const struct rounded *x, int64_t panel, int64_t m, int64_t rows, float *acc) {
    int64_t groups = a->k / GROUP, code_bytes = packing == BITS8 ? 512 : 256, numbers = packing == BITS4_OFFSET ? 32 : 16;
    const uint8_t *from = a->codes + panel * groups * code_bytes;
    const uint16_t *scales = a->scales + panel * groups * numbers;
    vf sums[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++)
        sums[v] = (vf){0};
    for (int64_t g = 0; g < groups; g++, from += code_bytes, scales += numbers) {
        const int8_t *xs = x->codes + (g * a->m + m) * CODE_BYTES;
        const float *xscale = x->scale + g * a->m + m, *xsum = x->scaled_sum + g * a->m + m;
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            packed_vector codes[8];
            unpack(from + v * LANES * 4, packing, codes);
            vf scale = load(scales, v * LANES, F16), offset = {0};
            if (packing == BITS4_OFFSET)
                offset = load(scales, 16 + v * LANES, F16);
            else if (packing == BITS4)
                offset = scale * -8.0f;
            else if (UNSIGNED_CODES)
                offset = scale * -128.0f;
            for (int64_t r = 0; r < (one ? 1 : rows); r++) {
                vf sum = one ? sums[v] : load(acc, r * WIDTH + v * LANES, F32);
                vi high = dot_group(codes, packing, xs + r * CODE_BYTES), low = dot_group(codes, packing, xs + r * CODE_BYTES + GROUP);
                sum += __builtin_convertvector((high << 7) + low, vf) * (scale * xscale[r]);
                if (packing != BITS8 || UNSIGNED_CODES)
                    sum += offset * xsum[r];
                if (one)
                    sums[v] = sum;
                else
                    store(acc, r * WIDTH + v * LANES, F32, sum);
            }
        }
    }
#pragma GCC unroll 4
    for (int v = 0; one && v < VECTORS; v++)
        store(acc, v * LANES, F32, sums[v]);
}

INLINE void packed_block(const struct packed *a, int packing, const struct rounded *x, int64_t panel, int64_t m, int64_t rows) {
    float acc[PACKED_ROWS * WIDTH];
    memset(acc, 0, (size_t)(rows * WIDTH) * sizeof(float));
    if (rows == 1)
        packed_panel(a, packing, 1, x, panel, m, rows, acc);
    else
        packed_panel(a, packing, 0, x, panel, m, rows, acc);
    int64_t n = panel * WIDTH, columns = least(WIDTH, a->n - n);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; a->bias && i < columns; i++)
            acc[r * WIDTH + i] += get(a->bias, n + i, (int)a->btype);
        narrow(a->out + ((m + r) * a->ldo + n) * dtype_bytes((int)a->otype), (int)a->otype, acc + r * WIDTH, columns);
    }
}

static void packed(struct lane *lane, const void *args) {
    const struct packed *a = args;
    struct rounded *x = lane_shared(lane, 0);
    float *row = lane_scratch(lane, (size_t)a->k * sizeof(float));
    int64_t step = a->m <= 4 ? a->m : 4, first = step ? (a->m + step - 1) / step : 0, item;
    for (; (item = lane_claim(lane)) < first;) {
        int64_t begin = item * step, end = least(a->m, begin + step);
        for (int64_t m = begin; m < end; m++)
            round_row(a, x, m, row);
        __atomic_add_fetch(&x->done, (int32_t)(end - begin), __ATOMIC_RELEASE);
    }
    lane_wait(&x->done, (int32_t)a->m); /* the last rows are under way in other lanes */
    int64_t total = (a->n + WIDTH - 1) / WIDTH, block = (total + 8 * lane->count - 1) / (8 * lane->count);
    int64_t across = (total + block - 1) / block, down = (a->m + PACKED_ROWS - 1) / PACKED_ROWS;
    for (; item < first + across * down; item = lane_claim(lane)) {
        int64_t m = (item - first) / across * PACKED_ROWS, panel = (item - first) % across * block, rows = least(PACKED_ROWS, a->m - m);
        for (int64_t end = least(total, panel + block); panel < end; panel++) {
            if (a->packing == BITS8)
                packed_block(a, BITS8, x, panel, m, rows);
            else if (a->packing == BITS4)
                packed_block(a, BITS4, x, panel, m, rows);
            else
                packed_block(a, BITS4_OFFSET, x, panel, m, rows);
        }
    }
}
