"""Hugging Face `config.json` → geometry.

target.py                 a target's config → TargetGeometry
families.py               the families of targets: Llama, Mistral, Qwen3, gpt-oss; who runs others
gpt_oss.py                what gpt-oss' config says beyond a Llama's
any_target.py             the sizes of a target of any architecture, for engines that read it by themselves
draft.py                  an EAGLE-3 draft's config, as several trainers write it → DraftGeometry
related_architectures.py  keys of related architectures that would change the arithmetic: refused by name
rope.py                   rotary position embedding in its old and new spelling → RopeSpec
"""
