"""The GPUs that an engine decodes on: one, or several that share a target.

option.py           what `-o tp=N` asks for, and what cannot be divided
rank.py             one of the GPUs, what stands for one in a prefill, and its weights
prefill.py          prompts through a target that is split, all ranks side by side
prefill_experts.py  the same through a mixture of experts
sums.py             the sums over ranks that a prefill takes
"""
