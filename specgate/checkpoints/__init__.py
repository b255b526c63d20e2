"""EAGLE-3 checkpoints, and what every engine that decodes them shares.

    pair.py                opens or loads a target and its draft: translated config, checked tensors, content hash
    geometry.py            every size and switch of a target and of a draft
    hf/                    Hugging Face `config.json` ↔ geometry
    hf_keys.py             such a file, read strictly: errors name the file, the key and the value
    layout.py              which tensors a geometry implies, with their shapes
    checkpoint.py          strict reading of weight files: every missing, misshapen and left-over tensor is named
    files.py               the files of a checkpoint folder, and the digest that names them
    parallel/              a target on several GPUs: which part each of them has
    weights.py             checkpoint tensors, packed as the forward pass wants them
    kv/                    formats that keys and values are cached in
    mxfp4/                 the four-bit numbers of gpt-oss' experts
    d2t.py                 the map from the draft's vocabulary to the target's
    rope.py                frequencies and tables of rotary position embedding
    auxiliary_layers.py    which hidden states of the target feed the draft
    spec_config/           speculative configs of any engine: read, checked, and laid side by side
    trees/                 trees of draft tokens: read, laid out, grown, accepted, compacted
    specpv/                what verification over a part of the cache is asked for
    logit_watch.py         digests of the logits that single tokens were chosen from
    stages/                the stages of a pass at which two engines can be held against each other
    chains/                chains that have fewer than K tokens: by a table, by the draft's confidence
    counters.py            what an engine counts beside acceptance
    traffic.py             what the passes of a pair must move through memory, from its geometry
    parameters.py          the harness's own count of the weights that a step must read
    memory.py              whether weights fit into memory, before any are read or made
    tokenizer_file.py      a target's `tokenizer.json`
    describe.py            geometries in words, for the facts that an engine states of itself
    tiny.py                a random target and a random draft, for tests and smoke runs
    planted/               pairs made from a seed, whose acceptance is known

Stable for engines from outside, as the built-in ones use it: everything but `tiny.py` and what `planted/` has besides
`planted.recipe`, which serve tests and the tools that make pairs. Most of these files import torch: a back end imports
them in `open` at the earliest.
"""
