"""Commands that join `specgate pairs`.

train.py         `specgate pairs train-draft` and `specgate pairs acceptance`
plant.py         `specgate pairs plant` and `specgate pairs check`
export.py        `specgate pairs export`
draft_vocab.py   `specgate pairs draft-vocab`
"""
