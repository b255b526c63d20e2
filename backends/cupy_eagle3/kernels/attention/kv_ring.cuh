// The keys and values of `attention.cu` on their way from the paged cache to the tensor cores: per warp, a ring of STAGES
// pieces in shared memory, filled by asynchronous copies.
//
// A piece is the keys or the values of a key tile, 32 neighbouring positions. A warp takes TILES_PER_TURN of its key tiles at
// a time: first the keys of all of them, then the values of all. A thread reads only what it has copied itself, so the ring
// needs no barrier.
//
// Keys are operand B of q · kᵀ as they lie in memory, and values, stored transposed, are operand B of p · v. Column n of
// the tensor core's tile t is key 8 · (n / 2) + 2 · t + n % 2 of a key tile: so the probabilities that a lane holds are those
// of keys 8c … 8c + 7, which are the keys that its 16-byte load of values is for, and lanes need not exchange them.
//
// Early copies are paced: where PACE_KILOBYTES is not 0, a warp has no more kilobytes of these on their way at a time. What
// memory cannot serve yet would only stand in the way of the small reads that the kernels before this one wait for.
#pragma once
#include "async_copy.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "mma.cuh"

const int LOADS_32 = HEAD_DIM / 32;                 // 32-wide parts of a head
const int LOADS_8 = HEAD_DIM / 8;                   // 8-wide parts of a head
const int PIECE = HEAD_DIM / 8 * 32;                // 16-byte loads of a piece
const int TILE_STRIDE = 32 * WARPS;                 // positions between two key tiles of a warp
const int TILES_PER_TURN = HEAD_DIM == 64 ? 2 : 1;  // with short heads there is too little to do for one alone

// In the same memory, one after the other: the rings [STAGES][WARPS][PIECE], and the warps' outputs [WARPS][16][HEAD_DIM].
extern __shared__ uint4 memory[];

struct KVRing {
    const Thread& me;
    const Task& task;
    const bf16 *k_pages, *v_pages;
    const unsigned address;  // of the rings in shared memory
    int first;               // position of the warp's first key tile
    int stage;               // that is read next

    __device__ __forceinline__ KVRing(const bf16* k_pages, const bf16* v_pages, const Task& task, const Thread& me)
        : me(me), task(task), k_pages(k_pages), v_pages(v_pages), address(shared_address(memory)), stage(0) {
        first = task.chunk * CHUNK + 32 * me.warp;
        while (first + (TILES_PER_TURN - 1) * TILE_STRIDE < task.begin) first += TILES_PER_TURN * TILE_STRIDE;
    }

    // Piece n of a warp: how many of its key tiles come before the piece's own, and whether it holds values.
    __device__ __forceinline__ static int tiles_before(int n) {
        return n / (2 * TILES_PER_TURN) * TILES_PER_TURN + n % TILES_PER_TURN;
    }
    __device__ __forceinline__ static bool has_values(int n) { return n / TILES_PER_TURN % 2 == 1; }

    // Whether any query row sees the key tile that begins at `key`.
    __device__ __forceinline__ bool wanted(int key) const { return (WINDOW == 0 || key >= task.begin) && key < task.end; }

    __device__ __forceinline__ int index(int stage) const { return (stage * WARPS + me.warp) * PIECE + me.lane; }

    // Ends a kilobyte of a paced copy, and waits for the one PACE_KILOBYTES before it.
    __device__ __forceinline__ static void pace(bool paced, int n) {
        if (!paced || n % 2 == 0) return;
        end_of_group();
        await_copies<(PACE_KILOBYTES > 0 ? PACE_KILOBYTES - 1 : 0)>();
    }

    // Request the keys or values of the key tile at `key`; by all lanes of a warp. Unless it is paced, the caller ends the
    // group of copies.
    __device__ __forceinline__ void copy(int stage, bool values, int key, bool paced) const {
        const int block = __shfl_sync(FULL_WARP, task.entry, (key - task.chunk * CHUNK) / BLOCK);
        const long long at = ((long long)block * KV_HEADS + task.kv_head) * BLOCK * HEAD_DIM;
        const unsigned to = address + LOAD * index(stage);
        if (values) {
            const bf16* from = v_pages + at + key % BLOCK + me.g * BLOCK + 8 * me.c;
#pragma unroll
            for (int n = 0; n < LOADS_8; ++n) {
                copy_async(to + LOAD * (n * 32), from + n * 8 * BLOCK);
                pace(paced, n);
            }
        } else {
            const bf16* from = k_pages + at + (key % BLOCK + 8 * (me.g / 2) + me.g % 2) * HEAD_DIM + 8 * me.c;
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int wide = 0; wide < LOADS_32; ++wide) {
                    copy_async(to + LOAD * ((n * LOADS_32 + wide) * 32), from + 2 * n * HEAD_DIM + wide * 32);
                    pace(paced, wide);
                }
        }
    }

    // Request the first pieces, as far as they hold positions of earlier steps alone, those before `known`.
    __device__ __forceinline__ void fill_early(int known) const {
#pragma unroll
        for (int n = 0; n < STAGES; ++n) {
            const int key = first + tiles_before(n) * TILE_STRIDE;
            if (key + 32 <= known && wanted(key)) copy(n, has_values(n), key, PACE_KILOBYTES > 0);
            end_of_group();
        }
    }

    // Request the others of the first pieces, when the new positions are in the cache, and wait for all.
    __device__ __forceinline__ void fill_late(int known) const {
        bool late = false;
#pragma unroll
        for (int n = 0; n < STAGES; ++n) {
            const int key = first + tiles_before(n) * TILE_STRIDE;
            if (key + 32 <= known || !wanted(key)) continue;
            copy(n, has_values(n), key, false);
            late = true;
        }
        if (late) {
            end_of_group();
            await_copies<0>();
        }
    }

    // The oldest piece that is on its way, when it has arrived.
    __device__ __forceinline__ const uint4* await_piece() const {
        await_copies<STAGES - 1>();
        return memory + index(stage);
    }

    // Piece n of the turn at `key` has been used: its place is for the one that comes STAGES after it. This comes after the
    // loads of the piece, which would wait behind the copies.
    __device__ __forceinline__ void refill(int n, int key) {
        const int then = key + tiles_before(n + STAGES) * TILE_STRIDE;
        if (wanted(then)) copy(stage, has_values(n + STAGES), then, false);
        end_of_group();
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
};
