"""Driver that runs under the engine's own Python, in its own process. It imports the standard library and the engine.

    main.py             the program: reads requests, answers them, and reports that it is alive
    vllm_engine.py      `vllm.LLM`, its loop driven step by step
    lmdeploy_engine.py  `lmdeploy.pipeline` with the PyTorch engine or TurboMind, its answers read as they come

The engine's Python may be older than ours, so these files keep to Python 3.10. Nothing is judged here: what the engine
said is passed on as it was, and `specgate.backends.offline` reads it.
"""
