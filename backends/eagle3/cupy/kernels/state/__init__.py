"""The state of slots and of the cache's blocks, and the kernels that keep it. Each has a `.cu` of the same name.

slots.py       the arrays of a decode run, and which rows of a step there are
kv_blocks.py   who holds which block of the cache
kv_reserve.py  begins a step: blocks for what it may write
accept.py      how many drafts of each slot the target agrees with
commit.py      ends a step: emit, rewind, give blocks back
"""
