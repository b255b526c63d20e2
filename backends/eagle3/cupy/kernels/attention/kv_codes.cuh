// What the formats of codes share, E4M3 (kv_fp8.cuh) and NVFP4 (kv_nvfp4.cuh): codes become float16 in registers on their way
// to the tensor core, exactly, and the product is the same as of bfloat16.
//
// A query beyond float16 becomes infinite, and so comes to light in the logits.
#pragma once
#include "block.cuh"
#include "fp16.cuh"
#include "fp8.cuh"
#include "kv_ring.cuh"
#include "rope.cuh"

const int LANE_SCALES = TREE_ROWS ? 2 : 1;  // of a lane's rows g and g + 8: of a tree, each path has scales of its own

static_assert(TILE_KEYS == BLOCK && HEAD_DIM % 64 == 0, "a key tile must be a cache block, HEAD_DIM a multiple of 64");

#define ROOM 15.0f  // float16 goes up to 2^15 and some, and down to 2^-24

// ---- load: queries ----------------------------------------------------------------------------------------------------

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
                                             const float* sine, const HeadNorm& norm, int first) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const float4 x = norm.of(*reinterpret_cast<const float4*>(in + i), first + i);
        const float4 y = norm.of(*reinterpret_cast<const float4*>(in + i + HALF_DIM), first + i + HALF_DIM);
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
        const HeadNorm norm(query_head(args, task, index), args.head_norms);
        if (index < QUERIES) {
            const int row = task.a * APPENDED_ROWS + (args.counts ? task.appended - 1 : t);
            const long long angle = (long long)(task.position + DEPTH_OF(task, t)) * HALF_DIM + i;
            const float* in = args.qkv + ((long long)row * QKV_HEADS + task.head_of(index)) * HEAD_DIM + i;
            rotate_eight(low, high, in, args.cosine + angle, args.sine + angle, norm, i);
        }
        store_query(i, half, low, me);
        store_query(i + HALF_DIM, half, high, me);
    }
}

// ---- multiply ---------------------------------------------------------------------------------------------------------

// Of a key tile: scores, operand C, of rows g and g + 8 of the query tile and keys 16c + 2i and 16c + 2i + 1 of the tile in
// of[i].
typedef float TileScores[TILES][4];
// Operand A of 64 neighbouring k: of 16c + 4j … 16c + 4j + 3, rows g and g + 8 of the first two, then of the other two.
typedef unsigned OperandA[KEYS / 4][4];
// Powers of scores; k are the keys of a key tile.
typedef OperandA Probabilities;

// The queries for part `wide` of keys.
struct QueryPart {
    OperandA of;

    __device__ __forceinline__ QueryPart(int wide, int lane) {
#pragma unroll
        for (int j = 0; j < KEYS / 4; ++j) {
            const uint4 four = queries[2 * wide + j / 2][j % 2][lane];
            of[j][0] = four.x, of[j][1] = four.y, of[j][2] = four.z, of[j][3] = four.w;
        }
    }
};

// Online softmax of rows g + 8 · half: the scores of a key tile times `unit` become powers of two, times 2^`added`, at most
// 2^ROOM times as large as the largest so far, and what came before shrinks to match. `divided`: 2^-`added`, for their sum.
__device__ __forceinline__ void update_softmax(Softmax& state, TileScores& score, int half, float unit, float added,
                                               float divided, int key, const Task& task, const Thread& me) {
    const bool all_seen =  // by every row
        key + TILE_KEYS - 1 <= min(task.position, task.end - 1) && (WINDOW == 0 || key > task.last - WINDOW);
    auto at = [&](int i) -> float& { return score[i / 2][2 * half + i % 2]; };  // of key 16c + i
#pragma unroll
    for (int i = 0; i < KEYS; ++i) at(i) = fmaf(at(i), unit, added);
    if (!all_seen)
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const int here = key + KEYS * me.c + i;
            if (here >= task.end || here > state.newest[half] || here < state.oldest[half]) at(i) = MASKED;
        }
    float highest = at(0);
#pragma unroll
    for (int i = 1; i < KEYS; ++i) highest = fmaxf(highest, at(i));
    highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 2));
    highest = fmaxf(state.top[half], highest - ROOM);
    const float shrink = power_of_two(state.top[half] - highest);
    state.top[half] = highest;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
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

// `upper`: rows g + 8 as well, else zeros. Where no such row has a query, these are zeros that the compiler knows of.
__device__ __forceinline__ void pack_probabilities(Probabilities& p, const TileScores& score, bool upper) {
#pragma unroll
    for (int j = 0; j < TILES / 2; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float (&of)[4] = score[2 * j + i];
            p[j][2 * i] = pack_fp16(of[0], of[1]);
            p[j][2 * i + 1] = upper ? pack_fp16(of[2], of[3]) : 0;
        }
}

#if TREE_ROWS
#include "tree_codes.cuh"
#endif
