"""One run: from request to exit code.

session.py        the whole of it: plan, worker, samples, verdicts, reports
beginning.py      before the first block: the prompts, and a run folder that says what the run will do
references.py     the earlier run that it is judged against, and compared builds
reachability.py   floors that no run can reach, said before anything is measured
resuming.py       a run that is continued: whether it may be, and what it rests on
runner.py         the one measuring loop: plan → worker → blocks in the journal
point_blocks.py   the blocks of one point on one engine, by prompt set or role by role
smoke/            `specgate smoke`: one prompt, and the known causes of speculation that is off
diagnose/         `specgate diagnose parity` and `cache`
worker.py         the engine in a process of its own, driven over a socket
engine_process/   that process: messages, what is checked of an answer, what the process is given, what it prints
watched_gpus.py   which GPUs a run uses, so that every one of them is watched
token_evidence.py what a run records beside its timed blocks to check their tokens by
drawing.py        texts are drawn for their distribution, after all timing
second_engine.py  a second engine: whether it can be asked about a point, and its process
rescoring.py      a second engine is asked about a sample of the tokens, after all timing
profiler.py       what an engine does between the marks of a block, seen from outside
early_stop.py     stops a point at the first interim look where every rule that rests on samples is decided
progress.py       a bar on a terminal, one line per block elsewhere
recompute.py      samples → figures → verdicts, pure
ending.py         the end of a run: its verdict first, then everything that follows from it
calibration.py    `specgate machine calibrate`: the same role in both places of every pair, reduced to a noise profile
"""
