"""Hugging Face `config.json` ↔ geometry: the only files that know its keys.

keys.py      a config read strictly, and the errors that name file, key and value
target.py    a target's config → TargetGeometry
draft.py     an EAGLE-3 draft's config, as several trainers write it → DraftGeometry
rope.py      rotary position embedding in its old and new spelling → Rope
write.py     geometry → config.json
"""
