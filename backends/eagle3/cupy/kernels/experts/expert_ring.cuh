// The MXFP4 weights of experts on their way to the tensor cores: per warp, a ring in shared memory that is filled by
// asynchronous copies.
//
// packing.py has cut every matrix into tiles of 16 rows, and those into slabs of 64 columns. A tile has first the numbers of
// its slabs, 512 bytes each as one warp multiplies with them, 16 bytes of each lane; then their scales, 32 bytes each. So
// numbers begin at whole lines of 128 bytes. Numbers of a lane: row g of the slab's first block of 32, row g + 8 of it, the
// same two of the second block, at this lane's k, eight each (`expanded`). Scales: the same four of rows g.
//
// An item is WEIGHT_TILES tiles of one expert, for one of its row groups. Blocks share them out (`Walk`). Warp w of a block
// takes the slabs w · EACH, … of each, in turns of RING_SLABS. A slab that has been read makes room for the same slab of the
// next turn, which may be the first of the block's next item. So the ring runs on from item to item, and every address in it is
// known to the compiler: at the bandwidth of the memory, a warp has no instructions left for anything else. A lane reads
// numbers that it has copied itself, and scales that others have copied: hence the one `__syncwarp` of a turn. Scales of two
// turns have places, since those of the next are requested before the last of this one are read.
#pragma once
#include "async_copy.cuh"
#include "mma.cuh"
#include "routing.cuh"

const int BLOCKS_OF_K = K_IN / 32;
const int SLABS = (BLOCKS_OF_K + 1) / 2;
const int NUMBERS = 512, SCALES = 32;  // bytes of a slab
const int LINE = 128;                  // bytes
const int TILE_BYTES = (SLABS * (NUMBERS + SCALES) + LINE - 1) / LINE * LINE;
const int EACH = (SLABS + WARPS - 1) / WARPS;  // slabs of a warp, of an item: neighbours
const int BUSY_WARPS = (SLABS + EACH - 1) / EACH;
const int TURNS = EACH / RING_SLABS;
const int GROUPS = TILES_OF_EXPERT / WEIGHT_TILES;  // items of a row group
// Bytes of a warp, within shared memory: numbers of a turn, scales of a turn.
const int TURN_NUMBERS = RING_SLABS * WEIGHT_TILES * NUMBERS;
const int TURN_SCALES = RING_SLABS * WEIGHT_TILES * SCALES;
const int RINGS = WARPS * (TURN_NUMBERS + 2 * TURN_SCALES);  // bytes

static_assert(K_IN % 32 == 0, "K_IN must be a multiple of 32: one block of MXFP4");
static_assert(TILES_OF_EXPERT % WEIGHT_TILES == 0, "an item must not cross from one expert to the next");
static_assert(EACH % RING_SLABS == 0, "a warp has whole turns: RING_SLABS must divide its slabs");
static_assert(RING_SLABS * SCALES <= 32 * LOAD, "one copy of a warp brings the scales of a turn");

// The numbers of all warps, their scales, and after them the sums of the warps.
extern __shared__ uint4 memory[];

// A lane's share of a slab: the numbers of 16 rows, and the scales of its two.
struct Slab {
    uint4 numbers;
    unsigned scales;
};

struct Item {
    int row_group, group;
};

// The items of this block, one after the other. All but the first row group of an expert find its weights in the L2 cache.
template <bool Many>
struct WalkOf;
typedef WalkOf<MANY_ROWS> Walk;

// Block b takes the items b, b + gridDim.x, … Neighbouring blocks read neighbouring memory; where experts' results are added up
// (ROW_GROUPS_TOGETHER), they finish the same columns. With few rows this is faster.
template <>
struct WalkOf<false> {
    const int inner;  // how many items share the outer number: the groups of a row group, or the row groups of a group
    const int inner_step, outer_step;
    int at_inner, at_outer;

    __device__ __forceinline__ WalkOf()
        : inner(ROW_GROUPS_TOGETHER ? max(routing.row_group_count, 1) : GROUPS),
          inner_step(gridDim.x % inner),
          outer_step(gridDim.x / inner),
          at_inner(blockIdx.x % inner),
          at_outer(routing.row_group_count == 0 ? GROUPS : blockIdx.x / inner) {}  // over at once where nothing is routed

    __device__ __forceinline__ bool is_over() const {
        return at_outer >= (ROW_GROUPS_TOGETHER ? GROUPS : routing.row_group_count);
    }

    __device__ __forceinline__ Item item() const {
        return ROW_GROUPS_TOGETHER ? Item{at_inner, at_outer} : Item{at_outer, at_inner};
    }

    __device__ __forceinline__ void advance() {
        at_inner += inner_step;
        at_outer += outer_step;
        if (at_inner >= inner) at_inner -= inner, ++at_outer;
    }
};

// Of MANY_ROWS: of all items, expert by expert and group by group, a range like that of every other block. The row groups of an
// expert take turns at each group.
//
// Groups of columns are complete at the end of a launch, nearly all at once, and different blocks complete them. Were they
// completed one after the other, it would be by the same few blocks: one that adds up experts falls behind, and whoever is
// behind is the last at the next group.
template <>
struct WalkOf<true> {
    int row_group, group;  // of the item
    int first;             // the first row group of its expert
    int left;              // items from this one on

    __device__ __forceinline__ WalkOf() : row_group(0), group(0), first(0) {
        const unsigned items = routing.row_group_count * GROUPS, begin = blockIdx.x * items / gridDim.x;
        left = (blockIdx.x + 1) * items / gridDim.x - begin;
        if (is_over()) return;
        const RowGroup& at = routing.row_groups[begin / GROUPS];
        first = begin / GROUPS - (at.start - routing.start[at.expert]) / ROW_GROUP;
        const int within = begin - first * GROUPS, row_groups = (row_count(at.expert) + ROW_GROUP - 1) / ROW_GROUP;
        row_group = first + within % row_groups;
        group = within / row_groups;
    }

    __device__ __forceinline__ bool is_over() const { return left <= 0; }

    __device__ __forceinline__ Item item() const { return {row_group, group}; }

    __device__ __forceinline__ void advance() {
        --left;
        if (++row_group < routing.row_group_count && routing.row_groups[row_group].expert == routing.row_groups[first].expert)
            return;
        if (++group < GROUPS)
            row_group = first;
        else
            group = 0, first = row_group;
    }
};

// Where a lane copies a turn from: its share of the turn's first slab. Null behind the last item.
struct Source {
    const unsigned char *numbers, *scales;
};

struct ExpertRing {
    const Thread& me;
    const unsigned char* weight;
    const int first;                              // slab of this warp, of every item
    const unsigned numbers_to, scales_to;         // addresses of this lane's copies, within shared memory
    const unsigned char *numbers_at, *scales_at;  // what this lane reads
    unsigned second;  // offset of the scales of the turn that comes next: of the first or the second place

    __device__ __forceinline__ ExpertRing(const unsigned char* weight, const Thread& me)
        : me(me),
          weight(weight),
          first(me.warp * EACH),
          numbers_to(shared_address(memory) + me.warp * TURN_NUMBERS + me.lane * LOAD),
          scales_to(shared_address(memory) + WARPS * TURN_NUMBERS + me.warp * 2 * TURN_SCALES + me.lane * LOAD),
          numbers_at(reinterpret_cast<const unsigned char*>(memory) + me.warp * TURN_NUMBERS + me.lane * LOAD),
          scales_at(reinterpret_cast<const unsigned char*>(memory) + WARPS * TURN_NUMBERS + me.warp * 2 * TURN_SCALES +
                    me.g * 4),
          second(shared_address(memory) - (unsigned)__cvta_generic_to_shared(memory)) {}

    __device__ __forceinline__ Source source(const Walk& walk) const {
        if (walk.is_over()) return {};
        const Item item = walk.item();
        const int expert = routing.row_groups[item.row_group].expert;
        const unsigned char* tile = weight + (long long)(expert * TILES_OF_EXPERT + item.group * WEIGHT_TILES) * TILE_BYTES;
        return {tile + first * NUMBERS + me.lane * LOAD, tile + SLABS * NUMBERS + first * SCALES + me.lane * LOAD};
    }

    // Whether this warp has the `n`-th slab of a turn. Mostly known to the compiler.
    __device__ __forceinline__ bool has(int turn, int n) const {
        return WARPS * EACH == SLABS || first + turn * RING_SLABS + n < SLABS;
    }

    // Request the `n`-th slab of a turn, with the first one all scales of it, as one group of copies, which may be empty.
    __device__ __forceinline__ void request(int turn, int n, const Source& from) {
        if (from.numbers != nullptr && has(turn, n))
#pragma unroll
            for (int j = 0; j < WEIGHT_TILES; ++j) {
                copy_async(numbers_to + (n * WEIGHT_TILES + j) * NUMBERS, from.numbers + n * NUMBERS + j * TILE_BYTES);
                if (n == 0 && me.lane < RING_SLABS * SCALES / LOAD && has(turn, me.lane * LOAD / SCALES))
                    copy_async(scales_to + second + j * RING_SLABS * SCALES, from.scales + j * TILE_BYTES);
            }
        end_of_group();
    }

    // The first turn of the first item.
    __device__ __forceinline__ void fill(const Source& from) {
#pragma unroll
        for (int n = 0; n < RING_SLABS; ++n) request(0, n, from);
    }

    // Wait for the `n`-th slab of the turn that is next, and load it into registers: its place is free then.
    __device__ __forceinline__ void load(int n, Slab (&tiles)[WEIGHT_TILES]) {
        await_copies<RING_SLABS - 1>();
        if (n == 0) {
            __syncwarp();
            second ^= TURN_SCALES;
        }
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) {
            tiles[j].numbers = *reinterpret_cast<const uint4*>(numbers_at + (n * WEIGHT_TILES + j) * NUMBERS);
            tiles[j].scales =
                *reinterpret_cast<const unsigned*>(scales_at + (second ^ TURN_SCALES) + (j * RING_SLABS + n) * SCALES);
        }
    }
};
