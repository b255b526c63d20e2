// softmax(q · kᵀ / √HEAD_DIM) · v for the ROWS query rows of each slot over its paged cache; row t sees positions up to
// its own, length + offset + t, at most WINDOW of them (0: all). The step's own keys and values enter the cache here.
//
// qkv [rows][HEADS + 2 · KV_HEADS][HEAD_DIM] float32 has APPENDED rows per slot. Queries and keys are rotated (half-split
// layout); keys go to k_pages[block][KV_HEADS][BLOCK][HEAD_DIM], values, transposed, to v_pages[..][HEAD_DIM][BLOCK]. Where
// the draft extends (`counts` given), only the first counts[slot] rows exist, the last of them standing at length + offset,
// and that one alone asks.
//
// `attention`: one block per (chunk of CHUNK positions, key/value head, slot, 16 query rows). Chunks lie at fixed absolute
// positions; the queries of the GROUP heads that share a key/value head are packed into one tile, row t · GROUP + head.
// Each of WARPS warps takes every WARPS-th 32-key group of the chunk. What a row sees of a chunk, and the order in which it
// adds it up, is the same whatever rows share the tile: groups and chunks beyond a row's position add exact zeros. The block
// whose chunk a new position lies in puts it into the cache, and reads it there like any other.
// `attention_combine`: one block per (row, head) joins the chunks, in JOINING sums: warp w's is of every JOINING-th chunk.
//
// Keys are read straight from memory as operand B of q · kᵀ, and values, stored transposed, as operand B of p · v. Key
// 8 · (n / 2) + 2 · tile + n % 2 of a group is column n of tile `tile`: then a lane's probabilities are those of keys
// 8c … 8c + 7, which is what its 16-byte load of values holds, and they need no exchange between lanes.
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "mma.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM must be 64 or 128");
static_assert(BLOCK % 32 == 0 && CHUNK % 32 == 0, "a group of 32 keys must not cross a block or a chunk");

#define GROUP (HEADS / KV_HEADS)
#define QUERIES (GROUP * ROWS)
#define TILES ((QUERIES + 15) / 16)
#define WIDE (HEAD_DIM / 32)
#define HALF (HEAD_DIM / 2)
#define ALL_HEADS (HEADS + 2 * KV_HEADS)
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

// A rotated pair, the elements i and i + HALF of a head: x · cos - y · sin, y · cos + x · sin.
__device__ __forceinline__ float2 rotated(float x, float y, float cosine, float sine) {
    return make_float2(x * cosine - y * sine, y * cosine + x * sine);
}

// Eight of them, packed as bfloat16: elements i … i + 7 into `low`, i + HALF … into `high`.
__device__ __forceinline__ void rotated_eight(uint4& low, uint4& high, const float* in, const float* cosine,
                                              const float* sine) {
    unsigned *to_low = &low.x, *to_high = &high.x;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const float2 a = rotated(in[i], in[i + HALF], cosine[i], sine[i]);
        const float2 b = rotated(in[i + 1], in[i + 1 + HALF], cosine[i + 1], sine[i + 1]);
        to_low[i / 2] = pack_bf16(a.x, b.x);
        to_high[i / 2] = pack_bf16(a.y, b.y);
    }
}

extern "C" __global__ __launch_bounds__(WARPS * 32) void attention(float* partial, float2* partial_stats, bf16* k_pages,
                                                                   bf16* v_pages, int* statistics, const float* qkv,
                                                                   const float* cosine, const float* sine,
                                                                   const int* block_table, const int* length,
                                                                   const int* counts, const int* active,
                                                                   const int* active_count, int offset) {
    // Two tiles of the same chunk are neighbours: the second finds keys and values in the L2 cache.
    const int tile = blockIdx.x % TILES, place = blockIdx.x / TILES, kv_head = blockIdx.y, a = blockIdx.z;
    const int slot = a < *active_count ? active[a] : -1;
    const int position = slot < 0 ? 0 : length[slot] + offset, last = position + ROWS - 1;
    const int chunk = first_chunk(position) + place;
    const bool idle = slot < 0 || chunk * CHUNK > last;
    const int end = min(last + 1, (chunk + 1) * CHUNK);
    const int begin = WINDOW ? max(chunk * CHUNK, (position - WINDOW + 1) & ~31) : chunk * CHUNK;  // seen by row 0
#if STATISTICS
    if (threadIdx.x == 0 && slot >= 0) {
        const int groups = CHUNK / 32, done = idle ? 0 : max(0, (end - begin + 31) / 32);
        atomicAdd(statistics, groups);
        atomicAdd(statistics + (idle ? 1 : 2), groups - done);
        atomicAdd(statistics + 3, done);
    }
#endif
    if (idle) {
        await_previous();
        return;
    }
    const int appended = counts ? counts[slot] : APPENDED, oldest_new = counts ? position - appended + 1 : position;

    __shared__ uint4 queries[WIDE][2][32];
    __shared__ float outputs[WARPS][16][HEAD_DIM];
    __shared__ float2 stats[WARPS][16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;

    const int* table = block_table + slot * MAX_BLOCKS;
    auto page = [&](bf16* pages, int key) {
        return pages + ((long long)table[key / BLOCK] * KV_HEADS + kv_head) * BLOCK * HEAD_DIM;
    };
    uint4 k[4][WIDE], v[NARROW];
    auto load_keys = [&](int key) {
        const bf16* keys = page(k_pages, key) + (key % BLOCK) * HEAD_DIM;
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int wide = 0; wide < WIDE; ++wide)
                k[n][wide] = load_once(keys + (8 * (g / 2) + 2 * n + g % 2) * HEAD_DIM + wide * 32 + 8 * c);
    };
    auto load_values = [&](int key) {
        const bf16* values = page(v_pages, key) + key % BLOCK;
#pragma unroll
        for (int n = 0; n < NARROW; ++n) v[n] = load_once(values + (n * 8 + g) * BLOCK + 8 * c);
    };
    int key = chunk * CHUNK + 32 * warp;
    while (key < begin) key += 32 * WARPS;
    const bool early = key + 32 <= oldest_new;  // of earlier steps: nothing to wait for
    if (early) {
        load_keys(key);
        load_values(key);
    }

    await_previous();
    let_next_start();
    auto query_head = [&](int index) { return kv_head * GROUP + index % GROUP; };
    auto query_row = [&](int index) { return a * ROWS + index / GROUP; };
    for (int n = warp; n < WIDE; n += WARPS) {
        const int wide = n / 2, half = n % 2, index = tile * 16 + g + 8 * half, t = index / GROUP, i = wide * 32 + 8 * c;
        uint4 low = {}, high = {};
        if (index < QUERIES) {
            const int row = a * APPENDED + (counts ? appended - 1 : t);
            const long long angle = (long long)(position + t) * HALF + i;
            rotated_eight(low, high, qkv + ((long long)row * ALL_HEADS + query_head(index)) * HEAD_DIM + i, cosine + angle,
                          sine + angle);
        }
        queries[wide][half][lane] = low;
        queries[wide + WIDE / 2][half][lane] = high;
    }
    for (int n = threadIdx.x; n < appended * HALF; n += WARPS * 32) {
        const int t = n / HALF, i = n % HALF, at = oldest_new + t;
        if (at / CHUNK != chunk) continue;
        const float* key_row = qkv + ((long long)(a * APPENDED + t) * ALL_HEADS + HEADS + kv_head) * HEAD_DIM;
        const float* value_row = key_row + KV_HEADS * HEAD_DIM;
        const float2 pair = rotated(key_row[i], key_row[i + HALF], cosine[(long long)at * HALF + i],
                                    sine[(long long)at * HALF + i]);
        bf16* keys = page(k_pages, at) + at % BLOCK * HEAD_DIM;
        keys[i] = to_bf16(pair.x);
        keys[i + HALF] = to_bf16(pair.y);
        bf16* values = page(v_pages, at) + at % BLOCK;
        values[i * BLOCK] = to_bf16(value_row[i]);
        values[(i + HALF) * BLOCK] = to_bf16(value_row[i + HALF]);
    }
    __syncthreads();

    // The rows of C that this lane holds, and the span of positions that each sees.
    int newest[2], oldest[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        newest[half] = position + min((tile * 16 + g + 8 * half) / GROUP, ROWS - 1);
        oldest[half] = WINDOW ? newest[half] - WINDOW + 1 : 0;
    }

    const float scale = LOG2E_OVER_SQRT_HEAD_DIM;
    float out[NARROW][4] = {};
    float top[2] = {NOTHING, NOTHING}, sum[2] = {0, 0};
    if (!early && key < end) {
        load_keys(key);
        load_values(key);
    }
    for (; key < end; key += 32 * WARPS) {
        float score[4][4] = {};
#pragma unroll
        for (int wide = 0; wide < WIDE; ++wide) {
            const uint4 low = queries[wide][0][lane], high = queries[wide][1][lane];
#pragma unroll
            for (int n = 0; n < 4; ++n) mma_k32(score[n], low, high, k[n][wide]);
        }
        if (key + 32 * WARPS < end) load_keys(key + 32 * WARPS);
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
        if (key + 32 * WARPS < end) load_values(key + 32 * WARPS);
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
    for (int row = warp; row < 16 && tile * 16 + row < QUERIES; row += WARPS) {
        const int index = tile * 16 + row;
        float highest = NOTHING, factor[WARPS], total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) highest = fmaxf(highest, stats[w][row].x);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            factor[w] = power_of_two(stats[w][row].x - highest);
            total = fmaf(factor[w], stats[w][row].y, total);
        }
        const long long at = ((long long)query_row(index) * HEADS + query_head(index)) * MAX_CHUNKS + place;
        if (lane == 0) partial_stats[at] = make_float2(highest, total);
        for (int d = lane; d < HEAD_DIM; d += 32) {
            float joined = 0;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) joined = fmaf(factor[w], outputs[w][row][d], joined);
            partial[at * HEAD_DIM + d] = joined;
        }
    }
}

extern "C" __global__ __launch_bounds__(JOINING * 32) void attention_combine(bf16* out, const float* partial,
                                                                              const float2* partial_stats,
                                                                              const int* length, const int* active,
                                                                              const int* active_count, int offset) {
    const int row = blockIdx.x, head = blockIdx.y, a = row / ROWS;
    const bool idle = a >= *active_count;
    const int position = idle ? 0 : length[active[a]] + offset;
    const int first = first_chunk(position), chunks = (position + row % ROWS) / CHUNK - first + 1;
    let_next_start();  // a product, which reads nothing but weights until it has waited for this kernel
    await_previous();
    if (idle) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int EACH = HEAD_DIM / 32;

    __shared__ float outputs[JOINING][HEAD_DIM], sums[JOINING];
    const long long from = ((long long)row * HEADS + head) * MAX_CHUNKS;
    const int BATCH = 8;
    float highest = NOTHING, joined[EACH] = {}, total = 0;
    for (int begin = (warp - first) & (JOINING - 1); begin < chunks; begin += JOINING * BATCH) {
        float2 stats[BATCH];
        float in[BATCH][EACH];
#pragma unroll
        for (int n = 0; n < BATCH; ++n) {
            const int chunk = begin + n * JOINING;
            if (chunk >= chunks) continue;
            stats[n] = partial_stats[from + chunk];
#pragma unroll
            for (int i = 0; i < EACH; ++i) in[n][i] = partial[(from + chunk) * HEAD_DIM + lane * EACH + i];
        }
        if (begin < JOINING) {
            for (int chunk = lane; chunk < chunks; chunk += 32) highest = fmaxf(highest, partial_stats[from + chunk].x);
#pragma unroll
            for (int step = 16; step; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, step));
        }
#pragma unroll
        for (int n = 0; n < BATCH; ++n) {
            if (begin + n * JOINING >= chunks) continue;
            const float factor = power_of_two(stats[n].x - highest);
            total = fmaf(factor, stats[n].y, total);
#pragma unroll
            for (int i = 0; i < EACH; ++i) joined[i] = fmaf(factor, in[n][i], joined[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) outputs[warp][lane * EACH + i] = joined[i];
    if (lane == 0) sums[warp] = total;
    __syncthreads();
    const int d = threadIdx.x;
    if (d < HEAD_DIM) {
        float value = 0, weight = 0;
#pragma unroll
        for (int w = 0; w < JOINING; ++w) {
            value += outputs[w][d];
            weight += sums[w];
        }
        out[((long long)row * HEADS + head) * HEAD_DIM + d] = to_bf16(value / weight);
    }
}
