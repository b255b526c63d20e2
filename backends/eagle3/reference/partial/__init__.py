"""SpecPV: most verifications look at a part of the cache, and now and then one looks at all of it.

After Tan et al., arXiv 2512.02337. See backends/eagle3/docs/specpv.md. What `-o specpv…` asks for is read by
`specgate.backends.eagle3.lib.specpv`.

blocks.py     which blocks of 16 positions are kept: scores, selection, positions
attending.py  attention over what is kept, and over all of it while choosing what to keep
verifying.py  the cycles: lossy as in the paper, and lossless
"""
