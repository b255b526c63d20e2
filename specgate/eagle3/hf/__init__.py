"""Hugging Face `config.json` ↔ geometry: the only files that know its keys.

keys      a config read strictly, and the errors that name file, key and value
target    a target's config → TargetGeometry
draft     an EAGLE-3 draft's config, as several trainers write it → DraftGeometry
rope      rotary position embedding in its old and new spelling → Rope
write     geometry → config.json
"""
