// What the two products of experts in a prefill of few rows share: weights are read as packing.py leaves them, in MXFP4, and
// become operands in registers.
//
// An item is a row group of an expert (row_group.cuh) and a group of tiles of its weight: WEIGHT_TILES tiles of 16 rows for
// each warp. A block takes every gridDim.x-th item. In a step an expert has a row group of eight rows at most
// (expert_matmul.cuh); here it has up to ROW_GROUP, and a number of the weight that is expanded once is multiplied with all of
// them.
//   request    slab by slab of 64 k: the rows of x for all warps, and for each warp its own tiles. They are requested STAGES −
//   1
//              slabs ahead, over the end of an item. With the first slab of an item comes the row group of the next one
//   multiply   four-bit numbers are operand A of the tensor core, eight rows of x at a time are B; the sum over a block of 32 k
//              is multiplied by the block's scale and added. With WGMMA (sm_90a) a warpgroup multiplies its four warps' tiles
//              with all rows at once, which the tensor core reads from shared memory by itself
//   finish     the kernel's own, in registers: a warp has all of k
//
// k is added from first to last whatever shares a row group or a launch, and a row is a column of B, which knows of no other:
// so a row's result is the same, bit for bit, in any company.
#pragma once
#include "async_copy.cuh"
#include "fp16.cuh"
#include "mma.cuh"
#include "row_group.cuh"
#if WGMMA
#define ROW_TILES (ROW_GROUP / 8)
#include "wgmma.cuh"
#endif

const int WARPS = THREADS / 32;
const int BLOCKS_OF_K = K_IN / 32;
const int SLABS = (BLOCKS_OF_K + 1) / 2;
const int NUMBERS = 512, SCALES = 32;  // bytes of a slab of a tile (expert_ring.cuh)
const int LINE = 128;                  // bytes
const int TILE_BYTES = (SLABS * (NUMBERS + SCALES) + LINE - 1) / LINE * LINE;
const int BLOCK_TILES = WARPS * WEIGHT_TILES;
const int GROUPS = (TILES + BLOCK_TILES - 1) / BLOCK_TILES;  // items of a row group
// Bytes within shared memory: three row groups, then the stages, each with x and with what each warp has of the weight.
const int UNIT = WGMMA ? 1024 : LINE;  // of what begins somewhere: of eight rows of x, which lie as `wgmma` reads them
const int RECORD = sizeof(RowGroup), RECORDS = (3 * RECORD + UNIT - 1) / UNIT * UNIT;
const int ROW_BYTES = 128, X_BYTES = ROW_GROUP * ROW_BYTES;  // of 64 k
const int WARP_BYTES = WEIGHT_TILES * (NUMBERS + SCALES);
const int STAGE_BYTES = (X_BYTES + WARPS * WARP_BYTES + UNIT - 1) / UNIT * UNIT;

static_assert(K_IN % 32 == 0, "K_IN must be a multiple of 32: one block of MXFP4");
static_assert(TILES % WEIGHT_TILES == 0, "a warp has WEIGHT_TILES tiles or none");
static_assert(X_BYTES == THREADS * LOAD, "a thread copies 16 bytes of x of each slab");
static_assert(RECORD % LOAD == 0 && 2 * WEIGHT_TILES <= 32, "a warp copies the scales of a slab at once");
static_assert(2 <= STAGES && STAGES - 1 <= SLABS, "what is requested ahead is of this item or the next one");

extern __shared__ __align__(1024) uint4 memory[];

__device__ __forceinline__ unsigned char* at_byte(int offset) { return reinterpret_cast<unsigned char*>(memory) + offset; }

__device__ __forceinline__ const RowGroup& row_group_at(int record) {
    return *reinterpret_cast<const RowGroup*>(at_byte(record * RECORD));
}

// As `copy_async` of what many blocks read: it may stay in the L2 cache.
__device__ __forceinline__ void copy_shared_by_many(unsigned shared, const void* global) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// Rows lie in shared memory 128 bytes apart. Of an odd row both halves have changed places, so that the rows that are loaded
// at once have different banks. For `wgmma` they are swizzled over 128 bytes.
__device__ __forceinline__ int swapped(int row, int piece) { return piece ^ (WGMMA ? row % 8 : row % 2 * 4); }

// The first tile of this warp, of an expert's.
__device__ __forceinline__ int first_tile(int item, const Thread& me) {
    return item % GROUPS * BLOCK_TILES + me.warp * WEIGHT_TILES;
}

// A lane c has the k from 8c on of a block of 32 k. `wgmma` takes from a lane's registers what it reads of x at other k: so of
// each row of x, k 8c + i of a block lies here.
__device__ __forceinline__ int place_of_k(int c, int i) { return i / 4 * 16 + i / 2 % 2 * 8 + c * 2 + i % 2; }

const int NONE = -1;

// What is next to be requested, and from where this thread copies its share of it.
struct Requests {
    const Thread& me;
    const fp16* x;
    const unsigned char* weight;
    const int* row_groups;
    const int items;
    const unsigned base;  // address of the stages
    int item, slab, record;
    int row, tile;  // of x, and the first of the warp's, of all experts'; NONE where there is none

    __device__ __forceinline__ Requests(const fp16* x, const unsigned char* weight, const int* row_groups, int items,
                                        const Thread& me)
        : me(me),
          x(x),
          weight(weight),
          row_groups(row_groups),
          items(items),
          base(shared_address(memory) + RECORDS),
          item(blockIdx.x),
          slab(0),
          record(0) {}

    // The row group of the first item, by plain loads.
    __device__ __forceinline__ void load_first() {
        const uint4* from = reinterpret_cast<const uint4*>(row_groups) + item / GROUPS * (RECORD / LOAD);
        if (threadIdx.x < RECORD / LOAD) memory[threadIdx.x] = from[threadIdx.x];
        __syncthreads();
    }

    __device__ __forceinline__ void begin_item() {
        const RowGroup& row_group = row_group_at(record);
        const int n = threadIdx.x / 8;
        const int first = first_tile(item, me);
        row = n >= row_group.count ? NONE : GATHERED ? row_group.rows[n] : row_group.start + n;
        tile = first < TILES ? row_group.expert * TILES + first : NONE;
        const int next = item + gridDim.x;
        if (next < items && threadIdx.x < RECORD / LOAD)
            copy_shared_by_many(base - RECORDS + (record + 1) % 3 * RECORD + threadIdx.x * LOAD,
                                row_groups + next / GROUPS * (RECORD / 4) + threadIdx.x * 4);
    }

    // The next slab, as one group of copies, which is empty behind the last item.
    __device__ __forceinline__ void request(int stage) {
        if (item < items) {
            if (slab == 0) begin_item();
            if (row != NONE) copy_row(stage);
            if (tile != NONE) copy_tiles(base + stage * STAGE_BYTES + X_BYTES + me.warp * WARP_BYTES + me.lane * LOAD);
            if (++slab == SLABS) slab = 0, item += gridDim.x, record = (record + 1) % 3;
        }
        end_of_group();
    }

    // A piece of it.
    __device__ __forceinline__ void copy_row(int stage) const {
        const int n = threadIdx.x / 8, piece = threadIdx.x % 8;
        const int to = stage * STAGE_BYTES + n * ROW_BYTES + swapped(n, piece) * LOAD;
        if (BLOCKS_OF_K % 2 && slab == SLABS - 1 && piece >= 4)  // beyond the end of k
            *reinterpret_cast<uint4*>(at_byte(RECORDS + to)) = uint4{};
        else
            copy_shared_by_many(base + to, x + (long long)row * K_IN + slab * 64 + piece * 8);
    }

    __device__ __forceinline__ void copy_tiles(unsigned to) const {
        const unsigned char* from = weight + (long long)tile * TILE_BYTES;
        const unsigned char* numbers = from + slab * NUMBERS + me.lane * LOAD;
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) copy_async(to + j * NUMBERS, numbers + j * TILE_BYTES);
        if (me.lane < 2 * WEIGHT_TILES)
            copy_async(to + WEIGHT_TILES * NUMBERS,
                       from + me.lane / 2 * TILE_BYTES + SLABS * NUMBERS + slab * SCALES + me.lane % 2 * LOAD);
    }
};

// A warp's sums for Columns times eight rows of x: operand C of every tile.
template <int Columns>
using RowGroupSums = float[WEIGHT_TILES][Columns][4];

// One half of a slab of one tile: a block of 32 k.
struct Block {
    Eight low, high;
    float low_scale, high_scale;
};

__device__ __forceinline__ Block block_of(const uint4& numbers, unsigned scales, int half) {
    return {expanded(half ? numbers.z : numbers.x), expanded(half ? numbers.w : numbers.y), scale_of<0>(scales >> 16 * half),
            scale_of<1>(scales >> 16 * half)};
}

#if WGMMA
// What threads have copied so far may be read by `wgmma` of others, behind their next __syncthreads.
__device__ __forceinline__ void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// clang-format off
#define PLACES_8 "%0,%1,%2,%3"
#define PLACES_24 PLACES_16 ",%8,%9,%10,%11"
#define PLACES_40 PLACES_32 ",%16,%17,%18,%19"
#define OPERANDS "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(More)

// sums = A · Bᵀ over 16 k, or with `More` what they were and that. A: as a warp's of `mma_fp16`; B: Columns times eight rows.
template <int Columns, int More>
__device__ __forceinline__ void multiply_rows(float (&sums)[Columns][4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                              unsigned long long b) {
    if constexpr (Columns == 1)
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {" PLACES_8 "}, {%4,%5,%6,%7}, %8, %9, 1, 1, 0;"
                     : SUMS_OF(0) : OPERANDS);
    if constexpr (Columns == 2)
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {" PLACES_16 "}, {%8,%9,%10,%11}, %12, %13, 1, 1, 0;"
                     : SUMS_OF(0), SUMS_OF(1) : OPERANDS);
    if constexpr (Columns == 3)
        asm volatile("wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {" PLACES_24 "}, {%12,%13,%14,%15}, %16, %17, 1, 1, 0;"
                     : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2) : OPERANDS);
    if constexpr (Columns == 4)
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" PLACES_32 "}, {%16,%17,%18,%19}, %20, %21, 1, 1, 0;"
                     : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3) : OPERANDS);
    if constexpr (Columns == 5)
        asm volatile("wgmma.mma_async.sync.aligned.m64n40k16.f32.f16.f16 {" PLACES_40 "}, {%20,%21,%22,%23}, %24, %25, 1, 1, 0;"
                     : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3), SUMS_OF(4) : OPERANDS);
    if constexpr (Columns == 6)
        asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {" PLACES_48 "}, {%24,%25,%26,%27}, %28, %29, 1, 1, 0;"
                     : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3), SUMS_OF(4), SUMS_OF(5) : OPERANDS);
}
// clang-format on

// The slab at `stage`: a block is multiplied while the next one's numbers are expanded.
template <int Columns>
__device__ __forceinline__ void multiply_slab(RowGroupSums<Columns>& sums, int stage, const Thread& me) {
    const int at = RECORDS + stage * STAGE_BYTES;
    const unsigned char* own = at_byte(at + X_BYTES + me.warp * WARP_BYTES);
    const unsigned long long rows = box_at(shared_address(memory) + at);
    const auto block_at = [&](int n) {
        const uint4 numbers = *reinterpret_cast<const uint4*>(own + n / 2 * NUMBERS + me.lane * LOAD);
        const unsigned scales = *reinterpret_cast<const unsigned*>(own + WEIGHT_TILES * NUMBERS + n / 2 * SCALES + me.g * 4);
        return block_of(numbers, scales, n % 2);
    };
    float part[Columns][4] = {};
    Block next = block_at(0);
#pragma unroll
    for (int n = 0; n < 2 * WEIGHT_TILES; ++n) {
        const Block block = next;
        const Eight &low = block.low, &high = block.high;
        const unsigned long long x = rows + n % 2 * 4;
        begin_products();
        multiply_rows<Columns, 0>(part, low.pair[0], high.pair[0], low.pair[1], high.pair[1], x);
        multiply_rows<Columns, 1>(part, low.pair[2], high.pair[2], low.pair[3], high.pair[3], x + 2);
        if (n + 1 < 2 * WEIGHT_TILES) next = block_at(n + 1);
        await_products();
#pragma unroll
        for (int t = 0; t < Columns; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sums[n / 2][t][i] = fmaf(part[t][i], i < 2 ? block.low_scale : block.high_scale, sums[n / 2][t][i]);
    }
}
#else
// sums += the products over one block of 32 k.
__device__ __forceinline__ void multiply_block(float (&sums)[4], const Block& block, const uint4& x) {
    const Eight &low = block.low, &high = block.high;
    float part[4];
    mma_fp16(part, low.pair[0], high.pair[0], low.pair[1], high.pair[1], x.x, x.y, 0, 0, 0, 0);
    mma_fp16(part, low.pair[2], high.pair[2], low.pair[3], high.pair[3], x.z, x.w, part[0], part[1], part[2], part[3]);
    sums[0] = fmaf(part[0], block.low_scale, sums[0]);
    sums[1] = fmaf(part[1], block.low_scale, sums[1]);
    sums[2] = fmaf(part[2], block.high_scale, sums[2]);
    sums[3] = fmaf(part[3], block.high_scale, sums[3]);
}

// The slab at `stage`. Columns of B that the row group has no rows for multiply what lies there, and nobody reads their sums.
template <int Columns>
__device__ __forceinline__ void multiply_slab(RowGroupSums<Columns>& sums, int stage, const Thread& me) {
    const unsigned char* at = at_byte(RECORDS + stage * STAGE_BYTES);
    const unsigned char* own = at + X_BYTES + me.warp * WARP_BYTES;
    uint4 numbers[WEIGHT_TILES];
    unsigned scales[WEIGHT_TILES];
#pragma unroll
    for (int j = 0; j < WEIGHT_TILES; ++j) {
        numbers[j] = *reinterpret_cast<const uint4*>(own + j * NUMBERS + me.lane * LOAD);
        scales[j] = *reinterpret_cast<const unsigned*>(own + WEIGHT_TILES * NUMBERS + j * SCALES + me.g * 4);
    }
    // One half after the other: a warp has no registers for more.
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        Block blocks[WEIGHT_TILES];
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) blocks[j] = block_of(numbers[j], scales[j], half);
        const unsigned char* rows = at + me.g * ROW_BYTES + swapped(me.g, half * 4 + me.c) * LOAD;
#pragma unroll
        for (int n = 0; n < Columns; ++n) {
            const uint4 x = *reinterpret_cast<const uint4*>(rows + n * 8 * ROW_BYTES);
#pragma unroll
            for (int j = 0; j < WEIGHT_TILES; ++j) multiply_block(sums[j][n], blocks[j], x);
        }
    }
}

#endif

// An item of a row group of Columns times eight rows. `Finish` begins with the row group and its first tile, and ends with the
// sums.
template <typename Finish, int Columns, typename Arguments>
__device__ __forceinline__ void multiply_item(const Arguments& args, Requests& requests, const RowGroup& row_group, int first,
                                              int& stage, const Thread& me) {
    const bool has_tiles = first < TILES;
    Finish finish(args, row_group, has_tiles ? first : 0, me);
    RowGroupSums<Columns> sums = {};
#pragma unroll 1
    for (int slab = 0; slab < SLABS; ++slab) {
        await_copies<STAGES - 2>();
#if WGMMA
        show_copies();
#endif
        __syncthreads();  // the slab is there for all, and all have read the one whose place is free now
        requests.request(stage == 0 ? STAGES - 1 : stage - 1);
        if (WGMMA || has_tiles) multiply_slab<Columns>(sums, stage, me);
        if (++stage == STAGES) stage = 0;
    }
    if (!has_tiles) return;
#pragma unroll
    for (int j = 0; j < WEIGHT_TILES; ++j)
#pragma unroll
        for (int n = 0; n < Columns; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = n * 8 + 2 * me.c + i;
                if (column < row_group.count) finish(j, row_group.start + column, sums[j][n][i], sums[j][n][2 + i]);
            }
}

// All items of this block.
template <typename Finish, typename Arguments>
__device__ __forceinline__ void multiply_row_groups(const Arguments& args) {
    const Thread me;
    const int items = *args.row_group_count * GROUPS;
    if (blockIdx.x >= items) return;
    Requests requests(args.x, args.weight, args.row_groups, items, me);
    requests.load_first();
#pragma unroll 1
    for (int n = 0; n < STAGES - 1; ++n) requests.request(n);
    int stage = 0, record = 0;
#pragma unroll 1
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const RowGroup& row_group = row_group_at(record);
        const int first = first_tile(item, me);
        // The same in all lanes: of a warpgroup's products the compiler must know it.
        const int count = WGMMA ? __shfl_sync(0xffffffffu, row_group.count, 0) : row_group.count;
        switch ((count + 7) / 8) {
            case 1:
                multiply_item<Finish, 1>(args, requests, row_group, first, stage, me);
                break;
            case 2:
                multiply_item<Finish, 2>(args, requests, row_group, first, stage, me);
                break;
            case 3:
                multiply_item<Finish, 3>(args, requests, row_group, first, stage, me);
                break;
            case 4:
                multiply_item<Finish, 4>(args, requests, row_group, first, stage, me);
                break;
            case 5:
                multiply_item<Finish, 5>(args, requests, row_group, first, stage, me);
                break;
            default:
                multiply_item<Finish, 6>(args, requests, row_group, first, stage, me);
        }
        record = (record + 1) % 3;
    }
    await_copies<0>();
}
