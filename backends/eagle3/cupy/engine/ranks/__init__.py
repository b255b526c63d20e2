"""The GPUs that an engine decodes on: one, or several that share a target.

option.py           what `-o tp=N` asks for, and what cannot be divided
load.py             the weights on every rank
rank.py             one of them: its weights, buffers, stream, steps and graphs
one_of_ranks.py     what a prefill needs of each
prefill.py          prompts through a target that is split, all ranks side by side
prefill_experts.py  the same through a mixture of experts
sums.py             the sums over ranks that a prefill takes
"""
