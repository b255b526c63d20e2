// What a product of rows is given, and what its blocks keep per row in shared memory.
//
// The includer has ROW_TILES, EPILOGUE and its constants, and `first_row`: which row is the block's first.
#pragma once
#include "argmax.cuh"
#include "bf16.cuh"

struct MatmulArguments {
    void* out;                // [R, N_OUT]
    const bf16 *x, *weight;   // [R, K_IN], [(1 + (EPILOGUE == SWIGLU)) * N_OUT, K_IN]
    const float* squares;     // [R, K_IN / 8] if PRE_NORM_X
    bf16* normed;             // [R, N_OUT] if FEEDS_NORM
    float* normed_squares;    // [R, N_OUT / 8] if FEEDS_NORM
    const bf16* norm_weight;  // [N_OUT] if FEEDS_NORM
    Choice* choices;          // if TAKES_ARGMAX
    const int* active_count;  // [1]
    int rows_per_slot;
    float eps;
    const bf16* bias;  // [N_OUT] if HAS_BIAS
};

// The operands of this block's rows: row 0 of each is the block's first.
__device__ __forceinline__ MatmulArguments of_own_rows(const MatmulArguments& args) {
    MatmulArguments own = args;
    const long long from = first_row();
    own.out = static_cast<char*>(own.out) + from * N_OUT * (EPILOGUE == SWIGLU ? sizeof(bf16) : sizeof(float));
    own.x += from * K_IN;
    if (PRE_NORM_X) own.squares += from * (K_IN / 8);
    if (FEEDS_NORM) own.normed += from * N_OUT, own.normed_squares += from * (N_OUT / 8);
    if (TAKES_ARGMAX) own.choices += from;
    return own;
}

// Per row, with PRE_NORM_X: 1 / sqrt(mean(x²) + eps).
__shared__ float rms_factor[ROW_TILES * 8];
// Per row, with TAKES_ARGMAX: what a choice must beat to be worth an atomic operation.
__shared__ unsigned to_beat[ROW_TILES * 8];
