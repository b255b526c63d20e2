// The weights of `matmul_rows.cu` on their way to the tensor cores: a ring of STAGES stages in shared memory, filled by
// asynchronous copies.
//
// A stage holds one slice of k, of WEIGHT_TILES tiles, for every warp: [STAGES][WARPS][CHUNKS_PER_TURN][WEIGHT_TILES][2][32]
// loads of 16 bytes. Every thread reads only what it has copied itself, so the ring needs no barrier. It runs on from one
// pass to the next: while the last slices of a pass are multiplied, the first of the next pass are being copied.
#pragma once
#include "async_copy.cuh"
#include "bf16.cuh"
#include "dependent.cuh"
#include "mma.cuh"

const int RING = STAGES * WARPS * CHUNKS_PER_TURN * WEIGHT_TILES * 64;  // 16-byte loads

// The ring, and the sums of the warps: after the ring, or, with one pass, in its place.
extern __shared__ uint4 memory[];

// One slice of weight as operand A: rows g and g + 8 of every tile. Of SWIGLU: row g of the gate and the up row beside it.
typedef uint4 WeightSlice[CHUNKS_PER_TURN][WEIGHT_TILES][2];

struct WeightRing {
    const Thread& me;
    const bf16* weight;
    const bf16 *low[WEIGHT_TILES], *high[WEIGHT_TILES];  // rows g and g + 8 of the tiles that are copied, at this lane's k
    const unsigned address;                              // of the ring in shared memory
    int group, slice;                                    // that are copied next
    int stage;                                           // that is multiplied next

    __device__ __forceinline__ WeightRing(const bf16* weight, const Thread& me)
        : me(me), weight(weight), address(shared_address(memory)), group(own_block()), slice(me.warp), stage(0) {
        point_at_group();
    }

    __device__ __forceinline__ void point_at_group() {
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) {
            // Beyond an odd N_OUT the last row is read again, and the result thrown away.
            const int from = (group * WEIGHT_TILES + j) * TILE_COLUMNS + me.g, first = min(from, N_OUT - 1);
            const int second = EPILOGUE == SWIGLU ? N_OUT + first : min(from + 8, N_OUT - 1);
            low[j] = weight + (long long)first * K_IN + 8 * me.c;
            high[j] = weight + (long long)second * K_IN + 8 * me.c;
        }
    }

    // Index of this lane's load of row g, for chunk s of a slice and tile j; that of row g + 8 comes 32 later.
    __device__ __forceinline__ int index(int stage, int s, int j) const {
        return (((stage * WARPS + me.warp) * CHUNKS_PER_TURN + s) * WEIGHT_TILES + j) * 64 + me.lane;
    }

    // Request the warp's next slice, if there is one, into a stage that is free.
    __device__ __forceinline__ void copy_next(int stage) {
        if (slice >= SLICES) return;
#pragma unroll
        for (int s = 0; s < CHUNKS_PER_TURN; ++s) {
            const int chunk = slice * CHUNKS_PER_TURN + s;
            if (CHUNKS % CHUNKS_PER_TURN && chunk >= CHUNKS) continue;
#pragma unroll
            for (int j = 0; j < WEIGHT_TILES; ++j) {
                copy_async(address + LOAD * index(stage, s, j), low[j] + chunk * 32);
                copy_async(address + LOAD * (index(stage, s, j) + 32), high[j] + chunk * 32);
            }
        }
        slice += WARPS;
        if (PASSES > 1 && slice >= SLICES && group + GRID < GROUPS) {
            slice = me.warp;
            group += GRID;
            point_at_group();
        }
        if (DELAY_DEPENDENTS && slice >= SLICES) let_next_start();
    }

    __device__ __forceinline__ void fill() {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            copy_next(stage);
            end_of_group();
        }
    }

    // The slice before this one has been multiplied: its stage is free for the slice that comes STAGES after it.
    __device__ __forceinline__ void refill() {
        copy_next(stage == 0 ? STAGES - 1 : stage - 1);
        end_of_group();
    }

    // Wait for the oldest slice that is on its way, and load it into registers.
    __device__ __forceinline__ void load(WeightSlice& a) {
        await_copies<STAGES - 1>();
#pragma unroll
        for (int s = 0; s < CHUNKS_PER_TURN; ++s)
#pragma unroll
            for (int j = 0; j < WEIGHT_TILES; ++j) {
                a[s][j][0] = memory[index(stage, s, j)];
                a[s][j][1] = memory[index(stage, s, j) + 32];
            }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
};
