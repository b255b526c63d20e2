// The tensor-core product of sm_90a: four neighbouring warps, a warpgroup, multiply 64 rows of A by ROW_TILES · 8 rows of B
// over 16 k, both in shared memory as `copy_box` leaves them.
//
// Warp w of a warpgroup has the sums of rows 16w … 16w + 15 of A, in the places of operand C of mma.cuh: sums[t] are those with
// rows 8t … 8t + 7 of B. A sum depends on its own two rows alone.
#pragma once

static_assert(ROW_TILES % 2 == 0 && ROW_TILES <= 8, "ROW_TILES: 2, 4, 6 or 8");
typedef float GroupSums[ROW_TILES][4];

// Where the rows of a box are: in eights of 1024 bytes, swizzled over 128. Adding 2 goes 16 k on.
__device__ __forceinline__ unsigned long long box_at(unsigned shared) {
    return (unsigned long long)(shared >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// The sums may be touched by others until here.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// All products so far are in their sums, and nobody reads their boxes.
__device__ __forceinline__ void await_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// clang-format off
#define SUMS_OF(t) "+f"(sums[t][0]), "+f"(sums[t][1]), "+f"(sums[t][2]), "+f"(sums[t][3])
#define PLACES_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define PLACES_32 PLACES_16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define PLACES_48 PLACES_32 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define PLACES_64 PLACES_48 ",%24,%25,%26,%27,%28,%29,%30,%31"

// sums += A · Bᵀ over 16 k.
__device__ __forceinline__ void multiply_boxes(GroupSums& sums, unsigned long long a, unsigned long long b) {
#if ROW_TILES == 2
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" PLACES_16 "}, %8, %9, 1, 1, 1, 0, 0;"
                 : SUMS_OF(0), SUMS_OF(1) : "l"(a), "l"(b));
#endif
#if ROW_TILES == 4
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" PLACES_32 "}, %16, %17, 1, 1, 1, 0, 0;"
                 : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3) : "l"(a), "l"(b));
#endif
#if ROW_TILES == 6
    asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {" PLACES_48 "}, %24, %25, 1, 1, 1, 0, 0;"
                 : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3), SUMS_OF(4), SUMS_OF(5) : "l"(a), "l"(b));
#endif
#if ROW_TILES == 8
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" PLACES_64 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3), SUMS_OF(4), SUMS_OF(5), SUMS_OF(6), SUMS_OF(7)
                 : "l"(a), "l"(b));
#endif
}
// clang-format on
