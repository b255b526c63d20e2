// A path's keys and values in `tree_settle.cu`, of a cache in NVFP4. Codes and scales of a position go to another as they are:
// the outer scale is the slot's.
#pragma once
#include "nvfp4.cuh"

// The thread's element of the values. A load has 16 positions of two elements.
struct Element {
    const unsigned* own;

    __device__ __forceinline__ Element()
        : own(&memory[(threadIdx.x / 16 * 8 + threadIdx.x % 8) * PIECES].x + threadIdx.x / 8 % 2 * 2) {}

    // Its code at a place of `memory`, and as code `e` of the words of a piece.
    __device__ __forceinline__ unsigned number(int from) const {
        return code_at(own[from / NUMBERS * 4 + from % NUMBERS / 8], from % 8);
    }
    __device__ __forceinline__ static void put(unsigned (&words)[4], int e, unsigned code) {
        words[e / 8] = e % 8 ? words[e / 8] | placed(code, e % 8) : placed(code, 0);
    }
    __device__ __forceinline__ static void store(Cached* page, int at, const unsigned (&words)[4]) {
        unsigned* to = reinterpret_cast<unsigned*>(page) + value_code(at % BLOCK, threadIdx.x).word;
        *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    }
};

// Of values, all threads move an element each, and a few the codes of 16 elements of keys, with scales of keys and of values.
__device__ __forceinline__ void move_cached(const TreeSettleArguments& args, const Part& part) {
    const int COLUMNS = HEAD_DIM / 16, element = threadIdx.x % COLUMNS * 16;
    auto of_codes = [&](int row) {
        const int at = part.length + row;
        unsigned* codes = reinterpret_cast<unsigned*>(args.k_pages + part.page_of(at));
        return reinterpret_cast<uint2*>(codes + key_code(at % BLOCK, element).word);
    };
    auto scales_with = [&](int at) { return args.scales + part.page_of(at) / CODE_BYTES * SCALE_STRIDE; };
    auto of_keys = [&](int row) {
        const int at = part.length + row;
        return scales_with(at) + key_scale(at % BLOCK, element);
    };
    auto of_values = [&](int row) {
        const int at = part.length + row;
        return scales_with(at) + value_scale(at % BLOCK, element);
    };
    const bool has_columns = (int)threadIdx.x >= THREADS - COLUMNS;
    Column<uint2> codes;
    Column<unsigned char> keys, values;
    if (has_columns) codes.load(of_codes), keys.load(of_keys), values.load(of_values);
    move_values<Element>(args.v_pages, part);
    if (has_columns) codes.store(of_codes), keys.store(of_keys), values.store(of_values);
}
