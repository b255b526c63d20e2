"""A server that speaks five engines' formats and decodes nothing.

__main__.py     the program, with the flags of the engines
dialects.py     the formats of five engines, as routes
engine.py       decoding by a script, counters, streams and faults
profiler.py     the profilers of vLLM and SGLang
sampling.py     tokens drawn from a chain
web.py          the web server
"""
