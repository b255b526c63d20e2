"""The process that an engine runs in: how it is started, what it is given, and what is believed of what it says.

Nothing but data crosses the border. Both directions carry frames of JSON with a schema, and the harness checks every
answer before it uses it.

frames.py        one message on a socket: its length, then its bytes, within a limit of size and of time
wire.py          a call as two messages of JSON, and what a malformed answer raises
blocks.py        the calls that open an engine and decode blocks: request, answer, and what contradicts the request
questions.py     the calls that look into an engine after its blocks, in the same way
failures.py      errors as data: a kind from a fixed table, a message and a hint
client.py        an `protocols.Engine` whose calls are messages, whoever carries them
service.py       the other end: opens the engine and answers requests
start.py         the program that the process runs: it imports nothing of specgate before its import path is set
launch.py        which interpreter runs it, and where it imports its code from
surroundings.py  the part of the environment that the process gets
logs.py          what the process and its programs print, as files of the run folder
"""
