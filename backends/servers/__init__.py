"""Other people's engines behind one HTTP client: vLLM, SGLang, TensorRT-LLM, LMDeploy, llama.cpp.

    ServerEngine (engine.py: the protocol of `specgate.contract.protocols.Engine`, one server per role)
      └─ Server (server.py: one server, started here or attached to; a block is a set of requests)
           ├─ Client (client.py: streams, clocks, records bytes) ─► events.py ─► answers.py
           ├─ Meter (meter.py: counters before and after) ─► accounting.py ─► AcceptanceRecord
           ├─ ServerProcess (process.py, supervisor.py: start, stop, leave nothing behind)
           └─ Adapter (adapter.py; one file per engine in adapters/: flags, formats, conventions)

    backend.py        the doors through which the harness comes in
    options.py        options of all server back ends (`-o KEY=VALUE`), checked before anything is started
    engines.py        the adapters by name, and the engine that answers at a URL
    blocks.py         a block out of its requests' answers, and its acceptance record
    texts.py          tokens of answers without ids, made of their texts
    exchange.py       requests, answers and counters, in terms that all engines share
    drawing.py        texts that a server draws, and the distribution that it is to draw from
    requests/         prompts as token ids, text or messages, and what a server must have read of them
    facts/            what a server is, for the fingerprint and the report; what must be refused before it starts
    sampling.py       temperatures above 0: what requests can say, seeds, log-probabilities as a distribution
    evidence/         a server's own profiler, its log and its flags as evidence of what its decode loop does
    failures.py       lines of a server's log that have a known cause, and what to do about it
    secrets.py        credentials: refused in options; an API key is taken from the environment, sent, never written

docs/engines.md says how a server maps onto the protocol, and what cannot be observed over HTTP.
"""
