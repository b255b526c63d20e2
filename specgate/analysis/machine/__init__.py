"""State of the machine while blocks were timed: from samples and counters to the sentences of a gate.

    conditions.py        samples of the machine → what it did while each point was measured
    timeline.py          blocks and the machine's samples around them, over time
    disturbed_blocks.py  which blocks had the CPUs to themselves, and which rounds are set aside
    cpu_pace.py          whether the CPUs were evenly fast, and that they were not, in a sentence
    gpu_clocks.py        clocks of the GPUs that a run could see
    clock_comparison.py  GPU clocks of the roles beside each other, and in words
    energy.py            joules per token, by the GPU's own counter
    memory.py            memory in use, and what speculation adds to it
    minutes.py           where the minutes of a run went
    phrases.py           what is known of the host, in sentences

Pure: the same journal gives the same answer.
"""
