// softmax(q · kᵀ / √HEAD_DIM) · v for ROWS query rows of each slot over its whole paged cache, as `attention.cu` does it for
// few rows: the cache is cut into chunks of CHUNK positions, and `attention_combine` joins the chunks of a row. It is for the
// full verifications of SpecPV, in which a slot has many rows. Row t stands at position first[slot] + t.
//
// What one block does: one chunk, for one key/value head of one slot and up to WARPS query tiles of 16 query rows, a tile for
// each warp. The queries of the heads that share the key/value head are packed into tiles, row t · HEADS_PER_KV + head.
//   load       all threads copy a cache block, keys and values, into a ring of STAGES stages, which all warps read: so the
//              cache is read once for all of a block's queries. What the rows add to the cache enters it here
//   multiply   every warp multiplies its queries with every key tile of 32 positions, in their order
//   epilogue   the chunk's output, not yet divided, and its maximum and sum, go to `partial` and `partial_stats`
//
// It also leaves the rotated queries of the newest ASKED_ROWS rows, those at length[slot] and behind, in `asked`
// [slot][ASKED_ROWS][HEADS][HEAD_DIM]: these choose which blocks of the cache the next partial verifications keep. Rows behind
// them have no meaning: nothing of them enters the cache, and tiles that have no other rows are left out, with zeros as output.
//
// Fragments, key tiles in shared memory, pages and workspaces: as in `attention.cu`, `kv_ring.cuh` and `kv_bf16.cuh`.
#include "async_copy.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "mma.cuh"
#include "rope.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM must be 64 or 128");
static_assert(BLOCK % 32 == 0 && CHUNK % BLOCK == 0, "a key tile must not cross a block, nor a block a chunk");
static_assert(CHUNK / BLOCK <= 32, "CHUNK must be at most 32 blocks: a lane holds one entry of the table");
static_assert(STAGES >= 2, "a stage is read while others are filled");

const int THREADS = WARPS * 32;
const int HEADS_PER_KV = HEADS / KV_HEADS;
const int QUERIES = HEADS_PER_KV * ROWS;  // of a slot and a key/value head
const int QUERY_TILES = (QUERIES + 15) / 16;
const int TILE_GROUPS = (QUERY_TILES + WARPS - 1) / WARPS;
const int QKV_HEADS = HEADS + 2 * KV_HEADS;
const int TILE_KEYS = 32;
const int LOADS_32 = HEAD_DIM / 32, LOADS_8 = HEAD_DIM / 8;  // parts of a head
const int PIECE = HEAD_DIM / 8 * TILE_KEYS;                  // 16-byte loads of the keys or the values of a key tile
const int COPIES = 2 * PIECE / 32;                           // of a warp's lanes together, for keys and values of a tile
const int TILES_OF_BLOCK = BLOCK / TILE_KEYS;
const int STAGE = TILES_OF_BLOCK * 2 * PIECE;
// Blocks that shall fit an SM at once, which limits their registers; an SM of sm_120 has no shared memory for two.
#if __CUDA_ARCH__ >= 1200
const int BLOCKS_PER_SM = 1;
#else
const int BLOCKS_PER_SM = WARPS <= 6 ? 2 : 1;
#endif
#define MASKED (-__int_as_float(0x7f800000))
#define LOWEST (-1e30f)

struct WideAttentionArguments {  // launched on [MAX_CHUNKS * TILE_GROUPS, KV_HEADS, S] for ROWS rows of a slot
    float* partial;              // [S * ROWS * HEADS * MAX_CHUNKS, HEAD_DIM]
    float2* partial_stats;       // [S * ROWS * HEADS * MAX_CHUNKS, 2]
    bf16 *k_pages, *v_pages;     // [_, KV_HEADS, BLOCK, HEAD_DIM], [_, KV_HEADS, HEAD_DIM, BLOCK]
    bf16* asked;                 // [S, ASKED_ROWS, HEADS, HEAD_DIM]
    const float *qkv, *cosine;   // [R, (HEADS + 2 * KV_HEADS) * HEAD_DIM], [POSITIONS, HEAD_DIM / 2]
    const float* sine;           // [POSITIONS, HEAD_DIM / 2]
    const int *block_table, *first, *length, *active, *active_count;  // [S, MAX_BLOCKS], [S], [S], [S], [1]
    const bf16* head_norms;                                           // [2, HEAD_DIM] if HEAD_NORM_EPS
};

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

struct Task {
    int chunk, kv_head, a, slot;
    int tile;             // of the warp
    int position, count;  // of the first row, and how many rows there are that have a meaning
    int end;              // of the positions of the chunk that any of these sees
    int entry;            // of the block table, one per lane: the chunk's blocks
    bool idle;
};

// ---- load -------------------------------------------------------------------------------------------------------------

// The stages [STAGES][TILES_OF_BLOCK][keys, values][PIECE].
extern __shared__ uint4 memory[];

// The warp's part of the cache block at `key`, keys and values, into its stage.
__device__ __forceinline__ void copy_block(const WideAttentionArguments& args, const Task& task, const Thread& me,
                                           unsigned address, int key) {
    const int number = (key - task.chunk * CHUNK) / BLOCK;  // of the chunk
    const int block = __shfl_sync(FULL_WARP, task.entry, number);
    const long long at = ((long long)block * KV_HEADS + task.kv_head) * BLOCK * HEAD_DIM;
    const bf16* keys = args.k_pages + at + (8 * (me.g / 2) + me.g % 2) * HEAD_DIM + 8 * me.c;
    const bf16* values = args.v_pages + at + me.g * BLOCK + 8 * me.c;
    const unsigned to = address + LOAD * (number % STAGES * STAGE + me.lane);
#pragma unroll 4
    for (int n = me.warp; n < TILES_OF_BLOCK * COPIES; n += WARPS) {
        const int tile = n / COPIES, of_tile = n % COPIES, of_values = of_tile - COPIES / 2;
        const int of_keys = (tile * TILE_KEYS + 2 * (of_tile / LOADS_32)) * HEAD_DIM + of_tile % LOADS_32 * 32;
        const bf16* from = of_values < 0 ? keys + of_keys : values + tile * TILE_KEYS + of_values * 8 * BLOCK;
        copy_async(to + LOAD * (n * 32), from);
    }
}

// New positions of this chunk: keys, rotated, and values into the cache.
__device__ __forceinline__ void append_rows(const WideAttentionArguments& args, const Task& task) {
    const int* table = args.block_table + task.slot * MAX_BLOCKS;
    for (int n = threadIdx.x; n < task.count * HALF_DIM; n += THREADS) {
        const int t = n / HALF_DIM, i = n % HALF_DIM, at = task.position + t;
        if (at / CHUNK != task.chunk) continue;
        const float* key = args.qkv + (((long long)task.a * ROWS + t) * QKV_HEADS + HEADS + task.kv_head) * HEAD_DIM;
        const float* value = key + KV_HEADS * HEAD_DIM;
        const long long angle = (long long)at * HALF_DIM + i;
        const HeadNorm norm(key, norm_of_keys(args.head_norms));
        const float2 pair =
            rotated(norm.of(key[i], i), norm.of(key[i + HALF_DIM], i + HALF_DIM), args.cosine[angle], args.sine[angle]);
        const long long page = ((long long)table[at / BLOCK] * KV_HEADS + task.kv_head) * BLOCK * HEAD_DIM;
        bf16 *keys = args.k_pages + page + at % BLOCK * HEAD_DIM, *values = args.v_pages + page + at % BLOCK;
        keys[i] = to_bf16(pair.x), keys[i + HALF_DIM] = to_bf16(pair.y);
        values[i * BLOCK] = to_bf16(value[i]), values[(i + HALF_DIM) * BLOCK] = to_bf16(value[i + HALF_DIM]);
    }
}

// Each warp's queries as operand A of two products for each 32-wide part of a head. Registers are for its sums.
__shared__ uint4 queries[WARPS][LOADS_32][2][32];

// Rotated, into the warp's own place; rows that have no query are zero. Those that choose are also left in `asked`.
__device__ __forceinline__ void load_queries(const WideAttentionArguments& args, const Task& task, const Thread& me) {
    const int before = args.length[task.slot] - task.position;  // rows before those that choose
    auto norm_of = [&](int half) {                              // of the last query, where there is none
        const int index = min(task.tile * 16 + me.g + 8 * half, QUERIES - 1);
        const long long row = (long long)task.a * ROWS + index / HEADS_PER_KV;
        const int head = task.kv_head * HEADS_PER_KV + index % HEADS_PER_KV;
        return HeadNorm(args.qkv + (row * QKV_HEADS + head) * HEAD_DIM, args.head_norms);
    };
    const HeadNorm norms[2] = {norm_of(0), norm_of(1)};
#pragma unroll
    for (int wide = 0; wide < LOADS_32 / 2; ++wide) {
        uint4 low[2] = {}, high[2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int index = task.tile * 16 + me.g + 8 * half, t = index / HEADS_PER_KV, i = wide * 32 + 8 * me.c;
            if (index >= QUERIES) continue;
            const int head = task.kv_head * HEADS_PER_KV + index % HEADS_PER_KV, asks = t - before;
            const long long angle = (long long)(task.position + t) * HALF_DIM + i;
            rotate_eight(low[half], high[half], args.qkv + (((long long)task.a * ROWS + t) * QKV_HEADS + head) * HEAD_DIM + i,
                         args.cosine + angle, args.sine + angle, norms[half], i);
            if (task.chunk > 0 || asks < 0 || asks >= ASKED_ROWS) continue;
            bf16* to = args.asked + (((long long)task.slot * ASKED_ROWS + asks) * HEADS + head) * HEAD_DIM + i;
            *reinterpret_cast<uint4*>(to) = low[half];
            *reinterpret_cast<uint4*>(to + HALF_DIM) = high[half];
        }
        uint4(&first)[2][32] = queries[me.warp][wide], (&second)[2][32] = queries[me.warp][wide + LOADS_32 / 2];
        first[0][me.lane] = make_uint4(low[0].x, low[1].x, low[0].y, low[1].y);
        first[1][me.lane] = make_uint4(low[0].z, low[1].z, low[0].w, low[1].w);
        second[0][me.lane] = make_uint4(high[0].x, high[1].x, high[0].y, high[1].y);
        second[1][me.lane] = make_uint4(high[0].z, high[1].z, high[0].w, high[1].w);
    }
}

// ---- multiply ---------------------------------------------------------------------------------------------------------

// What a lane knows of its rows g and g + 8.
struct Softmax {
    int newest[2];                    // the last positions that they see
    float out[LOADS_8][4] = {};       // operand C of p · v, not yet divided
    float top[2] = {LOWEST, LOWEST};  // the largest score, in units of log2
    float sum[2] = {};                // this lane's part of the sum of powers

    __device__ __forceinline__ Softmax(const Task& task, const Thread& me) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
            newest[half] = task.position + min((task.tile * 16 + me.g + 8 * half) / HEADS_PER_KV, ROWS - 1);
    }
};

__device__ __forceinline__ void multiply_tile(Softmax& state, const uint4* keys, int key, const Task& task, const Thread& me) {
    float score[4][4] = {};
#pragma unroll
    for (int wide = 0; wide < LOADS_32; ++wide) {
        const uint4 lower = queries[me.warp][wide][0][me.lane], upper = queries[me.warp][wide][1][me.lane];
        uint4 k[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) k[i] = keys[(i * LOADS_32 + wide) * 32];
        // No product waits for the one just before it.
#pragma unroll
        for (int i = 0; i < 4; ++i) mma_bf16(score[i], lower.x, lower.y, lower.z, lower.w, k[i].x, k[i].y);
#pragma unroll
        for (int i = 0; i < 4; ++i) mma_bf16(score[i], upper.x, upper.y, upper.z, upper.w, k[i].z, k[i].w);
    }
    const float scale = LOG2E_OVER_SQRT_HEAD_DIM;
    const bool all_seen = key + TILE_KEYS - 1 <= task.position;  // by every row
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        auto at = [&](int i) -> float& { return score[i / 2][2 * half + i % 2]; };  // of key 8c + i
        float highest = MASKED;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (!all_seen && key + 8 * me.c + i > state.newest[half]) at(i) = MASKED;
            highest = fmaxf(highest, at(i));
        }
        highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 2));
        highest = fmaxf(state.top[half], highest * scale);
        shrink[half] = power_of_two(state.top[half] - highest);
        state.top[half] = highest;
        state.sum[half] *= shrink[half];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            at(i) = power_of_two(fmaf(at(i), scale, -highest));
            state.sum[half] += at(i);
        }
    }
    // A maximum seldom grows: mostly there is nothing to shrink.
    if (__ballot_sync(FULL_WARP, shrink[0] != 1 || shrink[1] != 1))
#pragma unroll
        for (int n = 0; n < LOADS_8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) state.out[n][i] *= shrink[i / 2];
    unsigned p[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        p[2 * i] = pack_bf16(score[i][0], score[i][1]);
        p[2 * i + 1] = pack_bf16(score[i][2], score[i][3]);
    }
    const uint4* values = keys + PIECE;
#pragma unroll
    for (int from = 0; from < LOADS_8; from += 4) {
        uint4 v[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) v[n] = values[(from + n) * 32];
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_bf16(state.out[from + n], p[0], p[1], p[2], p[3], v[n].x, v[n].y);
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_bf16(state.out[from + n], p[4], p[5], p[6], p[7], v[n].z, v[n].w);
    }
}

// ---- epilogue ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void store_tile(const WideAttentionArguments& args, Softmax& state, const Task& task,
                                           const Thread& me) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        state.sum[half] += __shfl_xor_sync(FULL_WARP, state.sum[half], 1);
        state.sum[half] += __shfl_xor_sync(FULL_WARP, state.sum[half], 2);
        const int index = task.tile * 16 + me.g + 8 * half;
        if (index >= QUERIES) continue;
        const long long row = (long long)task.a * ROWS + index / HEADS_PER_KV;
        const long long at = (row * HEADS + task.kv_head * HEADS_PER_KV + index % HEADS_PER_KV) * MAX_CHUNKS + task.chunk;
        if (me.c == 0) args.partial_stats[at] = make_float2(state.top[half], state.sum[half]);
#pragma unroll
        for (int n = 0; n < LOADS_8; ++n)
            *reinterpret_cast<float2*>(args.partial + at * HEAD_DIM + n * 8 + 2 * me.c) =
                make_float2(state.out[n][2 * half], state.out[n][2 * half + 1]);
    }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void wide_attention(const WideAttentionArguments args) {
    const Thread me;
    Task task;
    const int group = blockIdx.x % TILE_GROUPS, count = *args.active_count;
    task.chunk = blockIdx.x / TILE_GROUPS, task.kv_head = blockIdx.y, task.a = blockIdx.z;
    task.tile = group * WARPS + me.warp;
    task.slot = args.active[task.a];  // beyond active_count, too, a slot that exists
    task.position = args.first[task.slot];
    task.count = min(args.length[task.slot] - task.position + ASKED_ROWS, ROWS);
    task.end = min(task.position + task.count, (task.chunk + 1) * CHUNK);
    task.idle = task.a >= count || task.chunk * CHUNK > task.position + ROWS - 1;  // what joins chunks takes those of all rows
    task.entry = args.block_table[task.slot * MAX_BLOCKS +
                                  min(task.chunk * (CHUNK / BLOCK) + min(me.lane, CHUNK / BLOCK - 1), MAX_BLOCKS - 1)];
    // A block that waited would hold a place that one with work may need: see attention.cu.
    if (task.idle) {
        if (count == 0) await_previous();
        return;
    }
    const int begin = task.chunk * CHUNK, known = min(task.position, (task.chunk + 1) * CHUNK);
    const unsigned address = shared_address(memory);
    // Keys and values of earlier steps, before anything else is known.
#pragma unroll 1
    for (int n = 0; n < STAGES - 1; ++n)
        if (begin + (n + 1) * BLOCK <= known) copy_block(args, task, me, address, begin + n * BLOCK);

    await_previous();
    let_next_start();
    load_queries(args, task, me);
    if (known < task.end) {  // new positions lie in this chunk
        append_rows(args, task);
        __syncthreads();
    }
#pragma unroll 1
    for (int n = 0; n < STAGES - 1; ++n) {
        const int key = begin + n * BLOCK;
        if (key + BLOCK > known && key < task.end) copy_block(args, task, me, address, key);
        end_of_group();
    }

    Softmax state(task, me);
    const bool works = task.tile * 16 / HEADS_PER_KV < task.count;
#pragma unroll 1
    for (int key = begin; key < task.end; key += BLOCK) {
        await_copies<STAGES - 2>();
        __syncthreads();  // all have their copies of this block, and have multiplied the one before
        const int then = key + (STAGES - 1) * BLOCK;
        if (then < task.end) copy_block(args, task, me, address, then);
        end_of_group();
        const uint4* stage = memory + (key - begin) / BLOCK % STAGES * STAGE + me.lane;
#pragma unroll 1
        for (int tile = 0; works && tile < TILES_OF_BLOCK && key + tile * TILE_KEYS < task.end; ++tile)
            multiply_tile(state, stage + tile * 2 * PIECE, key + tile * TILE_KEYS, task, me);
    }
    await_copies<0>();
    // A row without a meaning has a sum all the same, by which its zeros are divided.
    if (!works) state.sum[0] = state.sum[1] = 1;
    if (task.tile < QUERY_TILES) store_tile(args, state, task, me);
}
