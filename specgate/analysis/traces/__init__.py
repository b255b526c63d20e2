"""Traces that a profiler wrote into a file: what the decode loop of somebody else's engine did on the GPU.

    trace_file.py   a file → a recording: by its content, torch profiler or nsys; refused with file, size and remedy
    chrome.py       a Chrome trace, event by event → a recording
    nsys.py         the SQLite export of Nsight Systems
    recording.py    a recording, and which CUDA calls matter
    steps.py        the decode loop in a trace, and its steps
    families.py     families of kernels, and shapes of products
    same_run.py     whether a trace can be one of a stored run's cell

Times are nanoseconds of the profiler's clock. A file may be odd in any way: what cannot be read raises UsageError.
"""
