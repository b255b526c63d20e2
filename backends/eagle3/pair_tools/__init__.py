"""Making pairs, for `specgate engine`. These tools stand above the engines: they run the reference engine, and ask the
server adapters how other engines read an export.

    train/       training of EAGLE-3 drafts
    plant/       pairs made from a seed, whose acceptance is known
    export/      pairs in the layouts of other engines
    draft_vocab/ drafts with another vocabulary, chosen by what really occurs
    shards.py    safetensors shards of tensors that are made only when their shard is written
"""
