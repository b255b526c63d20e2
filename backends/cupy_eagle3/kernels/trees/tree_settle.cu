// Accepts the longest path of a tree on which every draft token is the target's own choice behind its parent: accepted[slot]
// draft tokens, whose nodes are path[slot][1 …]; of equally long ones, that to the lowest node. And leaves the target's cache
// as if that path had been decoded alone: what is kept for its nodes goes to the positions that they stand at, in all layers,
// and their captured features go to the first rows, where the draft's extension reads them.
//
// Blocks y = slot; of x the first HEADS_IN_ALL are a layer's key/value head each, the others COLUMNS_AT_ONCE columns of
// features. Every block finds the path by itself, one thread per node, so that none waits for another. Block 0 of a slot says
// what was found: target_tokens[slot][d] = what the target says behind the path's node at depth d, for `commit`; and it checks
// the masks that attention has used: a node looks at what its parent looks at and at itself, the root at itself alone, and
// parents come first. By induction that leaves one possible mask per node. The last block that has read the slot's choices
// clears them.
//
// Values lie transposed, so that those of a node are in as many lines of memory as a head has elements. All that the tree's
// nodes may have of a line is read while the LM head still runs, in whole pieces of eight positions; whole pieces are
// written, too. What is read before the LM head has ended is what this step's attention has written in the layers before the
// last: that has long ended.
//
// Layouts: choices [active slot][ROWS], as the LM head leaves them; drafts, target_tokens, masks and parents [slot][MAX_ROWS];
// path [slot][LEVELS + 1], node 0 first, meaningless behind accepted[slot]; readers [active slot], zero between steps; k_pages
// [layer][block][KV_HEADS][BLOCK][HEAD_DIM] and v_pages [layer][block][KV_HEADS][HEAD_DIM][BLOCK]; features
// [slot][MAX_ROWS][WIDTH].
#include "argmax.cuh"
#include "async_copy.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "slots.cuh"

const int HEADS_IN_ALL = LAYERS * KV_HEADS;
const int COLUMNS_AT_ONCE = THREADS * 8;
const int WARPS = THREADS / 32;
const int LOADS = HEAD_DIM / 8;       // of 16 bytes, of a row of keys
const int PIECES = (ROWS + 14) / 8;   // of eight positions, in which ROWS positions lie at most
const int MOVED = (LEVELS + 14) / 8;  // the same of the positions of a path

static_assert(ROWS <= 64 && ROWS <= MAX_ROWS && THREADS >= ROWS, "a mask has 64 bits, and a thread one node");
static_assert(THREADS == HEAD_DIM && THREADS % 32 == 0 && WARPS >= 2, "a thread has one element of a head");
static_assert(LEVELS * LOADS <= THREADS, "a thread moves 16 bytes of keys at most");
static_assert(WIDTH % 8 == 0 && BLOCK % 8 == 0, "pieces of eight must not cross a row, nor a block");

struct TreeSettleArguments {
    bf16* k_pages;
    bf16* v_pages;
    bf16* features;
    int* accepted;
    int* path;
    int* target_tokens;
    Choice* choices;
    int* readers;
    int* fault;
    const long long* masks;
    const int* parents;
    const int* drafts;
    const int* length;
    const int* block_table;
    const int* active;
    const int* active_count;
    long long* stamps;
    const int* step;
};

// What a block moves.
struct Part {
    int slot, length;
    int layer, head;  // of a cache
    int column;       // of features: the thread's first
    const int* table;

    __device__ __forceinline__ explicit Part(const TreeSettleArguments& args) {
        slot = args.active[blockIdx.y], length = args.length[slot];
        layer = blockIdx.x / KV_HEADS, head = blockIdx.x % KV_HEADS;
        column = ((int)blockIdx.x - HEADS_IN_ALL) * COLUMNS_AT_ONCE + (int)threadIdx.x * 8;
        table = args.block_table + slot * MAX_BLOCKS;
    }
    // Where the page with position `at` begins.
    __device__ __forceinline__ long long page(int at) const {
        return (((long long)layer * BLOCKS + table[at / BLOCK]) * KV_HEADS + head) * BLOCK * HEAD_DIM;
    }
};

// ---- load -------------------------------------------------------------------------------------------------------------

// The values that the tree's nodes may have, [HEAD_DIM][PIECES]: of every element of the head, from the piece with the slot's
// first position on. Copied asynchronously: there are more blocks of this kernel than would find registers for them at once.
extern __shared__ uint4 memory[];

__device__ __forceinline__ void request_values(const bf16* v_pages, const Part& part) {
    const int first = part.length & ~7;
    const unsigned address = shared_address(memory);
#pragma unroll
    for (int n = 0; n < PIECES; ++n) {
        const int index = n * THREADS + threadIdx.x, at = first + index % PIECES * 8;
        if (at < part.length + ROWS)
            copy_async(address + LOAD * index, v_pages + part.page(at) + index / PIECES * BLOCK + at % BLOCK);
    }
    end_of_group();
}

// ---- accept -----------------------------------------------------------------------------------------------------------

// A node, as its thread knows it before the target's choices are there.
struct Node {
    bool exists;
    unsigned long long mask;
    int parent, drafted;

    __device__ __forceinline__ Node(const TreeSettleArguments& args, int slot) {
        const int t = threadIdx.x;
        exists = t < ROWS;
        mask = exists ? (unsigned long long)args.masks[slot * MAX_ROWS + t] : 0;
        parent = exists ? args.parents[slot * MAX_ROWS + t] : 0;
        drafted = exists && t > 0 ? args.drafts[slot * MAX_ROWS + t - 1] : 0;
    }
};

__shared__ int path[LEVELS + 1];  // the accepted nodes, the root first

// The path that is accepted, in `path`; returns how many draft tokens it has. Then all copies have arrived, too.
__device__ __forceinline__ int accept_path(const TreeSettleArguments& args, const Node& node, int slot) {
    __shared__ int tokens[ROWS];
    __shared__ unsigned long long masks[ROWS];
    __shared__ unsigned disagreeing[WARPS];
    __shared__ int best[WARPS], readers_before;
    const int a = blockIdx.y, t = threadIdx.x, lane = t % 32, warp = t / 32;
    const Choice of_row = node.exists ? args.choices[a * ROWS + t] : 0;
    if (node.exists) tokens[t] = index_of(of_row), masks[t] = node.mask;
    __syncthreads();  // all choices have been read
    if (t == 0) readers_before = atomicAdd(args.readers + a, 1);
    const bool ordered = t == 0 ? node.parent == 0 : node.parent >= 0 && node.parent < t;
    const bool agrees = !node.exists || t == 0 || (ordered && node.drafted == tokens[node.parent]);
    const unsigned wrong = __ballot_sync(FULL_WARP, !agrees);
    if (lane == 0) disagreeing[warp] = wrong;
    if (blockIdx.x == 0 && node.exists) {
        const unsigned long long expected = (t > 0 && ordered ? masks[node.parent] : 0) | 1ull << t;
        if (!ordered || node.mask != expected) atomicOr(args.fault, MASK_INTEGRITY);
        if (!is_finite(of_row)) atomicOr(args.fault, TARGET_NOT_FINITE);
    }
    __syncthreads();
    const unsigned long long refused = disagreeing[0] | (unsigned long long)disagreeing[1] << 32;
    const int depth = __popcll((long long)node.mask) - 1;
    const bool reached = node.exists && !(node.mask & refused) && depth >= 0 && depth <= LEVELS;
    const unsigned furthest = __reduce_max_sync(FULL_WARP, reached ? (unsigned)(depth * 64 + 63 - t) : 0u);
    if (lane == 0) best[warp] = (int)furthest;
    __syncthreads();
    const int found = max(63, max(best[0], best[1]));  // 63: the root
    const int length = found / 64, last = 63 - found % 64;
    if (node.exists && masks[last] >> t & 1 && depth >= 0 && depth <= length) {
        path[depth] = t;
        if (blockIdx.x == 0) {
            args.path[slot * (LEVELS + 1) + depth] = t;
            args.target_tokens[slot * MAX_ROWS + depth] = tokens[t];
        }
    }
    if (blockIdx.x == 0 && t == 0) args.accepted[slot] = length;
    if (readers_before == (int)gridDim.x - 1) {
        if (node.exists) args.choices[a * ROWS + t] = 0;
        if (t == 0) args.readers[a] = 0;
    }
    await_copies<0>();
    __syncthreads();
    return length;
}

// ---- move -------------------------------------------------------------------------------------------------------------

// The node that goes to depth d + 1. A path that is none, of masks that are not the tree's, must not lead out of the tree.
__device__ __forceinline__ int node_at(int d) { return min(max(path[d + 1], 0), ROWS - 1); }

__device__ __forceinline__ void move_keys(bf16* k_pages, const Part& part, int accepted) {
    const int d = threadIdx.x / LOADS, from = d < accepted ? part.length + node_at(d) : 0, to = part.length + d + 1;
    uint4 moved;
    if (d < accepted)
        moved = reinterpret_cast<const uint4*>(k_pages + part.page(from) + from % BLOCK * HEAD_DIM)[threadIdx.x % LOADS];
    __syncthreads();  // a row is read before another is put there
    if (d < accepted && from != to)
        reinterpret_cast<uint4*>(k_pages + part.page(to) + to % BLOCK * HEAD_DIM)[threadIdx.x % LOADS] = moved;
}

__device__ __forceinline__ void move_values(bf16* v_pages, const Part& part, int accepted) {
    bool in_place = true;
    for (int d = 0; d < accepted; ++d) in_place &= node_at(d) == d + 1;
    if (in_place) return;
    const int first = part.length & ~7, begin = (part.length + 1 - first) / 8, end = (part.length + accepted - first) / 8;
#pragma unroll
    for (int n = 0; n < MOVED; ++n) {
        const int index = n * THREADS + threadIdx.x, i = index / MOVED, piece = begin + index % MOVED;
        if (piece > end) continue;
        const bf16* own = reinterpret_cast<const bf16*>(memory + i * PIECES);
        unsigned words[4];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const int here = piece * 8 + e, d = first + here - part.length - 1;
            const unsigned of = own[d >= 0 && d < accepted ? part.length - first + node_at(d) : here];
            words[e / 2] = e % 2 ? words[e / 2] | of << 16 : of;
        }
        const int at = first + piece * 8;
        *reinterpret_cast<uint4*>(v_pages + part.page(at) + i * BLOCK + at % BLOCK) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
}

__device__ __forceinline__ void move_features(bf16* features, const Part& part, int accepted) {
    if (part.column >= WIDTH) return;
    bf16* rows = features + (long long)part.slot * MAX_ROWS * WIDTH + part.column;
    uint4 moved[LEVELS];
#pragma unroll
    for (int d = 0; d < LEVELS; ++d)
        if (d < accepted) moved[d] = *reinterpret_cast<const uint4*>(rows + (long long)node_at(d) * WIDTH);
#pragma unroll
    for (int d = 0; d < LEVELS; ++d)
        if (d < accepted) *reinterpret_cast<uint4*>(rows + (long long)(d + 1) * WIDTH) = moved[d];
}

extern "C" __global__ __launch_bounds__(THREADS) void tree_settle(const __grid_constant__ TreeSettleArguments args) {
    const int count = *args.active_count, now = *args.step;
    const Part part(args);
    const Node node(args, part.slot);
    const bool cached = (int)blockIdx.x < HEADS_IN_ALL, active = (int)blockIdx.y < count;
    const bool early = cached && part.layer < LAYERS - 1;
    if (active && early) request_values(args.v_pages, part);
    await_previous();
    let_next_start();
    if (!active) return;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) args.stamps[now * STAMPS + VERIFIED] = device_nanoseconds();
    if (cached && !early) request_values(args.v_pages, part);
    const int accepted = accept_path(args, node, part.slot);
    if (cached) {
        move_keys(args.k_pages, part, accepted);
        move_values(args.v_pages, part, accepted);
    } else {
        move_features(args.features, part, accepted);
    }
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) args.stamps[now * STAMPS + ACCEPTED] = device_nanoseconds();
}
