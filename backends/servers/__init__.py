"""Other people's engines behind one HTTP client: vLLM, SGLang, TensorRT-LLM, LMDeploy, llama.cpp.

    ServerEngine (engine.py: the protocol of `specgate.api.Engine`, one server per role)
      └─ Server (server.py: one server, started here or attached to; a block is a set of requests)
           ├─ Client (client.py: streams, clocks, records bytes) ─► events.py ─► answers.py
           ├─ Meter (meter.py: counters before and after) ─► accounting.py ─► AcceptanceRecord
           ├─ ServerProcess (process.py, supervisor.py: start, stop, leave nothing behind)
           └─ Adapter (adapter.py; one file per engine: flags, formats, conventions)

docs/engines.md says how a server maps onto the protocol, and what cannot be observed over HTTP.
"""
