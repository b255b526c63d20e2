// Which rows a block of a product multiplies and finishes: of ROW_GROUPS groups of blocks each has ROW_TILES tiles of rows, and
// of a cluster that shares k each block finishes OWN_ROW_TILES of these.
#pragma once
#include "cluster.cuh"

__device__ __forceinline__ int rank() { return CLUSTER > 1 ? blockIdx.x % CLUSTER : 0; }
__device__ __forceinline__ int first_row_of_group() {
    return ROW_GROUPS > 1 ? blockIdx.x / CLUSTER % ROW_GROUPS * ROW_TILES * 8 : 0;
}
// The first row that this block finishes.
__device__ __forceinline__ int first_row() { return first_row_of_group() + rank() * OWN_ROW_TILES * 8; }

#include "matmul_arguments.cuh"
#include "matmul_total.cuh"

// It takes what stands above.
#include "matmul_epilogue.cuh"
