// What becomes of a product's sums: EPILOGUE, FEEDS_NORM, TAKES_ARGMAX and HAS_BIAS, as `matmul_rows.cu` describes them.
//
// An output tile has 16 columns (SWIGLU: 8) and 8 rows; element 32 · i + l of it is C's c_i of lane l. 128 threads finish a
// tile, one element each. Tile n of a block is its row tile n / WEIGHT_TILES and its weight tile n % WEIGHT_TILES.
#pragma once
#include "argmax.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "matmul_arguments.cuh"
#include "mma.cuh"

// An element of out; `exists`: within its rows and columns.
struct Cell {
    int row, column;
    bool exists;
    long long index;
};

// What a thread finishes: element `element` of output tiles first_tile, first_tile + WARPS / 4, … of a round.
struct Finisher {
    const int element = threadIdx.x % 128, part = element / 32, first_tile = threadIdx.x / 128;
    const int row, column;  // of the element within a tile

    __device__ __forceinline__ explicit Finisher(const Thread& me) : row(2 * me.c + part % 2), column(me.g + 8 * (part / 2)) {}

    __device__ __forceinline__ int column_of(int group, int tile) const {
        return (group * WEIGHT_TILES + tile % WEIGHT_TILES) * TILE_COLUMNS + column;
    }

    __device__ __forceinline__ Cell cell(int group, int tile, int rows) const {
        Cell cell;
        cell.row = tile / WEIGHT_TILES * 8 + row;
        cell.column = column_of(group, tile);
        cell.exists = cell.row < rows && cell.column < N_OUT;
        cell.index = (long long)cell.row * N_OUT + cell.column;
        return cell;
    }
};

// What the epilogue of a thread's first tile reads, requested before the products.
struct Early {
    float residual, norm_weight, bias;
};

// Weights of norms and biases come from memory, once per step: a trip to be made early. `used`: whether there are any.
__device__ __forceinline__ float load_of_column(bool used, const bf16* of_columns, int group, const Finisher& own) {
    const bool wanted = used && own.first_tile < TILES && own.column_of(group, own.first_tile) < N_OUT;
    return wanted ? to_float(of_columns[own.column_of(group, own.first_tile)]) : 0;
}

__device__ __forceinline__ float load_residual(const void* out, int group, int rows, const Finisher& own) {
    if (EPILOGUE != RESIDUAL || own.first_tile >= TILES) return 0;
    const Cell cell = own.cell(group, own.first_tile, rows);
    return cell.exists ? static_cast<const float*>(out)[cell.index] : 0;
}

// What the row of this thread's number has by now.
__device__ __forceinline__ unsigned load_to_beat(const Choice* choices, int rows) {
    return TAKES_ARGMAX && threadIdx.x < rows ? logit_of(so_far(choices + threadIdx.x)) : 0;
}

__device__ __forceinline__ void raise_choice(Choice* choices, const Cell& cell, float value, const Thread& me) {
    Choice best = cell.exists ? choice(value, cell.column) : 0;  // among the eight columns that lanes c, c + 4, … hold
#pragma unroll
    for (int step = 16; step >= 4; step /= 2) best = max(best, __shfl_xor_sync(FULL_WARP, best, step));
    if (me.g == 0 && best > (Choice)to_beat[cell.row] << 32) atomicMax(choices + cell.row, best);
}

// out += sum, and the next norm's input. `early` is of this cell where it `is_first`.
__device__ __forceinline__ void add_residual(const MatmulArguments& args, const Cell& cell, float sum, bool is_first,
                                             const Early& early, const Thread& me) {
    float* stream = static_cast<float*>(args.out);
    float value = 0;
    if (cell.exists) stream[cell.index] = value = (is_first ? early.residual : stream[cell.index]) + sum;
    if (FEEDS_NORM) {
        if (cell.exists) {
            const float weight = is_first ? early.norm_weight : to_float(args.norm_weight[cell.column]);
            args.normed[cell.index] = to_bf16(value * weight);
        }
        float square = value * value;  // summed over the eight columns that lanes c, c + 4, … hold
#pragma unroll
        for (int step = 16; step >= 4; step /= 2) square += __shfl_xor_sync(FULL_WARP, square, step);
        if (me.g == 0 && cell.exists) args.normed_squares[cell.index / 8] = square;
    }
}

__device__ __forceinline__ void finish(const MatmulArguments& args, const Cell& cell, Total total, bool is_first,
                                       const Early& early, const Thread& me) {
    if (PRE_NORM_X && cell.exists) {
        total.value *= rms_factor[cell.row];
        total.up *= rms_factor[cell.row];
    }
    if (HAS_BIAS && cell.exists) total.value += is_first ? early.bias : to_float(args.bias[cell.column]);
    if (EPILOGUE == PLAIN && cell.exists) static_cast<float*>(args.out)[cell.index] = total.value;
    if (TAKES_ARGMAX) raise_choice(args.choices, cell, total.value, me);
    if (EPILOGUE == SWIGLU && cell.exists)
        static_cast<bf16*>(args.out)[cell.index] = to_bf16(total.value / (1 + __expf(-total.value)) * total.up);
    if (EPILOGUE == RESIDUAL) add_residual(args, cell, total.value, is_first, early, me);
}
