"""Panels with a curve over steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from textual.content import Content

from molt_tui.tui import format
from molt_tui.tui.view import RunView
from molt_tui.tui.widgets.braille import Point, plot
from molt_tui.tui.widgets.panel import Line, Panel

AXIS = 8
SERIES = ("$accent", "$warning", "$success")


def chart(curves: Sequence[Sequence[Point]], width: int, height: int) -> list[Line]:
    """Curves with the range of values on the left and, where there is room, the range of steps below."""
    if width <= AXIS + 4 or height < 1:
        return []
    with_steps = height >= 6 and width >= AXIS + 20
    drawn = plot(curves, width - AXIS, height - with_steps)
    if drawn is None:
        return [Content.styled(format.ABSENT, "$quiet")]
    canvas, (x0, x1), (y0, y1) = drawn
    lines: list[Line] = []
    rows = canvas.rows()
    for i, runs in enumerate(rows):
        label = _axis_label(y1) if i == 0 else (_axis_label(y0) if i == len(rows) - 1 else "")
        cells = [(text, SERIES[series] if series >= 0 else "") for text, series in runs]
        lines.append(Content.assemble((label.rjust(AXIS - 1) + "▏", "$quiet"), *cells))
    if with_steps:
        left, right = f"step {x0:.0f}", f"{x1:.0f}"
        gap = max(1, width - AXIS - len(left) - len(right))
        lines.append(Content.styled(" " * AXIS + left + " " * gap + right, "$quiet"))
    return lines


def _axis_label(value: float) -> str:
    text = format.number(value)
    return text if len(text) < AXIS else format.number(value, 2)


def lost_points(points: Sequence[Point]) -> str:
    """How many points of a curve cannot be drawn."""
    count = sum(not isfinite(y) for _, y in points)
    return f"  NaN/inf ×{count}" if count else ""


class RewardPanel(Panel):
    TITLE = "Reward"
    HELP = (
        "Mean reward of each training batch. eval: held-out prompts, sampled greedily unless the recipe says otherwise.\n"
        "equal: groups whose rollouts all got the same reward; they carry no gradient."
    )

    def select(self, view: RunView) -> Any:
        now = view.pick("reward/mean", "reward/std", "reward/max", "reward/zero_std_group_frac",
                        "rollout/response_len_mean", "rollout/truncated_frac")  # fmt: skip
        evals = {key.split("/")[1]: (key, value) for key, value in sorted(view.family("eval/").items())
                 if key.endswith(("/exact_frac", "/score_mean"))}  # fmt: skip
        curves = [view.curves.get("reward/mean", ()), *(view.curves.get(key, ()) for key, _ in evals.values())]
        return now, {name: value for name, (_, value) in evals.items()}, curves[: len(SERIES)]

    def headline(self, data: Any) -> str:
        now, evals, curves = data
        if "reward/mean" not in now:
            return ""
        held_out = "".join(f", eval {format.number(value)}" for value in list(evals.values())[:1])
        return f"{format.number(now['reward/mean'])}{held_out}{lost_points(curves[0])}"

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        now, evals, curves = data
        below: list[Line] = []
        if height >= 9:
            words = [f"std {format.number(now.get('reward/std'))}", f"max {format.number(now.get('reward/max'))}"]
            if "reward/zero_std_group_frac" in now:
                words.append(f"equal {format.share(now['reward/zero_std_group_frac'])}")
            words += [f"eval {name} {format.number(value)}" for name, value in list(evals.items())[1:]]
            below.append(Content.styled("  ".join(words), "$quiet"))
        return [*chart(curves, width, height - len(below)), *below]


class LossPanel(Panel):
    TITLE = "Loss"
    HELP = (
        "The policy objective, the policy's entropy, the gradient norm before clipping and the learning rate.\n"
        "Entropy falling towards 0 means that the policy stops exploring."
    )

    def select(self, view: RunView) -> Any:
        now = view.pick("loss/policy", "loss/entropy", "loss/kl", "optim/grad_norm", "optim/lr")
        return now, view.curves.get("loss/policy", ())

    def headline(self, data: Any) -> str:
        now, curve = data
        return f"{format.number(now['loss/policy'])}{lost_points(curve)}" if "loss/policy" in now else ""

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        now, curve = data
        named = (("entropy", "loss/entropy"), ("kl", "loss/kl"), ("grad", "optim/grad_norm"), ("lr", "optim/lr"))
        words = "  ".join(f"{word} {format.number(now[key])}" for word, key in named if key in now)
        below = [Content.styled(words, "$quiet")] if words and height > 1 else []
        return [*chart([curve], width, height - len(below)), *below]
