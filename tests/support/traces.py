"""Traces of a server's loop as two profilers write them, from one timeline: the formats that vLLM 0.25.1, SGLang 0.5.17
(Kineto's Chrome trace) and Nsight Systems (its SQLite schema) have.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

FLASH = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<128> > >(Params)"
GEMM = "nvjet_tst_128x8_64x12_2x1_v_bz_TNT"
IDS_TO_HOST = "Memcpy DtoH (Device -> Pinned)"
H200 = "NVIDIA H200"
BASE_NS = 1_795_398_352_000_000_000
"""A moment of 2026."""
LOOP, COPIES = 20, 21
"""Threads: of the loop, and of what hands out tokens."""
US = 1_000


@dataclass
class Timeline:
    """Events of a trace, in nanoseconds since `base_ns`. `ranges`, `calls`: on a thread. `work`: launched by a call."""

    ranges: list[tuple[str, int, int, int]] = field(default_factory=list)
    calls: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    work: list[tuple[str, str, int, int, int, int]] = field(default_factory=list)
    devices: tuple[str, ...] = (H200,)
    launches: int = 0
    base_ns: int = BASE_NS

    def range(self, name: str, begin: int, end: int, thread: int = LOOP) -> None:
        self.ranges.append((name, begin, end, thread))

    def call(self, name: str, begin: int, length: int = 2 * US, thread: int = LOOP) -> int:
        """A CUDA call; returns the number that its work carries."""
        self.launches += 1
        self.calls.append((name, begin, begin + length, thread, self.launches))
        return self.launches

    def kernel(self, name: str, begin: int, length: int, launch: int, device: int = 0) -> None:
        self.work.append(("kernel", name, begin, begin + length, launch, device))

    def copy(self, name: str, begin: int, length: int, launch: int, size: int) -> None:
        self.work.append(("copy", name, begin, begin + length, launch, size))

    # ── as torch's profiler writes it ────────────────────────────────────────────────────────────────────────────────

    def chrome(self) -> dict[str, object]:
        def event(category: str, name: str, begin: int, end: int, pid: int, tid: int, **args: object) -> object:
            times = {"ts": begin / 1000, "dur": (end - begin) / 1000}
            return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": args}

        events: list[object] = [{"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "VLLM"}}]
        for name, begin, end, thread in self.ranges:
            events.append(event("user_annotation", name, begin, end, 7, thread, **{"External id": 1}))
            events.append(event("gpu_user_annotation", name, begin, end, 0, 13))
        for name, begin, end, thread, number in self.calls:
            category = "cuda_driver" if name.startswith("cu") and name[2].isupper() else "cuda_runtime"
            events.append(event(category, name, begin, end, 7, thread, correlation=number, cbid=211))
            events.append(
                {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": number, "pid": 7, "tid": thread, "ts": begin / 1000}
            )
        for kind, name, begin, end, number, extra in self.work:
            if kind == "kernel":
                events.append(event("kernel", name, begin, end, extra, 13, correlation=number, device=extra, stream=13))
            else:
                data = {"correlation": number, "device": 0, "stream": 14, "bytes": extra}
                events.append(event("gpu_memcpy", name, begin, end, 0, 14, **data))
        properties = [{"id": i, "name": name, "computeMajor": 9} for i, name in enumerate(self.devices)]
        head = {"schemaVersion": 1, "deviceProperties": properties, "cuda_runtime_version": 13000}
        return {**head, "baseTimeNanoseconds": self.base_ns, "traceEvents": events, "traceName": "trace.json"}

    def write_chrome(self, file: Path) -> Path:
        text = json.dumps(self.chrome(), indent=1)
        if file.suffix == ".gz":
            file.write_bytes(gzip.compress(text.encode()))
        else:
            file.write_text(text)
        return file

    # ── as Nsight Systems exports it ─────────────────────────────────────────────────────────────────────────────────

    def write_nsys(self, file: Path, process: int = 4711) -> Path:
        texts: dict[str, int] = {}

        def number_of(text: str) -> int:
            return texts.setdefault(text, len(texts) + 1)

        base = process << 24
        kinds = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
        memory = {"Pageable": 0, "Pinned": 1, "Device": 2}
        with closing(sqlite3.connect(file)) as db:
            db.execute("pragma page_size = 512")  # small files, of which tests make many
            db.executescript(NSYS_SCHEMA)
            for name, begin, end, thread, launch in self.calls:
                versioned = f"{name}_v3020" if name.startswith("cuda") else name
                db.execute(
                    "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, 0, ?, ?, ?, 0)",
                    (begin, end, base + thread, launch, number_of(versioned)),
                )
            for kind, name, begin, end, launch, extra in self.work:
                if kind == "kernel":
                    row = (begin, end, extra, 1, 13, launch, base, number_of(name), number_of(name.split("<")[0]))
                    db.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                else:
                    short, _, route = name.removeprefix("Memcpy ").partition(" (")
                    source, _, target = route.rstrip(")").partition(" -> ")
                    copy = (begin, end, 0, 14, launch, base, extra, kinds[short], memory[source], memory[target])
                    db.execute("insert into CUPTI_ACTIVITY_KIND_MEMCPY values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", copy)
            for name, begin, end, thread in self.ranges:
                mark = (begin, end, 59, None, number_of(name), base + thread)
                db.execute("insert into NVTX_EVENTS values (?, ?, ?, ?, ?, ?)", mark)
            db.executemany("insert into StringIds values (?, ?)", [(number, text) for text, number in texts.items()])
            db.executemany("insert into TARGET_INFO_GPU values (?, ?)", enumerate(self.devices))
            db.execute("insert into TARGET_INFO_SESSION_START_TIME values (?)", (self.base_ns,))
            db.executemany(
                "insert into ENUM_CUDA_MEMCPY_OPER values (?, ?)",
                [(1, "Host-to-Device"), (2, "Device-to-Host"), (8, "Device-to-Device")],
            )
            db.executemany("insert into ENUM_CUDA_MEM_KIND values (?, ?)", [(n, kind) for kind, n in memory.items()])
            db.commit()
        return file


NSYS_SCHEMA = """
create table StringIds (id integer primary key, value text not null);
create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, eventClass integer, globalTid integer,
    correlationId integer, nameId integer, returnValue integer);
create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, contextId integer,
    streamId integer, correlationId integer, globalPid integer, demangledName integer, shortName integer);
create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer, end integer, deviceId integer, streamId integer,
    correlationId integer, globalPid integer, bytes integer, copyKind integer, srcKind integer, dstKind integer);
create table NVTX_EVENTS (start integer, end integer, eventType integer, text text, textId integer, globalTid integer);
create table TARGET_INFO_GPU (id integer, name text);
create table TARGET_INFO_SESSION_START_TIME (utcEpochNs integer);
create table ENUM_CUDA_MEMCPY_OPER (id integer, label text);
create table ENUM_CUDA_MEM_KIND (id integer, label text);
"""


def vllm_loop(steps: int, requests: int = 1, tokens: int = 4, attention: str = FLASH) -> Timeline:
    """A prefill and `steps` decode steps of vLLM: a CUDA graph, an asynchronous copy of the ids, which another thread
    waits for. A step takes 100 µs; its kernels 60 and 20 µs, with 5 µs between them.
    """
    made, at = Timeline(), 100 * US
    made.range(f"execute_context_{requests}({requests * 512})_generation_0(0)", 0, 50 * US)
    made.kernel("prefill_kernel", 5 * US, 80 * US, made.call("cudaLaunchKernel", US))
    made.call("cudaDeviceSynchronize", 60 * US)
    for _ in range(steps):
        made.range(f"execute_context_0(0)_generation_{requests}({requests * tokens})", at, at + 40 * US)
        graph = made.call("cudaGraphLaunch", at + US)
        made.kernel(attention, at + 10 * US, 60 * US, graph)
        made.kernel(GEMM, at + 75 * US, 20 * US, graph)
        ids = made.call("cudaMemcpyAsync", at + 50 * US)
        made.copy(IDS_TO_HOST, at + 96 * US, 2 * US, ids, 8 * requests)
        made.call("cudaEventSynchronize", at + 60 * US, 38 * US, COPIES)
        at += 100 * US
    made.range("execute_context_0(0)_generation_0(0)", at, at + US)
    made.call("cudaDeviceSynchronize", at + 10 * US)
    return made


def sglang_loop(steps: int, requests: int = 1, drafts: bool = True) -> Timeline:
    """A prefill and `steps` decode steps of SGLang; with `drafts`, cycles that verify, and extend and run the draft."""
    made, at = Timeline(), 0
    made.range(f"step[EXTEND bs={requests} toks=512]", at, at + 50 * US)
    made.kernel("prefill_kernel", at + 5 * US, 80 * US, made.call("cudaLaunchKernel", at + US))
    at += 100 * US
    for _ in range(steps):
        made.range(f"step[{'TARGET_VERIFY' if drafts else 'DECODE'} bs={requests}]", at, at + 40 * US)
        graph = made.call("cudaGraphLaunch", at + US)
        made.kernel(FLASH, at + 10 * US, 60 * US, graph)
        if drafts:
            made.range(f"step[DRAFT_EXTEND_V2 bs={requests}]", at + 45 * US, at + 60 * US)
            made.kernel(GEMM, at + 75 * US, 20 * US, made.call("cudaGraphLaunch", at + 46 * US))
        ids = made.call("cudaMemcpyAsync", at + 70 * US)
        made.copy(IDS_TO_HOST, at + 96 * US, 2 * US, ids, 8 * requests)
        at += 100 * US
    return made


def turbomind_loop(steps: int, draft: bool = True, scope: str = "") -> Timeline:
    """A prefill and `steps` decode steps of TurboMind with EAGLE-3, as its NVTX ranges tell them: the target's pass
    lies in no range of a phase, the draft's in EagleModule::forward. A step takes 100 µs.
    """
    made = Timeline()
    made.kernel("prefill_kernel", 5 * US, 80 * US, made.call("cudaLaunchKernel", US))
    for at in range(100 * US, 100 * US * (steps + 1), 100 * US):
        made.range(f"{scope}Forward", at, at + 90 * US)
        made.range(f"{scope}BASE_DECODE_STEP", at + 10 * US, at + 80 * US)
        made.kernel(GEMM, at + 12 * US, 30 * US, made.call("cudaLaunchKernel", at + 11 * US))
        if draft:
            made.range(f"{scope}EagleModule::forward", at + 20 * US, at + 60 * US)
            made.range(f"{scope}EAGLE_DRAFT_LM_HEAD", at + 40 * US, at + 50 * US)
            made.kernel(FLASH, at + 45 * US, 20 * US, made.call("cudaLaunchKernel", at + 25 * US))
            made.kernel("lm_head", at + 66 * US, 7 * US, made.call("cudaLaunchKernel", at + 45 * US))
            made.range(f"{scope}EAGLE::KVCacheRewind", at + 65 * US, at + 70 * US)
            made.kernel("rewind", at + 75 * US, 2 * US, made.call("cudaLaunchKernel", at + 66 * US))
    return made


def nsys_file(made: Timeline, file: Path, *statements: str) -> Path:
    """`made` as an export of nsys, on which these statements of SQL were carried out."""
    made.write_nsys(file)
    with closing(sqlite3.connect(file)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return file
