"""Read an EAGLE-3 head of any trainer. What its tensors say counts above its config.

names.py      names of tensors: prefixes of trainers, layers, what is left over, and heads of other kinds
sizes.py      sizes that the shapes of the tensors show, and where the config contradicts them
tensors.py    the tensors that a geometry implies, compared with those of the files
maps.py       d2t and t2d: integers of any type, checked
reading.py    all of it in order: one reading for engines and for checks of files
"""
