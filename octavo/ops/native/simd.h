/* Vectors of LANES floats in the compiler's own vector types, so that one source serves every instruction set: it is compiled once for each
 * (see build.py), and only what no compiler finds by itself is written as intrinsics. */
#ifndef OCTAVO_SIMD_H
#define OCTAVO_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));
typedef int8_t vb __attribute__((vector_size(LANES)));
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));

enum dtype { F32, BF16, F16, I8, E4M3, E5M2 }; /* the numbers are known to binding.py; those of a byte are only of K and V */

INLINE long dtype_bytes(int dtype) { return dtype == F32 ? 4 : dtype <= F16 ? 2 : 1; }

/* Keeps a loaded vector in a register: otherwise compilers load it again for each use. */
#if defined(__x86_64__)
#define KEEP(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define KEEP(x) __asm__("" : "+w"(x))
#else
#define KEEP(x) (void)(x)
#endif

/* A pointer of which compilers know no more that it is equal to another: otherwise they do what two branches share before both of them, with
 * more results at once than there are registers. */
#define APART(pointer) __asm__("" : "+r"(pointer))

INLINE vf splat(float x) { return x - (vf){0}; }

INLINE vi splat_int(int32_t x) { return x - (vi){0}; }

/* One value. */

INLINE float from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
}

INLINE uint16_t to_bf16(float x) { /* to nearest, ties to even; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINE float from_f16(uint16_t bits) {
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff, wide;
    float x;
    if (rest < 0x400) { /* subnormal: an integer times 2^-24 */
        x = (float)rest * 0x1p-24f;
        return sign ? -x : x;
    }
    wide = sign | (rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : (rest << 13) + 0x38000000);
    memcpy(&x, &wide, 4);
    return x;
#endif
}

INLINE uint16_t to_f16(float x) {
#if defined(__F16C__)
    return _cvtss_sh(x, 0);
#else
    uint32_t bits, sign;
    memcpy(&bits, &x, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (bits >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (bits < 0x38800000) { /* the sum with 0.5 rounds to a multiple of 2^-24, in the low bits of the float */
        float small;
        memcpy(&small, &bits, 4);
        small += 0.5f;
        memcpy(&bits, &small, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    return (uint16_t)(sign | (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13);
#endif
}

INLINE float get(const void *p, long i, int dtype) {
    if (dtype == F32)
        return ((const float *)p)[i];
    uint16_t bits = ((const uint16_t *)p)[i];
    return dtype == BF16 ? from_bf16(bits) : from_f16(bits);
}

INLINE void put(void *p, long i, int dtype, float x) {
    if (dtype == F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = dtype == BF16 ? to_bf16(x) : to_f16(x);
}

/* LANES values at index i. */

INLINE vu widen(vh x) {
#if defined(__AVX512F__)
    return (vu)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(__AVX2__)
    return (vu)_mm256_cvtepu16_epi32((__m128i)x);
#else
    return __builtin_convertvector(x, vu);
#endif
}

INLINE vf load(const void *p, long i, int dtype) {
    if (dtype == F32) {
        vf x;
        memcpy(&x, (const float *)p + i, sizeof x);
        return x;
    }
    vh bits;
    memcpy(&bits, (const uint16_t *)p + i, sizeof bits);
    if (dtype == BF16)
        return (vf)(widen(bits) << 16);
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)bits);
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps((__m128i)bits);
#else
    vf x = {0};
    for (int j = 0; j < LANES; j++)
        x[j] = from_f16(bits[j]);
    return x;
#endif
}

INLINE vh bf16_of(vf x) { /* to nearest, ties to even; NaN stays NaN */
#if defined(__AVX512BF16__)
    return (vh)_mm512_cvtneps_pbh((__m512)x); /* numbers under the smallest normal one become 0 */
#else
    vu wide = (vu)x, nan = (vu)(x != x), even = wide >> 16 & 1;
    return __builtin_convertvector((nan & (wide | 0x400000)) >> 16 | (~nan & (wide + 0x7fff + even)) >> 16, vh);
#endif
}

INLINE void store(void *p, long i, int dtype, vf x) {
    if (dtype == F32) {
        memcpy((float *)p + i, &x, sizeof x);
        return;
    }
    vh bits;
    if (dtype == BF16) {
        bits = bf16_of(x);
    } else {
#if defined(__AVX512F__)
        bits = (vh)_mm512_cvtps_ph((__m512)x, 0);
#elif defined(__F16C__)
        bits = (vh)_mm256_cvtps_ph((__m256)x, 0);
#else
        for (int j = 0; j < LANES; j++)
            bits[j] = to_f16(x[j]);
#endif
    }
    memcpy((uint16_t *)p + i, &bits, sizeof bits);
}

/* LANES whole numbers that fit a byte each. */
INLINE vi load_bytes(const int8_t *from) {
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    vb bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, vi);
#endif
}

INLINE void store_bytes(int8_t *to, vi x) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)x));
#else
    vb bytes = __builtin_convertvector(x, vb);
    memcpy(to, &bytes, sizeof bytes);
#endif
}

/* The first `count` < LANES values at index i, zeros after them: nothing past the end is touched. Not in a hot loop, so one copy will do. */

static __attribute__((noinline)) vf load_part(const void *p, long i, int dtype, long count) {
    float x[LANES] = {0};
    for (long j = 0; j < count; j++)
        x[j] = get(p, i + j, dtype);
    return load(x, 0, F32);
}

static __attribute__((noinline)) void store_part(void *p, long i, int dtype, vf x, long count) {
    float from[LANES];
    store(from, 0, F32, x);
    for (long j = 0; j < count; j++)
        put(p, i + j, dtype, from[j]);
}

INLINE vf load_any(const void *p, long i, int dtype) { /* of a type known only at run time */
    return dtype == BF16 ? load(p, i, BF16) : dtype == F32 ? load(p, i, F32) : load(p, i, F16);
}

INLINE void store_any(void *p, long i, int dtype, vf x) {
    if (dtype == BF16)
        store(p, i, BF16, x);
    else if (dtype == F32)
        store(p, i, F32, x);
    else
        store(p, i, F16, x);
}

INLINE void convert_of(float *to, const void *from, int dtype, long count) {
    long i = 0;
    for (; i + LANES <= count; i += LANES)
        store(to, i, F32, load(from, i, dtype));
    for (; i < count; i++)
        to[i] = get(from, i, dtype);
}

static __attribute__((noinline)) void convert(float *to, const void *from, int dtype, long count) {
    switch (dtype) {
    case F32: convert_of(to, from, F32, count); break;
    case BF16: convert_of(to, from, BF16, count); break;
    default: convert_of(to, from, F16, count); break;
    }
}

INLINE void narrow_of(void *to, int dtype, const float *from, long count) {
    long i = 0;
    for (; i + LANES <= count; i += LANES)
        store(to, i, dtype, load(from, i, F32));
    for (; i < count; i++)
        put(to, i, dtype, from[i]);
}

static __attribute__((noinline)) void narrow(void *to, int dtype, const float *from, long count) {
    switch (dtype) {
    case F32: narrow_of(to, F32, from, count); break;
    case BF16: narrow_of(to, BF16, from, count); break;
    default: narrow_of(to, F16, from, count); break;
    }
}

INLINE void multiply(float *x, float by, long count) {
    long i = 0;
    for (; i + LANES <= count; i += LANES)
        store(x, i, F32, load(x, i, F32) * by);
    for (; i < count; i++)
        x[i] *= by;
}

/* to += by * x */
INLINE void add_multiple(float *to, float by, const float *x, long count) {
    long i = 0;
    for (; i + LANES <= count; i += LANES)
        store(to, i, F32, load(to, i, F32) + by * load(x, i, F32));
    for (; i < count; i++)
        to[i] += by * x[i];
}

INLINE v4 quarter(vf x) { /* four partial sums of the lanes */
    v4 parts[LANES / 4], sum;
    memcpy(parts, &x, sizeof x);
    sum = parts[0];
    for (int i = 1; i < LANES / 4; i++)
        sum += parts[i];
    return sum;
}

#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (int32_t __attribute__((vector_size(16)))){__VA_ARGS__})
#endif

INLINE v4 sums4(v4 a, v4 b, v4 c, v4 d) { /* the sum of each */
    v4 ab = PICK(a, b, 0, 4, 1, 5) + PICK(a, b, 2, 6, 3, 7);
    v4 cd = PICK(c, d, 0, 4, 1, 5) + PICK(c, d, 2, 6, 3, 7);
    return PICK(ab, cd, 0, 1, 4, 5) + PICK(ab, cd, 2, 3, 6, 7);
}

/* Rows to columns of 4 x 4. */
INLINE void turn4(const float *from, long from_row, float *to, long to_row) {
    v4 a, b, c, d;
    memcpy(&a, from, 16), memcpy(&b, from + from_row, 16), memcpy(&c, from + 2 * from_row, 16), memcpy(&d, from + 3 * from_row, 16);
    v4 ab = PICK(a, b, 0, 4, 1, 5), cd = PICK(c, d, 0, 4, 1, 5), ab2 = PICK(a, b, 2, 6, 3, 7), cd2 = PICK(c, d, 2, 6, 3, 7);
    a = PICK(ab, cd, 0, 1, 4, 5), b = PICK(ab, cd, 2, 3, 6, 7), c = PICK(ab2, cd2, 0, 1, 4, 5), d = PICK(ab2, cd2, 2, 3, 6, 7);
    memcpy(to, &a, 16), memcpy(to + to_row, &b, 16), memcpy(to + 2 * to_row, &c, 16), memcpy(to + 3 * to_row, &d, 16);
}

INLINE float sum(vf x) {
    v4 s = quarter(x);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* Where a comparison holds (all bits of the lane are set) the one, else the other. */
INLINE vf choose(vi where, vf yes, vf no) { return (vf)((where & (vi)yes) | (~where & (vi)no)); }

INLINE vf vmax(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return choose(a > b, a, b);
#endif
}

#if LANES == 16
#define LANE_INDEX ((vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
#elif LANES == 8
#define LANE_INDEX ((vi){0, 1, 2, 3, 4, 5, 6, 7})
#else
#define LANE_INDEX ((vi){0, 1, 2, 3})
#endif

INLINE v4 vmax4(v4 a, v4 b) {
    v4i where = a > b;
    return (v4)((where & (v4i)a) | (~where & (v4i)b));
}

INLINE float vmax_of(vf x) {
    v4 parts[LANES / 4], most;
    memcpy(parts, &x, sizeof x);
    most = parts[0];
    for (int i = 1; i < LANES / 4; i++)
        most = vmax4(most, parts[i]);
    most = vmax4(most, PICK(most, most, 2, 3, 0, 1));
    return most[0] > most[1] ? most[0] : most[1];
}

INLINE vf vmin(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return choose(a < b, a, b);
#endif
}

/* e^x to about 2 units in the last place: x = n ln 2 + r, a polynomial of degree 6 in r (Cephes' expf), times 2^n. Under the smallest
 * normal number it is 0, and from e^88.7 on it grows no more. NaN stays NaN, as vmin and vmax give their second where either is NaN. */
INLINE vf vexp(vf x) {
    vf shifter = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer, left in the low bits */
    vi gone = x < -87.3f;
    x = vmax(splat(-87.3f), vmin(splat(88.7f), x));
    vf n = x * 1.44269504088896341f + shifter;
    vi exponent = (vi)n << 23;
    n -= shifter;
    vf r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (vf)((vi)((vf)((vi)p + exponent)) & ~gone);
}

/* tanh x = 1 - 2 / (e^2x + 1); near 0, where that cancels, x - x^3/3 + 2x^5/15. */
INLINE vf vtanh(vf x) {
    vf far = 1.0f - 2.0f / (vexp(2.0f * x) + 1.0f);
    vf square = x * x;
    vf near = x + x * square * (-0.333333333f + square * (0.133333333f + square * -0.0539682540f));
    vf size = (vf)((vi)x & 0x7fffffff);
    return choose(size < 0.15f, near, far);
}

#endif
