"""Hugging Face transformers as an engine: a target's own `forward`, EAGLE-3 around it.

`generate` of transformers decodes with another model as its draft, but not with an EAGLE-3 draft. So the loop and the
draft are those of the reference engine (`backends/eagle3/reference/loop.py`), and every pass of the target is
transformers'.

backend.py         the door through which the harness comes in
open.py            options, loading and the checks before it, and the facts of a loaded model
engine.py          the loop, and what an engine has to show that is not bit-exact
target.py          a pass of the model, with the hidden states that the draft reads
ragged_cache.py    a cache whose slots stand at different positions, and its masks
"""
