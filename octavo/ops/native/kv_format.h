/* K and V in a byte each, and their scales: what octavo/ops/kv_format.py defines. */
#ifndef OCTAVO_KV_FORMAT_H
#define OCTAVO_KV_FORMAT_H

#include "simd.h"

/* Where the scale of a block's K or V, of a token and head of it, lies. */
struct scales {
    char *at; /* null: all are 1 */
    int64_t block, which, token, head; /* elements; 0 where one serves all */
    int64_t type;
};

INLINE int is_compressed(int64_t type) { return type > F16; }

INLINE char *scale_at(const struct scales *s, int64_t block, int64_t which, int64_t token, int64_t head) {
    return s->at + (block * s->block + which * s->which + token * s->token + head * s->head) * dtype_bytes((int)s->type);
}

/* LANES values as they are, without their scale. */
INLINE vf restored(const int8_t *from, int type) {
    vi bits = load_bytes(from);
    if (type == I8)
        return __builtin_convertvector(bits, vf);
    int shift = type == E4M3 ? 20 : 21; /* the fraction's distance from a float's */
    vi rest = bits & 0x7f, sign = bits & INT32_MIN, least = splat_int(type == E4M3 ? 8 : 4), last = splat_int(type == E4M3 ? 0x7f : 0x7c);
    vi whole = (rest << shift) + (type == E4M3 ? 120 << 23 : 112 << 23);
    vf small = __builtin_convertvector(rest, vf) * (type == E4M3 ? 0x1p-9f : 0x1p-16f); /* subnormal: that many of the smallest */
    vi odd = (rest >= last) & 0x7f800000; /* NaN, and of e5m2 infinity */
    return (vf)((vi)choose(rest < least, small, (vf)whole) | odd | sign);
}

/* LANES values, divided by their scale and within the format's range, to the nearest that it has, ties to even; but of int8 upwards. */
INLINE vi compressed(vf x, int type) {
    if (type == I8) {
        vf shifted = x + 0.5f;
        vi steps = __builtin_convertvector(shifted, vi);
        return steps + (vi)(__builtin_convertvector(steps, vf) > shifted); /* a comparison that holds is -1 */
    }
    int shift = type == E4M3 ? 20 : 21;
    float unit = type == E4M3 ? 0x1p14f : 0x1p7f; /* a sum with it is rounded to a multiple of the smallest, in the low bits */
    vi bits = (vi)x & INT32_MAX, least = splat_int(type == E4M3 ? 121 << 23 : 113 << 23);
    vi small = (vi)((vf)bits + unit) - (vi)splat(unit);
    vi whole = (bits + ((1 << (shift - 1)) - 1) + (bits >> shift & 1) - (type == E4M3 ? 120 << 23 : 112 << 23)) >> shift;
    vi odd = (vi)(x != x) & 0x7f, sign = (vi)x >> 24 & 0x80;
    return (((bits < least) & small) | (~(bits < least) & whole) | odd | sign) & 0xff;
}

INLINE float largest_of(int type) { return type == I8 ? 127 : type == E4M3 ? 448 : 57344; }

/* `count` values of a head, each times `scale`, as floats. */
INLINE void restore_of(float *to, const char *from, int type, float scale, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(to, i, F32, restored((const int8_t *)from + i, type) * scale);
    if (i < count) {
        int8_t rest[LANES] = {0};
        memcpy(rest, from + i, (size_t)(count - i));
        store_part(to, i, F32, restored(rest, type) * scale, count - i);
    }
}

static __attribute__((noinline)) void restore(float *to, const char *from, int type, float scale, int64_t count) {
    switch (type) {
    case I8: restore_of(to, from, I8, scale, count); break;
    case E4M3: restore_of(to, from, E4M3, scale, count); break;
    default: restore_of(to, from, E5M2, scale, count); break;
    }
}

/* The other way. What the format has no room for is cut; NaN stays NaN where there is one. */
INLINE void compress_of(char *to, int type, const float *from, float scale, int64_t count) {
    vf most = splat(largest_of(type));
    for (int64_t i = 0; i < count; i += LANES) {
        int8_t bytes[LANES];
        int64_t left = count - i;
        vf x = (left < LANES ? load_part(from, i, F32, left) : load(from, i, F32)) / scale;
        if (type == I8) /* vmin and vmax give their second where either is NaN */
            x = vmax(vmin(x, most), -most);
        else
            x = vmax(-most, vmin(most, x));
        store_bytes(bytes, compressed(x, type));
        memcpy(to + i, bytes, (size_t)(left < LANES ? left : LANES));
    }
}

static __attribute__((noinline)) void compress(char *to, int type, const float *from, float scale, int64_t count) {
    switch (type) {
    case I8: compress_of(to, I8, from, scale, count); break;
    case E4M3: compress_of(to, E4M3, from, scale, count); break;
    default: compress_of(to, E5M2, from, scale, count); break;
    }
}

/* Of int8: the largest magnitude is 127 steps of this size. */
static float step_of(const float *x, int64_t count) {
    vf most = {0};
    float largest;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        most = vmax(most, (vf)((vi)load(x, i, F32) & INT32_MAX));
    largest = vmax_of(most);
    for (; i < count; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    return largest / 127;
}

#endif
