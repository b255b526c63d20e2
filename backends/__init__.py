"""The engines that can be measured. They come in by entry point, as `specgate.plugins` lists them.

    eagle3/           the built-in EAGLE-3 engine, with all that makes, tunes and benches pairs for it
    servers/          vLLM, SGLang, TensorRT-LLM, LMDeploy and llama.cpp behind one HTTP client
    offline/          vLLM and LMDeploy as libraries, each in a process of its own
    fake/             scripted tokens on a scripted clock: tests the harness, proves no speed

They import the public rooms (`specgate.errors`, `redaction`, `contract`, `files`, `sampling`, `checkpoints`,
`analysis`, `machine`) and what lies in their own folder, and nothing else of specgate. `docs/examples/backend-plugin`
is a back end from outside.
"""
