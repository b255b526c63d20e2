"""The search for the configurations of matrix products. What it finds is looked up by `tuned/`.

search.py           the search, and every product that a pair's steps run
weight.py           a weight that is searched for
weights.py          the weights behind the products that were asked for
gemm_weight.py      a plain weight: configurations worth trying, and how its products are searched
product.py          products with random operands, to try them on, and the checks of their results
expert_product.py   one of a mixture of experts
in_steps.py         configurations compared in whole steps
steps.py            whole steps whose products can be given other configurations
expert_weight.py    the weights of a mixture of experts, likewise
wgmma.py            products of many rows by a warpgroup, and from how many rows on they are faster
"""
