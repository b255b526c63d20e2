// Keys and values in E4M3 with scales (fp8.cuh), as `attention.cu` takes them: half the bytes, made float16 in registers on
// their way to the tensor core. Every code is exact in float16, and the product is the same as of bfloat16.
//
// Scales stay out of the tensor core. Those of keys multiply scores. Those of values multiply probabilities, which are powers:
// the scale's exponent is added to theirs. The largest product is 2^ROOM, so that the others keep their bits in float16,
// however small the values are. The sum of probabilities has no scale, so each lane divides its part again: its keys in a key
// tile share one.
//
// A query beyond float16 becomes infinite, and so comes to light in the logits.
#pragma once
#include "block.cuh"
#include "fp16.cuh"
#include "fp8.cuh"
#include "kv_ring.cuh"
#include "rope.cuh"

static_assert(TILE_KEYS == BLOCK && LOADED == SCALE_POSITIONS,
              "a key tile must be a cache block, a lane's keys those of a scale");
static_assert(HEAD_DIM % 64 == 0 && LOADS_WIDE == HEAD_DIM / 64, "HEAD_DIM must be a multiple of 64");

#define ROOM 15.0f               // float16 goes up to 2^15 and some, and down to 2^-24
const int LEAST_EXPONENT = -64;  // values with a smaller scale are read as if they had this one, which is next to nothing, too
const int EACH = HALF_DIM / 32;  // pairs of a head's row that a lane has

// ---- load: queries and new rows ---------------------------------------------------------------------------------------

// The queries are operand A: rows g and g + 8 at k 16c + 4j … 16c + 4j + 3 of every 64-wide part, j = 0 … 3 after each other.
// Of row g + 8 · half, eight elements from `i` on, a multiple of 8, are stored.
__device__ __forceinline__ void store_query(int i, int half, const float (&eight)[8], const Thread& me) {
    const int lane = me.lane / 4 * 4 + i % 64 / 16;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const int load = i / 64 * 4 + i % 16 / 4 + n;
        unsigned* to = &queries[load / 2][load % 2][lane].x + half;
        to[0] = pack_fp16(eight[4 * n], eight[4 * n + 1]), to[2] = pack_fp16(eight[4 * n + 2], eight[4 * n + 3]);
    }
}

// As `rotate_eight` of rope.cuh, in float32.
__device__ __forceinline__ void rotate_eight(float (&low)[8], float (&high)[8], const float* in, const float* cosine,
                                             const float* sine) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const float4 x = *reinterpret_cast<const float4*>(in + i), y = *reinterpret_cast<const float4*>(in + i + HALF_DIM);
        const float4 cos = *reinterpret_cast<const float4*>(cosine + i), sin = *reinterpret_cast<const float4*>(sine + i);
        const float2 pairs[4] = {rotated(x.x, y.x, cos.x, sin.x), rotated(x.y, y.y, cos.y, sin.y),
                                 rotated(x.z, y.z, cos.z, sin.z), rotated(x.w, y.w, cos.w, sin.w)};
#pragma unroll
        for (int n = 0; n < 4; ++n) low[i + n] = pairs[n].x, high[i + n] = pairs[n].y;
    }
}

// Rotated, as float16, into shared memory; rows that have no query are zero.
__device__ __forceinline__ void load_queries(const AttentionArguments& args, const Task& task, const Thread& me) {
    for (int n = me.warp; n < LOADS_32; n += WARPS) {
        const int wide = n / 2, half = n % 2, index = task.tile * 16 + me.g + 8 * half, t = index / HEADS_PER_KV;
        const int i = wide * 32 + 8 * me.c;
        float low[8] = {}, high[8] = {};
        if (index < QUERIES) {
            const int row = task.a * APPENDED_ROWS + (args.counts ? task.appended - 1 : t);
            const long long angle = (long long)(task.position + DEPTH_OF(task, t)) * HALF_DIM + i;
            const float* in = args.qkv + ((long long)row * QKV_HEADS + task.head_of(index)) * HEAD_DIM + i;
            rotate_eight(low, high, in, args.cosine + angle, args.sine + angle);
        }
        store_query(i, half, low, me);
        store_query(i + HALF_DIM, half, high, me);
    }
}

// A new row's key, rotated, or its value: a lane has the pairs of elements lane + 32 m and HALF_DIM behind them.
struct NewRow {
    float2 pairs[EACH];

    __device__ __forceinline__ NewRow(const AttentionArguments& args, const Task& task, int t, bool values, int lane) {
        const int head = HEADS + (values ? KV_HEADS : 0) + task.kv_head;
        const float* row = args.qkv + ((long long)(task.a * APPENDED_ROWS + t) * QKV_HEADS + head) * HEAD_DIM;
        const long long angles = (long long)(task.oldest_new + t) * HALF_DIM;
#pragma unroll
        for (int m = 0; m < EACH; ++m) {
            const int i = lane + 32 * m;
            pairs[m] = make_float2(row[i], row[i + HALF_DIM]);
            if (!values) pairs[m] = rotated(pairs[m].x, pairs[m].y, args.cosine[angles + i], args.sine[angles + i]);
        }
    }

    // The largest absolute number of the whole row.
    __device__ __forceinline__ float largest() const {
        float found = 0;
#pragma unroll
        for (int m = 0; m < EACH; ++m) found = fmaxf(found, fmaxf(fabsf(pairs[m].x), fabsf(pairs[m].y)));
#pragma unroll
        for (int step = 16; step; step /= 2) found = fmaxf(found, __shfl_xor_sync(FULL_WARP, found, step));
        return found;
    }
};

// New positions of this chunk: keys, rotated, and values into the cache, each row's by one warp. A position whose scale a new
// position makes finds it there: in this step again by every warp that needs it, since another warp's may not be in the cache
// yet.
__device__ __forceinline__ void append_new_rows(const AttentionArguments& args, const Task& task) {
    const int* table = args.block_table + task.slot * MAX_BLOCKS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Warps that rotate no queries begin.
    for (int n = (warp + WARPS - LOADS_32 % WARPS) % WARPS; n < 2 * task.appended; n += WARPS) {
        const int t = n / 2, at = task.oldest_new + t, first = t - at % SCALE_POSITIONS;  // `first`: the row of its scale
        const bool values = n % 2 == 1;
        if (at / CHUNK != task.chunk) continue;
        const int block = table[at / BLOCK];
        float* place = args.scales + scale_place(block, task.kv_head, at) + values;
        const NewRow row(args, task, t, values, lane);
        float scale;
        if (first < 0)
            scale = *place;
        else
            scale = scale_of((first == t ? row : NewRow(args, task, first, values, lane)).largest());
        if (first == t && lane == 0) *place = scale;
        const float factor = inverse(scale);
        const long long page = ((long long)block * KV_HEADS + task.kv_head) * BLOCK * HEAD_DIM;
        unsigned char* to = values ? args.v_pages + page + at % BLOCK : args.k_pages + page + at % BLOCK * HEAD_DIM;
        const int stride = values ? BLOCK : 1;
#pragma unroll
        for (int m = 0; m < EACH; ++m) {
            to[(lane + 32 * m) * stride] = fp8_code(row.pairs[m].x * factor);
            to[(lane + 32 * m + HALF_DIM) * stride] = fp8_code(row.pairs[m].y * factor);
        }
    }
}

// ---- dequantise and multiply ------------------------------------------------------------------------------------------

const int TILES = TILE_KEYS / 8;

// Of a key tile: scores, operand C, of rows g and g + 8 of the query tile and keys 16c + 2i and 16c + 2i + 1 of the tile in
// of[i]; and the scales of the lane's keys (x) and values (y).
struct Scores {
    float of[TILES][4];
    float2 scale;
};
// Their powers as operand A: of keys 16c + 4j … 16c + 4j + 3, rows g and g + 8 of the first two, then of the other two.
typedef unsigned Probabilities[TILES / 2][4];

// d += a · b, of which b are four codes.
__device__ __forceinline__ void multiply_codes(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                               unsigned codes) {
    const FourNumbers b = dequantised(codes);
    mma_fp16(d, a0, a1, a2, a3, b.low, b.high, d[0], d[1], d[2], d[3]);
}

// score = q · kᵀ for the key tile at `key`, without the keys' scale.
__device__ __forceinline__ void multiply_keys(Scores& score, KVRing& ring, int key) {
    score.scale = make_float2(1, 1);
    if (ring.wanted(key)) {
        const uint4* keys = ring.await_piece();
        score.scale = ring.scales_of_piece();
#pragma unroll
        for (int wide = 0; wide < LOADS_WIDE; ++wide) {
            uint4 q[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) q[j] = queries[2 * wide + j / 2][j % 2][ring.me.lane];
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                const uint4 k = keys[(i * LOADS_WIDE + wide) * 32];
                multiply_codes(score.of[i], q[0].x, q[0].y, q[0].z, q[0].w, k.x);
                multiply_codes(score.of[i], q[1].x, q[1].y, q[1].z, q[1].w, k.y);
                multiply_codes(score.of[i], q[2].x, q[2].y, q[2].z, q[2].w, k.z);
                multiply_codes(score.of[i], q[3].x, q[3].y, q[3].z, q[3].w, k.w);
            }
        }
    }
    ring.refill(0, key);
}

// Online softmax: the scores of a key tile become powers of two, times the scale of the values, at most 2^ROOM times as large
// as the largest so far, and what came before shrinks to match.
__device__ __forceinline__ void update_softmax(Softmax& state, Scores& score, int key, const Task& task, const Thread& me) {
    // A scale that nothing of ours has written makes NaN of all that it scales.
    const bool known = sound(score.scale.x) && sound(score.scale.y);
    const float unit = known ? score.scale.x * (float)LOG2E_OVER_SQRT_HEAD_DIM : __uint_as_float(0x7fffffffu);
    const int exponent = max(exponent_of(score.scale.y), LEAST_EXPONENT);
    const float added = exponent, divided = __uint_as_float((unsigned)(127 - exponent) << 23);
    const bool all_seen =  // by every row
        key + TILE_KEYS - 1 <= min(task.position, task.end - 1) && (WINDOW == 0 || key > task.last - WINDOW);
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
        auto at = [&](int i) -> float& { return score.of[i / 2][2 * half + i % 2]; };  // of key 16c + i
#pragma unroll
        for (int i = 0; i < LOADED; ++i) at(i) = fmaf(at(i), unit, added);
        if (!all_seen)
#pragma unroll
            for (int i = 0; i < LOADED; ++i) {
                const int here = key + LOADED * me.c + i;
                if (here >= task.end || here > state.newest[half] || here < state.oldest[half]) at(i) = MASKED;
            }
        float highest = at(0);
#pragma unroll
        for (int i = 1; i < LOADED; ++i) highest = fmaxf(highest, at(i));
        highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 2));
        highest = fmaxf(state.top[half], highest - ROOM);
        const float shrink = power_of_two(state.top[half] - highest);
        state.top[half] = highest;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < LOADED; ++i) {
            at(i) = power_of_two(at(i) - highest);
            sum += at(i);
        }
        state.sum[half] = fmaf(sum, divided, state.sum[half] * shrink);
#pragma unroll
        for (int n = 0; n < LOADS_8; ++n) {
            state.out[n][2 * half] *= shrink;
            state.out[n][2 * half + 1] *= shrink;
        }
    }
}

__device__ __forceinline__ void pack_probabilities(Probabilities& p, const Scores& score) {
#pragma unroll
    for (int j = 0; j < TILES / 2; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float (&of)[4] = score.of[2 * j + i];
            p[j][2 * i] = pack_fp16(of[0], of[1]);
            p[j][2 * i + 1] = HALVES > 1 ? pack_fp16(of[2], of[3]) : 0;
        }
}

// out += p · v for the key tile at `key`.
__device__ __forceinline__ void multiply_values(Softmax& state, const Probabilities& p, KVRing& ring, int key) {
    if (ring.wanted(key)) {
        const uint4* values = ring.await_piece();
#pragma unroll
        for (int i = 0; i < LOADS_8; ++i) {
            const uint4 v = values[i * 32];
            multiply_codes(state.out[i], p[0][0], p[0][1], p[0][2], p[0][3], v.x);
            multiply_codes(state.out[i], p[1][0], p[1][1], p[1][2], p[1][3], v.y);
            multiply_codes(state.out[i], p[2][0], p[2][1], p[2][2], p[2][3], v.z);
            multiply_codes(state.out[i], p[3][0], p[3][1], p[3][2], p[3][3], v.w);
        }
    }
    ring.refill(1, key);
}
