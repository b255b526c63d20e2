"""Sampling at a temperature: the target's distribution, and two ways of verifying a draft that keep it.

    keys.py           random numbers of a draw
    settings.py       what may be asked of sampling, and what is wrong with what is asked
    history.py        which tokens a text has, for penalties; those of every row of a draft
    target.py         logits → the distribution that is sampled from; log-probabilities
    distributions.py  what a distribution must be, and a draft's over the target's vocabulary
    rejection.py      two lossless verifications of drafts

Plain numpy in float64, without state. Shapes: B requests, K draft tokens, V vocabulary, W draft vocabulary.
"""
