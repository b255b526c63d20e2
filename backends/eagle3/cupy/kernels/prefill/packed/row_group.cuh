// An expert's pairs in row groups of at most ROW_GROUP, as the products of few rows take them (packed_products.cuh). A pair is
// a row and one of its experts; pairs are sorted by their expert, and then by their row.
#pragma once

struct RowGroup {
    int expert, start, count;  // the sorted pairs from `start` on
    int unused;                // so that a row group has whole pieces of 16 bytes
    int rows[ROW_GROUP];       // of its pairs
};

static_assert(ROW_GROUP % 8 == 0, "a product takes eight rows");
