"""Gate `tokens`: does a spec cell emit the baseline's tokens, and are these the target's?

Greedy speculative decoding is lossless, so a different token is a defect. A token that a second engine would not have
chosen is one, too, whatever the baseline says.

gate.py       the gate: its parameters, and what it asks of a cell
baseline.py   differences from the baseline's tokens
scores.py     what a second engine says of the tokens
evidence.py   near ties, figures and phrases for verdicts
"""
