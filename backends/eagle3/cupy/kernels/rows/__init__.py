"""Kernels that make the rows that products and attention work on. Each has a `.cu` of the same name.

embed_rows.py       the embeddings of the last token and the drafts: the target's input
feature_capture.py  streams of the target that the draft reads
feature_rows.py     these packed, and normed where the draft norms them
draft_input.py      the draft's input over accepted tokens
draft_token.py      a draft token from its choice, and the input of the draft's next step
"""
