// x[r] = embedding of the row's token: the newest token of its slot, then the drafts, float32; and the first norm's input:
// normed = x · norm_weight, squares = sums of x² over eight elements each. One block per row.
#include "bf16.cuh"
#include "dependent.cuh"
#include "prefetch.cuh"
#include "slots.cuh"

static_assert(HIDDEN % 8 == 0, "HIDDEN must be a multiple of 8");

extern "C" __global__ __launch_bounds__(THREADS) void embed_rows(float* x, bf16* normed, float* squares,
                                                                 const bf16* embedding, const bf16* norm_weight,
                                                                 const int* last_token, const int* drafts,
                                                                 const int* active, const int* active_count,
                                                                 long long* stamps, const int* step) {
    const int a = blockIdx.x / ROWS, t = blockIdx.x % ROWS;
    prefetch<THREADS>(norm_weight, HIDDEN * sizeof(bf16));
    // No cache holds an embedding. The newest token is known since the last step's commit, and, but for a fault, the count.
    if (t == 0 && a < *active_count)
        prefetch<THREADS>(embedding + (long long)last_token[active[a]] * HIDDEN, HIDDEN * sizeof(bf16));
    await_previous();
    const int count = *active_count, slot = active[a];  // one trip to memory for both
    if (a >= count) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) stamps[*step * STAMPS + DRAFTED] = device_nanoseconds();
    const long long token = t == 0 ? last_token[slot] : drafts[slot * MAX_ROWS + t - 1];
    const bf16* in = embedding + token * HIDDEN;
    for (int group = threadIdx.x; group < HIDDEN / 8; group += THREADS) {
        const long long at = (long long)blockIdx.x * HIDDEN + group * 8;
        float sum = 0;
        const uint4 eight = reinterpret_cast<const uint4*>(in)[group];
        const uint4 weights = reinterpret_cast<const uint4*>(norm_weight)[group];
        const bf16 *value_of = reinterpret_cast<const bf16*>(&eight), *weight_of = reinterpret_cast<const bf16*>(&weights);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float value = to_float(value_of[i]);
            x[at + i] = value;
            normed[at + i] = to_bf16(value * to_float(weight_of[i]));
            sum += value * value;
        }
        squares[at / 8] = sum;
    }
    let_next_start();  // not before the embedding, which no cache holds, is here: see draft_token.cu
}
