"""The GPUs that an engine decodes on: one, or several that share a target.

rank.py     one of them: its weights, buffers, stream, steps and graphs
prefill.py  prompts through a target that is split, all ranks side by side
sums.py     the sums over ranks that a prefill takes
"""
