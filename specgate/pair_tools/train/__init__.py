"""Training of EAGLE-3 drafts: `specgate pairs train-draft`.

    corpora ─► tokens ─► frozen target: features, labels, its own continuations ─► unrolled draft ─► loss ─► HF folder

In reading order: `recipe` (what can be chosen), `texts`, `data`, `own` (sequences), `target`, `vocab`, `draft`,
`unroll` (training-time test), `objective`, `loop`, `export`, `evaluate`; `command` puts them together.
"""
