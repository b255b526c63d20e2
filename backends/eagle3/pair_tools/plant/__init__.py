"""Planting a pair: choose a geometry, calibrate the signal, write the folder, check it by measuring.

command.py             `specgate engine plant`: calibrate, write, measure
geometries.py          geometries that can be planted, dense and with experts
thresholds.py          acceptance length, share of planted tokens, thresholds
calibrate.py           how strong the signal must be for a wanted share
decoder.py             the engine that decodes its own text, for calibration and check
orbit.py               the text of a planted pair, and what it implies
write.py               the pair as two Hugging Face folders: configs alone, or with weights
overlap.py             measures how many distinct experts neighbouring tokens touch
check.py               measures the pair against the tokens and the prediction
"""
