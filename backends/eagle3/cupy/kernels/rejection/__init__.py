"""Verifying drafts by rejection, in two launches. `launchers.py` launches them.

sum_rows.cu       what weights of a row are divided by to be probabilities, of the target and of the draft
verify_drafts.cu  which drafts are accepted, and the token in the place of the first that is not
"""
