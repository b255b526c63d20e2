"""Micro before full: a full run begins only once the micro gates have been green often enough.

admission.py           that order in the life of a run: before it begins, when its engine is loaded, after its end
claim.py               which micro gates a run rests on, how often they were green, and whether it may begin
streak.py              green micro runs in a row
standing.py            the standing of a subject, and its status
signing.py             signatures of entries, made and checked by ssh-keygen
fingerprint.py         what two fingerprints state differently, and how that is said
ledger.py              what runs have ended with: `ledger.jsonl`, append-only, beside the run folders
"""
