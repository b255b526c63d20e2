// softmax(q · kᵀ / √HEAD_DIM) · v for the ROWS query rows of each slot over its paged cache; row t sees positions up to
// its own, length + offset + t, at most WINDOW of them (0: all).
//
// `attention`: one block per (chunk of CHUNK positions, key/value head, slot, 16 query rows). Chunks lie at fixed absolute
// positions; the queries of the GROUP heads that share a key/value head are packed into one tile, row t · GROUP + head.
// Each of four warps takes every fourth 32-key group of the chunk. What a row sees of a chunk, and the order in which it
// adds it up, is the same whatever rows share the tile: groups and chunks beyond a row's position add exact zeros.
// `attention_combine`: one block per (row, head) joins the chunks, in four sums: warp w's is of the chunks w, w + 4, ….
//
// Keys are read straight from memory as operand B of q · kᵀ, and values, stored transposed, as operand B of p · v. Key
// 8 · (n / 2) + 2 · tile + n % 2 of a group is column n of tile `tile`: then a lane's probabilities are those of keys
// 8c … 8c + 7, which is what its 16-byte load of values holds, and they need no exchange between lanes.
#include "bf16.cuh"
#include "block.cuh"
#include "mma.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM must be 64 or 128");
static_assert(BLOCK % 32 == 0 && CHUNK % 128 == 0, "a group of 32 keys must not cross a block or a chunk");

#define GROUP (HEADS / KV_HEADS)
#define QUERIES (GROUP * ROWS)
#define TILES ((QUERIES + 15) / 16)
#define WIDE (HEAD_DIM / 32)
#define NARROW (HEAD_DIM / 8)
#define MASKED (-__int_as_float(0x7f800000))  // minus infinity: its power of two is an exact zero
#define NOTHING (-1e30f)  // a maximum below every score that is not masked; its powers, too, are exact zeros

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The first position that any row of a slot sees, given the position of its row 0, rounded down to a chunk.
__device__ __forceinline__ int first_chunk(int position) { return WINDOW ? max(0, position - WINDOW + 1) / CHUNK : 0; }

extern "C" __global__ __launch_bounds__(128) void attention(float* partial, float2* partial_stats, const bf16* q,
                                                            const bf16* k_pages, const bf16* v_pages,
                                                            const int* block_table, const int* length,
                                                            const int* active, const int* active_count, int offset) {
    const int a = blockIdx.z / TILES, tile = blockIdx.z % TILES, kv_head = blockIdx.y;
    if (a >= *active_count) return;
    const int slot = active[a], position = length[slot] + offset;
    const int last = position + ROWS - 1;
    const int chunk = first_chunk(position) + blockIdx.x;
    if (chunk * CHUNK > last) return;

    __shared__ uint4 queries[WIDE][2][32];
    __shared__ float outputs[4][16][HEAD_DIM];
    __shared__ float2 stats[4][16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;

    auto query_head = [&](int index) { return kv_head * GROUP + index % GROUP; };
    auto query_row = [&](int index) { return a * ROWS + index / GROUP; };
    for (int n = warp; n < WIDE * 2; n += 4) {
        const int wide = n / 2, index = tile * 16 + g + 8 * (n % 2);
        uint4 part = {};
        if (index < QUERIES)
            part = *reinterpret_cast<const uint4*>(
                q + ((long long)query_row(index) * HEADS + query_head(index)) * HEAD_DIM + wide * 32 + 8 * c);
        queries[wide][n % 2][lane] = part;
    }
    __syncthreads();

    // The rows of C that this lane holds, and the span of positions that each sees.
    int newest[2], oldest[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        newest[half] = position + min((tile * 16 + g + 8 * half) / GROUP, ROWS - 1);
        oldest[half] = WINDOW ? newest[half] - WINDOW + 1 : 0;
    }

    const int* table = block_table + slot * MAX_BLOCKS;
    auto page = [&](const bf16* pages, int key) {
        return pages + ((long long)table[key / BLOCK] * KV_HEADS + kv_head) * BLOCK * HEAD_DIM;
    };
    uint4 k[4][WIDE], v[NARROW];
    auto load_keys = [&](int key) {
        const bf16* keys = page(k_pages, key) + (key % BLOCK) * HEAD_DIM;
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int wide = 0; wide < WIDE; ++wide)
                k[n][wide] = load_streaming(keys + (8 * (g / 2) + 2 * n + g % 2) * HEAD_DIM + wide * 32 + 8 * c);
    };
    auto load_values = [&](int key) {
        const bf16* values = page(v_pages, key) + key % BLOCK;
#pragma unroll
        for (int n = 0; n < NARROW; ++n) v[n] = load_streaming(values + (n * 8 + g) * BLOCK + 8 * c);
    };

    const float scale = LOG2E_OVER_SQRT_HEAD_DIM;
    float out[NARROW][4] = {};
    float top[2] = {NOTHING, NOTHING}, sum[2] = {0, 0};
    const int end = min(last + 1, (chunk + 1) * CHUNK);
    int key = chunk * CHUNK + 32 * warp;
    if (key < end) load_keys(key);
    for (; key < end; key += 128) {
        load_values(key);
        float score[4][4] = {};
#pragma unroll
        for (int wide = 0; wide < WIDE; ++wide) {
            const uint4 low = queries[wide][0][lane], high = queries[wide][1][lane];
#pragma unroll
            for (int n = 0; n < 4; ++n) mma_k32(score[n], low, high, k[n][wide]);
        }
        if (key + 128 < end) load_keys(key + 128);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float highest = top[half];
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& s = score[n][2 * half + i];
                    const int at = key + 8 * c + 2 * n + i;
                    const bool seen = at <= newest[half] && at >= oldest[half];
                    s = seen ? s * scale : MASKED;
                    highest = fmaxf(highest, s);
                }
            highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 2));
            const float shrink = power_of_two(top[half] - highest);
            top[half] = highest;
            sum[half] *= shrink;
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& s = score[n][2 * half + i];
                    s = power_of_two(s - highest);
                    sum[half] += s;
                }
#pragma unroll
            for (int n = 0; n < NARROW; ++n) {
                out[n][2 * half] *= shrink;
                out[n][2 * half + 1] *= shrink;
            }
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const float(&near)[4] = score[2 * step], (&far)[4] = score[2 * step + 1];
            const unsigned p0 = pack_bf16(near[0], near[1]), p1 = pack_bf16(near[2], near[3]);
            const unsigned p2 = pack_bf16(far[0], far[1]), p3 = pack_bf16(far[2], far[3]);
#pragma unroll
            for (int n = 0; n < NARROW; ++n)
                mma_bf16(out[n], p0, p1, p2, p3, step ? v[n].z : v[n].x, step ? v[n].w : v[n].y);
        }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(FULL_WARP, sum[half], 1);
        sum[half] += __shfl_xor_sync(FULL_WARP, sum[half], 2);
        if (c == 0) stats[warp][g + 8 * half] = make_float2(top[half], sum[half]);
#pragma unroll
        for (int n = 0; n < NARROW; ++n)
            *reinterpret_cast<float2*>(&outputs[warp][g + 8 * half][n * 8 + 2 * c]) =
                make_float2(out[n][2 * half], out[n][2 * half + 1]);
    }
    __syncthreads();
    for (int row = warp; row < 16 && tile * 16 + row < QUERIES; row += 4) {
        const int index = tile * 16 + row;
        float highest = NOTHING, factor[4], total = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) highest = fmaxf(highest, stats[w][row].x);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            factor[w] = power_of_two(stats[w][row].x - highest);
            total = fmaf(factor[w], stats[w][row].y, total);
        }
        const long long at = ((long long)query_row(index) * HEADS + query_head(index)) * MAX_CHUNKS + blockIdx.x;
        if (lane == 0) partial_stats[at] = make_float2(highest, total);
        for (int d = lane; d < HEAD_DIM; d += 32) {
            float joined = 0;
#pragma unroll
            for (int w = 0; w < 4; ++w) joined = fmaf(factor[w], outputs[w][row][d], joined);
            partial[at * HEAD_DIM + d] = joined;
        }
    }
}

extern "C" __global__ __launch_bounds__(128) void attention_combine(bf16* out, const float* partial,
                                                                    const float2* partial_stats, const int* length,
                                                                    const int* active, const int* active_count,
                                                                    int offset) {
    const int row = blockIdx.x, head = blockIdx.y, a = row / ROWS;
    if (a >= *active_count) return;
    const int position = length[active[a]] + offset;
    const int first = first_chunk(position), chunks = (position + row % ROWS) / CHUNK - first + 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int EACH = HEAD_DIM / 32;

    __shared__ float outputs[4][HEAD_DIM], sums[4];
    const long long from = ((long long)row * HEADS + head) * MAX_CHUNKS;
    float highest = NOTHING;
    for (int chunk = lane; chunk < chunks; chunk += 32) highest = fmaxf(highest, partial_stats[from + chunk].x);
#pragma unroll
    for (int step = 16; step; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, step));

    float joined[EACH] = {}, total = 0;
#pragma unroll 4
    for (int chunk = (warp - first) & 3; chunk < chunks; chunk += 4) {
        const float2 stats = partial_stats[from + chunk];
        const float factor = power_of_two(stats.x - highest);
        const float* in = partial + (from + chunk) * HEAD_DIM + lane * EACH;
        total = fmaf(factor, stats.y, total);
#pragma unroll
        for (int i = 0; i < EACH; ++i) joined[i] = fmaf(factor, in[i], joined[i]);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) outputs[warp][lane * EACH + i] = joined[i];
    if (lane == 0) sums[warp] = total;
    __syncthreads();
    const int d = threadIdx.x;
    if (d < HEAD_DIM) {
        const float value = ((outputs[0][d] + outputs[1][d]) + outputs[2][d]) + outputs[3][d];
        const float weight = ((sums[0] + sums[1]) + sums[2]) + sums[3];
        out[((long long)row * HEADS + head) * HEAD_DIM + d] = to_bf16(value / weight);
    }
}
