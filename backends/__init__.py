"""The engines that can be measured. They come in by entry point, as `specgate.plugins` lists them.

    cupy_eagle3/      the built-in EAGLE-3 engine: CUDA kernels of its own, whole cycles in CUDA graphs
    reference/        EAGLE-3 in plain torch: the oracle of every other engine
    hf_transformers/  Hugging Face transformers: a target's own forward pass, in the reference's loop
    servers/          vLLM, SGLang, TensorRT-LLM, LMDeploy and llama.cpp behind one HTTP client
    offline/          vLLM and LMDeploy as libraries, each in a process of its own
    fake.py           scripted tokens on a scripted clock: tests the harness, proves no speed
    fake_load.py      the same under load: requests that come and go
    fake_script.py    what the fake engine does, and what goes wrong in it

They import the public rooms (`specgate.errors`, `core`, `api`, `analysis`, `eagle3`, `machine`) and what lies in their
own folder, and nothing else of specgate. `docs/examples/backend-plugin` is a back end from outside.
"""
