"""Micro before full: a full run begins only once the micro gates have been green often enough.

admission.py           that order in the life of a run: before it begins, when its engine is loaded, after its end
claim.py               which micro gates a run rests on, how often they were green, and whether it may begin
micro_gates.py         which micro scenarios must be green, and the command that runs them
green_runs.py          how often in a row they have been: a pure function of the ledger's entries and the time
standing.py            whether a green entry is believed, and the status of a subject
fingerprint.py         what two fingerprints state differently, and how that is said
ending.py              the end of a run as one step, whatever cuts it
ledger.py              what runs have ended with: `ledger.jsonl`, append-only, beside the run folders
pins.py                runs that are pinned as an anchor
since_last_green.py    what differs between a run and the last green one before it
"""
