"""The engine: open a pair, prefill its prompts once, then rewind and decode as often as asked.

open.py               loads a pair, after checking that the engine can hold what is asked
limits.py             limits of the kernels and of memory, checked before anything is compiled or allocated
tree_option.py        the draft tree that is asked for, and what of it no kernel is made for
forensics.py          what it shows beside tokens: logits, cache spans, draws and their laws, stages
decoding.py           prefill, decode and extend: what everything else rests on
prefill.py            a prompt through the target and the draft: cuBLAS, a library's attention, and kernels between
prefill_attention.py  which library that is, and its attention
prefill_sinks.py      attention with sinks and windows, by each library
prefill_experts.py    prompts through a target with a mixture of experts, together
prefill_mixture.py    the experts of one of its layers: routing, decoding and products
prefilled.py          all prompts into the cache, and the state that every decode run begins with
sampled.py            who requests are, and what draws come from, on the host
partial.py           verification over a part of the cache (SpecPV): option, schedule, counters
ranks/                the GPUs that it decodes on: one, or several that share a target
decode_run.py         a decode run, and whole steps as one CUDA graph
run_parts.py          features as decode runs see them, each with the same few calls
phase_trace.py        the phases of every step as a Chrome trace
stages.py             what every stage of both passes gives for one prompt, for `specgate diagnose parity`
tiles.py              how attention's kernels use the tiles of the cache
facts.py              what a loaded engine is, for the fingerprint and the report
"""
