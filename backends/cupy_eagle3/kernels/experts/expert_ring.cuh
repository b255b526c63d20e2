// The MXFP4 weights of experts on their way to the tensor cores: per warp, a ring in shared memory that holds its share of one
// item, filled by asynchronous copies.
//
// packing.py has cut every matrix into tiles of 16 rows, and those into slabs of 64 columns: 512 bytes of numbers, 16 of each
// lane, and 32 bytes of scales, as one warp multiplies with them. Numbers of a lane: row g of the slab's first block of 32, row
// g + 8 of it, the same two of the second block, at this lane's k, eight each (`expanded`). Scales: the same four of rows g.
//
// An item is WEIGHT_TILES tiles of one expert. Block b takes the items b, b + gridDim.x, …; warp w of it the slabs w, w +
// WARPS, … of each. A slab that has been read makes room for the same slab of the block's next item, so the ring runs on from
// item to item, and every address in it is known to the compiler: at the bandwidth of the memory, a warp has no instructions
// left for anything else. A lane reads numbers that it has copied itself, and scales that lanes 0 and 1 have copied: hence the
// `__syncwarp`s.
#pragma once
#include "async_copy.cuh"
#include "mma.cuh"
#include "routing.cuh"

const int BLOCKS_OF_K = K_IN / 32;
const int SLABS = (BLOCKS_OF_K + 1) / 2;
const int SLAB = 512 + 32;  // bytes
const int BUSY_WARPS = SLABS < WARPS ? SLABS : WARPS;
const int EACH = (SLABS + WARPS - 1) / WARPS;       // slabs of a warp, of an item
const int GROUPS = TILES_OF_EXPERT / WEIGHT_TILES;  // items of an expert
const int STAGE = WEIGHT_TILES * SLAB;              // bytes of a warp: one slab of an item
const int RING = EACH * WARPS * STAGE;              // bytes

static_assert(K_IN % 32 == 0, "K_IN must be a multiple of 32: one block of MXFP4");
static_assert(TILES_OF_EXPERT % WEIGHT_TILES == 0, "an item must not cross from one expert to the next");

// The rings, and after them the sums of the warps.
extern __shared__ uint4 memory[];

// Place of a lane's share of a slab: the numbers of 16 rows, and the scales of its two.
struct Slab {
    uint4 numbers;
    unsigned scales;
};

struct Item {
    int expert, group;
};

// The items of this block, one after the other. Neighbouring blocks read neighbouring memory; where an expert's results are
// added up (EXPERTS_TOGETHER), they finish the same columns.
struct Walk {
    const int inner;  // how many items share the outer number: the groups of an expert, or the experts of a group
    const int outer;
    const int inner_step, outer_step;
    int at_inner, at_outer;

    __device__ __forceinline__ Walk()
        : inner(EXPERTS_TOGETHER ? max(routing.touched_count, 1) : GROUPS),
          outer(routing.touched_count == 0 ? 0 : EXPERTS_TOGETHER ? GROUPS : routing.touched_count),
          inner_step(gridDim.x % inner),
          outer_step(gridDim.x / inner),
          at_inner(blockIdx.x % inner),
          at_outer(blockIdx.x / inner) {}

    __device__ __forceinline__ bool is_over() const { return at_outer >= outer; }

    __device__ __forceinline__ Item item() const {
        return EXPERTS_TOGETHER ? Item{routing.touched[at_inner], at_outer} : Item{routing.touched[at_outer], at_inner};
    }

    __device__ __forceinline__ void advance() {
        at_inner += inner_step;
        at_outer += outer_step;
        if (at_inner >= inner) at_inner -= inner, ++at_outer;
    }
};

struct ExpertRing {
    const Thread& me;
    const unsigned char* weight;
    const unsigned address;   // of this lane's place in this warp's ring, within shared memory
    const unsigned char* at;  // the same place, to read from

    __device__ __forceinline__ ExpertRing(const unsigned char* weight, const Thread& me)
        : me(me),
          weight(weight + me.warp * SLAB + me.lane * LOAD),
          address(shared_address(memory) + me.warp * EACH * STAGE + me.lane * LOAD),
          at(reinterpret_cast<const unsigned char*>(memory) + me.warp * EACH * STAGE) {}

    // Where this lane copies an item from; null behind the last one.
    __device__ __forceinline__ const unsigned char* source(const Walk& walk) const {
        if (walk.is_over()) return nullptr;
        const Item item = walk.item();
        return weight + ((long long)item.expert * TILES_OF_EXPERT + item.group * WEIGHT_TILES) * SLABS * SLAB;
    }

    // Whether this warp has an `n`-th slab of every item. Mostly known to the compiler.
    __device__ __forceinline__ bool has(int n) const { return (n + 1) * WARPS <= SLABS || n * WARPS + me.warp < SLABS; }

    // Request the `n`-th slab of an item, as one group of copies, which may be empty.
    __device__ __forceinline__ void request(int n, const unsigned char* from) {
        if (from && has(n))
#pragma unroll
            for (int j = 0; j < WEIGHT_TILES; ++j) {
                const unsigned to = address + n * STAGE + j * SLAB;
                const unsigned char* slab = from + n * WARPS * SLAB + j * SLABS * SLAB;
                copy_async(to, slab);
                if (me.lane < 2) copy_async(to + 512, slab + 512);
            }
        end_of_group();
    }

    __device__ __forceinline__ void fill(const unsigned char* from) {
#pragma unroll
        for (int n = 0; n < EACH; ++n) request(n, from);
    }

    // Wait for the `n`-th slab of the item whose turn it is, and load it into registers: its place is free then.
    __device__ __forceinline__ void load(int n, Slab (&tiles)[WEIGHT_TILES]) {
        await_copies<EACH - 1>();
        __syncwarp();
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) {
            const unsigned char* slab = at + n * STAGE + j * SLAB;
            tiles[j].numbers = *reinterpret_cast<const uint4*>(slab + me.lane * LOAD);
            tiles[j].scales = *reinterpret_cast<const unsigned*>(slab + 512 + me.g * 4);
        }
        __syncwarp();
    }
};
