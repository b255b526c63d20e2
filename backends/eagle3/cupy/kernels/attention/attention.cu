// softmax(q · kᵀ / √HEAD_DIM) · v for the QUERY_ROWS query rows of each slot over its paged cache, flash-decoding style: the
// cache is cut into chunks of CHUNK positions, `attention` attends over each chunk on its own, and `attention_combine` joins
// the chunks of a row. Query row t of a slot stands at position length + offset + t and sees itself and what is before it, at
// most WINDOW positions in all (0: all). The step's own keys and values enter the cache here.
//
// What one block of `attention` does: one chunk, for one key/value head of one slot and a query tile of 16 query rows. The
// queries of the HEADS_PER_KV heads that share a key/value head are packed into tiles, row t · HEADS_PER_KV + head.
//   load       kv_ring.cuh: keys and values through a ring in shared memory, those of earlier steps before anything else is
//              known; load_queries, rotated (rope.cuh); append_new_rows: the block whose chunk a new position lies in puts its
//              key and value into the cache, and reads them there like any others
//   multiply   multiply_keys, update_softmax, multiply_values: warp w takes every WARPS-th key tile of TILE_KEYS positions
//   reduce     store_warp, join_warps: the warps' results are joined in the order of the warps
//   epilogue   the chunk's output, not yet divided, and its maximum and sum, go to `partial` and `partial_stats`
// What one block of `attention_combine` does: it joins the chunks of one (row, head) in COMBINE_WARPS sums, warp w's being of
// every COMBINE_WARPS-th chunk, and divides. With SINKS, every head has a learnt logit, its sink, which enters the divisor as
// one more position would, and has no value.
//
// KV_FP8, KV_NVFP4: in which format the cache is, bfloat16 (kv_bf16.cuh), E4M3 with scales (kv_fp8.cuh) or NVFP4
// (kv_nvfp4.cuh); what the latter two share is in kv_codes.cuh, and what the former two do in kv_rows.cuh. These have
// load_queries, append_new_rows, how the ring is filled and what multiplies; the rest is the same.
//
// Layouts: qkv [rows][HEADS + 2 · KV_HEADS][HEAD_DIM] float32, APPENDED_ROWS rows per slot; k_pages
// [block][KV_HEADS][BLOCK][HEAD_DIM] and, transposed, v_pages [block][KV_HEADS][HEAD_DIM][BLOCK]; of E4M3, scales
// [block][KV_HEADS][BLOCK / SCALE_POSITIONS][key, value]; of NVFP4, all three as nvfp4.cuh has them; cosine and sine
// [position][HEAD_DIM / 2]; partial [row][head][MAX_CHUNKS][HEAD_DIM]; partial_stats [row][head][MAX_CHUNKS]; out
// [row][head][HEAD_DIM]; sinks [head]. Where the draft extends (`counts` given), only the first counts[slot] rows of qkv exist,
// the last of them stands at length + offset, and that one alone is a query row.
//
// TREE_ROWS (0: a chain): the rows are nodes of a tree, of which several may stand at one position. chain_rows.cuh and
// tree_rows.cuh say what differs.
//
// KEPT_BLOCKS (0: all are kept): how many positions make a block that is kept or left out. Then the rows look at a part of the
// cache alone, and kept_blocks.cuh says which. Chunks, key tiles and all that is compared with them count the positions that
// are kept. whole_cache.cuh has the same of a whole cache.
//
// A row's bits do not depend on its neighbours: chunks and key tiles lie at fixed absolute positions, so what a row sees of a
// chunk, and the order in which it adds it up, is the same whatever rows share the tile. Positions beyond a row's own add
// exact zeros.
#include "async_copy.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "mma.cuh"
#include "prefetch.cuh"
#include "rope.cuh"

#ifndef TREE_ROWS
#define TREE_ROWS 0
#endif
#ifndef KV_FP8
#define KV_FP8 0
#endif
#ifndef KV_NVFP4
#define KV_NVFP4 0
#endif
#ifndef JOINS
#define JOINS 0
#endif
#ifndef KEPT_BLOCKS
#define KEPT_BLOCKS 0
#endif

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM must be 64 or 128");
static_assert(BLOCK % 32 == 0 && CHUNK % BLOCK == 0, "a key tile must not cross a block, nor a block a chunk");
static_assert(PACE_KILOBYTES >= 0, "PACE_KILOBYTES must be 0 (copies are not paced) or more");
static_assert(CHUNK / BLOCK <= 32, "CHUNK must be at most 32 blocks: a lane holds one entry of the table");

const int THREADS = WARPS * 32;
const int COMBINE_THREADS = COMBINE_WARPS * 32;
const int HEADS_PER_KV = HEADS / KV_HEADS;
const int QUERIES = HEADS_PER_KV * QUERY_ROWS;  // of a slot and a key/value head
const int QUERY_TILES = (QUERIES + 15) / 16;
const int HALVES = QUERIES > 8 ? 2 : 1;  // halves of a tile's 16 rows that have a query
const int QKV_HEADS = HEADS + 2 * KV_HEADS;
#define MASKED (-__int_as_float(0x7f800000))  // minus infinity: its power of two is an exact zero
#define LOWEST (-1e30f)  // a maximum below every score that is not masked; its powers, too, are exact zeros

struct AttentionArguments {            // launched on [MAX_CHUNKS * QUERY_TILES, KV_HEADS, S] for QUERY_ROWS rows of a slot
    float* partial;                    // [S * QUERY_ROWS * HEADS * MAX_CHUNKS, HEAD_DIM]
    float2* partial_stats;             // [S * QUERY_ROWS * HEADS * MAX_CHUNKS, 2]
    bf16* k_pages;                     // [PAGES, KV_HEADS, BLOCK, HEAD_DIM] only if !KV_FP8 && !KV_NVFP4
    bf16* v_pages;                     // [PAGES, KV_HEADS, HEAD_DIM, BLOCK] only if !KV_FP8 && !KV_NVFP4
    unsigned char* k_pages;            // [PAGES, KV_HEADS, BLOCK, HEAD_DIM] only if KV_FP8
    unsigned char* v_pages;            // [PAGES, KV_HEADS, HEAD_DIM, BLOCK] only if KV_FP8
    float* scales;                     // [PAGES, KV_HEADS, BLOCK / 16, 2] only if KV_FP8
    unsigned char *k_pages, *v_pages;  // [PAGES, KV_HEADS, HEAD_DIM / 16, 32, 16] only if KV_NVFP4
    unsigned char* scales;             // [PAGES, KV_HEADS, 8 * HEAD_DIM + 16] only if KV_NVFP4
    int* statistics;                   // [4] if STATISTICS
    const float *qkv, *cosine;         // [S * APPENDED_ROWS, (HEADS + 2 * KV_HEADS) * HEAD_DIM], [POSITIONS, HEAD_DIM / 2]
    const float* sine;                 // [POSITIONS, HEAD_DIM / 2]
    const int *block_table, *length;   // [S, MAX_BLOCKS], [S]
    const int* counts;                 // [S] or null
    const int *active, *active_count;  // [S], [1]
    int offset;
    const long long* masks;     // [S, TREE_STRIDE] only if TREE_ROWS
    float* node_scales;         // [S, KV_HEADS, TREE_STRIDE, 2] only if TREE_ROWS && KV_FP8
    const int *kept, *dropped;  // [S, KV_HEADS, RETRIEVED_BLOCKS], [S] only if KEPT_BLOCKS
    bf16* out;                  // [R, HEADS * HEAD_DIM] only if JOINS
    const bf16* sinks;          // [HEADS] if SINKS, only if JOINS
    int* finished;              // [_] only if JOINS
    const bf16* head_norms;     // [2, HEAD_DIM] if HEAD_NORM_EPS
};

struct CombineArguments {                       // launched on [R, HEADS] with COMBINE_THREADS threads
    bf16* out;                                  // [R, HEADS * HEAD_DIM]
    const float* partial;                       // [S * QUERY_ROWS * HEADS * MAX_CHUNKS, HEAD_DIM]
    const float2* partial_stats;                // [S * QUERY_ROWS * HEADS * MAX_CHUNKS, 2]
    const int *length, *active, *active_count;  // [S], [S], [1]
    int offset;
    const bf16* sinks;       // [HEADS] if SINKS
    const long long* masks;  // [S, TREE_STRIDE] only if TREE_ROWS
    const int* dropped;      // [S] only if KEPT_BLOCKS
};

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The first chunk that any row of a slot sees, given the position of its row 0.
__device__ __forceinline__ int first_chunk(int position) { return WINDOW ? max(0, position - WINDOW + 1) / CHUNK : 0; }

// ---- what a block has to do -------------------------------------------------------------------------------------------

struct Task {
    int tile, place, kv_head, a;  // query tile; chunk, counted from the first that is seen; head; place in the list of slots
    int slot, count;              // the slot, and how many are active
    int position, last;           // of the first and the last query row
    int appended, oldest_new;     // how many rows enter the cache, and the position of the first of them
    int chunk, begin, end;        // the chunk, and the positions of it that any row sees
    int entry;                    // of the block table, one per lane: the chunk's blocks
    int first_block;              // of the slot
    bool idle;
    const long long* masks;  // of the slot's nodes; null of a chain
    int dropped;             // positions that are left out, all of them before the rows; chunks count those that are kept

    // Query `index` of the tile's slot and key/value head: its head, and its row among those of all slots.
    __device__ __forceinline__ int head_of(int index) const { return kv_head * HEADS_PER_KV + index % HEADS_PER_KV; }
    __device__ __forceinline__ int row_of(int index) const { return a * QUERY_ROWS + index / HEADS_PER_KV; }
};

// ---- parts: keys and values on their way, rows, how much of the cache they look at, its format ---------------------------

#include "kv_ring.cuh"

// The head of query `index`, for its norm; of the last query, where there is none.
__device__ __forceinline__ const float* query_head(const AttentionArguments& args, const Task& task, int index) {
    index = min(index, QUERIES - 1);
    const int row = task.a * APPENDED_ROWS + (args.counts ? task.appended - 1 : index / HEADS_PER_KV);
    return args.qkv + ((long long)row * QKV_HEADS + task.head_of(index)) * HEAD_DIM;
}

// The query tile as operand A, as the format has it.
__shared__ uint4 queries[LOADS_32][2][32];

#if TREE_ROWS
#include "tree_rows.cuh"
#else
#include "chain_rows.cuh"
#endif
#if KEPT_BLOCKS
#include "kept_blocks.cuh"
#else
#include "whole_cache.cuh"
#endif

// What a lane knows of its rows g and g + 8: the positions that they see, and the softmax so far.
struct Softmax {
    int newest[2], oldest[2];
    float out[LOADS_8][4] = {};       // operand C of p · v, not yet divided
    float top[2] = {LOWEST, LOWEST};  // the largest score, in units of log2
    float sum[2] = {};                // this lane's part of the sum of powers

    __device__ __forceinline__ Softmax(const Task& task, const Thread& me) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            newest[half] =
                task.position + DEPTH_OF(task, min((task.tile * 16 + me.g + 8 * half) / HEADS_PER_KV, QUERY_ROWS - 1));
            oldest[half] = WINDOW ? newest[half] - WINDOW + 1 : 0;
        }
    }
};

// Products of a whole key tile, whose piece is `keys` or `values` (piece_products.cuh).
template <typename Keys>
__device__ __forceinline__ void multiply_tile_keys(float (&score)[TILES][4], const Keys& keys, int key, const Task& task,
                                                   const Thread& me);
template <typename Powers, typename Values>
__device__ __forceinline__ void multiply_tile_values(float (&out)[LOADS_8][4], const Powers& p, const Values& values, int key,
                                                     const Task& task, const Thread& me);

// What differs between the formats of the cache: load_queries, append_new_rows, KVRing::copy, multiply_keys, update_softmax,
// multiply_values.
#if KV_FP8 || KV_NVFP4
#include "kv_codes.cuh"
#else
#include "kv_bf16.cuh"
#endif
#if KV_FP8
#include "kv_fp8.cuh"
#endif
#if KV_NVFP4
#include "kv_nvfp4.cuh"
#else
#include "kv_rows.cuh"
#endif
#include "piece_products.cuh"

// ---- what a block has to do: its task ---------------------------------------------------------------------------------

__device__ __forceinline__ Task find_task(const AttentionArguments& args, const Thread& me) {
    Task t;
    // Two tiles of the same chunk are neighbours: the second finds keys and values in the L2 cache.
    t.tile = blockIdx.x % QUERY_TILES, t.place = blockIdx.x / QUERY_TILES, t.kv_head = blockIdx.y, t.a = blockIdx.z;
    // Every step of this chain is a trip to the L2 cache, so what does not depend on each other is requested at once. Beyond
    // active_count, too, the list holds a slot that exists.
    t.count = *args.active_count, t.slot = args.active[t.a];
    t.position = args.length[t.slot] + args.offset, t.last = t.position + ROW_POSITIONS - 1;
    leave_out(t, args);
    t.appended = args.counts ? args.counts[t.slot] : APPENDED_ROWS;
    t.oldest_new = args.counts ? t.position - t.appended + 1 : t.position;
    t.chunk = first_chunk(t.position) + t.place;
    const int* table = args.block_table + t.slot * MAX_BLOCKS;
    t.first_block = table[0];
    t.entry = entry_of(args, table, t, me.lane);
    t.masks = masks_of(args, t.slot);
    t.idle = t.a >= t.count || t.chunk * CHUNK > t.last;
    t.end = min(t.last + 1, (t.chunk + 1) * CHUNK);
    t.begin = WINDOW ? max(t.chunk * CHUNK, (t.position - WINDOW + 1) & ~(TILE_KEYS - 1)) : t.chunk * CHUNK;
    return t;
}

// Key tiles, by what becomes of them: all; in chunks beyond the slot's length; hidden within a chunk; worked on.
__device__ __forceinline__ void count_key_tiles(int* statistics, const Task& task) {
    if (threadIdx.x > 0 || task.a >= task.count) return;
    const int tiles = CHUNK / TILE_KEYS, done = task.idle ? 0 : max(0, (task.end - task.begin + TILE_KEYS - 1) / TILE_KEYS);
    atomicAdd(statistics, tiles);
    atomicAdd(statistics + (task.idle ? 1 : 2), tiles - done);
    atomicAdd(statistics + 3, done);
}

// ---- load: queries and new rows ---------------------------------------------------------------------------------------

// Angles come from memory once per layer: what passes through the L2 cache in a layer drives them out of it.
__device__ __forceinline__ void prefetch_angles(const float* cosine, const float* sine, const Task& task) {
    const int angles = (task.last - task.oldest_new + 1) * HALF_DIM * (int)sizeof(float);
    prefetch<WARPS * 32>(cosine + (long long)POSITION_OF(task, task.oldest_new) * HALF_DIM, angles);
    prefetch<WARPS * 32>(sine + (long long)POSITION_OF(task, task.oldest_new) * HALF_DIM, angles);
}

// ---- reduce and epilogue ----------------------------------------------------------------------------------------------

__shared__ float2 stats[WARPS][16];  // each warp's maximum and sum of the tile's rows
typedef float (*Outputs)[16][HEAD_DIM];

// Column d of a row, moved so that the rows of a warp's lanes lie in other banks of shared memory.
__device__ __forceinline__ int swizzled(int row, int d) { return d ^ row % 8 * 8; }

__device__ __forceinline__ void store_warp(Outputs outputs, Softmax& state, const Thread& me) {
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
        state.sum[half] += __shfl_xor_sync(FULL_WARP, state.sum[half], 1);
        state.sum[half] += __shfl_xor_sync(FULL_WARP, state.sum[half], 2);
        if (me.c == 0) stats[me.warp][me.g + 8 * half] = make_float2(state.top[half], state.sum[half]);
#pragma unroll
        for (int n = 0; n < LOADS_8; ++n)
            *reinterpret_cast<float2*>(&outputs[me.warp][me.g + 8 * half][swizzled(me.g, n * 8 + 2 * me.c)]) =
                make_float2(state.out[n][2 * half], state.out[n][2 * half + 1]);
    }
}

#include "join_chunks.cuh"

// Each warp takes every WARPS-th row of the tile, and joins what all warps have of it.
__device__ __forceinline__ void join_warps(const AttentionArguments& args, Outputs outputs, const Task& task,
                                           const Thread& me) {
    for (int row = me.warp; row < 16 && task.tile * 16 + row < QUERIES; row += WARPS) {
        const int index = task.tile * 16 + row;
        float highest = LOWEST, factor[WARPS], total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) highest = fmaxf(highest, stats[w][row].x);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            factor[w] = power_of_two(stats[w][row].x - highest);
            total = fmaf(factor[w], stats[w][row].y, total);
        }
        const long long at = ((long long)task.row_of(index) * HEADS + task.head_of(index)) * MAX_CHUNKS + task.place;
        const SingleChunk single = single_chunk(args, task, index, highest, total);
        if (me.lane == 0) args.partial_stats[at] = make_float2(highest, total);
        for (int d = me.lane; d < HEAD_DIM; d += 32) {
            float joined = 0;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) joined = fmaf(factor[w], outputs[w][row][swizzled(row, d)], joined);
            if (JOINS && chunks_of(task) == 1) {
                single.store(d, joined);
                continue;
            }
            args.partial[at * HEAD_DIM + d] = joined;
        }
    }
}

// ---- the kernels ------------------------------------------------------------------------------------------------------

extern "C" __global__ __launch_bounds__(LAUNCH_BOUNDS) void attention(const AttentionArguments args) {
    const Thread me;
    const Task task = find_task(args, me);
    if (STATISTICS) count_key_tiles(args.statistics, task);
    // A block that waited would hold a place that one with work may need. It need not: of an active slot the first chunk that
    // is seen always has work, and waits. (What is counted above is counted by kernels that are compiled for that alone.)
    if (task.idle) {
        if (task.count == 0) await_previous();
        return;
    }

    prefetch_angles(args.cosine, args.sine, task);
    if constexpr (HEAD_NORM_EPS > 0) prefetch<WARPS * 32>(args.head_norms, 2 * HEAD_DIM * (int)sizeof(bf16));
    KVRing ring(args, task, me);
    const int known = known_before(task);
    ring.fill_early(known);
    if (task.oldest_new > 0) find_outer(ring);  // else a new row makes them

    await_previous();
    let_next_start();
    load_queries(args, task, me);
    if (TREE_ROWS && task.position < task.end) load_nodes(args, task);
    const bool grows = !TREE_ROWS && known < task.end;  // new positions lie in this chunk
    if (grows) append_new_rows(args, task);
    __syncthreads();
    if (grows) ring.fill_late(known);
    if (task.oldest_new == 0) find_outer(ring);

    Softmax state(task, me);
    for (int key = ring.first; key < task.end; key += TILES_PER_TURN * TILE_STRIDE) {
        Scores score = {};
        Probabilities p;
        multiply_keys(score, ring, key);
        update_softmax(state, score, key, task, me);
        pack_probabilities(p, score);
        multiply_values(state, p, ring, key);
    }
    await_copies<0>();
    scale_outputs(state, ring);
    __syncthreads();

    const Outputs outputs = reinterpret_cast<Outputs>(memory);
    store_warp(outputs, state, me);
    __syncthreads();
    join_warps(args, outputs, task, me);
    if constexpr (JOINS) join_chunks(args, task, me);
}

// Eight chunks at a time, requested together.
const int BATCH = 8, LANE_WIDTH = HEAD_DIM / 32;

extern "C" __global__ __launch_bounds__(COMBINE_THREADS) void attention_combine(const __grid_constant__ CombineArguments args) {
    const int row = blockIdx.x, head = blockIdx.y, a = row / QUERY_ROWS;
    const bool idle = a >= *args.active_count;
    const int position = idle ? 0 : args.length[args.active[a]] + args.offset - dropped_of(args, args.active[a]);
    const int depth = depth_of_row(args, idle, a, row % QUERY_ROWS);
    const int first = first_chunk(position), chunks = (position + depth) / CHUNK - first + 1;
    // In units of log2, as the scores are.
    const float sink = SINKS ? (float)LOG2E * to_float(args.sinks[head]) : LOWEST;
    let_next_start();
    await_previous();
    if (idle) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __shared__ float outputs[COMBINE_WARPS][HEAD_DIM], sums[COMBINE_WARPS], top;
    const long long from = ((long long)row * HEADS + head) * MAX_CHUNKS;
    float highest = sink, joined[LANE_WIDTH] = {}, total = 0;
    for (int begin = (warp - first) & (COMBINE_WARPS - 1); begin < chunks; begin += COMBINE_WARPS * BATCH) {
        float2 stats[BATCH];
        float in[BATCH][LANE_WIDTH];
#pragma unroll
        for (int n = 0; n < BATCH; ++n) {
            const int chunk = begin + n * COMBINE_WARPS;
            if (chunk >= chunks) continue;
            stats[n] = args.partial_stats[from + chunk];
#pragma unroll
            for (int i = 0; i < LANE_WIDTH; ++i) in[n][i] = args.partial[(from + chunk) * HEAD_DIM + lane * LANE_WIDTH + i];
        }
        if (begin < COMBINE_WARPS) {  // the first batch: every warp finds the maximum of all chunks for itself
            for (int chunk = lane; chunk < chunks; chunk += 32) highest = fmaxf(highest, args.partial_stats[from + chunk].x);
#pragma unroll
            for (int step = 16; step; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, step));
            if (SINKS && lane == 0) top = highest;  // every warp that has a chunk stores the same
        }
#pragma unroll
        for (int n = 0; n < BATCH; ++n) {
            if (begin + n * COMBINE_WARPS >= chunks) continue;
            const float factor = power_of_two(stats[n].x - highest);
            total = fmaf(factor, stats[n].y, total);
#pragma unroll
            for (int i = 0; i < LANE_WIDTH; ++i) joined[i] = fmaf(factor, in[n][i], joined[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < LANE_WIDTH; ++i) outputs[warp][lane * LANE_WIDTH + i] = joined[i];
    if (lane == 0) sums[warp] = total;
    __syncthreads();
    const int d = threadIdx.x;
    if (d < HEAD_DIM) {
        float value = 0, weight = 0;
#pragma unroll
        for (int w = 0; w < COMBINE_WARPS; ++w) {
            value += outputs[w][d];
            weight += sums[w];
        }
        if (SINKS) weight += power_of_two(sink - top);
        args.out[((long long)row * HEADS + head) * HEAD_DIM + d] = to_bf16(value / weight);
    }
}
