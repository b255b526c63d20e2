"""One file per engine: its flags, its formats, its conventions. `specgate.backends.servers.adapter` has the protocol.

vllm.py       vLLM: `vllm serve`
sglang.py     SGLang: `sglang.launch_server`
trtllm.py     TensorRT-LLM: `trtllm-serve`
lmdeploy.py   LMDeploy: `lmdeploy serve api_server`
llamacpp.py   llama.cpp: `llama-server` on GGUF files
openai.py     the OpenAI completions format, as vLLM and TensorRT-LLM speak it
chat.py       the OpenAI chat format, which all of them speak
compatible.py  any other server of that format, counted by the events of its streams
"""
