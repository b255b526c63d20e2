"""Two engines' stages for one prompt: how far apart, which stage is the first to depart, and what is usually the cause.

tolerances.py  how far rounding alone can take two correct engines apart, by dtype and depth
distances.py   how far two tensors are apart, row by row; which tokens lead two rows of logits
comparison.py  every stage of two dumps beside each other: the first that departs
causes.py      what is usually wrong where a departure is first seen, and what the tensors themselves give away
phrases.py     the same in words: for the terminal and for a page
"""
