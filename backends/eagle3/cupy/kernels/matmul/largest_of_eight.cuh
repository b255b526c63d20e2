// A product's TAKES_ARGMAX, where the maxima of every eight columns are wanted in place of a row's one choice. Of both, the
// eight columns that neighbouring lanes hold are compared first. `choices` is then the maxima, unsigned
// [rows][maxima_of(N_OUT)].
//
// The file of the product is included behind this one as it is. Tuned configurations carry the hash of its text: a switch in
// there would make all of them void.
#pragma once
#include "argmax.cuh"
#include "maxima.cuh"

// Nothing has to be beaten.
#define so_far(best) Choice(0)
// In raise_choice, of matmul_epilogue.cuh. `choices` is that of the block's first row there.
#define PLACE_OF(cell) ((long long)(first_row() + cell.row) * maxima_of(N_OUT) + cell.column / 8)
#define atomicMax(of_row, best) (reinterpret_cast<unsigned*>(choices - first_row())[PLACE_OF(cell)] = logit_of(best))
