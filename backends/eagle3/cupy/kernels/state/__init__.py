"""The state of slots and of the cache's blocks, and the kernels that keep it. `launchers.py` launches them.

slots.py          the arrays of a decode run, which rows of a step there are, and who holds which block of the cache
kv_reserve.cu     begins a step: blocks for what it may write
accept.cu         how many drafts of each slot the target agrees with
accept_forced.cu  as many as another run has recorded
commit.cu         ends a step: emit, rewind, give blocks back
"""
