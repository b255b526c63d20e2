"""Costs of a mixture of experts: how many experts passes touch, and how far neighbouring tokens share them.

rows.py        rows per slot and step, as the records of a block give them
overlap.py     overlap ↔ distinct experts, and the overlap that a speed gate would take
use.py         blocks → the figures of a cell
lengths.py     what shorter drafts could give, with everything at its floor
byte_costs.py  what a cycle costs by its bytes alone, before anything was measured
"""
