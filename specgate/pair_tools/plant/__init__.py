"""Planting a pair: choose a geometry, calibrate the signal, write the folder, check it by measuring.

geometries   the shapes that can be planted       law          acceptance length ↔ share of planted tokens
orbit        token sequences like generated ones  calibrate    the signal at which that share comes out
truth        accept counts that a text implies    write, check, command
"""
