// Rotate queries and keys of a step's rows (half-split layout), and append keys and values to the paged cache.
//
// qkv [rows][HEADS + 2 · KV_HEADS][HEAD_DIM] float32 → q [..][HEADS][HEAD_DIM] bfloat16; keys go to
// k_pages[block][KV_HEADS][BLOCK][HEAD_DIM], values, transposed, to v_pages[block][KV_HEADS][HEAD_DIM][BLOCK].
//
// Token t of a slot stands at position length + offset + t. Where the draft extends (`counts` given), only the first
// counts[slot] rows exist, the last of them standing at length + offset, and that one alone keeps its query, as row a of q.
#include "bf16.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM must be 64 or 128");

extern "C" __global__ void rope_append(bf16* q, bf16* k_pages, bf16* v_pages, const float* qkv, const float* cosine,
                                       const float* sine, const int* block_table, const int* length, const int* counts,
                                       const int* active, const int* active_count, int rows_per_slot, int offset) {
    const int a = blockIdx.x / rows_per_slot, t = blockIdx.x % rows_per_slot;
    const int head = blockIdx.y * blockDim.y + threadIdx.y;
    if (a >= *active_count || head >= HEADS + 2 * KV_HEADS) return;
    const int slot = active[a], count = counts ? counts[slot] : 0;
    if (counts && t >= count) return;
    const int position = length[slot] + offset + t - (counts ? count - 1 : 0);
    const bool keeps_query = !counts || t == count - 1;
    const int query_row = counts ? a : blockIdx.x;

    const int i = threadIdx.x;  // of HEAD_DIM / 2 pairs
    const float* in = qkv + ((long long)blockIdx.x * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM;
    float x = in[i], y = in[i + HEAD_DIM / 2];
    if (head < HEADS + KV_HEADS) {
        const float cos = cosine[(long long)position * (HEAD_DIM / 2) + i];
        const float sin = sine[(long long)position * (HEAD_DIM / 2) + i];
        const float rotated = x * cos - y * sin;
        y = y * cos + x * sin;
        x = rotated;
    }
    if (head < HEADS) {
        if (!keeps_query) return;
        bf16* row = q + ((long long)query_row * HEADS + head) * HEAD_DIM;
        row[i] = to_bf16(x);
        row[i + HEAD_DIM / 2] = to_bf16(y);
        return;
    }
    const long long block = block_table[slot * MAX_BLOCKS + position / BLOCK];
    const int place = position % BLOCK;
    if (head < HEADS + KV_HEADS) {
        bf16* row = k_pages + ((block * KV_HEADS + head - HEADS) * BLOCK + place) * HEAD_DIM;
        row[i] = to_bf16(x);
        row[i + HEAD_DIM / 2] = to_bf16(y);
    } else {
        bf16* columns = v_pages + (block * KV_HEADS + head - HEADS - KV_HEADS) * HEAD_DIM * BLOCK + place;
        columns[i * BLOCK] = to_bf16(x);
        columns[(i + HEAD_DIM / 2) * BLOCK] = to_bf16(y);
    }
}
