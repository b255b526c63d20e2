"""Trees of draft tokens: their shapes and files.

Node 0 is the root: the newest committed token, which the target has not run on yet. The draft tokens are the nodes from
1 on, level by level, so that a parent always has a lower number than its children. A tree of N draft tokens has
R = N + 1 rows in the target's verification. A chain of K draft tokens is the tree whose every node has one child.

    shape.py       a tree as its choices say it: nodes, levels, branching
    file.py        `eagle_tree.yaml`, read strictly
    sizes.py       sizes, buffers and memory that a tree takes in an engine
"""
