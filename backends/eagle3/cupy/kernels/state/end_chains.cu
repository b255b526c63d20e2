// Ends the chains that the draft is not sure of, and lists those that go on: behind draft token `index` a chain ends where the
// product of the probabilities of its tokens falls below `confidence`. A probability is e to the token's logit divided by the
// sum of these powers over the draft's vocabulary, in float32; the token is the greedy one, whose logit is the largest.
//
// One block per part and row: it sums the powers of PARTS parts of the row's columns, below the largest logit. Blocks, warps
// and lanes are added up in a fixed order, so that a row's sum depends on its logits alone. The last block of all decides, with
// a warp per row.
//
// Rows are those of the slots in `active`, whose chains have gone on so far. Of each that goes on: its slot in `live`, in the
// same order, of live_count; and onward[row], its place there. Of each that ends: onward[row] = -1. chain_length[slot] is the
// length of the slot's chain as far as is known: DRAFTS while it goes on. sure[slot]: the product. Without a row, nothing but
// live_count is written, so that the draft's steps behind this kernel have nothing to do.
//
// Layouts: logits [row][COLUMNS] float32; partial [row][PARTS]; `finished` is zero between launches.
#include "dependent.cuh"
#include "largest.cuh"
#include "last_block.cuh"

static_assert((WIDE == 1 || WIDE == 4) && COLUMNS % WIDE == 0, "WIDE columns are loaded at once");
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps");

const int WARPS = THREADS / 32;
const int EACH = (COLUMNS + PARTS * THREADS * WIDE - 1) / (PARTS * THREADS * WIDE) * WIDE;  // columns of a thread

struct EndChainsArguments {
    float* sure;
    int* chain_length;
    int* onward;
    int* live;
    int* live_count;
    float* partial;
    int* finished;
    const float* logits;
    const Choice* choices;
    const int* active;
    const int* active_count;
    int index;
    float confidence;
};

// The sum of the powers of e of the thread's columns below `largest`.
__device__ __forceinline__ float sum_of_powers(const float* row, float largest) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < EACH; n += WIDE) {
        const int column = ((blockIdx.x * (EACH / WIDE) + n / WIDE) * THREADS + threadIdx.x) * WIDE;
        if (column >= COLUMNS) continue;
#if WIDE == 1
        sum += __expf(row[column] - largest);
#else
        const float4 four = *reinterpret_cast<const float4*>(row + column);
        sum += __expf(four.x - largest) + __expf(four.y - largest) + (__expf(four.z - largest) + __expf(four.w - largest));
#endif
    }
    return sum;
}

// By a warp: whether the chain of a row goes on, to every lane.
__device__ __forceinline__ bool goes_on(const EndChainsArguments& args, int row) {
    const int lane = threadIdx.x % 32, slot = args.active[row];
    float sum = 0;
    for (int part = lane; part < PARTS; part += 32) sum += __ldcg(args.partial + row * PARTS + part);
    const float probability = 1.0f / warp_sum(sum);
    const float sure = args.index == 0 ? probability : args.sure[slot] * probability;
    const bool going = sure >= args.confidence;  // not where it is NaN
    __syncwarp();
    if (lane == 0) {
        args.sure[slot] = sure;
        args.chain_length[slot] = going ? DRAFTS : args.index + 1;
    }
    return going;
}

extern "C" __global__ __launch_bounds__(THREADS) void end_chains(const __grid_constant__ EndChainsArguments args) {
    __shared__ int going[SLOTS];
    const int part = blockIdx.x, row = blockIdx.y, warp = threadIdx.x / 32;
    await_previous();
    let_next_start();
    const int count = *args.active_count;
    if (count == 0 && part == 0 && row == 0 && threadIdx.x == 0) *args.live_count = 0;
    if (row >= count) return;
    const float largest = number_of(logit_of(args.choices[row]));
    const float sum = block_sum<THREADS>(sum_of_powers(args.logits + (long long)row * COLUMNS, largest));
    if (threadIdx.x == 0) args.partial[row * PARTS + part] = sum;
    if (!is_last_block_of_row(args.finished, PARTS * count)) return;

    for (int each = warp; each < count; each += WARPS) {
        const bool goes = goes_on(args, each);
        if (threadIdx.x % 32 == 0) going[each] = goes;
    }
    __syncthreads();
    for (int each = threadIdx.x; each < count; each += THREADS) {
        int before = 0;
        for (int other = 0; other < each; ++other) before += going[other];
        args.onward[each] = going[each] ? before : -1;
        if (going[each]) args.live[before] = args.active[each];
        if (each == count - 1) *args.live_count = before + going[each];
    }
}
