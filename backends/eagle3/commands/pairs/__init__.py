"""Commands about pairs that join `specgate engine`, `engine pairs` and `diagnose`.

train.py         `specgate engine train` and `specgate diagnose acceptance`
plant.py         `specgate engine plant` and `specgate engine pairs check`
export.py        `specgate engine export`
draft_vocab.py   `specgate engine draft-vocab`
"""
