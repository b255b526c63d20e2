// Keys and values in bfloat16, as `attention.cu` takes them: they are operands of the tensor core as they lie in the cache.
#pragma once
#include "bf16.cuh"
#include "block.cuh"
#include "kv_ring.cuh"
#include "mma.cuh"
#include "rope.cuh"

// There are no scales.
__device__ __forceinline__ void copy_scales(const KVRing& ring, int stage, int block, int key) {}

// ---- load: queries and new rows ---------------------------------------------------------------------------------------

// The queries are operand A: rows g and g + 8 at k 8c … 8c + 3, then at 8c + 4 … 8c + 7, of every 32-wide part.
__device__ __forceinline__ void store_query(int wide, int half, const uint4& of, int lane) {
    unsigned *lower = &queries[wide][0][lane].x + half, *upper = &queries[wide][1][lane].x + half;
    lower[0] = of.x, lower[2] = of.y, upper[0] = of.z, upper[2] = of.w;
}

// Rotated, as bfloat16, into shared memory; rows that have no query are zero.
__device__ __forceinline__ void load_queries(const AttentionArguments& args, const Task& task, const Thread& me) {
    for (int n = me.warp; n < LOADS_32; n += WARPS) {
        const int wide = n / 2, half = n % 2, index = task.tile * 16 + me.g + 8 * half, t = index / HEADS_PER_KV;
        const int i = wide * 32 + 8 * me.c;
        uint4 low = {}, high = {};
        const HeadNorm norm(query_head(args, task, index), args.head_norms);
        if (index < QUERIES) {
            const int row = task.a * APPENDED_ROWS + (args.counts ? task.appended - 1 : t);
            const long long angle = (long long)(POSITION_OF(task, task.position) + DEPTH_OF(task, t)) * HALF_DIM + i;
            rotate_eight(low, high, args.qkv + ((long long)row * QKV_HEADS + task.head_of(index)) * HEAD_DIM + i,
                         args.cosine + angle, args.sine + angle, norm, i);
        }
        store_query(wide, half, low, me.lane);
        store_query(wide + LOADS_32 / 2, half, high, me.lane);
    }
}

// New positions of this chunk: keys, rotated, and values into the cache.
__device__ __forceinline__ void append_new_rows(const AttentionArguments& args, const Task& task) {
    const int* table = args.block_table + task.slot * MAX_BLOCKS;
    // Warps that rotate no queries begin.
    const int begin = (threadIdx.x + (WARPS - LOADS_32 % WARPS) * 32) % (WARPS * 32);
    for (int n = begin; n < task.appended * HALF_DIM; n += WARPS * 32) {
        const int t = n / HALF_DIM, i = n % HALF_DIM, at = POSITION_OF(task, task.oldest_new + t);
        if ((task.oldest_new + t) / CHUNK != task.chunk) continue;
        const long long row = task.a * APPENDED_ROWS + t;
        const float* key_row = args.qkv + (row * QKV_HEADS + HEADS + task.kv_head) * HEAD_DIM;
        const float* value_row = key_row + KV_HEADS * HEAD_DIM;
        const HeadNorm norm(key_row, norm_of_keys(args.head_norms));
        const float2 pair = rotated(norm.of(key_row[i], i), norm.of(key_row[i + HALF_DIM], i + HALF_DIM),
                                    args.cosine[(long long)at * HALF_DIM + i], args.sine[(long long)at * HALF_DIM + i]);
        const long long page = ((long long)table[at / BLOCK] * KV_HEADS + task.kv_head) * BLOCK * HEAD_DIM;
        bf16* keys = args.k_pages + page + at % BLOCK * HEAD_DIM;
        keys[i] = to_bf16(pair.x);
        keys[i + HALF_DIM] = to_bf16(pair.y);
        bf16* values = args.v_pages + page + at % BLOCK;
        values[i * BLOCK] = to_bf16(value_row[i]);
        values[(i + HALF_DIM) * BLOCK] = to_bf16(value_row[i + HALF_DIM]);
    }
}

// ---- multiply ---------------------------------------------------------------------------------------------------------

// Scores of a turn, operand C of each key tile: rows g and g + 8 of the query tile, keys 8c … 8c + 7 of the key tile.
typedef float Scores[TILES_PER_TURN][4][4];
// Their powers as operand A: of keys 8c + 2i and 8c + 2i + 1, rows g in [2i], rows g + 8 in [2i + 1].
typedef unsigned Probabilities[TILES_PER_TURN][8];

// The queries for part `wide` of keys.
struct QueryPart {
    uint4 lower, upper;

    __device__ __forceinline__ QueryPart(int wide, int lane) : lower(queries[wide][0][lane]), upper(queries[wide][1][lane]) {}
};

// d += q · kᵀ of a lane's part of keys, and d += p · v of its part of values.
__device__ __forceinline__ void add_keys(float (&d)[4], const QueryPart& q, uint4 k) {
    mma_bf16(d, q.lower.x, q.lower.y, q.lower.z, q.lower.w, k.x, k.y);
    mma_bf16(d, q.upper.x, q.upper.y, q.upper.z, q.upper.w, k.z, k.w);
}
__device__ __forceinline__ void add_values(float (&d)[4], const unsigned (&p)[8], uint4 v) {
    mma_bf16(d, p[0], p[1], p[2], p[3], v.x, v.y);
    mma_bf16(d, p[4], p[5], p[6], p[7], v.z, v.w);
}

#if TREE_ROWS
#include "tree_bf16.cuh"
#endif

// score = q · kᵀ for the key tiles of the turn that begins at `key`.
__device__ __forceinline__ void multiply_keys(Scores& score, KVRing& ring, int key) {
#pragma unroll
    for (int n = 0; n < TILES_PER_TURN; ++n) {
        if (ring.wanted(key + n * TILE_STRIDE)) {
            const uint4* keys = ring.await_piece();
            multiply_tile_keys(score[n], keys, key + n * TILE_STRIDE, ring.task, ring.me);
        }
        ring.refill(n, key);
    }
}

// Online softmax: the scores of a turn become powers of two below the new maximum, and what came before shrinks to match.
__device__ __forceinline__ void update_softmax(Softmax& state, Scores& score, int key, const Task& task, const Thread& me) {
    const float scale = LOG2E_OVER_SQRT_HEAD_DIM;
    const int newest_key = key + (TILES_PER_TURN - 1) * TILE_STRIDE + 31;
    const bool all_seen =  // by every row
        newest_key <= min(task.position, task.end - 1) && (WINDOW == 0 || key > task.last - WINDOW);
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
        auto at = [&](int i) -> float& { return score[i / 8][i % 8 / 2][2 * half + i % 2]; };  // of key 8c + i
        float highest = state.top[half];
#pragma unroll
        for (int i = 0; i < 8 * TILES_PER_TURN; ++i) at(i) *= scale;
        if (!all_seen)
#pragma unroll
            for (int i = 0; i < 8 * TILES_PER_TURN; ++i) {
                const int here = key + i / 8 * TILE_STRIDE + 8 * me.c + i % 8;
                if (here >= task.end || here > state.newest[half] || here < state.oldest[half]) at(i) = MASKED;
            }
#pragma unroll
        for (int i = 0; i < 8 * TILES_PER_TURN; ++i) highest = fmaxf(highest, at(i));
        highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 2));
        const float shrink = power_of_two(state.top[half] - highest);
        state.top[half] = highest;
        state.sum[half] *= shrink;
#pragma unroll
        for (int i = 0; i < 8 * TILES_PER_TURN; ++i) {
            at(i) = power_of_two(at(i) - highest);
            state.sum[half] += at(i);
        }
#pragma unroll
        for (int n = 0; n < LOADS_8; ++n) {
            state.out[n][2 * half] *= shrink;
            state.out[n][2 * half + 1] *= shrink;
        }
    }
}

__device__ __forceinline__ void pack_probabilities(Probabilities& p, const Scores& score) {
#pragma unroll
    for (int n = 0; n < TILES_PER_TURN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            p[n][2 * i] = pack_bf16(score[n][i][0], score[n][i][1]);
            p[n][2 * i + 1] = HALVES > 1 ? pack_bf16(score[n][i][2], score[n][i][3]) : 0;
        }
}

// out += p · v for the key tiles of the turn that begins at `key`.
__device__ __forceinline__ void multiply_values(Softmax& state, const Probabilities& p, KVRing& ring, int key) {
#pragma unroll
    for (int n = 0; n < TILES_PER_TURN; ++n) {
        if (ring.wanted(key + n * TILE_STRIDE)) {
            const uint4* values = ring.await_piece();
            multiply_tile_values(state.out, p[n], values, key + n * TILE_STRIDE, ring.task, ring.me);
        }
        ring.refill(TILES_PER_TURN + n, key);
    }
}
