// What the two products of experts share: the sums over k of one item for the rows of its expert.
//
// What one block does, item by item (expert_ring.cuh): it multiplies WEIGHT_TILES tiles of 16 rows of an expert's weight with
// all rows of x that go to this expert. So a step reads the weights of each expert that it touches once.
//   load       expert_ring.cuh: numbers and scales, an item ahead
//   multiply   multiply_item: four-bit numbers are expanded in registers and are operand A of the tensor core, eight rows of x
//              are the columns of B; the sum over a block of 32 k is multiplied by the block's scale and added
//   reduce     the warps have split k between them; their sums are added in the order of the warps
//   epilogue   the kernel's own
//
// Neither the split of k nor the order of additions depends on which rows share a step or an expert, and a row is a column of
// B, which knows of no other: so a row's result is the same, bit for bit, in any company. WARPS is therefore fixed for a
// weight's shape; WEIGHT_TILES, ROW_TILES and the grid only move work.
#pragma once
#include "block.cuh"
#include "expert_ring.cuh"
#include "fp16.cuh"

const int THREADS = WARPS * 32;
// Whether x is requested a slab before it is needed: where registers are left for that.
const bool X_AHEAD = ROW_TILES <= 2;

// A warp's sums, operand C of every output tile.
typedef float Sums[WEIGHT_TILES][ROW_TILES][4];

// The rows of x that go to an item's expert, as operand B: this lane has rows g, g + 8, … of the group.
struct GroupRows {
    const fp16* x;
    int count, tiles;       // rows, and tiles of eight rows
    int offset[ROW_TILES];  // of this lane's rows in x, at its k

    // Row `row_of(pair)` of x belongs to a pair.
    template <typename RowOf>
    __device__ __forceinline__ GroupRows(const fp16* x, int expert, RowOf row_of, const Thread& me)
        : x(x), count(routing.size[expert]), tiles((count + 7) / 8) {
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) {
            const int n = t * 8 + me.g;
            offset[t] = n < count ? row_of(routing.members[routing.start[expert] + n]) * K_IN + 8 * me.c : -1;
        }
    }

    // Eight k of one row. Rows that do not exist, and blocks beyond the end of k, are zero.
    __device__ __forceinline__ uint4 load(int t, int block) const {
        const bool exists = offset[t] >= 0 && (BLOCKS_OF_K % 2 == 0 || block < BLOCKS_OF_K);
        return exists ? *reinterpret_cast<const uint4*>(x + offset[t] + block * 32) : uint4{};
    }
};

// sums += the products over one block of 32 k.
__device__ __forceinline__ void multiply_block(float (&sums)[4], const Eight& low, const Eight& high, const uint4& x,
                                               float low_scale, float high_scale) {
    float part[4];
    mma_fp16(part, low.pair[0], high.pair[0], low.pair[1], high.pair[1], x.x, x.y, 0, 0, 0, 0);
    mma_fp16(part, low.pair[2], high.pair[2], low.pair[3], high.pair[3], x.z, x.w, part[0], part[1], part[2], part[3]);
    sums[0] = fmaf(part[0], low_scale, sums[0]);
    sums[1] = fmaf(part[1], low_scale, sums[1]);
    sums[2] = fmaf(part[2], high_scale, sums[2]);
    sums[3] = fmaf(part[3], high_scale, sums[3]);
}

// x of one slab, for all rows of an item's expert.
typedef uint4 SlabOfX[2][ROW_TILES];

__device__ __forceinline__ void load_x(SlabOfX& x, const GroupRows& rows, int slab) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) x[half][t] = rows.load(t, 2 * slab + half);
}

// `x`: of this slab, if X_AHEAD.
__device__ __forceinline__ void multiply_slab(Sums& sums, const Slab (&tiles)[WEIGHT_TILES], const GroupRows& rows, int slab,
                                              const SlabOfX& x) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        Eight low[WEIGHT_TILES], high[WEIGHT_TILES];
        float low_scale[WEIGHT_TILES], high_scale[WEIGHT_TILES];
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) {
            low[j] = expanded(half ? tiles[j].numbers.z : tiles[j].numbers.x);
            high[j] = expanded(half ? tiles[j].numbers.w : tiles[j].numbers.y);
            low_scale[j] = half ? scale_of<2>(tiles[j].scales) : scale_of<0>(tiles[j].scales);
            high_scale[j] = half ? scale_of<3>(tiles[j].scales) : scale_of<1>(tiles[j].scales);
        }
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) {
            if (ROW_TILES > 1 && t >= rows.tiles) continue;
            const uint4 eight = X_AHEAD ? x[half][t] : rows.load(t, 2 * slab + half);
#pragma unroll
            for (int j = 0; j < WEIGHT_TILES; ++j)
                multiply_block(sums[j][t], low[j], high[j], eight, low_scale[j], high_scale[j]);
        }
    }
}

// This warp's part of an item. Meanwhile the next one is requested, from `next` if there is one.
__device__ __forceinline__ void multiply_item(Sums& sums, ExpertRing& ring, const GroupRows& rows, const unsigned char* next) {
    SlabOfX x[2];
    if (X_AHEAD && ring.has(0)) load_x(x[0], rows, ring.me.warp);
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int slab = n * WARPS + ring.me.warp;
        if (X_AHEAD && n + 1 < EACH && ring.has(n + 1)) load_x(x[(n + 1) % 2], rows, slab + WARPS);
        Slab tiles[WEIGHT_TILES];
        ring.load(n, tiles);
        ring.request(n, next);
        if (ring.has(n)) multiply_slab(sums, tiles, rows, slab, x[n % 2]);
    }
}

// The sums of the warps for one tile of eight rows, in two places that take turns: while one is read, the next is written.
// Element 32 · i + l of a tile is C's c_i of lane l.
typedef float (*SharedSums)[WEIGHT_TILES][128];

__device__ __forceinline__ SharedSums shared_sums(int turn) {
    return reinterpret_cast<SharedSums>(reinterpret_cast<unsigned char*>(memory) + RING) + turn % 2 * BUSY_WARPS;
}

// By all threads. ROW_TILES is small and `t` known to the compiler, so sums stay in registers.
__device__ __forceinline__ void store_sums(SharedSums shared, const Sums& sums, int t, const Thread& me) {
    if (me.warp < BUSY_WARPS)
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) shared[me.warp][j][32 * i + me.lane] = sums[j][t][i];
    __syncthreads();
}

__device__ __forceinline__ float add_warps(SharedSums shared, int j, int element) {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < BUSY_WARPS; ++warp) total += shared[warp][j][element];
    return total;
}
