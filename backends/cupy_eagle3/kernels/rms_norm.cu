// out[r] = x[r] · weight / sqrt(mean(x[r]²) + eps). One block per row; float32 in, bfloat16 out.
#include "norm.cuh"

static_assert(HIDDEN % 64 == 0, "HIDDEN must be a multiple of 64");

extern "C" __global__ __launch_bounds__(THREADS) void rms_norm(bf16* out, const float* x, const bf16* weight,
                                                               const int* active_count, int rows_per_slot, float eps) {
    int row = blockIdx.x;
    if (row >= *active_count * rows_per_slot) return;
    const float* in = x + (long long)row * HIDDEN;
    norm_row<HIDDEN, THREADS>(out + (long long)row * HIDDEN, [&](int i) { return in[i]; }, weight, eps);
}
