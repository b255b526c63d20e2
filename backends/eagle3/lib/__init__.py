"""EAGLE-3 in torch's terms: what the engines that decode it share. `specgate.checkpoints` reads the configs.

pair.py         opens or loads a target and its draft: translated config, checked tensors, content hash
weights.py      checkpoint tensors, packed as the forward pass wants them; MXFP4 numbers
planted/        pairs made from a seed, whose acceptance is known
traffic.py      memory traffic that passes need
memory.py       whether weights fit into memory, before any are read or made
layout.py       which tensors a geometry implies, with their shapes; a geometry in words
checkpoint.py   strict reading of weight files: every missing, misshapen and left-over tensor is named
hf_write.py     geometry → Hugging Face `config.json`
shard.py        a target or a draft split among several GPUs
kv/             formats that keys and values are cached in
rope.py         frequencies and tables of rotary position embedding
trees/          trees of draft tokens: read from options, laid out, grown, accepted, compacted
refusals.py     pairs of options that do not go together
specpv.py       options of verification over a part of the cache
chains.py       draft lengths: of a chain in one cycle, and by the number of running requests
playback.py     accept counts of another run, replayed
logit_watch.py  digests of the logits that single tokens were chosen from
profiler.py     what a process does on a CUDA device, recorded through torch's profiler
"""
