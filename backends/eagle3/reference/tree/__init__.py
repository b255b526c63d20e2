"""Tree speculation: the draft proposes several tokens per level, and one target pass verifies them all.


Trees as tensors: `specgate.checkpoints.trees`. Attention along paths: `cache.along_paths`.
"""
