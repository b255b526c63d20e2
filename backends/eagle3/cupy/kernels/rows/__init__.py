"""Kernels that make the rows that products and attention work on. `launchers.py` launches them.

embed_rows.cu       the embeddings of the last token and the drafts: the target's input
feature_capture.cu  streams of the target that the draft reads
feature_rows.cu     these packed, and normed where the draft norms them
draft_input.cu      the draft's input over accepted tokens
draft_token.cu      a draft token from its choice, and the input of the draft's next step
"""
