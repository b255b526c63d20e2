// The chunks of a row joined by `attention` itself, where there are few of them: by the block that is the last to finish one of
// them. It is what `attention_combine` does, with the same sums in the same order, and saves its launch.
//
// `finished` [slot][KV_HEADS][QUERY_TILES] is zero before and after.
#pragma once
#include "bf16.cuh"
#include "counted.cuh"
#include "mma.cuh"

const int JOINED = 8;  // sums that a row's chunks are added up in, chunk c in sum c % JOINED
static_assert(!JOINS || MAX_CHUNKS <= JOINED, "a sum must have at most one chunk");

// How many chunks any row of the slot sees.
__device__ __forceinline__ int chunks_of(const Task& task) { return task.last / CHUNK - first_chunk(task.position) + 1; }

// In units of log2, as the scores are.
__device__ __forceinline__ float sink_of(const bf16* sinks, int head) {
    return SINKS ? (float)LOG2E * to_float(sinks[head]) : LOWEST;
}

// What a row's sums are divided by, beside them.
__device__ __forceinline__ float with_sink(float total, float sink, float highest) {
    return SINKS ? total + power_of_two(sink - highest) : total;
}

// A row that sees one chunk, which this block has.
struct SingleChunk {
    bf16* out;
    float factor, divisor;

    __device__ __forceinline__ void store(int d, float joined) const { out[d] = to_bf16(factor * joined / divisor); }
};

// Query `index` of the task's tile as such a row; nothing of it is asked for unless JOINS.
template <typename Arguments>
__device__ __forceinline__ SingleChunk single_chunk(const Arguments& args, const Task& task, int index, float top,
                                                    float total) {
    SingleChunk single = {};
    if constexpr (JOINS) {
        single.out = args.out + ((long long)task.row_of(index) * HEADS + task.head_of(index)) * HEAD_DIM;
        const float sink = sink_of(args.sinks, task.head_of(index)), highest = fmaxf(sink, top);
        single.factor = power_of_two(top - highest);
        single.divisor = with_sink(single.factor * total, sink, highest);
    }
    return single;
}

// Whether this block is the last of the task's tile to finish a chunk; by all threads.
template <typename Arguments>
__device__ __forceinline__ bool is_last(const Arguments& args, const Task& task) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        int* finished = args.finished + (task.a * KV_HEADS + task.kv_head) * QUERY_TILES + task.tile;
        last = counted_before(finished) == chunks_of(task) - 1;
        if (last) *finished = 0;
    }
    __syncthreads();
    return last;
}

// A warp takes every WARPS-th row of the tile.
template <typename Arguments>
__device__ __forceinline__ void join_chunks(const Arguments& args, const Task& task, const Thread& me) {
    if (chunks_of(task) == 1 || !is_last(args, task)) return;
    const int first = first_chunk(task.position);
    for (int row = me.warp; row < 16 && task.tile * 16 + row < QUERIES; row += WARPS) {
        const int index = task.tile * 16 + row, head = task.head_of(index);
        const int chunks = (task.position + DEPTH_OF(task, index / HEADS_PER_KV)) / CHUNK - first + 1;
        const long long of_row = (long long)task.row_of(index) * HEADS + head, from = of_row * MAX_CHUNKS;
        const float sink = sink_of(args.sinks, head);
        float2 stats[MAX_CHUNKS];
        float in[MAX_CHUNKS][HEAD_DIM / 32], highest = sink;
#pragma unroll
        for (int n = 0; n < MAX_CHUNKS; ++n) {
            stats[n] = make_float2(LOWEST, 0);
            if (n < chunks) stats[n] = __ldcg(args.partial_stats + from + n);
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 32; ++i)
                in[n][i] = n < chunks ? __ldcg(args.partial + (from + n) * HEAD_DIM + me.lane + 32 * i) : 0;
            highest = fmaxf(highest, stats[n].x);
        }
        float total = 0, joined[HEAD_DIM / 32] = {};
        // From the sum that begins with chunk 0 of all on.
#pragma unroll 1
        for (int sum = 0; sum < JOINED; ++sum)
#pragma unroll
            for (int n = 0; n < MAX_CHUNKS; ++n) {
                if (n >= chunks || (first + n) % JOINED != sum) continue;
                const float factor = power_of_two(stats[n].x - highest);
                total += factor * stats[n].y;
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 32; ++i) joined[i] += factor * in[n][i];
            }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; ++i)
            args.out[of_row * HEAD_DIM + me.lane + 32 * i] = to_bf16(joined[i] / with_sink(total, sink, highest));
    }
}
