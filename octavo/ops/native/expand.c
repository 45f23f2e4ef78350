/* GGUF's packed blocks to numbers, as octavo/ops/expand_blocks.py says for each kind. Every product here is exact in float32, so that it does not
 * matter whether the compiler fuses it with the sum that follows.
 *
 * Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h (block_q4_0 ... block_q6_K). */
#include "simd.h"
#include "team.h"

enum blocks { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K }; /* in the order of `DEQUANTIZE` */

static const struct {
    int64_t values, bytes;
    int group; /* values that share a scale */
} block_sizes[] = {{32, 18, 32},  {32, 20, 32},  {32, 22, 32},   {32, 24, 32},   {32, 34, 32},
                   {256, 84, 16}, {256, 110, 16}, {256, 144, 32}, {256, 176, 32}, {256, 210, 16}};

struct expand {
    const uint8_t *blocks;
    char *out; /* as many numbers as the blocks hold, in their order */
    int64_t count, kind, otype;
};

/* A block taken apart: values = scale * code + offset, with a scale and an offset for each group. */
struct spread {
    int8_t codes[256];
    float scale[16], offset[16];
};

INLINE float half_at(const uint8_t *p) {
    uint16_t bits;
    memcpy(&bits, p, 2);
    return from_f16(bits);
}

typedef uint8_t bytes16 __attribute__((vector_size(16)));

INLINE bytes16 bytes_at(const void *p) {
    bytes16 x;
    memcpy(&x, p, 16);
    return x;
}

INLINE void put_bytes(void *p, bytes16 x) { memcpy(p, &x, 16); }

/* Of every byte the low four bits, then of every byte the high ones. */
INLINE void nibbles(int8_t *codes, const uint8_t *q, int bytes) {
    for (int i = 0; i < bytes; i += 16) {
        put_bytes(codes + i, bytes_at(q + i) & 15);
        put_bytes(codes + bytes + i, bytes_at(q + i) >> 4);
    }
}

/* Adds to 32 codes the `width` bits that lie `at` bits up in as many bytes, times `unit`, less `by`. */
INLINE void add_bits(int8_t *codes, const uint8_t *q, int at, int width, int unit, int by) {
    for (int i = 0; i < 32; i += 16)
        put_bytes(codes + i, bytes_at(codes + i) + (bytes_at(q + i) >> (uint8_t)at & (uint8_t)((1 << width) - 1)) * (uint8_t)unit - (uint8_t)by);
}

/* Adds to 32 codes 16 where their bit of four bytes is set, less `by`. */
INLINE void add_fifth_bits(int8_t *codes, const uint8_t *bits, int by) {
    const bytes16 mask = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    for (int i = 0; i < 2; i++) {
        uint8_t a = bits[2 * i], b = bits[2 * i + 1];
        bytes16 both = {a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b};
        put_bytes(codes + 16 * i, bytes_at(codes + 16 * i) + ((bytes16)((both & mask) != 0) & 16) - (uint8_t)by);
    }
}

/* 8 scales and 8 offsets of 6 bits, as Q4_K and Q5_K pack them in 12 bytes. */
INLINE void scales_and_offsets(struct spread *to, const uint8_t *block) {
    const uint8_t *p = block + 4;
    float d = half_at(block), least_of = half_at(block + 2);
    for (int i = 0; i < 4; i++) {
        to->scale[i] = d * (float)(p[i] & 63);
        to->offset[i] = -least_of * (float)(p[4 + i] & 63);
        to->scale[4 + i] = d * (float)((p[8 + i] & 15) | p[i] >> 6 << 4);
        to->offset[4 + i] = -least_of * (float)(p[8 + i] >> 4 | p[4 + i] >> 6 << 4);
    }
}

INLINE void spread_q2(struct spread *to, const uint8_t *block) {
    float d = half_at(block + 80), least_of = half_at(block + 82);
    for (int i = 0; i < 16; i++) {
        to->scale[i] = d * (float)(block[i] & 15);
        to->offset[i] = -least_of * (float)(block[i] >> 4);
    }
    memset(to->codes, 0, 256);
    for (int i = 0; i < 8; i++)
        add_bits(to->codes + 32 * i, block + 16 + i / 4 * 32, i % 4 * 2, 2, 1, 0);
}

INLINE void spread_q3(struct spread *to, const uint8_t *block) {
    const uint8_t *low = block + 96, *high = block + 104;
    float d = half_at(block + 108);
    for (int i = 0; i < 16; i++)
        to->scale[i] = d * (float)((low[i % 8] >> i / 8 * 4 & 15 | (high[i % 4] >> i / 4 * 2 & 3) << 4) - 32);
    memset(to->codes, 0, 256);
    for (int i = 0; i < 8; i++) {
        add_bits(to->codes + 32 * i, block + 32 + i / 4 * 32, i % 4 * 2, 2, 1, 4);
        add_bits(to->codes + 32 * i, block, i, 1, 4, 0);
    }
}

INLINE void spread_q5(struct spread *to, const uint8_t *block) {
    scales_and_offsets(to, block);
    for (int i = 0; i < 4; i++)
        nibbles(to->codes + 64 * i, block + 48 + 32 * i, 32);
    for (int i = 0; i < 8; i++)
        add_bits(to->codes + 32 * i, block + 16, i, 1, 16, 0);
}

INLINE void spread_q6(struct spread *to, const uint8_t *block) {
    float d = half_at(block + 208);
    for (int i = 0; i < 16; i++)
        to->scale[i] = d * (float)(int8_t)block[192 + i];
    for (int half = 0; half < 2; half++)
        nibbles(to->codes + 128 * half, block + 64 * half, 64);
    for (int i = 0; i < 8; i++)
        add_bits(to->codes + 32 * i, block + 128 + i / 4 * 32, i % 4 * 2, 2, 16, 32);
}

INLINE void spread(struct spread *to, const uint8_t *block, int kind) {
    switch (kind) {
    case Q2_K: spread_q2(to, block); return;
    case Q3_K: spread_q3(to, block); return;
    case Q4_K:
        scales_and_offsets(to, block);
        for (int i = 0; i < 4; i++)
            nibbles(to->codes + 64 * i, block + 16 + 32 * i, 32);
        return;
    case Q5_K: spread_q5(to, block); return;
    case Q6_K: spread_q6(to, block); return;
    }
    to->scale[0] = half_at(block);
    if (kind == Q8_0) {
        memcpy(to->codes, block + 2, 32);
        return;
    }
    int numbers = kind == Q4_1 || kind == Q5_1 ? 4 : 2, fifth = kind == Q5_0 || kind == Q5_1 ? 4 : 0;
    nibbles(to->codes, block + numbers + fifth, 16);
    if (numbers == 4)
        to->offset[0] = half_at(block + 2);
    if (fifth)
        add_fifth_bits(to->codes, block + numbers, kind == Q5_0 ? 16 : 0);
    else if (kind == Q4_0)
        for (int i = 0; i < 32; i += 16)
            put_bytes(to->codes + i, bytes_at(to->codes + i) - 8);
}

INLINE void expand_of(const struct expand *a, int kind, int otype, int64_t begin, int64_t end) {
    struct spread now = {0};
    int64_t values = block_sizes[kind].values;
    int group = block_sizes[kind].group;
    for (int64_t b = begin; b < end; b++) {
        spread(&now, a->blocks + b * block_sizes[kind].bytes, kind);
        for (int i = 0; i < values; i += LANES) {
            vf x = __builtin_convertvector(load_bytes(now.codes + i), vf);
            store(a->out, b * values + i, otype, x * now.scale[i / group] + now.offset[i / group]);
        }
    }
}

static __attribute__((noinline)) void expand_blocks(const struct expand *a, int otype, int64_t begin, int64_t end) {
    switch (a->kind) {
    case Q4_0: expand_of(a, Q4_0, otype, begin, end); break;
    case Q4_1: expand_of(a, Q4_1, otype, begin, end); break;
    case Q5_0: expand_of(a, Q5_0, otype, begin, end); break;
    case Q5_1: expand_of(a, Q5_1, otype, begin, end); break;
    case Q8_0: expand_of(a, Q8_0, otype, begin, end); break;
    case Q2_K: expand_of(a, Q2_K, otype, begin, end); break;
    case Q3_K: expand_of(a, Q3_K, otype, begin, end); break;
    case Q4_K: expand_of(a, Q4_K, otype, begin, end); break;
    case Q5_K: expand_of(a, Q5_K, otype, begin, end); break;
    default: expand_of(a, Q6_K, otype, begin, end); break;
    }
}

static void expand(struct lane *lane, const void *args) {
    const struct expand *a = args;
    int64_t piece = (1 << 16) / block_sizes[a->kind].values;
    for (int64_t item; (item = lane_claim(lane)) * piece < a->count;)
        expand_blocks(a, (int)a->otype, item * piece, least(a->count, (item + 1) * piece));
}
