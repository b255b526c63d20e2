// An expert's pairs in parties of at most PARTY, as the products of few rows take them (packed_products.cuh). A pair is a row
// and one of its experts; pairs are sorted by their expert, and then by their row.
#pragma once

struct Party {
    int expert, start, count;  // the sorted pairs from `start` on
    int unused;                // so that a party has whole pieces of 16 bytes
    int rows[PARTY];           // of its pairs
};

static_assert(PARTY % 8 == 0, "a product takes eight rows");
