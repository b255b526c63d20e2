// What the two products of experts share: the sums over k of one item for the rows of its row group.
//
// What one block does, item by item (expert_ring.cuh): it multiplies WEIGHT_TILES tiles of 16 rows of an expert's weight with
// up to eight rows of x that go to this expert, a row group. So what a thread keeps in registers does not grow with the rows of
// a step. An expert of more rows is read once from memory, and for its other row groups from the L2 cache.
//   load       expert_ring.cuh: numbers and scales, a turn ahead
//   multiply   multiply_item: four-bit numbers are expanded in registers and are operand A of the tensor core, eight rows of x
//              are the columns of B; the sum over a block of 32 k is multiplied by the block's scale and added
//   reduce     the warps have split k between them; their sums are added in the order of the warps
//   epilogue   the kernel's own
//
// Neither the split of k nor the order of additions depends on which rows share a step or an expert, and a row is a column of
// B, which knows of no other: so a row's result is the same, bit for bit, in any company. WARPS is therefore fixed for a
// weight's shape; WEIGHT_TILES, RING_SLABS, ROWS and the grid only move work.
#pragma once
#include "block.cuh"
#include "expert_ring.cuh"
#include "fp16.cuh"

const int THREADS = WARPS * 32;

// A warp's sums, operand C of every output tile.
typedef float Sums[WEIGHT_TILES][4];

// The rows of x of an item's row group, as operand B: this lane has row g. Where there is no such row it has the first one: a
// column of B that nobody reads.
struct RowGroupRows {
    const fp16* at;  // this lane's row of x, at its first k

    // Row `row_of(pair)` of x belongs to a pair.
    template <typename RowOf>
    __device__ __forceinline__ RowGroupRows(const fp16* x, const RowGroup& row_group, RowOf row_of, const Thread& me) {
        const int n = me.g < row_group.count ? me.g : 0;
        at = x + (long long)row_of(routing.members[row_group.start + n]) * K_IN + me.warp * EACH * 64 + 8 * me.c;
    }

    // Eight k of the row, in a half of this warp's `slab`-th slab. Blocks beyond the end of k are zero.
    __device__ __forceinline__ uint4 load(int slab, int half, const Thread& me) const {
        const bool exists = BLOCKS_OF_K % 2 == 0 || 2 * (me.warp * EACH + slab) + half < BLOCKS_OF_K;
        return exists ? *reinterpret_cast<const uint4*>(at + slab * 64 + half * 32) : uint4{};
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

// x of one slab, both halves.
typedef uint4 SlabOfX[2];

__device__ __forceinline__ void load_x(SlabOfX& x, const RowGroupRows& rows, int slab, const Thread& me) {
#pragma unroll
    for (int half = 0; half < 2; ++half) x[half] = rows.load(slab, half, me);
}

// One half of a slab of one tile of weight: a block of 32 k.
struct Half {
    Eight low, high;
    float low_scale, high_scale;

    __device__ __forceinline__ Half(const Slab& tile, int half)
        : low(expanded(half ? tile.numbers.z : tile.numbers.x)),
          high(expanded(half ? tile.numbers.w : tile.numbers.y)),
          low_scale(half ? scale_of<2>(tile.scales) : scale_of<0>(tile.scales)),
          high_scale(half ? scale_of<3>(tile.scales) : scale_of<1>(tile.scales)) {}
};

// `x`: of this slab. One tile of weight after the other, so that few registers hold expanded numbers.
__device__ __forceinline__ void multiply_slab(Sums& sums, const Slab (&tiles)[WEIGHT_TILES], const SlabOfX& x) {
#pragma unroll
    for (int j = 0; j < WEIGHT_TILES; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Half of(tiles[j], half);
            multiply_block(sums[j], of.low, of.high, x[half], of.low_scale, of.high_scale);
        }
}

// This warp's part of an item, which is the one at `here`. Meanwhile the next one is requested, from `next` if there is one.
__device__ __forceinline__ void multiply_item(Sums& sums, ExpertRing& ring, const RowGroupRows& rows, Source& here,
                                              const Source& next) {
#pragma unroll 1
    for (int turn = 0; turn < TURNS; ++turn) {
        const bool last = turn == TURNS - 1;
        here.numbers = last ? next.numbers : here.numbers + RING_SLABS * NUMBERS;
        here.scales = last ? next.scales : here.scales + RING_SLABS * SCALES;
#pragma unroll
        for (int n = 0; n < RING_SLABS; ++n) {
            SlabOfX x;  // requested before its weights have arrived
            if (ring.has(turn, n)) load_x(x, rows, turn * RING_SLABS + n, ring.me);
            Slab tiles[WEIGHT_TILES];
            ring.load(n, tiles);
            ring.request(last ? 0 : turn + 1, n, here);
            if (ring.has(turn, n)) multiply_slab(sums, tiles, x);
        }
    }
}

// The sums of the warps for one item, in two places that take turns: while one is read, the next is written.
// Element 32 · i + l of a tile is C's c_i of lane l.
typedef float (*SharedSums)[WEIGHT_TILES][128];

__device__ __forceinline__ SharedSums shared_sums(int turn) {
    return reinterpret_cast<SharedSums>(reinterpret_cast<unsigned char*>(memory) + RINGS) + turn % 2 * BUSY_WARPS;
}

// By all threads.
__device__ __forceinline__ void store_sums(SharedSums shared, const Sums& sums, const Thread& me) {
    if (me.warp < BUSY_WARPS)
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) shared[me.warp][j][32 * i + me.lane] = sums[j][i];
    __syncthreads();
}

__device__ __forceinline__ float add_warps(SharedSums shared, int j, int element) {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < BUSY_WARPS; ++warp) total += shared[warp][j][element];
    return total;
}
