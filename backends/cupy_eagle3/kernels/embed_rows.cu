// x[r] = embedding of the row's token: the newest token of its slot, then the drafts. One block per row; float32 out.
#include "bf16.cuh"
#include "slots.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void embed_rows(float* x, const bf16* embedding, const int* root,
                                                                 const int* drafts, const int* active,
                                                                 const int* active_count, long long* stamps,
                                                                 const int* step) {
    const int a = blockIdx.x / ROWS, t = blockIdx.x % ROWS;
    if (a >= *active_count) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) stamps[*step * STAMPS + DRAFTED] = device_nanoseconds();
    const int slot = active[a];
    const long long token = t == 0 ? root[slot] : drafts[slot * MAX_ROWS + t - 1];
    for (int i = threadIdx.x; i < HIDDEN; i += THREADS)
        x[(long long)blockIdx.x * HIDDEN + i] = to_float(embedding[token * HIDDEN + i]);
}
