"""Traces that a profiler wrote into a file: what the decode loop of somebody else's engine did on the GPU.

    trace_file.py   a file → a recording: by its content, torch profiler or nsys; refused with file, size and remedy
    document.py     the JSON of a Chrome trace, event by event; broken ones are counted
    chrome.py       the events of a Chrome trace → a recording
    nsys.py         the SQLite export of Nsight Systems → a recording
    recording.py    a recording, and reasons why some of it may be missing
    cuda_calls.py   kinds of calls of CUDA and HIP, and directions of copies
    ranges.py       ranges of engines, and the decode steps that they tell
    phases.py       phases of a step that ranges tell, with their time on the host and on the GPU
    steps.py        the decode loop in a trace, and its figures
    doubts.py       reasons why figures cannot be told
    families.py     families of kernels, and shapes of products

Times are nanoseconds of the profiler's clock. A file may be odd in any way: what cannot be read raises UsageError, and
what was not recognised leaves its figures "not observable", never none.
"""
