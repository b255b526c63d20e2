"""EAGLE-3 in plain torch: the oracle of every other engine, and the default engine where there is no GPU.

backend.py         the door through which the harness comes in
open.py            loads a pair, after checking that the engine can hold what the plan asks
engine.py          the loop over the pair's target
loop.py            prefill once, then rewind and decode as often as asked, with or without a draft, over any target
state.py           state of a decode run, and what it writes down
drafters.py        who proposes the chain: the pair's draft, or a stand-in whose acceptance is known
draft.py           the draft's forward pass, and the drafter that runs it
sampling.py        drawing tokens at a temperature in the place of the greedy choice
target.py          the target's forward pass, with the hidden states that the draft reads
gpt_oss.py         gpt-oss' forward pass, its packed tensors, and how many experts rows reach
partial.py         verification over a part of the cache, and over all of it now and then
tree.py            trees of draft tokens in the place of chains
scoring.py         another engine's text: scores of its tokens, and the pair's draft run along it
stages.py          what every stage of both passes gives, for `specgate diagnose parity`
ops.py             the arithmetic: one function per kernel of a fast engine, under the kernel's name
kv_planes.py       caches in formats narrower than what is computed in
cache.py           key/value caches, which cached positions a row may look at, and rows of trees in a cache
facts.py           what a loaded engine is, for the fingerprint and the report
memory_reads.py    how fast the host's memory can be read
"""
