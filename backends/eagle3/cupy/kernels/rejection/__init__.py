"""Verifying drafts by rejection, in two launches. Each kernel has a `.cu` of the same name.

drafted.py        the rows that judge draft tokens and those that they were drawn from (`drafted.cuh`)
sum_rows.py       what weights of a row are divided by to be probabilities, of the target and of the draft
verify_drafts.py  which drafts are accepted, and the token in the place of the first that is not
"""
