"""Training of EAGLE-3 drafts: `specgate engine train`.

    corpora ─► tokens ─► frozen target: features, labels, its own continuations ─► unrolled draft ─► loss ─► HF folder

In reading order:

    command.py       a whole training run: puts the rest together
    recipe.py        everything that can be chosen about it
    data.py          texts by name, token streams, and batches
    target.py        the frozen target
    draft.py         trainable tensors, vocabulary, and the folder when trained
    unroll.py        training-time test: the draft unrolled over its own hidden states
    loop.py          the training loop, and the objective
    evaluate.py      acceptance on held-out prompts, and the table of a pair
"""
