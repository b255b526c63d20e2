"""Kernels of draft trees. `launchers.py` launches them. Attention of trees: `attention/nodes/tree_rows.cuh`.

tree_token.cu    a level's tokens from the draft's logits, and the input of the draft's next level
tree_top.cu      of a dynamic tree, the likeliest tokens of rows of logits, in parts of the vocabulary
tree_grow.cu     a level from these, on the likeliest paths so far, and the input of the draft's next level
tree_choose.cu   a dynamic tree from the candidates of all levels: its tokens, parents and masks
tree_settle.cu   the longest path that the target agrees with, whether masks are whole, and the path's cache entries and
                 features to where a chain has them

largest.cuh      the largest choice of a warp
likeliest.cuh    the likeliest tokens of a row, by a block, from what the LM head leaves beside its logits
settled_*.cuh    a path's cache entries in `tree_settle.cu`, by the format of the cache
joined_rows.cuh  the candidates behind rows of a dynamic tree, and the probabilities of their paths
"""
