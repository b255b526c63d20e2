"""Products of experts for few rows of prompts, of weights as they are packed. Each has a `.cu` of the same name.

packed_products.py  how the work of both is divided
packed_products.cuh what both share: requests, and the sums over k
prefill_parties.py  pairs of rows and experts, sorted by their expert and cut into parties
prefill_gate_up.py  gate and up, with biases and the clamped SwiGLU
prefill_down.py     down
party.cuh           a party
"""
