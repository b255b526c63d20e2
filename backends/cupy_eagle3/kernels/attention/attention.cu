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
// Keys are operand B of q · kᵀ as they lie in memory, and values, stored transposed, operand B of p · v. Key
// 8 · (n / 2) + 2 · tile + n % 2 of a group is column n of tile `tile`: then a lane's probabilities are those of keys
// 8c … 8c + 7, which is what its 16-byte load of values holds, and they need no exchange between lanes.
//
// They come through a ring of STAGES pieces per warp in shared memory, a piece being the keys or the values of a group; a
// thread reads only what it has copied. A warp takes AT_ONCE of its groups at a time, first the keys of all, then the values
// of all; which groups go together is as fixed as they are.
//
// The first pieces of earlier steps are under way before anything else is known. Where PACE is not 0, a warp has no more than
// PACE kilobytes of these on their way at a time: what memory cannot serve yet would only stand in the way of the small reads
// that the kernels before this one wait for.
#include "async_copy.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "mma.cuh"
#include "prefetch.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM must be 64 or 128");
static_assert(BLOCK % 32 == 0 && CHUNK % BLOCK == 0, "a group of 32 keys must not cross a block, nor a block a chunk");
static_assert(PACE >= 0, "PACE must be a number of kilobytes, or 0: no pace is kept");
static_assert(CHUNK / BLOCK <= 32, "CHUNK must be at most 32 blocks: a lane holds one entry of the table");

#define GROUP (HEADS / KV_HEADS)
#define QUERIES (GROUP * ROWS)
#define TILES ((QUERIES + 15) / 16)
#define HALVES (QUERIES > 8 ? 2 : 1)  // of a tile's 16 rows, that have a query
#define WIDE (HEAD_DIM / 32)
#define HALF (HEAD_DIM / 2)
#define ALL_HEADS (HEADS + 2 * KV_HEADS)
#define NARROW (HEAD_DIM / 8)
#define PIECE (HEAD_DIM / 8 * 32)  // 16-byte loads of a warp
#define STRIDE (32 * WARPS)        // positions between two groups of a warp
#define AT_ONCE (HEAD_DIM == 64 ? 2 : 1)  // groups of a warp: with short heads there is too little to do for one alone
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

// Eight of them, packed as bfloat16: elements i … i + 7 into `low`, i + HALF … into `high`. All pointers are aligned to 16
// bytes.
__device__ __forceinline__ void rotated_eight(uint4& low, uint4& high, const float* in, const float* cosine,
                                              const float* sine) {
    unsigned *to_low = &low.x, *to_high = &high.x;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const float4 x = *reinterpret_cast<const float4*>(in + i), y = *reinterpret_cast<const float4*>(in + i + HALF);
        const float4 cos = *reinterpret_cast<const float4*>(cosine + i), sin = *reinterpret_cast<const float4*>(sine + i);
        const float2 a = rotated(x.x, y.x, cos.x, sin.x), b = rotated(x.y, y.y, cos.y, sin.y);
        const float2 c = rotated(x.z, y.z, cos.z, sin.z), d = rotated(x.w, y.w, cos.w, sin.w);
        to_low[i / 2] = pack_bf16(a.x, b.x);
        to_low[i / 2 + 1] = pack_bf16(c.x, d.x);
        to_high[i / 2] = pack_bf16(a.y, b.y);
        to_high[i / 2 + 1] = pack_bf16(c.y, d.y);
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
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    // Every step of this chain is a trip to the L2 cache: what can be asked for at once is. Beyond active_count, too, stands a
    // slot that there is.
    const int count = *active_count, slot = active[a];
    const int position = length[slot] + offset, last = position + ROWS - 1;
    const int appended = counts ? counts[slot] : APPENDED, oldest_new = counts ? position - appended + 1 : position;
    const int chunk = first_chunk(position) + place;
    const int* table = block_table + slot * MAX_BLOCKS;
    const int entry = table[min(chunk * (CHUNK / BLOCK) + min(lane, CHUNK / BLOCK - 1), MAX_BLOCKS - 1)];
    const bool idle = a >= count || chunk * CHUNK > last;
    const int end = min(last + 1, (chunk + 1) * CHUNK);
    const int begin = WINDOW ? max(chunk * CHUNK, (position - WINDOW + 1) & ~31) : chunk * CHUNK;  // seen by row 0
#if STATISTICS
    if (threadIdx.x == 0 && a < count) {
        const int groups = CHUNK / 32, done = idle ? 0 : max(0, (end - begin + 31) / 32);
        atomicAdd(statistics, groups);
        atomicAdd(statistics + (idle ? 1 : 2), groups - done);
        atomicAdd(statistics + 3, done);
    }
#endif
    // A block that waited would hold a place that one with work may need. It need not: of an active slot the first chunk that
    // is seen always has work, and waits. (What is counted above is counted by kernels that are compiled for that alone.)
    if (idle) {
        if (count == 0) await_previous();
        return;
    }

    // Angles come from memory once per layer: what passes through the L2 cache in a layer drives them out of it.
    const int angles = (last - oldest_new + 1) * HALF * (int)sizeof(float);
    prefetch<WARPS * 32>(cosine + (long long)oldest_new * HALF, angles);
    prefetch<WARPS * 32>(sine + (long long)oldest_new * HALF, angles);

    // In the same memory, one after the other: the ring [STAGES][WARPS][PIECE], and outputs [WARPS][16][HEAD_DIM].
    extern __shared__ uint4 memory[];
    __shared__ uint4 queries[WIDE][2][32];  // as operand A: rows g and g + 8 of k 8c … 8c + 3, then of 8c + 4 … 8c + 7
    __shared__ float2 stats[WARPS][16];

    const unsigned ring = shared_address(memory);
    auto piece = [&](int stage) { return (stage * WARPS + warp) * PIECE + lane; };
    // By all lanes of a warp. One that is `paced` commits each kilobyte by itself, and waits for the one PACE before it; of
    // others the caller commits all.
    auto fetch = [&](int stage, bool values, int key, bool paced) {
        auto copied = [&](int n) {
            if (!paced || n % 2 == 0) return;
            end_of_group();
            await_copies<(PACE > 0 ? PACE - 1 : 0)>();
        };
        const int block = __shfl_sync(FULL_WARP, entry, (key - chunk * CHUNK) / BLOCK);
        const long long at = ((long long)block * KV_HEADS + kv_head) * BLOCK * HEAD_DIM;
        const unsigned to = ring + LOAD * piece(stage);
        if (values) {
            const bf16* from = v_pages + at + key % BLOCK + g * BLOCK + 8 * c;
#pragma unroll
            for (int n = 0; n < NARROW; ++n) {
                copy_async(to + LOAD * (n * 32), from + n * 8 * BLOCK);
                copied(n);
            }
        } else {
            const bf16* from = k_pages + at + (key % BLOCK + 8 * (g / 2) + g % 2) * HEAD_DIM + 8 * c;
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int wide = 0; wide < WIDE; ++wide) {
                    copy_async(to + LOAD * ((n * WIDE + wide) * 32), from + 2 * n * HEAD_DIM + wide * 32);
                    copied(wide);
                }
        }
    };
    // Piece n of a warp: how many of its groups come before that one, and whether it is values.
    auto groups_before = [](int n) { return n / (2 * AT_ONCE) * AT_ONCE + n % AT_ONCE; };
    auto has_values = [](int n) { return n / AT_ONCE % 2 == 1; };
    auto wanted = [&](int key) { return (WINDOW == 0 || key >= begin) && key < end; };  // the group that begins there
    int first = chunk * CHUNK + 32 * warp;
    while (first + (AT_ONCE - 1) * STRIDE < begin) first += AT_ONCE * STRIDE;
    const int known = min(oldest_new, (chunk + 1) * CHUNK);  // positions before it are of earlier steps: nothing to wait for
#pragma unroll
    for (int n = 0; n < STAGES; ++n) {
        const int key = first + groups_before(n) * STRIDE;
        if (key + 32 <= known && wanted(key)) fetch(n, has_values(n), key, PACE > 0);
        end_of_group();
    }

    await_previous();
    let_next_start();
    auto query_head = [&](int index) { return kv_head * GROUP + index % GROUP; };
    auto query_row = [&](int index) { return a * ROWS + index / GROUP; };
    auto store_query = [&](int wide, int half, const uint4& of) {
        unsigned *lower = &queries[wide][0][lane].x + half, *upper = &queries[wide][1][lane].x + half;
        lower[0] = of.x, lower[2] = of.y, upper[0] = of.z, upper[2] = of.w;
    };
    for (int n = warp; n < WIDE; n += WARPS) {
        const int wide = n / 2, half = n % 2, index = tile * 16 + g + 8 * half, t = index / GROUP, i = wide * 32 + 8 * c;
        uint4 low = {}, high = {};
        if (index < QUERIES) {
            const int row = a * APPENDED + (counts ? appended - 1 : t);
            const long long angle = (long long)(position + t) * HALF + i;
            rotated_eight(low, high, qkv + ((long long)row * ALL_HEADS + query_head(index)) * HEAD_DIM + i, cosine + angle,
                          sine + angle);
        }
        store_query(wide, half, low);
        store_query(wide + WIDE / 2, half, high);
    }
    const bool grows = known < end;  // new positions lie in this chunk
    const int first_written = (threadIdx.x + (WARPS - WIDE % WARPS) * 32) % (WARPS * 32);  // warps that rotate no queries begin
    for (int n = first_written; grows && n < appended * HALF; n += WARPS * 32) {
        const int t = n / HALF, i = n % HALF, at = oldest_new + t;
        if (at / CHUNK != chunk) continue;
        const float* key_row = qkv + ((long long)(a * APPENDED + t) * ALL_HEADS + HEADS + kv_head) * HEAD_DIM;
        const float* value_row = key_row + KV_HEADS * HEAD_DIM;
        const float2 pair = rotated(key_row[i], key_row[i + HALF], cosine[(long long)at * HALF + i],
                                    sine[(long long)at * HALF + i]);
        const long long page = ((long long)table[at / BLOCK] * KV_HEADS + kv_head) * BLOCK * HEAD_DIM;
        bf16* keys = k_pages + page + at % BLOCK * HEAD_DIM;
        keys[i] = to_bf16(pair.x);
        keys[i + HALF] = to_bf16(pair.y);
        bf16* values = v_pages + page + at % BLOCK;
        values[i * BLOCK] = to_bf16(value_row[i]);
        values[(i + HALF) * BLOCK] = to_bf16(value_row[i + HALF]);
    }
    __syncthreads();
    if (grows) {
        bool late = false;
#pragma unroll
        for (int n = 0; n < STAGES; ++n) {
            const int key = first + groups_before(n) * STRIDE;
            if (key + 32 <= known || !wanted(key)) continue;
            fetch(n, has_values(n), key, false);
            late = true;
        }
        if (late) {
            end_of_group();
            await_copies<0>();
        }
    }

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
    int stage = 0;
    auto arrived = [&]() {
        await_copies<STAGES - 1>();
        return memory + piece(stage);
    };
    // A piece has been used: its place is for the one that comes STAGES after it. Later than its loads, which would wait
    // behind the copies.
    auto refill = [&](int n, int key) {
        const int then = key + groups_before(n + STAGES) * STRIDE;
        if (wanted(then)) fetch(stage, has_values(n + STAGES), then, false);
        end_of_group();
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    };
    for (int key = first; key < end; key += AT_ONCE * STRIDE) {
        float score[AT_ONCE][4][4] = {};
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            if (wanted(key + n * STRIDE)) {
                const uint4* keys = arrived();
#pragma unroll
                for (int wide = 0; wide < WIDE; ++wide) {
                    const uint4 lower = queries[wide][0][lane], upper = queries[wide][1][lane];
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const uint4 k = keys[(i * WIDE + wide) * 32];
                        mma_bf16(score[n][i], lower.x, lower.y, lower.z, lower.w, k.x, k.y);
                        mma_bf16(score[n][i], upper.x, upper.y, upper.z, upper.w, k.z, k.w);
                    }
                }
            }
            refill(n, key);
        }
        const int newest_key = key + (AT_ONCE - 1) * STRIDE + 31;
        const bool all_seen = newest_key <= min(position, end - 1) && (WINDOW == 0 || key > last - WINDOW);  // by every row
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            auto at = [&](int i) -> float& { return score[i / 8][i % 8 / 2][2 * half + i % 2]; };
            float highest = top[half];
#pragma unroll
            for (int i = 0; i < 8 * AT_ONCE; ++i) at(i) *= scale;
            if (!all_seen)
#pragma unroll
                for (int i = 0; i < 8 * AT_ONCE; ++i) {
                    const int here = key + i / 8 * STRIDE + 8 * c + i % 8;
                    if (here >= end || here > newest[half] || here < oldest[half]) at(i) = MASKED;
                }
#pragma unroll
            for (int i = 0; i < 8 * AT_ONCE; ++i) highest = fmaxf(highest, at(i));
            highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, 2));
            const float shrink = power_of_two(top[half] - highest);
            top[half] = highest;
            sum[half] *= shrink;
#pragma unroll
            for (int i = 0; i < 8 * AT_ONCE; ++i) {
                at(i) = power_of_two(at(i) - highest);
                sum[half] += at(i);
            }
#pragma unroll
            for (int n = 0; n < NARROW; ++n) {
                out[n][2 * half] *= shrink;
                out[n][2 * half + 1] *= shrink;
            }
        }
        unsigned p[AT_ONCE][8];  // of keys 8c + 2i, 8c + 2i + 1: rows g in p[][2i], rows g + 8 in p[][2i + 1]
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                p[n][2 * i] = pack_bf16(score[n][i][0], score[n][i][1]);
                p[n][2 * i + 1] = HALVES > 1 ? pack_bf16(score[n][i][2], score[n][i][3]) : 0;
            }
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            if (wanted(key + n * STRIDE)) {
                const uint4* values = arrived();
#pragma unroll
                for (int i = 0; i < NARROW; ++i) {
                    const uint4 v = values[i * 32];
                    mma_bf16(out[i], p[n][0], p[n][1], p[n][2], p[n][3], v.x, v.y);
                    mma_bf16(out[i], p[n][4], p[n][5], p[n][6], p[n][7], v.z, v.w);
                }
            }
            refill(AT_ONCE + n, key);
        }
    }
    await_copies<0>();
    __syncthreads();

    float(*outputs)[16][HEAD_DIM] = reinterpret_cast<float(*)[16][HEAD_DIM]>(memory);
    auto column = [](int row, int d) { return d ^ row % 8 * 8; };  // so that the rows of a warp's lanes lie in other banks
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
        sum[half] += __shfl_xor_sync(FULL_WARP, sum[half], 1);
        sum[half] += __shfl_xor_sync(FULL_WARP, sum[half], 2);
        if (c == 0) stats[warp][g + 8 * half] = make_float2(top[half], sum[half]);
#pragma unroll
        for (int n = 0; n < NARROW; ++n)
            *reinterpret_cast<float2*>(&outputs[warp][g + 8 * half][column(g, n * 8 + 2 * c)]) =
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
            for (int w = 0; w < WARPS; ++w) joined = fmaf(factor[w], outputs[w][row][column(row, d)], joined);
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
    let_next_start();
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
