// Boxes of a matrix that the GPU copies to shared memory by itself, and barriers that count what has arrived (sm_90).
//
// A row of a box is 128 bytes of the matrix. Of row r, the 16 bytes that are the u-th lie in place u ^ r % 8: what reads a
// column of a box meets each bank once. A box begins at a multiple of 1024 bytes. Outside the matrix there are zeros.
#pragma once

// As the driver encodes a matrix and its boxes: see `tensor_map` in operands.py.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// A barrier is at an address of shared memory. A phase of it ends when `arrivals` have arrived, with all bytes that these have
// announced.
__device__ __forceinline__ void make_barrier(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Shows new barriers to what copies. All threads see them behind their next __syncthreads.
__device__ __forceinline__ void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_announcing(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of a phase: of the first, the third, … with `parity` 0.
__device__ __forceinline__ void await_phase(unsigned barrier, unsigned parity) {
    unsigned ended;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ended)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!ended);
}

// How the L2 cache treats what is copied: it is read once per step, or by other blocks, too.
__device__ __forceinline__ unsigned long long read_once() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ unsigned long long read_often() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// The box of `map` whose first element is in `row` and `column`. Its bytes arrive at `barrier`.
__device__ __forceinline__ void copy_box(unsigned shared, const TensorMap& map, int row, int column, unsigned barrier,
                                         unsigned long long policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
        "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
        : "memory");
}

// Fetches a map before it is used. It is an operand of the kernel, whatever ran before.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
