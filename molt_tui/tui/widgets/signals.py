"""Panels of the asynchronous loop: queue, staleness, importance-sampling correction, sampler/trainer mismatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.content import Content

from molt_tui.facts import finite
from molt_tui.tui import format, glyphs
from molt_tui.tui.view import RunView
from molt_tui.tui.widgets.braille import Point
from molt_tui.tui.widgets.chart import ChartLook, chart
from molt_tui.tui.widgets.panel import Line, Panel

LABEL = 11
CHART_LINES = 7


def labelled(label: str, *parts: str | tuple[str, str] | Content) -> Content:
    """One line with its label in the left column; a part "not reported" is dimmed."""
    shown = [(p, "$quiet") if p == format.ABSENT else p for p in parts]
    return Content.assemble((label.ljust(LABEL), "$quiet"), *shown)


def gauge(share: float | None, width: int, style: str) -> Content:
    return Content.styled(glyphs.bar(share, width), f"{style} on $track")


def trend(curve: Sequence[Point], width: int) -> Content:
    return Content.styled(glyphs.sparkline([y for _, y in curve], max(0, width)), "$text-accent")


def until(curve: Sequence[Point], at: int | None) -> Sequence[Point]:
    """The part of a curve up to the step that is shown."""
    return curve if at is None else [(x, y) for x, y in curve if x <= at]


def over_time(title: str, curve: Sequence[Point], width: int, height: int, at: int | None) -> list[Line]:
    """A metric's history in the lines that are left: a chart when a panel is zoomed, one line of bars, or nothing."""
    if not curve or height < 1:
        return []
    if height < CHART_LINES:
        return [labelled(title, trend(curve, width - LABEL))]
    drawn = chart([curve], width, min(20, height - 2), ChartLook(mark=at))
    return [Content(""), Content.styled(f"{title} over steps", "bold"), *drawn]


class QueuePanel(Panel):
    TITLE = "Queue"
    HELP = (
        "Finished groups waiting for the trainer, against the bound, and what the engines are sampling right now.\n"
        "Empty with an idle trainer: generation-bound. Full with idle engines: trainer-bound."
    )

    def select(self, view: RunView) -> Any:
        keys = ("queue/depth", "queue/capacity", "queue/in_flight_groups", "queue/in_flight_rollouts")
        return view.pick(*keys), view.curves.get("queue/depth", ()), view.at

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        now, history, at = data
        depth, capacity = now.get("queue/depth"), now.get("queue/capacity")
        room = isinstance(depth, (int, float)) and isinstance(capacity, (int, float)) and capacity > 0
        share = depth / capacity if room else None
        words = f" {format.number(depth)} of {format.number(capacity)}" if room else format.number(depth)
        style = "$warning" if share is not None and share >= 1 else "$accent"
        size = max(0, width - LABEL - len(words))
        first = labelled("waiting", gauge(share, size, style), words) if room else labelled("waiting", words)
        groups, rollouts = now.get("queue/in_flight_groups"), now.get("queue/in_flight_rollouts")
        flight = f"{format.number(groups)} groups"
        if rollouts is not None:
            flight += f", {format.number(rollouts)} rollouts"
        lines = [first, labelled("in flight", flight if groups is not None else format.ABSENT)]
        return lines + over_time("depth", history, width, height - len(lines), at)


class StalenessPanel(Panel):
    TITLE = "Staleness"
    HELP = (
        "How many versions behind the trainer each trained token was sampled. Never above train.max_staleness.\n"
        "Over-age tokens are masked and counted; a rollout is dropped only when all of its tokens are over age."
    )

    def select(self, view: RunView) -> Any:
        keys = ("staleness/hist", "staleness/mean", "staleness/p95", "staleness/max", "staleness/masked_tokens",
                "staleness/dropped_rollouts", "staleness/spanning_rollouts")  # fmt: skip
        return view.pick(*keys), view.config.get("train.max_staleness"), view.curves.get("staleness/mean", ()), view.at

    def headline(self, data: Any) -> str:
        now, bound, _, _ = data
        if "staleness/mean" not in now:
            return ""
        limit = "" if bound is None else f" of {bound}"
        return f"mean {format.number(now['staleness/mean'])}, max {format.number(now.get('staleness/max'))}{limit}"

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        now, _, history, at = data
        counts = now.get("staleness/hist")
        bins = [c for c in map(finite, counts) if c is not None] if isinstance(counts, list) else []
        total = sum(bins)
        lines = self._bars(bins, total, width, height) if total > 0 else [labelled("versions", format.ABSENT)]
        if height > len(lines):
            masked, dropped = now.get("staleness/masked_tokens"), now.get("staleness/dropped_rollouts")
            if masked is not None or dropped is not None:
                words = f"{format.number(masked)} tokens, {format.number(dropped)} rollouts"
                lines.append(labelled("over age", words))
        return lines + (over_time("mean", history, width, height - len(lines), at) if height > CHART_LINES else [])

    @staticmethod
    def _bars(bins: list[float], total: float, width: int, height: int) -> list[Line]:
        """One bar per version behind; what does not fit is summed in the last line."""
        if len(bins) > height:
            bins = [*bins[: height - 1], sum(bins[height - 1 :])]
            last = f"{height - 1}+ behind"
        else:
            last = f"{len(bins) - 1} behind"
        lines: list[Line] = []
        for i, count in enumerate(bins):
            label = "current" if i == 0 else (last if i == len(bins) - 1 else f"{i} behind")
            words = format.share(count / total).rjust(6)
            lines.append(labelled(label, gauge(count / total, max(0, width - LABEL - 6), "$accent"), words))
        return lines


class CorrectionPanel(Panel):
    TITLE = "IS correction"
    HELP = (
        "Importance sampling between the sampler's and the trainer's probabilities. A unit (token or sequence) outside\n"
        "the band loses its gradient. A few per cent is healthy; 100 % means that nothing is learned.\n"
        "ess: effective sample size of the weights. kept: share of the gradient signal that survives."
    )

    def select(self, view: RunView) -> Any:
        keys = ("is/masked_frac", "is/masked_low_frac", "is/masked_high_frac", "is/masked_seq_frac", "is/ess_frac",
                "is/kept_grad_frac", "is/ratio_mean", "is/clipped_frac", "is/truncated_frac")  # fmt: skip
        level = view.config.get("algo.advantage.is_correction_level")
        return view.pick(*keys), level, view.curves.get("is/masked_frac", ()), view.at

    def headline(self, data: Any) -> str:
        level = data[1]
        return f"level {level}" if level else ""

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        now, level, history, at = data
        if level == "off":
            return [labelled("masked", "correction is off")]
        masked = now.get("is/masked_frac")
        words = f"{format.share(masked)} of tokens" if masked is not None else format.ABSENT
        if "is/masked_seq_frac" in now:
            words += f", {format.share(now['is/masked_seq_frac'])} of sequences"
        alarm = "bold $text-error" if isinstance(masked, (int, float)) and masked >= 0.5 else ""
        room = min(12, width - LABEL - len(words) - 1)
        first = labelled("masked", (words, alarm) if alarm else words, " ", trend(until(history, at), room) if room > 3 else "")
        parts = [("kept", "is/kept_grad_frac"), ("ess", "is/ess_frac"), ("low", "is/masked_low_frac"),
                 ("high", "is/masked_high_frac")]  # fmt: skip
        reported = [f"{word} {format.share(now[key])}" for word, key in parts if key in now]
        lines = [first, *_flow(reported, width, height - 1)]
        if "is/ratio_mean" in now and height > len(lines):
            lines.append(labelled("ratio", f"{format.number(now['is/ratio_mean'], 4)} mean trainer/sampler"))
        return lines + (over_time("masked", history, width, height - len(lines), at) if height > CHART_LINES else [])


class MismatchPanel(Panel):
    TITLE = "Mismatch"
    HELP = (
        "Sampler against trainer. k3: a probe of fixed sequences right after a weight update, numerics alone.\n"
        "routing: expert choices that differ, before replay and after it (R3 holds when it reads 0 after).\n"
        "covered: choices that the sampler reported. off-policy k3: all trained tokens, staleness included."
    )

    def select(self, view: RunView) -> Any:
        keys = ("mismatch/k3_kl", "mismatch/abs_diff", "mismatch/max_prob_diff", "routing/mismatch_frac",
                "routing/replayed_mismatch_frac", "routing/coverage_frac", "routing/token_mismatch_frac",
                "offpolicy/k3_kl", "routing/layer_mismatch")  # fmt: skip
        return view.pick(*keys), view.curves.get("mismatch/k3_kl", ()), view.lag("mismatch/k3_kl"), view.at

    def headline(self, data: Any) -> str:
        k3 = data[0].get("mismatch/k3_kl")
        return "" if k3 is None else f"probe k3 {format.number(k3)} nats{data[2]}"

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        now, history, _, at = data
        off_policy, coverage = now.get("offpolicy/k3_kl"), now.get("routing/coverage_frac")
        lines = [
            labelled("off-policy", format.ABSENT if off_policy is None else f"k3 {format.number(off_policy)} nats"),
            labelled("routing", *self._routing(now)),
            labelled("covered", format.ABSENT if coverage is None else f"{format.share(coverage)} of expert choices"),
        ]
        if height > len(lines):
            diff = now.get("mismatch/abs_diff")
            lines.append(labelled("|Δ logp|", format.ABSENT if diff is None else f"{format.number(diff)} nats mean"))
        layers = now.get("routing/layer_mismatch")
        if height > len(lines) and isinstance(layers, list):
            lines.append(labelled("by layer", ", ".join(format.share(v) for v in layers)))
        return lines + over_time("k3", history, width, height - len(lines), at)

    @staticmethod
    def _routing(now: dict[str, Any]) -> list[str | tuple[str, str]]:
        before, after = now.get("routing/mismatch_frac"), now.get("routing/replayed_mismatch_frac")
        if before is None:
            return [format.ABSENT]
        if after is None:
            return [f"{format.share(before)} differ, no replay"]
        style = "$text-success" if after == 0 else "bold $text-error"
        return [f"{format.share(before)} → ", (f"{format.share(after)} after replay", style)]


def _flow(parts: list[str], width: int, height: int) -> list[Line]:
    """Words side by side on as few lines as they need, below the label column."""
    lines: list[Line] = []
    current = ""
    for part in parts:
        joined = f"{current}  {part}" if current else part
        if current and len(joined) > width - LABEL:
            lines.append(labelled("", current))
            current = part
        else:
            current = joined
    if current:
        lines.append(labelled("", current))
    return lines[: max(0, height)]
