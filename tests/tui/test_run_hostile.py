"""Whatever bytes a run wrote: no panel fails, and nothing that a terminal would interpret is drawn."""

from __future__ import annotations

import shutil
from pathlib import Path
from unicodedata import category

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.content import Content

from engine.wire import RunDir, append_line
from molt_tui.store.home import Home
from molt_tui.tui.screens.run import head_line, verdict_lines
from molt_tui.tui.store_source import StoreSource
from molt_tui.tui.view import RunView
from molt_tui.tui.widgets import alerts, curves, machines, routing, signals, streams
from molt_tui.tui.widgets.chart import ChartLook
from molt_tui.tui.widgets.panel import Panel
from tests.tui.fake_source import view

GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = ("\x1b[2J", "\x1b]52;c;aGk=\x07", "\x9b31m", "\u202e", "\x00", "[red]x[/]", "[@click=app.quit]", "a\r\n\tb", "\ud800")
NAMES = (
    "reward/mean", "loss/policy", "time/step", "queue/depth", "queue/capacity", "staleness/hist", "routing/layer_mismatch",
    "engine/kv_frac/worst", "optim/grad_norm", "is/masked_frac", "eval/heldout/exact_frac", "engine/version/min",
)  # fmt: skip
PANELS: list[Panel] = [
    cls()
    for module in (alerts, curves, machines, routing, signals, streams)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Panel) and cls.TITLE and cls.__module__ == module.__name__
]

texts = st.text(max_size=40) | st.sampled_from(HOSTILE) | st.binary(max_size=40).map(lambda b: b.decode("latin-1"))
numbers = st.floats() | st.sampled_from([1e308, -1e308, 0.0]) | st.integers(-(10**300), 10**300)
values = numbers | texts | st.lists(numbers | texts, max_size=4) | st.none() | st.booleans()
huge = st.sampled_from([10**400, -(10**400)])  # JSON has no end of numbers
written = values | huge | st.lists(huge, min_size=1, max_size=4)
lines = st.lists(st.binary(max_size=60) | st.sampled_from([t.encode("utf-8", "surrogatepass") for t in HOSTILE]), max_size=8)
steps = st.none() | st.integers(0, 20)
quiet = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def harmless(text: str) -> bool:
    """No control character, no lone surrogate, nothing that turns the direction of text."""
    return not any(category(c) in ("Cc", "Cs") or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069" for c in text)


def draw_everything(shown: RunView, width: int, height: int) -> str:
    """All text that the dashboard would put on the terminal."""
    drawn = [head_line(shown, shown.at, width).plain, verdict_lines(shown, width).plain]
    for panel in PANELS:
        data = panel.select(shown)
        painted = panel.paint(data, width, height)
        drawn += [panel.headline(data), *(line.plain if isinstance(line, Content) else line for line in painted)]
    return "".join(drawn).replace("\n", "")


@pytest.fixture
def golden(tmp_path) -> RunDir:
    home = Home(tmp_path, tmp_path / "runs").create()
    shutil.copytree(GOLDEN, home.runs_root / "20261130-101502-golden-k3f9")
    return RunDir(home.runs_root / "20261130-101502-golden-k3f9")


def test_there_is_a_panel_of_every_kind():
    assert len(PANELS) >= 12


@quiet
@given(
    metrics=st.dictionaries(st.sampled_from(NAMES), written, max_size=8),
    text=texts,
    log=lines,
    size=numbers | huge,
    at=st.none() | st.integers(0, 20),
)
def test_any_bytes_from_the_run_directory_to_the_cells(golden, metrics, text, log, size, at):
    events = golden.attempt(2) / "events" / "000000.jsonl"
    events.write_bytes((GOLDEN / "attempts/2/events/000000.jsonl").read_bytes())
    head = {"protocol": 1, "run": golden.path.name, "attempt": 2, "t": 1.0}
    records = ({"kind": "metrics", "step": 10, "metrics": metrics}, {"kind": "fault", "step": 10, "what": text, "detail": text},
               {"kind": "phase", "phase": text, "detail": text}, {"kind": text or "note", "text": text},
               {"kind": "checkpoint", "step": 10, "seconds": size, "bytes": size})  # fmt: skip
    for seq, record in enumerate(records):
        append_line(events, {**head, "seq": 900 + seq, **record})
    (golden.attempt(2) / "logs" / "engine.log").write_bytes(b"\n".join(log))
    home = Home(golden.path.parents[1], golden.path.parent)
    for path in home.path.glob("molt.db*"):
        path.unlink()
    source = StoreSource(home)
    source.ingest()
    shown = source.run(golden.path.name, 200, at, "reward/mean")
    assert harmless(draw_everything(shown, 70, 12))
    source.store.close()


@quiet
@given(
    metrics=st.dictionaries(st.sampled_from(NAMES), numbers | st.lists(numbers, max_size=4) | st.none(), max_size=8),
    curve=st.lists(st.tuples(st.integers(0, 10**6), st.floats()), max_size=20, unique_by=lambda p: p[0]),
    layers=st.lists(st.none() | st.lists(st.floats(), min_size=1, max_size=5).map(tuple), max_size=9),
    size=st.tuples(st.integers(1, 160), st.integers(1, 40)), at=st.none() | st.integers(0, 10**6),
    look=st.builds(ChartLook, st.booleans(), st.sampled_from((1, 5, 20))),
)  # fmt: skip
def test_any_number_in_any_panel(metrics, curve, layers, size, at, look):
    points = sorted((float(x), y) for x, y in curve)
    for panel in PANELS:
        if isinstance(panel, curves.CurvePanel):
            panel.chart_look = look
    shown = view(metrics=metrics, curves=dict.fromkeys([*view().curves, "staleness/mean"], points), at=at,
                 layers=tuple(enumerate(layers)), chosen="loss/policy")  # fmt: skip
    assert harmless(draw_everything(shown, *size))


async def test_hostile_words_on_the_real_screen(golden, open_app):
    events = golden.attempt(2) / "events" / "000000.jsonl"
    for seq, text in enumerate(HOSTILE):
        append_line(events, {"protocol": 1, "run": "x", "attempt": 2, "t": 1e9 + seq, "seq": 900 + seq, "kind": "fault",
                             "step": 9, "what": text, "detail": text})  # fmt: skip
    (golden.attempt(2) / "logs" / "engine.log").write_text("\n".join(HOSTILE), errors="replace")
    source = StoreSource(Home(golden.path.parents[1], golden.path.parent))
    source.ingest()
    async with open_app(source=source, run=golden.path.name) as driver:
        for key in ("z", "left_square_bracket", "escape", "a", "escape", "l", "w"):
            await driver.press(key)
            assert harmless(driver.text().replace("\n", "")), key
        assert "[@click=app.quit]" in driver.text()
