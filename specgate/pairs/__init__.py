"""Pairs of a target and a draft: the demo pair, its training, exports, and the text that prompts are cut from.

Makers of checkpoints stand above the engines: they import `specgate.eagle3`,
`specgate.backends.reference` and, for exports, `specgate.backends.servers`, and nothing of the harness but `core` and
`errors`. The harness knows a pair only as a `core.PairRef`.
"""
