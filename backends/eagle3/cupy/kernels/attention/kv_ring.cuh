// The keys and values of `attention.cu` on their way from the paged cache to the tensor cores: per warp, a ring of STAGES
// pieces in shared memory, filled by asynchronous copies.
//
// A piece is the keys or the values of a key tile, TILE_KEYS neighbouring positions. A warp takes TILES_PER_TURN of its key
// tiles at a time: first the keys of all of them, then the values of all. A thread reads only what it has copied itself, so the
// ring needs no barrier.
//
// Keys are operand B of q · kᵀ as they lie in memory, and values, stored transposed, are operand B of p · v. A 16-byte load has
// LOADED numbers, 8 or, of E4M3, 16. Column n of the tensor core's tile t is key LOADED · (n / 2) + 2 · t + n % 2 of a key
// tile: so the probabilities that a lane holds are those of keys LOADED · c … LOADED · (c + 1) - 1, which are the keys that its
// 16-byte load of values is for, and lanes need not exchange them.
//
// Of a cache of codes, a key tile is a cache block. Of E4M3 (kv_fp8.cuh), each lane copies with its keys the scales of keys and
// values LOADED · c … LOADED · (c + 1) - 1, which are those that share them. Of NVFP4 (kv_nvfp4.cuh), pages lie in the order
// in which lanes take them (nvfp4.cuh), and scales come with the keys.
//
// Early copies are paced: where PACE_KILOBYTES is not 0, a warp has no more kilobytes of these on their way at a time. What
// memory cannot serve yet would only stand in the way of the small reads that the kernels before this one wait for.
#pragma once
#include "async_copy.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "mma.cuh"

template <typename Pages>
struct Pointed;
template <typename Number>
struct Pointed<Number*> {
    typedef Number type;
};
typedef Pointed<decltype(AttentionArguments::k_pages)>::type Cached;

// Of the formats that have some.
template <typename Arguments>
__device__ __forceinline__ auto scales_of(const Arguments& args) {
    if constexpr (KV_FP8 || KV_NVFP4)
        return args.scales;
    else
        return nullptr;
}

const int TILE_KEYS = KV_FP8 || KV_NVFP4 ? 64 : 32;                   // positions of a key tile
const int LOADED = KV_NVFP4 ? 2 * LOAD : LOAD / (int)sizeof(Cached);  // numbers of a 16-byte load
const int LOADS_32 = HEAD_DIM / 32;                                   // 32-wide parts of a head
const int LOADS_8 = HEAD_DIM / 8;                                     // 8-wide parts of a head
const int KEYS = TILE_KEYS / 4;                                       // of a lane, neighbours
const int LOADS_WIDE = HEAD_DIM / (4 * KEYS);                         // parts of a key, of which four lanes have KEYS elements
const int PIECE = HEAD_DIM / LOADED * TILE_KEYS;                      // 16-byte loads of a piece
const int SCALE_LOADS = KV_NVFP4 ? HEAD_DIM / 64 : 1;                 // of a lane, with its keys
const int TILES = TILE_KEYS / 8;                                      // of eight columns, of a key tile
const int TILE_STRIDE = TILE_KEYS * WARPS;                            // positions between two key tiles of a warp
// With short heads there is too little to do for a tile of 32 keys alone.
const int TILES_PER_TURN = HEAD_DIM == 64 && TILE_KEYS == 32 ? 2 : 1;

// The rings [STAGES][WARPS][PIECE]; behind them, of codes, the scales of their pieces [STAGES][WARPS][SCALE_LOADS][32]; of
// NVFP4, the scales of the warps' values as float16; and, when these have been used, the warps' outputs [WARPS][16][HEAD_DIM].
extern __shared__ uint4 memory[];

struct KVRing {
    const Thread& me;
    const Task& task;
    const Cached *k_pages, *v_pages;
    const decltype(scales_of(AttentionArguments())) scales;
    float2 outer = {};       // of NVFP4, scales of keys and of values
    unsigned unsound = 0;    // of NVFP4, not zero: a scale that nothing of ours has written
    const unsigned address;  // of the rings in shared memory
    int first;               // position of the warp's first key tile
    int stage;               // that is read next

    __device__ __forceinline__ KVRing(const AttentionArguments& args, const Task& task, const Thread& me)
        : me(me),
          task(task),
          k_pages(args.k_pages),
          v_pages(args.v_pages),
          scales(scales_of(args)),
          address(shared_address(memory)),
          stage(0) {
        first = task.chunk * CHUNK + TILE_KEYS * me.warp;
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

    // The lane's place among the scales of the ring's pieces.
    __device__ __forceinline__ int scale_index(int stage) const {
        return STAGES * WARPS * PIECE + (stage * WARPS + me.warp) * 32 * SCALE_LOADS + me.lane;
    }

    // Ends a kilobyte of a paced copy, and waits for the one PACE_KILOBYTES before it.
    __device__ __forceinline__ static void pace(bool paced, int n) {
        if (!paced || n % 2 == 0) return;
        end_of_group();
        await_copies<(PACE_KILOBYTES > 0 ? PACE_KILOBYTES - 1 : 0)>();
    }

    // Request the keys or values of the key tile at `key`, as the format has them; by all lanes of a warp. Unless it is paced,
    // the caller ends the group of copies.
    __device__ __forceinline__ void copy(int stage, bool values, int key, bool paced) const;

    // Request the first pieces, as far as they hold positions of earlier steps alone, those before `known`.
    __device__ __forceinline__ void fill_early(int known) const {
#pragma unroll
        for (int n = 0; n < STAGES; ++n) {
            const int key = first + tiles_before(n) * TILE_STRIDE;
            if (key + TILE_KEYS <= known && wanted(key)) copy(n, has_values(n), key, PACE_KILOBYTES > 0);
            end_of_group();
        }
    }

    // Request the others of the first pieces, when the new positions are in the cache, and wait for all.
    __device__ __forceinline__ void fill_late(int known) const {
        bool late = false;
#pragma unroll
        for (int n = 0; n < STAGES; ++n) {
            const int key = first + tiles_before(n) * TILE_STRIDE;
            if (key + TILE_KEYS <= known || !wanted(key)) continue;
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
