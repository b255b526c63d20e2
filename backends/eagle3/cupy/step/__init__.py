"""One step of decoding, as pages of kernel calls: no allocation, no read and no wait inside.

cycle.py         a whole step: reserve, draft, verify, accept, commit
chain.py         the draft over what was accepted, and its chain of K tokens
tree.py          or a tree, level by level
verify.py        the target's part: one pass over the last token and the drafts
verification.py  over which part of the cache, behind which rows, and what is accepted
partial.py       what a full verification leaves for partial ones
choice.py        the likeliest token, a drawn one, or by rejection
token_draw.py    drawing a row's token, and verifying drafts by rejection
layer.py         the kernels of one decoder layer, which both are made of
expert_layer.py  that with a mixture of experts
spans.py         cache blocks and trees of a step, which the harness checks
recording.py     the kernel calls of a step, with their operands, for who wants to repeat them
"""
