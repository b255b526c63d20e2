"""Picture of two engines' distance at every stage of a pass, beside what rounding explains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from specgate.analysis.parity.comparing import Parity, StageFinding
from specgate.reports.common.parts import Picture
from specgate.reports.pictures import svg

NAME: Final = "How far apart, stage by stage"
EQUAL: Final = 1e-9
"""Where a distance of 0 is drawn: below the step of float32."""
NAMED: Final = 40
"""Most stages whose names stand at the axis; of more, the target's layers are named now and then."""


def stages(parity: Parity) -> Picture:
    """The distance of every stage in root mean square and of its worst row, each with a line at what is allowed."""
    shown = parity.stages

    def draw(axes: Any) -> None:
        xs = range(len(shown))
        for values, allowed, tint, marker, label in (
            ([s.distance.worst_error for s in shown], [s.worst_tolerance for s in shown], 4, "^", "worst row"),
            ([s.distance.error for s in shown], [s.tolerance for s in shown], 1, "o", "root mean square"),
        ):
            axes.plot(xs, allowed, color=svg.tint(tint), linewidth=1, linestyle=(0, (4, 2)), drawstyle="steps-mid")
            axes.plot(xs, [max(v, EQUAL) for v in values], marker, color=svg.tint(tint), label=label)
            over = [(x, v) for x, v, most in zip(xs, values, allowed, strict=True) if v > most]
            axes.plot([x for x, _ in over], [v for _, v in over], marker, color=svg.FLOOR, markersize=6)
        axes.set(yscale="log", ylabel="relative error", xlim=(-0.6, len(shown) - 0.4), ylim=(EQUAL / 2, 4))
        axes.set_yticks([EQUAL, 1e-6, 1e-4, 1e-2, 1], ["0", "1e-6", "1e-4", "0.01", "1"])
        axes.minorticks_off()
        named = places(shown)
        axes.set_xticks(named, [shown[x].stage for x in named], rotation=60, ha="right", rotation_mode="anchor")
        svg.rows_of_grid(axes)
        svg.legend(axes, 2)

    words = f"departs first at {parity.first.stage}" if parity.first else "no stage departs"
    caption = (
        "|a − b| / max(|a|, |b|) of a row. Dashed: what rounding explains of it; red: more than that; 0: the same bits."
    )
    drawing = svg.fitted("stages", f"{NAME}: {words}.", draw, svg.WIDE, svg.HEIGHT + 1.0)
    return Picture(NAME, caption, drawing, wide=True)


def places(shown: Sequence[StageFinding]) -> list[int]:
    """The stages that are named at the axis: all, or the drafts' and every so many of the target's layers."""
    layers = [x for x, stage in enumerate(shown) if stage.stage.startswith("target.hidden.")]
    others = [x for x in range(len(shown)) if x not in set(layers)]
    step = max(1, -(-len(layers) // max(1, NAMED - len(others))))
    return sorted([*layers[::-step], *others])
