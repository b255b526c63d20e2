"""Sampling in the reference engine: what takes the place of the greedy choice at a temperature.

sampler.py    draws tokens from the target's logits, and verifies drafts, with the random numbers of each request
drafter.py    the pair's draft, drawing from its distribution
draws.py      independent texts, and the distribution that tokens come from
log_probs.py  log-probabilities of the tokens that a decode run emits
"""
