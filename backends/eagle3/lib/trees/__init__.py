"""Trees of draft tokens on a device: read from options, laid out, grown from the draft's choices, accepted, compacted.
`specgate.backends.eagle3.nouns.trees` has their shapes and files, and says how nodes are numbered.

    options.py     the option `tree` of an engine
    topology.py    topology and masks of a tree on the device
    growing.py     choice of the draft's candidates that become nodes: those of a file, or the likeliest
    accepting.py   the longest accepted path, compaction of cache rows

Everything from `topology.py` to `accepting.py` is a function of tensors without a loop over nodes and without a copy to
the host, for any batch [B, …]; loops run over levels, of which there are few.
"""
