"""The all-reduce alone: checked against a sum in the order of ranks, then timed in a graph, beside NCCL's.

Every part reports by itself, so that one that fails hides no other. NVLink multicast is off (`NCCL_NVLS_ENABLE=0`).
"""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
import torch.multiprocessing as mp
from torch import Tensor

from specgate.backends.eagle3.cupy.device import shared_gpus
from specgate.backends.eagle3.cupy.engine.decode_run import captured
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.peers.launchers import AllReduce, CombineChoices, Mailboxes
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault, Slots
from specgate.backends.eagle3.cupy.memory.peers import mailboxes
from specgate.backends.eagle3.cupy.stream import Stream

MOST = 16
IN_GRAPH = 100
PART = 64128


@dataclass
class Side:
    """Arrays of one rank."""

    device: torch.device
    stream: Stream
    slots: Slots
    boxes: Mailboxes
    residual: Tensor
    normed: PreNormRows
    weight: Tensor
    choices: Tensor


def sides(devices: tuple[torch.device, ...], hidden: int) -> list[Side]:
    slots = [Slots.allocate(1, MOST, 64, device) for device in devices]
    made = []
    for device, own, boxes in zip(devices, slots, mailboxes([s.fault for s in slots], MOST, hidden), strict=True):
        rows = torch.zeros(MOST, hidden, dtype=torch.bfloat16, device=device)
        normed = PreNormRows(rows, torch.zeros(MOST, hidden // 8, device=device))
        residual = torch.zeros(MOST, hidden, device=device)
        weight = torch.ones(hidden, dtype=torch.bfloat16, device=device)
        choices = torch.full((MOST,), 1 << 62, dtype=torch.int64, device=device)
        torch.cuda.synchronize(device)
        made.append(Side(device, Stream(device), own, boxes, residual, normed, weight, choices))
    return made


@contextmanager
def reported(what: str, failed: list[str]) -> Iterator[None]:
    """Say how a part went and how long it took; a failure is printed whole, joins `failed`, and ends nothing else."""
    began = time.monotonic()
    try:
        yield
    except Exception:
        failed.append(what)
        click.echo(f"FAILED {what} after {time.monotonic() - began:.1f} s\n{traceback.format_exc()}")
    else:
        click.echo(f"  ({what}: {time.monotonic() - began:.1f} s)")


def run_on(ranks: list[Side], launch: Callable[[Side], None]) -> None:
    """Enqueue on every rank, then wait for all."""
    for side in ranks:
        with side.stream.current():
            launch(side)
    for side in ranks:
        side.stream.wait()


def set_active(ranks: list[Side], count: int) -> None:
    for side in ranks:
        with side.stream.current():
            side.slots.active.zero_()
            side.slots.active_count.fill_(count)
        side.stream.wait()


def summed(kernel: AllReduce, side: Side, rows: int) -> None:
    operands = {"stream": side.residual, "norm_weight": side.weight}
    kernel(side.slots.rows(1, rows), side.normed, side.boxes, side.boxes.sums, **operands)


def check_sums(ranks: list[Side], hidden: int, rows: int) -> None:
    """One exchange, bit for bit."""
    kernel = AllReduce(hidden, rows, len(ranks), MOST)
    generator = torch.Generator().manual_seed(rows)
    parts = [torch.randn(MOST, hidden, generator=generator) for _ in ranks]
    before = torch.randn(MOST, hidden, generator=generator)
    for side, part in zip(ranks, parts, strict=True):
        with side.stream.current():
            side.boxes.partial.copy_(part)
            side.residual.copy_(before)
    set_active(ranks, 1)

    def launch(side: Side) -> None:
        summed(kernel, side, rows)

    run_on(ranks, launch)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    want = before.clone()
    want[:rows] += total[:rows]
    for side in ranks:
        fault, same = Fault(int(side.slots.fault)), torch.equal(side.residual.cpu(), want)
        furthest = float((side.residual.cpu() - want).abs().max())
        click.echo(f"  {side.device} {rows} rows: equal {same}, furthest {furthest:.3g}, fault {fault!r}")
        assert same and not fault


def timed(ranks: list[Side], launches: Callable[[Side], None], each: int) -> float:
    """Microseconds of one of `each` launches in a graph, on the first rank."""
    set_active(ranks, 0)  # a capture runs them once, and one rank would wait for the next
    graphs = [(side, captured(partial(launches, side), side.stream)) for side in ranks]
    for side, graph in graphs:
        with side.stream.current():
            graph.upload(side.stream.cupy)
    set_active(ranks, 1)
    event: Any = torch.cuda.Event
    began, ended = event(enable_timing=True), event(enable_timing=True)
    for replay in range(8):
        if replay == 2:
            began.record(ranks[0].stream.torch)
        for side, graph in graphs:
            with side.stream.current():
                graph.launch(side.stream.cupy)
    ended.record(ranks[0].stream.torch)
    for side in ranks:
        side.stream.wait()
    for side in ranks:
        assert not int(side.slots.fault), f"{side.device}: {Fault(int(side.slots.fault))!r}"
    return float(began.elapsed_time(ended)) * 1e3 / (6 * each)


def time_sums(ranks: list[Side], hidden: int, rows: int) -> float:
    kernel = AllReduce(hidden, rows, len(ranks), MOST)

    def launches(side: Side) -> None:
        for _ in range(IN_GRAPH):
            summed(kernel, side, rows)

    for side in ranks:
        with side.stream.current():
            side.boxes.partial.zero_()
    return timed(ranks, launches, IN_GRAPH)


def time_choices(ranks: list[Side], rows: int) -> float:
    kernel = CombineChoices(PART, rows, rows, MOST, len(ranks), MOST)

    def launches(side: Side) -> None:
        for _ in range(IN_GRAPH):
            kernel(side.slots.rows(1, rows), side.boxes, side.boxes.choices, side.slots, choices=side.choices)

    return timed(ranks, launches, IN_GRAPH)


def nccl_worker(rank: int, ranks: int, rows: int, hidden: int, store: str) -> None:
    """One of NCCL's processes: all-reduces of bfloat16 in a graph, timed on this rank."""
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
    x = torch.zeros(rows, hidden, dtype=torch.bfloat16, device="cuda")
    for _ in range(3):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            dist.all_reduce(x)
    event: Any = torch.cuda.Event
    began, ended = event(enable_timing=True), event(enable_timing=True)
    for replay in range(8):
        if replay == 2:
            began.record()
        graph.replay()
    ended.record()
    torch.cuda.synchronize()
    if rank == 0:
        nccl: Any = torch.cuda.nccl
        version = ".".join(map(str, nccl.version()))
        us = began.elapsed_time(ended) * 1e3 / (6 * IN_GRAPH)
        print(f"NCCL {version}, all-reduce of {rows} x {hidden} bf16 in a graph: {us:.2f} us", flush=True)
    os._exit(0)  # to destroy the group takes forever while a graph holds its sums


def time_nccl(ranks: int, rows: int, hidden: int, seconds: float = 90) -> None:
    """In processes of its own, which are ended where they take longer."""
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        spawn: Any = vars(mp)["spawn"]
        context = spawn(nccl_worker, (ranks, rows, hidden, str(Path(folder) / "store")), nprocs=ranks, join=False)
        end = time.monotonic() + seconds
        while not context.join(timeout=1):
            if time.monotonic() > end:
                for process in context.processes:
                    process.kill()
                raise TimeoutError(f"NCCL did not end within {seconds:g} s")


@click.command()
@click.option("--tp", "ranks", default=2)
@click.option("--hidden", default=4096)
@click.option("--nccl/--no-nccl", default=True)
@torch.inference_mode()
def exchange(ranks: int, hidden: int, nccl: bool) -> None:
    """The all-reduce alone. Exit code 1 where a part of it failed."""
    failed = list[str]()
    devices = shared_gpus(ranks)
    click.echo(f"{ranks} x {torch.cuda.get_device_name()}, torch {torch.__version__}, hidden {hidden}")
    made = sides(devices, hidden)
    with reported("one exchange", failed):
        for rows in (1, 4, 16, 1, 4):
            check_sums(made, hidden, rows)
    with reported("sums in a graph", failed):
        for rows in (1, 4, 16):
            us = time_sums(made, hidden, rows)
            click.echo(f"all-reduce of {rows} x {hidden} float32 with residual and norm, in a graph: {us:.2f} us")
    with reported("choices in a graph", failed):
        for rows in (1, 4, 16):
            click.echo(f"choices of {rows} rows, in a graph: {time_choices(made, rows):.2f} us")
    if nccl:
        with reported("NCCL", failed):
            time_nccl(ranks, 4, hidden)
    if failed:
        raise SystemExit(1)
