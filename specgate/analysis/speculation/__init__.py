"""Speculation as such: is it active, if not why not, and its acceptance over many requests.

    drafting.py      steps with drafts, and how long these were
    rewinds.py       tokens taken back in the KV cache, against those that were rejected
    evidence.py      what is known of a short run: its block, the engine, the pair's configs, the log
    causes.py        the known causes of speculation that is off, checked one by one
    configs.py       the causes that the pair's configs and the engine's options show
    errors.py        the causes that the engine's error names
    forced.py        whether forced acceptance has the distribution that was asked for, and what looks forced
    summary.py       the acceptance summary, and its layout
    uptime.py        whether acceptance changes while the engine answers more and more requests

Pure: the same evidence gives the same findings.
"""
