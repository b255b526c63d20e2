// matmul_wgmma.cu, which leaves the largest of every eight columns beside its results.
#include "largest_of_eight.cuh"
#include "matmul_wgmma.cu"
