"""The search for the configurations of matrix products. What it finds is looked up by `tuned/`.

search.py           the search itself: compile, check, time, keep the fastest
shapes.py           every product of a pair's steps, from its sizes alone
weights.py          the weights behind these products
gemm_candidates.py  the configurations that are worth trying
product.py          one product with random operands, to try them on
check.py            whether a configuration computes what it should
in_steps.py         configurations compared in whole steps
steps.py            whole steps whose products can be given other configurations
"""
