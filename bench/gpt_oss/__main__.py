"""Check gpt-oss in the built-in engine against the reference, then time its experts and its steps.

    python -m bench.gpt_oss --seconds 600 --out results
    python -m bench.gpt_oss --seconds 600 --out results --part prefill --geometry gpt-oss-120b

Prints every time beside the floor of the bytes that must be read, with the GPU's clock and power, and writes all of it
to `gpt_oss.json` in the folder. What there is no time left for is named there. Ends with 1 where a check fails: then
nothing is timed.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import torch

from bench.gpt_oss import checks, prefill, products, steps
from specgate.backends.eagle3.cupy.bench.prefill.timing import gpu_reader, product_flops
from specgate.backends.eagle3.cupy.bench.timing import read_bandwidth
from specgate.backends.eagle3.cupy.device import first_gpu
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.lib.parallel.shard import Shard
from specgate.backends.eagle3.pair_tools.plant.expert_geometries import EXPERT_GEOMETRIES
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry
from specgate.errors import SpecgateError

GEOMETRIES: Final = ("gpt-oss-20b", "gpt-oss-120b")
PARTS: Final = ("products", "steps", "prefill")
SWEPT: Final = (1, 2, 4, 8, 16, 64)
ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
GOALS: Final = {"both": 0.80}
"""Share of the bandwidth that a layer's two products together shall reach at 1 to 8 tokens."""


@click.command()
@click.option("--seconds", default=600.0, show_default=True, help="No part begins after so many.")
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for gpt_oss.json.")
@click.option("--geometry", multiple=True, default=GEOMETRIES, type=click.Choice(GEOMETRIES), show_default=True)
@click.option("--part", multiple=True, default=PARTS[:2], type=click.Choice(PARTS), show_default=True, help="To time.")
@click.option("--overlap", default=0.5, show_default=True, help="Of neighbouring tokens' experts in the planted pairs.")
@click.option("--length", multiple=True, default=prefill.LENGTHS, show_default=True, help="Of a prefill, part by part.")
@click.option(
    *("--prompts", "prompts_of"),
    multiple=True,
    type=(int, int),
    default=prefill.WHOLES,
    show_default=True,
    help="Context and batch of whole prefills.",
)
@click.option("--way", multiple=True, default=prefill.WAYS, type=click.Choice(prefill.WAYS), help="Of whole prefills.")
@click.option("--sweep", is_flag=True, help="Time the products in many ways to move their work, and nothing else.")
@click.option("--tp", default=1, show_default=True, help="Time the products of one of so many GPUs, and nothing else.")
def main(
    seconds: float,
    out: Path,
    geometry: tuple[str, ...],
    part: tuple[str, ...],
    overlap: float,
    length: tuple[int, ...],
    prompts_of: tuple[tuple[int, int], ...],
    way: tuple[str, ...],
    sweep: bool,
    tp: int,
) -> None:
    """Check, then time, as far as the seconds reach."""
    if tp > 1 and {*part} - {"products", "steps"}:
        raise click.UsageError(f"--tp {tp} --part prefill: of one of several GPUs, only products are timed here")
    began = time.monotonic()
    try:
        first_gpu()
    except SpecgateError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(4)
    bandwidth = read_bandwidth()
    torch.cuda.empty_cache()
    left_out: list[str] = []
    result: dict[str, Any] = {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "bytes_per_s": bandwidth,
        "checks": [],
        "products": [],
        "sweep": [],
        "steps": [],
        "prefill_parts": [],
        "prefills": [],
        "left_out": left_out,
    }
    click.echo(f"{result['device']}, plain read {bandwidth / 1e12:.3f} TB/s")
    out.mkdir(parents=True, exist_ok=True)

    def store() -> None:
        result["seconds"] = time.monotonic() - began
        (out / "gpt_oss.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def may_begin(part: str) -> bool:
        if time.monotonic() - began < seconds:
            return True
        left_out.append(part)
        click.echo(f"left out, {seconds:g} seconds are over: {part}")
        store()
        return False

    wrong = 0
    for name, error_found, tolerance in checks.findings():
        result["checks"].append({"check": name, "error": error_found, "tolerance": tolerance})
        right = error_found <= tolerance
        click.echo(f"{'right' if right else 'WRONG'}  {name}: {error_found:.2g} (at most {tolerance:g})")
        wrong += not right
    store()
    if wrong:
        click.echo(f"{wrong} of {len(result['checks'])} checks failed: nothing is timed", err=True)
        sys.exit(1)
    shapes = {name: EXPERT_GEOMETRIES[name]() for name in geometry}
    if tp > 1:
        shapes = {n: replace(s, target=Shard(0, tp).geometry(s.target)) for n, s in shapes.items()}
        part = ("products",)
    if sweep:
        for name, shape in shapes.items():
            sweep_products(name, shape, bandwidth, result)
            store()
        return
    if "products" in part:
        for name, shape in shapes.items():
            if may_begin(f"products of {name}"):
                time_products(name, shape, bandwidth, result)
                store()
    if "prefill" in part:
        for name, shape in shapes.items():
            for positions in length:
                if may_begin(f"parts of a prefill of {name}, {positions} tokens"):
                    time_prefill_parts(name, shape, positions, result)
                    store()
    for name, shape in shapes.items():
        if not {"steps", "prefill"} & {*part} or not may_begin(f"{name}, planted"):
            continue
        pair = steps.PlantedPair(shape, overlap)
        click.echo(f"{name}: planted after {time.monotonic() - began:.0f} s")
        if "prefill" in part and may_begin(f"prefills of {name}"):
            for found in prefill.wholes(pair, rates_of(result), prompts_of, way):
                wrong += tell_prefill(name, found, result)
                store()
        if "steps" in part and may_begin(f"steps of {name}"):
            for found in steps.timings(pair, bandwidth):
                tell_step(name, overlap, found, result)
                store()
                if time.monotonic() - began > seconds:
                    left_out.append(f"points of {name} after {found['context']} x {found['batch']}, spec-{found['k']}")
                    break
        del pair
        torch.cuda.empty_cache()
    store()
    sys.exit(1 if wrong else 0)


def time_products(name: str, shape: PairGeometry, bandwidth: float, result: dict[str, Any]) -> None:
    for found in products.timings(shape.target, ROWS, bandwidth):
        result["products"].append({"geometry": name, **found})
        goal = f", goal {GOALS[found['part']]:.0%}" if found["part"] in GOALS and found["rows"] <= 8 else ""
        click.echo(
            f"{name} {found['part']:8} {found['rows']:2} rows, {found['touched']:5.1f} experts: "
            f"{found['us']:7.2f} us, {found['share_of_bandwidth']:.0%} of the bandwidth{goal}; "
            f"{said(found['conditions'])}"
        )
    torch.cuda.empty_cache()


def sweep_products(name: str, shape: PairGeometry, bandwidth: float, result: dict[str, Any]) -> None:
    for found in products.sweep(shape.target, SWEPT, bandwidth):
        result["sweep"].append({"geometry": name, **found})
        click.echo(
            f"{name} {found['part']:8} {found['rows']:2} rows, {found['touched']:5.1f} experts, "
            f"{found['tiles']} tiles, ring of {found['ring']}, {found['blocks_per_sm']} blocks, room {found['room']}: "
            f"{found['us']:7.2f} us, {found['share_of_bandwidth']:.0%} of the bandwidth"
        )


def rates_of(result: dict[str, Any]) -> prefill.Rates:
    """Both ceilings; the one of products is measured when it is first needed."""
    if "flops_per_s" not in result:
        stream = Stream()
        with stream.current(), gpu_reader() as read:
            result["flops_per_s"] = product_flops(stream, read)
        click.echo(f"square product {result['flops_per_s'] / 1e12:.0f} TFLOP/s")
    return prefill.Rates(result["bytes_per_s"], result["flops_per_s"])


def time_prefill_parts(name: str, shape: PairGeometry, length: int, result: dict[str, Any]) -> None:
    rates, stream = rates_of(result), Stream()
    with torch.inference_mode(), stream.current(), gpu_reader() as read:
        for found in prefill.parts(shape.target, length, rates, stream, read):
            result["prefill_parts"].append({"geometry": name, **found})
            click.echo(
                f"{name} {length:5} {'*' if found['used'] else ' '} {found['part']:14} {found['how']:11} "
                f"{found['ms']:9.2f} ms of a prefill, {found['ms'] / found['floor_ms']:6.2f} x the floor of "
                f"{found['floor_ms']:.2f} ms"
            )
    torch.cuda.empty_cache()


def tell_prefill(name: str, found: dict[str, Any], result: dict[str, Any]) -> bool:
    """Returns whether it is wrong."""
    result["prefills"].append({"geometry": name, **found})
    wrong = not found["error"] <= found["tolerance"]
    click.echo(
        f"{name} {found['context']:5} x {found['batch']}, {found['how']:11}: {found['ms']:.0f} ms, "
        f"{found['ms'] / found['floor_ms']:.2f} x the floor of {found['floor_ms']:.0f} ms"
        f"{', WRONG' if wrong else ''}, keys off by {found['error']:.2g}"
    )
    return wrong


def tell_step(name: str, overlap: float, found: dict[str, Any], result: dict[str, Any]) -> None:
    result["steps"].append({"geometry": name, "overlap": overlap, **found})
    click.echo(
        f"{name} {found['context']:5} x {found['batch']}, spec-{found['k']}: {found['step_ms']:.3f} ms, "
        f"{found['ratio_to_floor']:.2f} x the floor of {found['floor_ms']:.3f} ms, "
        f"{found['ratio_to_baseline']:.2f} of the baseline, {found['touched_per_layer']:.1f} experts "
        f"per layer, prefill {found['prefill_ms']:.0f} ms; {said(found['conditions'])}"
    )


def said(conditions: dict[str, Any]) -> str:
    events = f", {', '.join(conditions['clock_events'])}" if conditions["clock_events"] else ""
    if conditions["sm_clock_mhz"] is None:
        return "too short to read clock and power"
    return f"{conditions['sm_clock_mhz']:.0f} MHz, {conditions['power_w']:.0f} W{events}"


if __name__ == "__main__":
    main()
