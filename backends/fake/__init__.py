"""The fake engine: scripted tokens on a scripted clock. It tests the harness, and proves no speed.

engine.py     the engine, and the back end that opens it
load.py       the engine under load: requests that come and go
script.py     settings of the script, faults among them
pair/         the sizes of the pair that it stands for where none is named: a config, no weights
"""
