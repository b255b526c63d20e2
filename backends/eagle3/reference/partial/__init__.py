"""SpecPV: most verifications look at a part of the cache, and now and then one looks at all of it.

After Tan et al., arXiv 2512.02337. See backends/eagle3/docs/specpv.md. What `-o specpv…` asks for is read by
`specgate.backends.eagle3.lib.specpv`.

"""
