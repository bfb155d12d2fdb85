"""Panels with a curve over steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.content import Content
from textual.message import Message

from molt_tui.tui import catalog, format
from molt_tui.tui.view import RunView
from molt_tui.tui.widgets.braille import Point
from molt_tui.tui.widgets.chart import SERIES, ChartLook, chart, lost_points, smoothed_at
from molt_tui.tui.widgets.curve_keys import HINT, CurveKeys, column_size
from molt_tui.tui.widgets.panel import Line, Panel

WORDS_FROM = 9  # lines of a panel from which figures stand below the curve


class CurvePanel(CurveKeys, Panel):
    """A panel with curves: logarithmic, smoothed, and with a cursor that takes the whole dashboard to a step."""

    BINDINGS: ClassVar[list[BindingType]] = CurveKeys.CURVE_KEYS

    class Moved(Message):
        """The cursor was moved: by this many columns of `size` steps each."""

        def __init__(self, by: int, size: int) -> None:
            self.by, self.size = by, size
            super().__init__()

    def curves(self, data: Any) -> list[Sequence[Point]]:
        """The curves that are drawn, the first one is read out."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The cursor moves in a zoomed curve; elsewhere its keys walk the panels."""
        return self.zoomed if action == "move" else True

    @property
    def zoomed(self) -> bool:
        return self.is_attached and self.screen.maximized is self

    def drawn(self, data: Any, width: int, height: int, at: int | None) -> list[Line]:
        """The chart; in a zoomed panel the keys that act on it below."""
        look = ChartLook(self.chart_look.log, self.chart_look.smooth, at)
        lines = chart(self.curves(data)[: len(SERIES)], width, height - self.zoomed, look)
        return [*lines, Content.styled(f"{HINT}   m another metric", "$quiet")] if self.zoomed else lines

    def reading(self, data: Any, at: int | None) -> str:
        """How the curve is drawn, and its smoothed value under the cursor."""
        words = self.chart_look.words
        curve = self.curves(data)[0] if self.curves(data) else ()
        if at is not None and self.chart_look.smooth > 1:
            words += f" {format.number(smoothed_at(curve, self.chart_look, at))}"
        return f"  ({words})" if words else ""

    def action_move(self, by: int) -> None:
        steps = [x for curve in self.curves(self.data) for x, _ in curve] if self.data is not None else []
        if steps:
            self.post_message(self.Moved(by, max(1, round(column_size(steps, self.size.width)))))


class RewardPanel(CurvePanel):
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
        return now, {name: value for name, (_, value) in evals.items()}, curves[: len(SERIES)], view.at

    def curves(self, data: Any) -> list[Sequence[Point]]:
        return data[2]

    def headline(self, data: Any) -> str:
        now, evals, curves, at = data
        if "reward/mean" not in now:
            return ""
        held_out = "".join(f", eval {format.number(value)}" for value in list(evals.values())[:1])
        return f"{format.number(now['reward/mean'])}{held_out}{lost_points(curves[0])}{self.reading(data, at)}"

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        now, evals, _, at = data
        below: list[Line] = []
        if height >= WORDS_FROM:
            words = [f"std {format.number(now.get('reward/std'))}", f"max {format.number(now.get('reward/max'))}"]
            if "reward/zero_std_group_frac" in now:
                words.append(f"equal {format.share(now['reward/zero_std_group_frac'])}")
            if "rollout/response_len_mean" in now:
                words.append(f"length {format.number(now['rollout/response_len_mean'])}")
            words += [f"eval {name} {format.number(value)}" for name, value in list(evals.items())[1:]]
            below.append(Content.styled("  ".join(words), "$quiet"))
        return [*self.drawn(data, width, height - len(below), at), *below]


class LossPanel(CurvePanel):
    TITLE = "Loss"
    HELP = (
        "The policy objective, the policy's entropy, the gradient norm before clipping and the learning rate.\n"
        "Entropy falling towards 0 means that the policy stops exploring."
    )

    def select(self, view: RunView) -> Any:
        now = view.pick("loss/policy", "loss/entropy", "loss/kl", "optim/grad_norm", "optim/lr")
        return now, view.curves.get("loss/policy", ()), view.at

    def curves(self, data: Any) -> list[Sequence[Point]]:
        return [data[1]]

    def headline(self, data: Any) -> str:
        now, curve, at = data
        if "loss/policy" not in now:
            return ""
        return f"{format.number(now['loss/policy'])}{lost_points(curve)}{self.reading(data, at)}"

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        now, _, at = data
        named = (("entropy", "loss/entropy"), ("kl", "loss/kl"), ("grad", "optim/grad_norm"), ("lr", "optim/lr"))
        words = "  ".join(f"{word} {format.number(now[key])}" for word, key in named if key in now)
        below = [Content.styled(words, "$quiet")] if words and height > 1 else []
        return [*self.drawn(data, width, height - len(below), at), *below]


class MetricPanel(CurvePanel):
    """Any metric that the run reports; the screen says which."""

    TITLE = "Metric"
    HELP = "The curve of one metric: m chooses another one, L makes it logarithmic, s smooths it, left and right move the cursor."

    def select(self, view: RunView) -> Any:
        key = view.chosen
        return key, view.metrics.get(key or ""), view.curves.get(key or "", ()), view.lag(key or ""), view.at

    def curves(self, data: Any) -> list[Sequence[Point]]:
        return [data[2]]

    def headline(self, data: Any) -> str:
        key, value, curve, lag, at = data
        if key is None:
            return ""
        unit = catalog.unit(key)
        shown = f"{format.number(value)}{f' {unit}' if unit and value is not None else ''}"
        return f"{key}  {shown}{lag}{lost_points(curve)}{self.reading(data, at)}"

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        key, value, curve, _, at = data
        below: list[Line] = [Content.styled(catalog.meaning(key or ""), "$quiet")] if height > 3 else []
        if not curve and value is not None:
            return [f"{format.number(value)}", *below]
        return [*self.drawn(data, width, height - len(below), at), *below]
