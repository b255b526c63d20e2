"""`specgate engine sweep`: many settings of an engine, and the one that is proven faster than the default.

session.py    the whole of it: grid → halvings → the best beside the default, on fresh blocks → words, file
grid.py       the settings: from values per option to their combinations
halving.py    how many settings are measured in how many process pairs
measuring.py  one setting beside the default, as `ab` measures two builds
resuming.py   a sweep that goes on after it was cut off
"""
