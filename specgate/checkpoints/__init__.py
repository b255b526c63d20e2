"""Read from disk what a harness must know of a pair. Nothing here needs torch.

geometry.py            every size and switch of a target and of a draft
hf/                    Hugging Face `config.json` → geometry
turbomind.py           pairs that were converted for TurboMind: config.yaml and raw weights
hf_keys.py             such a file, read strictly: errors name the file, the key and the value
planted.py             the section of a config by which a pair was made from a seed
files.py               the files of a checkpoint folder, and the digest that names them
arrays.py              small arrays of a checkpoint
heads/                 EAGLE-3 heads of any trainer: names, sizes and maps as the tensors say
auxiliary_layers.py    which hidden states of the target feed the draft
mxfp4.py               the four-bit numbers of gpt-oss' experts, without arithmetic
parameters.py          the harness's own count of the weights that a step must read
spec_config/           speculative configs of any engine: read, checked, and laid side by side
stages/                the stages of a pass at which two engines can be compared
exports.py             what a back end tells of pairs that are written for its engine
tokenizer_file.py      a target's `tokenizer.json`
tokenizer_settings.py  the files beside it: special tokens, added tokens, chat templates
chat_template.py       messages → the text that the model was trained on
"""
