"""What a server is, for the fingerprint and the report, and what must be refused before one is started.

engine.py        a request and its servers → EngineFacts; requests that no server of an engine can fulfil
identity.py      which build of an engine it is, and how it is set up: what servers tell, put together
served.py        what a server says that it serves, held against the pair
conventions.py   how other engines read the auxiliary layers of a draft's config
kv_cache.py      how large its KV cache is, as its log, its metrics or its answers tell
cache_sizes.py   whether servers that load side by side have the KV caches that they were told to take
started.py       the start of a running server in the log that its owner names
told.py          what engines say of themselves in their answers and logs, read
"""
