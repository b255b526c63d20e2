"""Tree speculation: the draft proposes several tokens per level, and one target pass verifies them all.

options.py     what `-o tree=…` asks for
drafting.py    the draft, level by level, over the nodes that are expanded
verifying.py   one target pass over all nodes, the longest accepted path, and the cache that it leaves

Trees as tensors: `specgate.checkpoints.trees`. Attention along paths: `cache.along_paths`.
"""
