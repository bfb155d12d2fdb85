"""Plain progress lines of a run, for a terminal without the cockpit and for logs."""

from collections.abc import Iterator
from typing import Any

from engine.supervisor import one_line
from engine.wire import EventReader, RunDir

# (metric, how it is shown); what a step does not report is left out of its line.
STEP_PARTS = (
    ("reward/mean", "reward {:.3f}"),
    ("staleness/mean", "staleness {:.2f}"),
    ("rollout/response_len_mean", "length {:.0f}"),
    ("perf/rollout_tok_s", "{:,.0f} tok/s sampled"),
    ("perf/train_tok_s", "{:,.0f} tok/s trained"),
    ("time/step", "{:.1f} s"),
)


class Console:
    """Turns the events of the newest attempt into lines."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.first = (run.attempt_numbers() or [0])[-1] + 1
        self.readers: list[EventReader] = []

    def lines(self) -> Iterator[str]:
        """Lines for everything that is new since the last call."""
        started = [number for number in self.run.attempt_numbers() if number >= self.first]
        if started and not self.readers:
            folder = self.run.attempt(started[-1])
            self.readers = [EventReader(folder / "supervisor"), EventReader(folder / "events")]
        for reader in self.readers:
            for event in reader.poll():
                if (line := describe(event)) is not None:
                    yield line


def describe(event: dict[str, Any]) -> str | None:
    """One line for an event; None for those that only a chart is interested in."""
    kind = event["kind"]
    where = f"step {event['step']}: " if event.get("step") else ""
    if kind == "metrics":
        return f"step {event.get('step', 0)}  " + "  ".join(_parts(event.get("metrics", {})))
    if kind == "phase":
        return one_line(": ".join(filter(None, [event.get("phase"), event.get("detail")])))
    if kind == "checkpoint":
        return one_line(f"{where}checkpoint in {event.get('seconds', 0):.1f} s, {event.get('path')}")
    if kind == "control":
        return one_line(f"{where}{event.get('name')}: {event.get('message')}")
    if kind in ("fault", "alert"):
        return one_line(f"{where}{kind} {event.get('what') or event.get('rule')}: {event.get('detail') or event.get('message')}")
    return one_line(f"{where}{event.get('text')}") if kind == "note" else None


def _parts(metrics: dict[str, Any]) -> Iterator[str]:
    for key, form in STEP_PARTS:
        value = metrics.get(key)
        if isinstance(value, (int, float)):
            yield form.format(value)
        elif value is not None:
            yield f"{key} {value}"
    for key, value in metrics.items():
        if key.startswith("eval/") and key.endswith(("/score_mean", "/exact_frac")):
            yield f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
