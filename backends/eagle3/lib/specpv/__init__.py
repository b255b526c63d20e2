"""SpecPV: most verifications look at a part of the cache, and now and then one looks at all of it; in any engine.

After Tan et al., arXiv 2512.02337. See backends/eagle3/docs/specpv.md.

"""
