// Accepts the longest path of a tree on which every draft token is the target's own choice behind its parent: accepted[slot]
// draft tokens, whose nodes are path[slot][1 …]; of equally long ones, that to the lowest node. And leaves the target's cache
// as if that path had been decoded alone: what is kept for its nodes goes to the positions that they stand at, in all layers,
// and their captured features go to the first rows, where the draft's extension reads them.
//
// Blocks y = slot; of x the first HEADS_IN_ALL are a layer's key/value head each, the others COLUMNS_AT_ONCE columns of
// features. Every block finds the path by itself, so that none waits for another: its first warp does, whose lanes have a node
// or two. Block 0 of a slot says what was found: target_tokens[slot][d] = what the target says behind the path's node at depth
// d, for `commit`; and it checks the masks that attention has used: a node looks at what its parent looks at and at itself, the
// root at itself alone, and parents come first. By induction that leaves one possible mask per node. The last block that has
// read the slot's choices clears them.
//
// Values lie transposed, so that those of a node are in as many lines of memory as a head has elements. All that the tree's
// nodes may have of a line is read while the LM head still runs, in whole pieces of 16 bytes, the positions of NUMBERS numbers;
// whole pieces are written, too. What is read before the LM head has ended is what this step's attention has written in the
// layers before the last: that has long ended. A thread moves one element of all nodes, by a list of places that is the same
// for all: there are so many blocks that instructions count.
//
// KV_FP8, KV_NVFP4: the cache is in E4M3 or NVFP4. Codes of nodes are those of their paths (tree_codes.cuh), so that they move
// as they are, those of NVFP4 with the scales of their blocks; where the accepted path begins the positions of a scale in E4M3,
// that scale goes to the cache's, too. What depends on the format is in settled_rows.cuh and settled_nvfp4.cuh.
//
// Layouts: choices [active slot][ROWS], as the LM head leaves them; drafts, target_tokens, masks and parents [slot][MAX_ROWS];
// path [slot][LEVELS + 1], node 0 first, meaningless behind accepted[slot]; readers [active slot], zero between steps; k_pages
// [layer][block][KV_HEADS][BLOCK][HEAD_DIM] and v_pages [layer][block][KV_HEADS][HEAD_DIM][BLOCK]; features
// [slot][MAX_ROWS][WIDTH]; of E4M3, scales [layer][block][KV_HEADS][BLOCK / 16][key, value] and node_scales
// [layer][slot][KV_HEADS][MAX_ROWS][key, value]; of NVFP4, pages and scales of a layer as nvfp4.cuh has them.
#include "argmax.cuh"
#include "async_copy.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "slots.cuh"
#ifndef KV_NVFP4
#define KV_NVFP4 0
#endif
#if KV_FP8 || KV_NVFP4
#include "fp8.cuh"
typedef unsigned char Cached;
#else
typedef bf16 Cached;
#endif

const int NUMBERS = LOAD / (int)sizeof(Cached);  // positions of 16 bytes of values
const int HEADS_IN_ALL = LAYERS * KV_HEADS;
const int COLUMNS_AT_ONCE = THREADS * 8;
const int LINES = HEAD_DIM / (KV_NVFP4 ? 2 : 1);         // of 16 bytes at a piece's positions: of an element each, or of two
const int EACH = (ROWS + 31) / 32;                       // nodes of a lane
const int PIECES = (ROWS + 2 * NUMBERS - 2) / NUMBERS;   // of NUMBERS positions, in which ROWS positions lie at most
const int MOVED = (LEVELS + 2 * NUMBERS - 2) / NUMBERS;  // the same of the positions of a path

static_assert(ROWS <= 64 && ROWS <= MAX_ROWS, "a mask has 64 bits");
static_assert(THREADS == HEAD_DIM && THREADS % 32 == 0, "a thread has one element of a head");
static_assert(MOVED * NUMBERS <= 32, "a lane finds one place of what is moved");
static_assert(WIDTH % 8 == 0 && BLOCK % NUMBERS == 0 && ROWS <= BLOCK,
              "pieces cross neither rows nor blocks, and lie in two at most");

struct TreeSettleArguments {               // launched on [LAYERS * KV_HEADS + (WIDTH - 1) / (8 * HEAD_DIM) + 1, S]
    unsigned char* k_pages;                // [LAYERS, BLOCKS, KV_HEADS, BLOCK, HEAD_DIM] only if KV_FP8
    unsigned char* v_pages;                // [LAYERS, BLOCKS, KV_HEADS, HEAD_DIM, BLOCK] only if KV_FP8
    float* scales;                         // [LAYERS, BLOCKS, KV_HEADS, BLOCK / 16, 2] only if KV_FP8
    const float* node_scales;              // [LAYERS, scaled_slots, KV_HEADS, MAX_ROWS, 2] only if KV_FP8
    int scaled_slots;                      // only if KV_FP8
    unsigned char *k_pages, *v_pages;      // [LAYERS, BLOCKS, KV_HEADS, HEAD_DIM / 16, 32, 16] only if KV_NVFP4
    unsigned char* scales;                 // [LAYERS, BLOCKS, KV_HEADS, 8 * HEAD_DIM + 16] only if KV_NVFP4
    bf16* k_pages;                         // [LAYERS, BLOCKS, KV_HEADS, BLOCK, HEAD_DIM] only if !KV_FP8 && !KV_NVFP4
    bf16* v_pages;                         // [LAYERS, BLOCKS, KV_HEADS, HEAD_DIM, BLOCK] only if !KV_FP8 && !KV_NVFP4
    bf16* features;                        // [S, MAX_ROWS, WIDTH]
    int *accepted, *path, *target_tokens;  // [S], [S, LEVELS + 1], [S, MAX_ROWS]
    Choice* choices;                       // [R]
    int *readers, *fault;                  // [S], [1]
    const long long* masks;                // [S, MAX_ROWS]
    const int *parents, *drafts, *length, *block_table;  // [S, MAX_ROWS], [S, MAX_ROWS], [S], [S, MAX_BLOCKS]
    const int *active, *active_count;                    // [S], [1]
    long long* stamps;                                   // [_, 5]
    const int* step;                                     // [1]
};

// What a block moves.
struct Part {
    int slot, length;
    int first;             // the first position of the piece that has the slot's first
    int layer, head;       // of a cache
    int column;            // of features: the thread's first
    long long page, rest;  // where the page with the slot's first position begins, and that with its last row

    __device__ __forceinline__ Part(const TreeSettleArguments& args, bool active) {
        slot = active ? args.active[blockIdx.y] : 0, length = args.length[slot], first = length & ~(NUMBERS - 1);
        layer = blockIdx.x / KV_HEADS, head = blockIdx.x % KV_HEADS;
        column = ((int)blockIdx.x - HEADS_IN_ALL) * COLUMNS_AT_ONCE + (int)threadIdx.x * 8;
        if ((int)blockIdx.x >= HEADS_IN_ALL || !active) return;
        const int* table = args.block_table + slot * MAX_BLOCKS + length / BLOCK;
        page = begin_of(table[0]), rest = begin_of(table[(length % BLOCK + ROWS - 1) / BLOCK]);
    }
    __device__ __forceinline__ long long begin_of(int block) const {
        return (((long long)layer * BLOCKS + block) * KV_HEADS + head) * BLOCK * LINES;
    }
    // Where the page with position `at` begins.
    __device__ __forceinline__ long long page_of(int at) const { return at / BLOCK == length / BLOCK ? page : rest; }
};

// ---- load -------------------------------------------------------------------------------------------------------------

// The values that the tree's nodes may have, [LINES][PIECES]: of every element of the head, from the piece with the slot's
// first position on. Copied asynchronously: there are more blocks of this kernel than would find registers for them at once.
extern __shared__ uint4 memory[];

// Unlike `copy_async`, of what the next step reads again.
__device__ __forceinline__ void copy_async_kept(unsigned shared, const void* global) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// Pieces From to PIECES of all lines: as many neighbours at once as a power of two has, whose threads copy one place each of
// every few lines.
template <int From>
__device__ __forceinline__ void request_values(const Cached* v_pages, const Part& part) {
    const int LEFT = PIECES - From, WIDE = LEFT >= 8 ? 8 : LEFT >= 4 ? 4 : LEFT >= 2 ? 2 : 1;
    const int piece = From + threadIdx.x % WIDE, line = threadIdx.x / WIDE, at = part.first + piece * NUMBERS;
    const Cached* from = v_pages + part.page_of(at) + line * BLOCK + at % BLOCK;
    const unsigned to = shared_address(memory) + LOAD * (line * PIECES + piece);
    if (at < part.length + ROWS && (LINES * WIDE >= THREADS || line < LINES))
#pragma unroll
        for (int n = 0; n < max(1, WIDE * LINES / THREADS); ++n)
            copy_async_kept(to + n * (THREADS / WIDE * PIECES * LOAD), from + n * (THREADS / WIDE * BLOCK));
    if constexpr (LEFT > WIDE) request_values<From + WIDE>(v_pages, part);
}

// ---- accept -----------------------------------------------------------------------------------------------------------

// The nodes of a lane, lane and lane + 32, as they are known before the target's choices are there.
struct Nodes {
    unsigned long long mask[EACH];
    int parent[EACH], drafted[EACH];

    __device__ __forceinline__ Nodes(const TreeSettleArguments& args, int slot, bool wanted) {
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int node = node_of(n);
            const bool exists = wanted && node < ROWS;
            mask[n] = exists ? (unsigned long long)args.masks[slot * MAX_ROWS + node] : 0;
            parent[n] = exists ? args.parents[slot * MAX_ROWS + node] : 0;
            drafted[n] = exists && node > 0 ? args.drafts[slot * MAX_ROWS + node - 1] : 0;
        }
    }
    __device__ __forceinline__ static int node_of(int n) { return n * 32 + (int)threadIdx.x % 32; }
    __device__ __forceinline__ bool is_ordered(int n) const {
        return node_of(n) == 0 ? parent[n] == 0 : parent[n] >= 0 && parent[n] < node_of(n);
    }
};

// What node `of` has, of what all lanes have of theirs.
template <typename Value>
__device__ __forceinline__ Value at_node(const Value (&own)[EACH], int of) {
    const Value low = __shfl_sync(FULL_WARP, own[0], of % 32);
    const Value high = __shfl_sync(FULL_WARP, own[EACH - 1], of % 32);
    return of < 32 ? low : high;
}

__shared__ int path[LEVELS + 1];  // the accepted nodes, the root first
struct alignas(NUMBERS) Places {
    unsigned of[NUMBERS / 4];
};
__shared__ Places places[MOVED];  // where in `memory` each position of what is moved comes from, in bytes
__shared__ int accepted;          // draft tokens of the path
__shared__ bool in_place;

// The node that goes to depth d + 1. A path that is none, of masks that are not the tree's, must not lead out of the tree.
__device__ __forceinline__ int node_at(int d) { return min(max(path[d + 1], 0), ROWS - 1); }

// The first piece of what is moved.
__device__ __forceinline__ int first_moved(const Part& part) { return (part.length + 1 - part.first) / NUMBERS; }

// The path that is accepted, by the first warp. Returns how many blocks have read the slot's choices before this one, to lane
// 0.
__device__ __forceinline__ int accept_path(const TreeSettleArguments& args, const Nodes& nodes, const Part& part) {
    const int a = blockIdx.y, lane = threadIdx.x;
    int tokens[EACH], depth[EACH];
    bool finite = true;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int node = Nodes::node_of(n);
        const Choice of_row = node < ROWS ? args.choices[a * ROWS + node] : 0;
        tokens[n] = index_of(of_row), depth[n] = __popcll((long long)nodes.mask[n]) - 1;
        finite = finite && is_finite(of_row);
    }
    unsigned long long refused = 0;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int node = Nodes::node_of(n), behind = at_node(tokens, max(nodes.parent[n], 0) % 64);
        const bool agrees = node >= ROWS || node == 0 || (nodes.is_ordered(n) && nodes.drafted[n] == behind);
        refused |= (unsigned long long)__ballot_sync(FULL_WARP, !agrees) << n * 32;
    }
    __syncwarp();  // all choices have been read
    const int readers_before = lane == 0 ? atomicAdd(args.readers + a, 1) : 0;
    unsigned furthest = 63;  // the root
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const bool reached = Nodes::node_of(n) < ROWS && !(nodes.mask[n] & refused) && depth[n] >= 0 && depth[n] <= LEVELS;
        furthest = max(furthest, reached ? (unsigned)(depth[n] * 64 + 63 - Nodes::node_of(n)) : 0u);
    }
    furthest = __reduce_max_sync(FULL_WARP, furthest);
    const int length = furthest / 64, last = 63 - furthest % 64;
    const unsigned long long on_path = at_node(nodes.mask, last);
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int node = Nodes::node_of(n);
        if (node >= ROWS || !(on_path >> node & 1) || depth[n] < 0 || depth[n] > length) continue;
        path[depth[n]] = node;
        if (blockIdx.x > 0) continue;
        args.path[part.slot * (LEVELS + 1) + depth[n]] = node;
        args.target_tokens[part.slot * MAX_ROWS + depth[n]] = tokens[n];
    }
    __syncwarp();
    const int here = first_moved(part) * NUMBERS + lane, d = part.first + here - part.length - 1;
    const int from = d >= 0 && d < length ? part.length - part.first + node_at(d) : here;
    if (lane < MOVED * NUMBERS) reinterpret_cast<unsigned char*>(places)[lane] = (unsigned char)from;
    const bool moves = __ballot_sync(FULL_WARP, lane < length && path[min(lane, LEVELS - 1) + 1] != lane + 1);
    if (lane == 0) accepted = length, in_place = !moves;
    if (blockIdx.x > 0) return readers_before;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int node = Nodes::node_of(n);
        const unsigned long long above = at_node(nodes.mask, max(nodes.parent[n], 0) % 64);
        const unsigned long long expected = (node > 0 && nodes.is_ordered(n) ? above : 0) | 1ull << node;
        if (node < ROWS && (!nodes.is_ordered(n) || nodes.mask[n] != expected)) atomicOr(args.fault, MASK_INTEGRITY);
    }
    if (!finite) atomicOr(args.fault, TARGET_NOT_FINITE);
    if (lane == 0) args.accepted[part.slot] = length;
    return readers_before;
}

// The last block that has read the slot's choices clears them. By the first warp.
__device__ __forceinline__ void clear_choices(const TreeSettleArguments& args, int readers_before) {
    const int a = blockIdx.y;
    if (__shfl_sync(FULL_WARP, readers_before, 0) != (int)gridDim.x - 1) return;
#pragma unroll
    for (int n = 0; n < EACH; ++n)
        if (Nodes::node_of(n) < ROWS) args.choices[a * ROWS + Nodes::node_of(n)] = 0;
    if (threadIdx.x == 0) args.readers[a] = 0;
}

// ---- move -------------------------------------------------------------------------------------------------------------

// A row's column, of keys, scales or features, of all nodes of the path. A thread reads all before it writes any, and nobody
// else touches its column.
template <typename Load>
struct Column {
    Load of_node[LEVELS];

    template <typename At>
    __device__ __forceinline__ void load(At at) {
#pragma unroll
        for (int d = 0; d < LEVELS; ++d)
            if (d < accepted) of_node[d] = *at(node_at(d));
    }
    template <typename At>
    __device__ __forceinline__ void store(At at) const {
#pragma unroll
        for (int d = 0; d < LEVELS; ++d)
            if (d < accepted) *at(d + 1) = of_node[d];
    }
};

template <typename Element>
__device__ __forceinline__ void move_values(Cached* v_pages, const Part& part) {
    const int begin = first_moved(part), end = (part.length + accepted - part.first) / NUMBERS;
    const Element element;
#pragma unroll
    for (int n = 0; n < MOVED; ++n) {
        if (begin + n > end) break;
        const Places from = places[n];
        unsigned words[4];
#pragma unroll
        for (int e = 0; e < NUMBERS; ++e) element.put(words, e, element.number(from.of[e / 4] >> e % 4 * 8 & 255));
        const int at = part.first + (begin + n) * NUMBERS;
        element.store(v_pages + part.page_of(at), at, words);
    }
}

#if KV_NVFP4
#include "settled_nvfp4.cuh"
#else
#include "settled_rows.cuh"
#endif

__device__ __forceinline__ void move_features(bf16* features, const Part& part) {
    if (part.column >= WIDTH) return;
    bf16* rows = features + (long long)part.slot * MAX_ROWS * WIDTH + part.column;
    auto of_row = [&](int row) { return reinterpret_cast<uint4*>(rows + (long long)row * WIDTH); };
    Column<uint4> moved;
    moved.load(of_row);
    moved.store(of_row);
}

extern "C" __global__ __launch_bounds__(THREADS) void tree_settle(const __grid_constant__ TreeSettleArguments args) {
    const int count = *args.active_count, now = *args.step;
    const bool active = (int)blockIdx.y < count, finds = threadIdx.x < 32;
    const Part part(args, active);
    const bool cached = (int)blockIdx.x < HEADS_IN_ALL, early = cached && part.layer < LAYERS - 1;
    if (active && early) request_values<0>(args.v_pages, part);
    const Nodes nodes(args, part.slot, finds);
    await_previous();
    let_next_start();
    if (!active) return;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) args.stamps[now * STAMPS + VERIFIED] = device_nanoseconds();
    if (cached && !early) request_values<0>(args.v_pages, part);
    end_of_group();
    int readers_before = 0;
    if (finds) readers_before = accept_path(args, nodes, part);
    await_copies<0>();
    __syncthreads();
    if (!in_place) {
        if (cached)
            move_cached(args, part);
        else
            move_features(args.features, part);
    }
#if KV_FP8
    if (cached) move_scale(args, part);
#endif
    if (finds) clear_choices(args, readers_before);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) args.stamps[now * STAMPS + ACCEPTED] = device_nanoseconds();
}
