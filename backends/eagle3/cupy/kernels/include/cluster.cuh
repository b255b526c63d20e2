// Clusters: blocks that run at the same time and can read each other's shared memory (sm_90 and later).
//
// `CLUSTER_OF(n)` before a kernel makes each n neighbours of its grid a cluster; a cluster of one is no cluster, on every GPU.
#pragma once

#if CLUSTER > 1
#define CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define CLUSTER_OF(blocks)
#endif

// All threads of the cluster's `Blocks` blocks wait for each other, and see what these wrote to shared memory.
template <int Blocks>
__device__ __forceinline__ void sync_cluster() {
    if (Blocks == 1) return __syncthreads();
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The same in two parts: what a thread does between them it does while others are still on their way.
__device__ __forceinline__ void arrive_in_cluster() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_cluster() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Where in the shared memory of the cluster's block `rank` is what `own` is in this block's.
template <typename T>
__device__ __forceinline__ T* of_rank(T* own, int rank) {
#if CLUSTER > 1
    unsigned long long there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"((unsigned long long)own), "r"(rank));
    return reinterpret_cast<T*>(there);
#else
    return own;
#endif
}
