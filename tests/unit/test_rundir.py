"""A prepared run directory: complete, private, or not there at all; and the command line around it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import console, recipes, rundir, wire
from engine.__main__ import main, parser
from engine.flags import load_run_toml
from tests.make_golden import GOLDEN
from tests.records import read_meta, read_status
from tests.supervised import supervisor_command, until

RECIPE = """
[recipe]
title = "Sums"
[actor]
model_name_or_path = "tiny:qwen3"
[data]
prompt_dataset = ["prompts.jsonl"]
[algo.advantage]
is_correction_level = "token"
[train]
agent_path = "sums.py"
"""


@pytest.fixture
def recipe(tmp_path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "sums.py").write_text("import scoring\nclass AgentRunner: pass\n")
    (folder / "scoring.py").write_text("")
    (folder / "prompts.jsonl").write_text("{}\n")
    (folder / "sums.toml").write_text(RECIPE)
    return folder / "sums.toml"


def prepare(recipe: Path, root: Path, **extra):
    found, config, problems = recipes.load(str(recipe), ["--train.seed", "7"])
    assert problems == []
    return rundir.prepare_run(root, config, found, **extra)


def test_a_prepared_run_is_complete_and_private(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "very-secret")
    run = prepare(recipe, tmp_path / "runs", name="My Sums!", group="g", command=["engine", "run"], tags=["a"])
    assert re.fullmatch(r"\d{8}-\d{6}-my-sums-[0-9a-z]{4}", run.path.name)
    config = load_run_toml(run.run_toml)
    assert config.train.seed == 7 and (run.path / config.train.agent_path).read_text().startswith("import scoring")
    assert config.data.prompt_dataset == (str(recipe.parent / "prompts.jsonl"),)
    assert sorted(p.name for p in run.agent.iterdir()) == ["scoring.py", "sums.py"]
    meta, status = read_meta(run), read_status(run)
    assert (meta.run, meta.name, meta.group, meta.recipe, meta.tags) == (run.path.name, "My Sums!", "g", str(recipe), ["a"])
    assert meta.versions["pydantic"] and meta.host
    assert (status.phase, status.attempt, status.beat) == ("queued", 0, 0)
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert not any(b"very-secret" in p.read_bytes() for p in run.path.rglob("*") if p.is_file())


def test_run_ids_sort_by_time():
    ids = [rundir.new_run_id("x", 1_796_033_702 + seconds) for seconds in (0, 1, 100_000)]
    assert ids == sorted(ids) and ids[0].startswith("20261130-101502-x-")
    assert "-run-" in rundir.new_run_id("###")
    first, second = (rundir.new_run_id(f"demo-lr=0.0001,max_staleness=1-s{seed}", 0.0) for seed in (42, 43))
    assert first.startswith("19700101-000000-demo-lr-0-00-eness-1-s42-") and "-s43-" in second, "a sweep's runs differ at the end"


@pytest.mark.parametrize(
    ("error", "message"), [(OSError(28, "No space left on device"), "No space left"), (OSError(5, "I/O error"), "I/O error")]
)
def test_a_full_disk_leaves_nothing_and_says_so_in_one_line(recipe, tmp_path, monkeypatch, error, message):
    def refuse(*_):
        raise error

    monkeypatch.setattr(rundir, "write_record", refuse)
    with pytest.raises(rundir.RunDirError, match=message) as raised:
        prepare(recipe, tmp_path / "runs")
    assert "\n" not in str(raised.value) and "--runs-root" in str(raised.value)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_file_in_the_way_is_named(recipe, tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(rundir.RunDirError, match="cannot make a run directory"):
        prepare(recipe, tmp_path / "runs" / "deeper")


def engine(*argv: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-X", "importtime", "-m", "engine", *argv]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=60)


def imported(result: subprocess.CompletedProcess) -> set[str]:
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().split(".")[0] for line in lines}


def errors(result: subprocess.CompletedProcess) -> list[str]:
    return [line for line in result.stderr.splitlines() if not line.startswith("import time:")]


def test_flags_with_a_word_that_none_has_says_so(capsys):
    assert main(["flags", "max_staleness"]) == 0 and "--train.max_staleness" in capsys.readouterr().out
    assert main(["flags", "zebra"]) == 2 and "no flag has the word 'zebra'" in capsys.readouterr().err


def test_bad_input_is_refused_before_anything_is_made(recipe, tmp_path):
    result = engine("run", str(recipe), "--runs-root", "runs", "--train.sede", "3", "--rollout.top_p", "0.5", cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert errors(result)[0] == "error: --train.sede: unknown flag; did you mean train.seed?"
    assert len(errors(result)) == 2 and not (tmp_path / "runs").exists()
    assert not imported(result) & {"torch", "ray", "vllm", "transformers", "numpy"}


def test_check_and_flags_are_light(recipe, tmp_path):
    result = engine("check", str(recipe), "--run.name", "x", cwd=tmp_path)
    assert (result.returncode, result.stdout, errors(result)) == (0, "ok\n", [])
    assert not imported(result) & {"torch", "ray", "vllm", "transformers", "numpy"}
    table = engine("flags", "staleness", cwd=tmp_path)
    assert "--train.max_staleness  [an integer from 0 to 64; default 1]  (live)" in table.stdout


def test_a_reader_of_the_flags_may_leave():
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run([sys.executable, "-m", "engine", "flags"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("end", [["--runs-root"], ["--runs-root="], ["--runs-root", "--train.seed", "1"]])
def test_an_option_without_its_value_starts_nothing(recipe, tmp_path, end, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="2"):
        main(["run", str(recipe), *end])
    assert "error: argument --runs-root: " in capsys.readouterr().err and sorted(tmp_path.iterdir()) == before


@given(
    st.lists(st.sampled_from(["--a.b", "--a.c=-1", "--run.name=x", "-1", "-1e-3", "0.5", "--mail", "a b", "-x", "é", "--runs"]))
)
def test_settings_keep_their_words_and_their_order(words):
    options, settings = parser().parse_known_args(["run", "demo", *words])
    assert settings == [word for word in words if word != "--run.name=x"]
    assert (options.recipe, options.name) == ("demo", "x" if "--run.name=x" in words else None)


def test_a_refusal_cannot_act_on_the_terminal(recipe, capsys):
    assert main(["check", str(recipe), "--train.\x1b[31m\u202eseed", "1"]) == 2
    assert "error: --train.\\x1b[31m\\u202eseed: unknown flag" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["run"], ["run", "--train.seed"], ["nonsense"], ["attempt", "x"], ["flags", "a", "b"]])
def test_usage(argv, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert "usage:" in capsys.readouterr().err


def test_the_foreground_shows_lines_stops_on_ctrl_c_and_gives_the_runs_exit_code(recipe, tmp_path):
    run = prepare(recipe, tmp_path / "runs")
    code = "import sys; from engine import wire, __main__ as m; sys.exit(m.follow(wire.RunDir(sys.argv[1]), sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(run.path), *supervisor_command(run, "stops")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    until(lambda: (run.attempt(1) / "ready").exists())
    process.send_signal(signal.SIGINT)
    lines = process.communicate(timeout=20)[0].splitlines()
    assert process.returncode == 130
    assert "starting: attempt 1" in lines and lines[-1] == "cancelled: stopped as asked"
    assert "stopping after a checkpoint; once more stops at once" in lines


def test_the_foreground_goes_on_when_nobody_reads(recipe, tmp_path):
    run = prepare(recipe, tmp_path / "runs")
    code = "import sys; from engine import wire, __main__ as m; sys.exit(m.follow(wire.RunDir(sys.argv[1]), sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(run.path), *supervisor_command(run, "ends")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(20)) == (b"", 0)


def test_lines_of_the_golden_run():
    lines = []
    for attempt in (1, 2):
        for stream in ("supervisor", "events"):
            events = wire.EventReader(GOLDEN / "attempts" / str(attempt) / stream).poll()
            lines += [line for line in map(console.describe, events) if line is not None]
    assert "step 1  reward 0.110  staleness 0.60  1,810 tok/s sampled  2,405 tok/s trained  1.6 s" in lines
    assert "step 9  eval/sums/score_mean 0.800  eval/sums/exact_frac 0.800" in lines
    assert "step 3: alert not_finite: loss/policy is NaN" in lines
    assert "step 4: checkpoint in 0.4 s, checkpoints/step-000004" in lines
    assert all(line.isprintable() for line in lines)
