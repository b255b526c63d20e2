"""The search for the configurations of matrix products. What it finds is looked up by `tuned/`.

<<<<<<< HEAD
search.py           the search, and every product that a pair's steps run
weight.py           weights that are searched for, and the checks of a configuration's results
gemm_weight.py      a plain weight: configurations worth trying, and how its products are searched
=======
search.py           the search itself: compile, check, time, keep the fastest
shapes.py           every product of a pair's steps, from its sizes alone
weights.py          the weights behind these products
weight.py           what the searches ask of a weight
gemm_weight.py      a plain weight, expert_weight.py those of a mixture of experts
gemm_candidates.py  the configurations that are worth trying, expert_candidates.py those of experts
>>>>>>> parent of 4c32fe21 (wip)
product.py          one product with random operands, to try them on
check.py            whether a configuration computes what it should
expert_product.py   both of a product of experts
in_steps.py         configurations compared in whole steps
steps.py            whole steps whose products can be given other configurations
expert_weight.py  the weights of a mixture of experts, likewise
"""
