"""Other people's engines as libraries, each in a process of its own: vLLM's `LLM`, LMDeploy's `pipeline`.

    OfflineEngine (engine.py: the protocol of `specgate.contract.protocols.Engine`, one process per role)
      └─ Driven (wire.py: the process, its requests and answers; ended with all that it has started)
           └─ driver/: what runs there, under the engine's own Python

    backend.py        the doors through which the harness comes in
    options.py        options of these back ends (`-o KEY=VALUE`), checked before anything is started
    libraries.py      the libraries, by the name of their back end
    library.py        what a library needs to be opened for a role
    driver/           the driver of each library; imports nothing of specgate
    replies.py        a driver's answers, checked
    spec_info.py      what TurboMind's EAGLE-3 counts of a request, in the terms of a block
    blocks.py         steps of an engine's loop, or requests with their times, made into a block

Facts of a pair, secrets, known failures and the supervisor are those of `backends/servers/`. docs/engines.md says how
an offline engine maps onto the protocol.
"""
