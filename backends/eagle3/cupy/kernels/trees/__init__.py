"""Kernels of draft trees. Each has a `.cu` of the same name. Attention of trees: `attention/tree_rows.cuh`.

tree_token.py    a level's tokens from the draft's logits, and the input of the draft's next level
tree_top.py      of a dynamic tree, the likeliest tokens of rows of logits, in parts of the vocabulary
tree_grow.py     a level from these, on the likeliest paths so far, and the input of the draft's next level
tree_choose.py   a dynamic tree from the candidates of all levels: its tokens, parents and masks
pool.py          what the kernels of a dynamic tree hand on from level to level
tree_settle.py   the longest path that the target agrees with, whether masks are whole, and the path's cache entries and
                 features to where a chain has them

largest.cuh      the largest choice of a warp
likeliest.cuh    the likeliest tokens of a row, by a block, from what the LM head leaves beside its logits
joined_rows.cuh  the candidates behind rows of a dynamic tree, and the probabilities of their paths
"""
