// The MXFP4 weights of experts on their way to the tensor cores: per warp, a ring of STAGES stages in shared memory, filled by
// asynchronous copies.
//
// packing.py has cut every matrix into tiles of 16 rows, and those into slabs of 64 columns: 512 bytes of numbers, 16 of each
// lane, and 32 bytes of scales, as one warp multiplies with them. Numbers of a lane: row g of the slab's first block of 32, row
// g + 8 of it, the same two of the second block, at this lane's k, eight each (`expanded`). Scales: the same four of rows g.
//
// An item is WEIGHT_TILES tiles of one expert. Block b takes the items b, b + gridDim.x, …; warp w of it the slabs w, w +
// WARPS, … of each. The ring runs on from item to item. A lane reads numbers that it has copied itself, and scales that lanes 0
// and 1 have copied: hence the `__syncwarp`s.
#pragma once
#include "async_copy.cuh"
#include "mma.cuh"
#include "routing.cuh"

const int BLOCKS_OF_K = K_IN / 32;
const int SLABS = (BLOCKS_OF_K + 1) / 2;
const int SLAB = 512 + 32;  // bytes
const int BUSY_WARPS = SLABS < WARPS ? SLABS : WARPS;
const int GROUPS = TILES_OF_EXPERT / WEIGHT_TILES;  // items of an expert
const int STAGE = WEIGHT_TILES * SLAB;              // bytes of a warp
const int RING = STAGES * WARPS * STAGE;            // bytes

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

__device__ __forceinline__ Item item_of(int index) {
    // Neighbouring blocks read neighbouring memory; where an expert's results are added up, they finish the same columns.
    if (EXPERTS_TOGETHER) return {routing.touched[index % routing.touched_count], index / routing.touched_count};
    return {routing.touched[index / GROUPS], index % GROUPS};
}

struct ExpertRing {
    const Thread& me;
    const unsigned char* weight;
    const unsigned address;  // of this warp's ring in shared memory
    const int items;         // of all blocks
    int item, slab;          // that are copied next
    const unsigned char* from;
    int place, freed;  // bytes into the ring: of the slab that is multiplied next, and of the one before it

    __device__ __forceinline__ ExpertRing(const unsigned char* weight, const Thread& me)
        : me(me),
          weight(weight),
          address(shared_address(memory) + me.warp * STAGES * STAGE),
          items(routing.touched_count * GROUPS),
          item(me.warp < SLABS ? blockIdx.x : items),
          slab(me.warp),
          from(weight),
          place(0),
          freed(0) {
        point_at_item();
    }

    __device__ __forceinline__ void point_at_item() {
        if (item >= items) return;
        const Item next = item_of(item);
        from = weight + ((long long)next.expert * TILES_OF_EXPERT + next.group * WEIGHT_TILES) * SLABS * SLAB + slab * SLAB +
               me.lane * LOAD;
    }

    // Request the warp's next slab, if there is one, into a place that is free.
    __device__ __forceinline__ void copy_next(int place) {
        if (item >= items) return;
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) {
            const unsigned to = address + place + j * SLAB + me.lane * LOAD;
            copy_async(to, from + j * SLABS * SLAB);
            if (me.lane < 2) copy_async(to + 512, from + j * SLABS * SLAB + 512);
        }
        slab += WARPS;
        from += WARPS * SLAB;
        if (slab >= SLABS) {
            slab = me.warp;
            item += gridDim.x;
            point_at_item();
        }
    }

    __device__ __forceinline__ void fill() {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            copy_next(stage * STAGE);
            end_of_group();
        }
    }

    // The slab before this one has been read by all lanes: its place is free for the one that comes STAGES after it.
    __device__ __forceinline__ void refill() {
        copy_next(freed);
        end_of_group();
    }

    // Wait for the oldest slab that is on its way, and load it into registers.
    __device__ __forceinline__ void load(Slab (&tiles)[WEIGHT_TILES]) {
        await_copies<STAGES - 1>();
        __syncwarp();
        const unsigned char* at = reinterpret_cast<const unsigned char*>(memory) + me.warp * STAGES * STAGE + place;
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) {
            tiles[j].numbers = *reinterpret_cast<const uint4*>(at + j * SLAB + me.lane * LOAD);
            tiles[j].scales = *reinterpret_cast<const unsigned*>(at + j * SLAB + 512 + me.g * 4);
        }
        __syncwarp();
        freed = place;
        place = place == (STAGES - 1) * STAGE ? 0 : place + STAGE;
    }
};
