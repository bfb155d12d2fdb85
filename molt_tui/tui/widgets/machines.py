"""Panels of time and machines: how a step's time is split, the engines, the hosts."""

from __future__ import annotations

from typing import Any

from textual.content import Content

from molt_tui.tui import format, glyphs
from molt_tui.tui.view import RunView
from molt_tui.tui.widgets.panel import Line, Panel
from molt_tui.tui.widgets.signals import CHART_LINES, labelled, over_time

# word, metric, shade, colour: each part keeps its look, so that the bar reads without colour too
PARTS: tuple[tuple[str, str, str, str], ...] = (
    ("wait", "time/wait_batch", "░", "$warning"),
    ("prepare", "time/prepare", "▒", "$secondary"),
    ("train", "time/forward_backward", "█", "$success"),
    ("optim", "time/optim", "▓", "$primary"),
    ("sync", "time/weight_sync", "▚", "$accent"),
    ("probe", "time/probe", "▒", "$primary"),
    ("eval", "time/eval", "▞", "$secondary"),
    ("save", "time/checkpoint", "▞", "$warning"),
    ("report", "time/report", "▒", "$quiet"),
    ("measure", "time/measure", "▓", "$secondary"),
    ("drain", "time/drain", "░", "$accent"),
)


class TimePanel(Panel):
    TITLE = "Step time"
    HELP = (
        "Where the wall time of one step goes: waiting for a batch, forward and backward, optimizer, weight\n"
        "publication. Waiting most of the time: the engines are the bottleneck."
    )

    def select(self, view: RunView) -> Any:
        keys = [key for _, key, _, _ in PARTS]
        now = view.same_step("time/step", "time/step", "perf/rollout_tok_s", "perf/train_tok_s", *keys)
        return now, view.curves.get("time/step", ()), view.at

    def headline(self, data: Any) -> str:
        return format.seconds(data[0]["time/step"]) if "time/step" in data[0] else ""

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        now, history, at = data
        lines = self._split(now, width, height)
        return lines + (over_time("step time", history, width, height - len(lines), at) if height > CHART_LINES else [])

    def _split(self, data: dict[str, Any], width: int, height: int) -> list[Line]:
        total = data.get("time/step")
        measured = [(word, data[key], shade, style) for word, key, shade, style in PARTS
                    if isinstance(data.get(key), (int, float)) and data[key] > 0]  # fmt: skip
        if not isinstance(total, (int, float)) or not total > 0 or not measured:
            return [labelled("split", format.ABSENT)]
        shares = [(word, min(1.0, value / total), shade, style) for word, value, shade, style in measured]
        lines: list[Line] = [self._bar(shares, width)]
        lines.append(self._legend(shares, width))
        if height > 2:
            speed = [f"{word} {format.number(data[key])} tok/s" for word, key in
                     (("sampled", "perf/rollout_tok_s"), ("trained", "perf/train_tok_s")) if key in data]  # fmt: skip
            lines.append(Content.styled(", ".join(speed) or format.ABSENT, "$quiet"))
        return lines

    @staticmethod
    def _legend(shares: list[tuple[str, float, str, str]], width: int) -> Content:
        """The largest parts by name, as many as fit."""
        cells: list[tuple[str, str] | str] = []
        used = 0
        for word, part, shade, style in sorted(shares, key=lambda item: -item[1]):
            text = f"{'  ' if cells else ''}{shade} {word} {100 * part:.0f} %"
            used += len(text)
            if used > width:
                break
            head = len(text) - len(text.lstrip())
            cells += [text[:head], (shade, style), text[head + 1 :]]
        return Content.assemble(*cells)

    @staticmethod
    def _bar(shares: list[tuple[str, float, str, str]], width: int) -> Content:
        """Parts side by side in the order in which they happen; dots are unaccounted time."""
        cells: list[tuple[str, str]] = []
        used, end = 0, 0.0
        for _, part, shade, style in shares:
            end += part
            size = max(0, min(width, round(end * width)) - used)
            cells.append((shade * size, style))
            used += size
        return Content.assemble(*cells, ("·" * (width - used), "$quiet"))


class EnginePanel(Panel):
    TITLE = "Engines"
    HELP = (
        "vLLM engines as min/mean/max over the fleet, with the worst one named: one sick engine hides in a mean.\n"
        "kv: KV cache in use. Preemptions mean that the cache is too small for the running requests."
    )

    def select(self, view: RunView) -> Any:
        sick = [v.text for v in view.verdicts if v.rule in ("sick-engine", "kv-pressure")]
        return view.family("engine/"), sick

    def headline(self, data: Any) -> str:
        return "min/mean/max" if data[0] else ""

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        now, sick = data
        alarm: list[Line] = [Content.styled(f"{glyphs.MARK['warning']} {text}", "bold $text-warning") for text in sick]
        return [*alarm, *self._figures(now, height - len(alarm))]

    @staticmethod
    def _figures(data: dict[str, Any], height: int) -> list[Line]:
        running = format.spread(data, "engine/running")
        waiting = format.spread(data, "engine/waiting")
        first = format.ABSENT if running is None else running + (f", {waiting} waiting" if waiting else "")
        cache = format.spread(data, "engine/kv_frac", format.share)
        second = format.ABSENT if cache is None else f"{cache}{_worst(data, 'engine/kv_frac')}"
        lines: list[Line] = [labelled("running", first), labelled("kv cache", second)]
        for word, name in (("preempted", "engine/preemptions"), ("version", "engine/version"), ("restarts", "engine/restarts")):
            text = format.spread(data, name)
            if text is not None and height > len(lines):
                lines.append(labelled(word, f"{text}{_worst(data, name)}"))
        return lines


def _worst(data: dict[str, Any], name: str) -> str:
    """The worst member by name, where the members differ."""
    worst = data.get(f"{name}/worst")
    same = data.get(f"{name}/min") == data.get(f"{name}/max")
    return "" if worst is None or same else f", worst {worst}"


class HostPanel(Panel):
    TITLE = "Hosts"
    HELP = "CPU, memory and GPU use of the hosts as min/mean/max, with the worst one named."

    def select(self, view: RunView) -> Any:
        return view.family("host/")

    def paint(self, data: Any, width: int, height: int) -> list[Line]:
        named = (("cpu", "host/cpu"), ("mem", "host/mem"), ("gpu", "host/gpu_util"), ("gpu mem", "host/gpu_mem"))
        found = [(word, name, format.spread(data, name, format.share)) for word, name in named]
        if height < 3:
            words = [f"{word} {text}" for word, _, text in found if text is not None]
            return ["  ".join(words) if words else Content.styled(format.ABSENT, "$quiet")]
        return [labelled(word, f"{text}{_worst(data, name)}" if text is not None else format.ABSENT)
                for word, name, text in found]  # fmt: skip
