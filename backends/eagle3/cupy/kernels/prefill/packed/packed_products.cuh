// What the two products of experts in a prefill of few rows share: weights are read as packing.py leaves them, in MXFP4, and
// become operands in registers.
//
// An item is a row group of an expert (row_group.cuh) and a group of tiles of its weight: WEIGHT_TILES tiles of 16 rows for
// each warp. A block takes every gridDim.x-th item. In a step an expert has a row group of eight rows at most
// (expert_matmul.cuh); here it has up to ROW_GROUP, and a number of the weight that is expanded once is multiplied with all of
// them.
//   request    by AT_ONCE slabs of 64 k: the rows of x for all warps, and for each warp its own tiles. They are requested
//              STAGES − 1 stages ahead, over the end of an item. With the first ones of an item comes the row group of the
//              next one
//   multiply   four-bit numbers, times their block's scale, are operand A of the tensor core, eight rows of x at a time are B.
//              With WGMMA (sm_90a) a warpgroup multiplies its four warps' tiles with all rows at once, which the tensor core
//              reads from shared memory by itself
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
const int STEPS = (SLABS + AT_ONCE - 1) / AT_ONCE;           // stages of an item
// Bytes within shared memory: three row groups, then the stages, each with x and with what each warp has of the weight. x lies
// slab by slab, and a tile's slabs lie together.
const int UNIT = WGMMA ? 1024 : LINE;  // of what begins somewhere: of eight rows of x, which lie as `wgmma` reads them
const int RECORD = sizeof(RowGroup), RECORDS = (3 * RECORD + UNIT - 1) / UNIT * UNIT;
const int ROW_BYTES = 128, X_BYTES = ROW_GROUP * ROW_BYTES;  // of 64 k
const int WARP_NUMBERS = WEIGHT_TILES * AT_ONCE * NUMBERS, WARP_BYTES = WARP_NUMBERS + WEIGHT_TILES * AT_ONCE * SCALES;
const int STAGE_BYTES = (AT_ONCE * X_BYTES + WARPS * WARP_BYTES + UNIT - 1) / UNIT * UNIT;

static_assert(K_IN % 32 == 0, "K_IN must be a multiple of 32: one block of MXFP4");
static_assert(TILES % WEIGHT_TILES == 0, "a warp has WEIGHT_TILES tiles or none");
static_assert(X_BYTES == THREADS * LOAD, "a thread copies 16 bytes of x of each slab");
const int SCALE_LOADS = SCALES / LOAD;
static_assert(RECORD % LOAD == 0 && SCALE_LOADS * AT_ONCE * WEIGHT_TILES <= 32, "a warp copies a stage's scales at once");
static_assert(2 <= STAGES && STAGES - 1 <= STEPS, "what is requested ahead is of this item or the next one");

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

    // The next slabs, as one group of copies, which is empty behind the last item.
    __device__ __forceinline__ void request(int stage) {
        if (item < items) {
            if (slab == 0) begin_item();
            if (row != NONE) copy_row(stage);
            if (tile != NONE)
                copy_tiles(base + stage * STAGE_BYTES + AT_ONCE * X_BYTES + me.warp * WARP_BYTES + me.lane * LOAD);
            slab += AT_ONCE;
            if (slab >= SLABS) slab = 0, item += gridDim.x, record = (record + 1) % 3;
        }
        end_of_group();
    }

    // Whether there is the slab `s` of these.
    __device__ __forceinline__ bool has(int s) const { return SLABS % AT_ONCE == 0 || slab + s < SLABS; }

    // A piece of each of its slabs.
    __device__ __forceinline__ void copy_row(int stage) const {
        const int n = threadIdx.x / 8, piece = threadIdx.x % 8;
        const int to = stage * STAGE_BYTES + n * ROW_BYTES + swapped(n, piece) * LOAD;
        const fp16* from = x + (long long)row * K_IN + slab * 64 + piece * 8;
#pragma unroll
        for (int s = 0; s < AT_ONCE; ++s) {
            if (!has(s)) break;
            if (BLOCKS_OF_K % 2 && slab + s == SLABS - 1 && piece >= 4)  // beyond the end of k
                *reinterpret_cast<uint4*>(at_byte(RECORDS + to + s * X_BYTES)) = uint4{};
            else
                copy_shared_by_many(base + to + s * X_BYTES, from + s * 64);
        }
    }

    __device__ __forceinline__ void copy_tiles(unsigned to) const {
        const unsigned char* from = weight + (long long)tile * TILE_BYTES;
        const unsigned char* numbers = from + slab * NUMBERS + me.lane * LOAD;
#pragma unroll
        for (int s = 0; s < AT_ONCE; ++s)
#pragma unroll
            for (int j = 0; has(s) && j < WEIGHT_TILES; ++j)
                copy_async(to + (j * AT_ONCE + s) * NUMBERS, numbers + j * TILE_BYTES + s * NUMBERS);
        const int j = me.lane / (SCALE_LOADS * AT_ONCE), piece = me.lane % (SCALE_LOADS * AT_ONCE);
        if (j < WEIGHT_TILES && has(piece / SCALE_LOADS))
            copy_async(to + WARP_NUMBERS, from + j * TILE_BYTES + SLABS * NUMBERS + slab * SCALES + piece * LOAD);
    }
};

// A warp's sums for Columns times eight rows of x: operand C of every tile, in units of `unit_of`.
template <int Columns>
using RowGroupSums = float[WEIGHT_TILES][Columns][4];

// Operand A is at most 12, whatever the scales: of the largest one of its expert (packing.py) a block's scale is taken as so
// many powers of two less. A float16 exponent of 30 stands for it, beside numbers that are 2⁻¹⁴ times their own.
const int TOP_EXPONENT = 30;

// What such sums have to be multiplied with.
__device__ __forceinline__ float unit_of(int top_scale) { return __uint_as_float((top_scale - TOP_EXPONENT / 2) << 23); }

__device__ __forceinline__ unsigned twice(fp16 value) {
    unsigned both;
    asm("mov.b32 %0, {%1, %1};" : "=r"(both) : "h"(value));
    return both;
}

// One half of a slab of one tile, a block of 32 k, as operand A: of rows g and g + 8, as a lane has them.
struct Block {
    unsigned low[4], high[4];

    // `scales`: of both rows, as bytes of the lower half. What is too small beside the largest one is 0.
    __device__ __forceinline__ void expand(unsigned of_low, unsigned of_high, unsigned scales, int top_scale) {
        const unsigned beside = (TOP_EXPONENT - top_scale) & 0xffff;
        const unsigned exponents = __viaddmax_s16x2_relu(__byte_perm(scales, 0, 0x4140), beside << 16 | beside, 0) << 10;
        const unsigned low_scale = twice(exponents), high_scale = twice(exponents >> 16);
        const Eight low_eight = expanded(of_low), high_eight = expanded(of_high);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            low[i] = product_fp16(low_eight.pair[i], low_scale);
            high[i] = product_fp16(high_eight.pair[i], high_scale);
        }
    }
};

// A slab of a tile, as this lane reads it.
struct Slab {
    uint4 numbers;
    unsigned scales;

    // Slab s of a warp's tile j; `own`: what the warp has of a stage.
    __device__ __forceinline__ void load(const unsigned char* own, int j, int s, const Thread& me) {
        const int n = j * AT_ONCE + s;
        numbers = *reinterpret_cast<const uint4*>(own + n * NUMBERS + me.lane * LOAD);
        scales = *reinterpret_cast<const unsigned*>(own + WARP_NUMBERS + n * SCALES + me.g * 4);
    }

    __device__ __forceinline__ void expand(Block& block, int half, int top_scale) const {
        block.expand(half ? numbers.z : numbers.x, half ? numbers.w : numbers.y, half ? scales >> 16 : scales, top_scale);
    }
};

#if WGMMA
// What threads have copied so far may be read by `wgmma` of others, behind their next __syncthreads.
__device__ __forceinline__ void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Ends a group of products, and waits for all but the last `Pending` groups.
template <int Pending>
__device__ __forceinline__ void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// clang-format off
#define PLACES_8 "%0,%1,%2,%3"
#define PLACES_24 PLACES_16 ",%8,%9,%10,%11"
#define PLACES_40 PLACES_32 ",%16,%17,%18,%19"
#define OPERANDS "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b)

// sums += A · Bᵀ over 16 k. A: as a warp's of `mma_fp16`; B: Columns times eight rows.
template <int Columns>
__device__ __forceinline__ void multiply_rows(float (&sums)[Columns][4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                              unsigned long long b) {
    if constexpr (Columns == 1)
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {" PLACES_8 "}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;"
                     : SUMS_OF(0) : OPERANDS);
    if constexpr (Columns == 2)
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {" PLACES_16 "}, {%8,%9,%10,%11}, %12, 1, 1, 1, 0;"
                     : SUMS_OF(0), SUMS_OF(1) : OPERANDS);
    if constexpr (Columns == 3)
        asm volatile("wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {" PLACES_24 "}, {%12,%13,%14,%15}, %16, 1, 1, 1, 0;"
                     : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2) : OPERANDS);
    if constexpr (Columns == 4)
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" PLACES_32 "}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                     : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3) : OPERANDS);
    if constexpr (Columns == 5)
        asm volatile("wgmma.mma_async.sync.aligned.m64n40k16.f32.f16.f16 {" PLACES_40 "}, {%20,%21,%22,%23}, %24, 1, 1, 1, 0;"
                     : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3), SUMS_OF(4) : OPERANDS);
    if constexpr (Columns == 6)
        asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {" PLACES_48 "}, {%24,%25,%26,%27}, %28, 1, 1, 1, 0;"
                     : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3), SUMS_OF(4), SUMS_OF(5) : OPERANDS);
}
// clang-format on

// Slab s of the stage at `at`: a block is multiplied while the next one is expanded. Registers of the one before are free
// again then.
template <int Columns>
__device__ __forceinline__ void multiply_slab(RowGroupSums<Columns>& sums, int at, int s, int top_scale, const Thread& me) {
    const unsigned char* own = at_byte(at + AT_ONCE * X_BYTES + me.warp * WARP_BYTES);
    const unsigned long long x = box_at(__shfl_sync(0xffffffffu, shared_address(memory) + at, 0) + s * X_BYTES);
    const auto multiply = [&](int j, const Block& a, int half) {
        begin_products();
        multiply_rows<Columns>(sums[j], a.low[0], a.high[0], a.low[1], a.high[1], x + 4 * half);
        multiply_rows<Columns>(sums[j], a.low[2], a.high[2], a.low[3], a.high[3], x + 4 * half + 2);
        end_products<1>();
    };
    Block first, second;
    Slab slab;
    slab.load(own, 0, s, me);
#pragma unroll
    for (int j = 0; j < WEIGHT_TILES; ++j) {
        slab.expand(first, 0, top_scale);
        multiply(j, first, 0);
        slab.expand(second, 1, top_scale);
        if (j + 1 < WEIGHT_TILES) slab.load(own, j + 1, s, me);
        multiply(j, second, 1);
    }
}
#else
// Slab s of the stage at `at`. Columns of B that the row group has no rows for multiply what lies there, and nobody reads their
// sums.
template <int Columns>
__device__ __forceinline__ void multiply_slab(RowGroupSums<Columns>& sums, int at, int s, int top_scale, const Thread& me) {
    Slab slabs[WEIGHT_TILES];
#pragma unroll
    for (int j = 0; j < WEIGHT_TILES; ++j) slabs[j].load(at_byte(at + AT_ONCE * X_BYTES + me.warp * WARP_BYTES), j, s, me);
    // One half after the other: a warp has no registers for more.
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        Block blocks[WEIGHT_TILES];
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) slabs[j].expand(blocks[j], half, top_scale);
        const unsigned char* rows = at_byte(at + s * X_BYTES) + me.g * ROW_BYTES + swapped(me.g, half * 4 + me.c) * LOAD;
#pragma unroll
        for (int n = 0; n < Columns; ++n) {
            const uint4 x = *reinterpret_cast<const uint4*>(rows + n * 8 * ROW_BYTES);
#pragma unroll
            for (int j = 0; j < WEIGHT_TILES; ++j) {
                const auto &low = blocks[j].low, &high = blocks[j].high;
                float (&sum)[4] = sums[j][n];
                mma_fp16(sum, low[0], high[0], low[1], high[1], x.x, x.y, sum[0], sum[1], sum[2], sum[3]);
                mma_fp16(sum, low[2], high[2], low[3], high[3], x.z, x.w, sum[0], sum[1], sum[2], sum[3]);
            }
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
    const int top_scale = args.top_scale[row_group.expert];
    Finish finish(args, row_group, has_tiles ? first : 0, me);
    RowGroupSums<Columns> sums = {};
#pragma unroll 1
    for (int slab = 0; slab < SLABS; slab += AT_ONCE) {
        await_copies<STAGES - 2>();
#if WGMMA
        show_copies();
#endif
        __syncthreads();  // the slabs are there for all, and all have read those whose place is free now
        requests.request(stage == 0 ? STAGES - 1 : stage - 1);
        const int at = RECORDS + stage * STAGE_BYTES;
#pragma unroll
        for (int s = 0; s < AT_ONCE; ++s)
            if ((WGMMA || has_tiles) && slab + s < SLABS) multiply_slab<Columns>(sums, at, s, top_scale, me);
#if WGMMA
        await_products();
#endif
        if (++stage == STAGES) stage = 0;
    }
    if (!has_tiles) return;
    const float unit = unit_of(top_scale);
#pragma unroll
    for (int j = 0; j < WEIGHT_TILES; ++j)
#pragma unroll
        for (int n = 0; n < Columns; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = n * 8 + 2 * me.c + i;
                if (column < row_group.count)
                    finish(j, row_group.start + column, sums[j][n][i] * unit, sums[j][n][2 + i] * unit);
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
