"""Kernels of draft trees. Each has a `.cu` of the same name. Attention of trees: `attention/tree_rows.cuh`.

tree_top.py      the likeliest tokens of rows of the draft's logits, in parts of the vocabulary
tree_token.py    a level's tokens from these, and the input of the draft's next level
tree_grow.py     the same of a dynamic tree, on the likeliest paths so far
tree_choose.py   a dynamic tree from the candidates of all levels: its tokens, parents and masks
pool.py          what the kernels of a dynamic tree hand on from level to level
tree_settle.py   the longest path that the target agrees with, whether masks are whole, and the path's cache entries and
                 features to where a chain has them

largest.cuh      the largest choice of a warp
joined_rows.cuh  the candidates behind rows of a dynamic tree, and the probabilities of their paths
"""
