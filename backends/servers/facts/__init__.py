"""Facts about a server for the fingerprint and the report, and checks before one is started.

engine.py        a request and its servers → EngineFacts; requests that no server of an engine can fulfil
reported.py      what engines report of themselves, and the identity that follows
served.py        a running server's model and settings, and how engines count auxiliary layers
kv_cache.py      size of the KV cache, as reported, and as flags state it
"""
