"""Trees of draft tokens: read, laid out as tensors, grown from the draft's choices, accepted and compacted.

Node 0 is the root: the newest committed token, which the target has not run on yet. The draft tokens are the nodes from
1 on, level by level, so that a parent always has a lower number than its children. A tree of N draft tokens has
R = N + 1 rows in the target's verification. A chain of K draft tokens is the tree whose every node has one child.

    shape.py       a tree as its choices say it: nodes, levels, branching
    file.py        `eagle_tree.yaml`, read strictly
    asked.py       the option `tree` of an engine
    topology.py    parents → ancestor mask, depths, leaves, paths
    masks.py       ancestor masks packed into words, and whether they are whole
    growing.py     which candidates of the draft become nodes: those of a file, or the likeliest
    accepting.py   the longest accepted path, packed paths with offsets, compaction of cache rows
    sizes.py       sizes, buffers and memory that a tree takes in an engine

Everything from `topology.py` to `accepting.py` is a function of tensors without a loop over nodes and without a copy to
the host, for any batch [B, …]; loops run over levels, of which there are few. `shape.py` and `sizes.py` need no torch.
"""
