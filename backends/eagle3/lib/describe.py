"""Geometry in words, for the facts that an engine reports about itself."""

from __future__ import annotations

from specgate.checkpoints.geometry import DraftGeometry, RopeSpec


def draft_details(geometry: DraftGeometry) -> dict[str, str | int | float]:
    return {
        "draft vocabulary": geometry.draft_vocab,
        "draft window": geometry.window or "none",
        "draft rope": describe_rope(geometry.rope),
    }


def describe_rope(spec: RopeSpec) -> str:
    scaled = "" if spec.kind == "default" else f", {spec.kind} x{spec.factor:g}"
    return f"base {spec.base:g}{scaled}"
