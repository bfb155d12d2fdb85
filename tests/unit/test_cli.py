import gzip
import json
import shutil
import subprocess
import sys
import time

import pytest

from engine import wire
from engine.config import Config
from molt_tui.cli import main
from molt_tui.scenarios.archive import load, names
from molt_tui.scenarios.player import Player, prepare
from molt_tui.services import machine
from tests.make_golden import GOLDEN, RUN_ID
from tests.unit.conftest import until

RUN_FIELDS = {"id", "name", "group", "recipe", "state", "step", "version", "attempts", "created", "updated", "reward", "job_id",
              "cluster", "tags"}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MOLT_TUI_HOME", str(tmp_path / "home"))
    for name in ("MOLT_TUI_RUNS", "MOLT_TUI_DEBUG", "MOLT_TUI_ENGINE_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def golden(home):
    return shutil.copytree(GOLDEN, home / "runs" / RUN_ID)


@pytest.fixture
def molt(capsys):
    """Run one command: (exit code, stdout, stderr)."""

    def call(*arguments: str):
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_runs_json_has_exactly_the_promised_fields(molt, golden):
    code, out, err = molt("runs", "--json")
    (run,) = json.loads(out)
    assert code == 0 and err == "" and set(run) == {*RUN_FIELDS, "alerts"} and run["alerts"] == []
    assert (run["id"], run["state"], run["reward"], run["tags"]) == (RUN_ID, "completed", 0.92, ["demo", "keep"])


def test_alerts_of_a_live_run_are_in_runs_and_show(molt, home):
    scenario = load("replay-leaks")
    run = prepare(scenario, home / "runs", "20270101-000000-demo-x", now=time.time(), command=["molt-tui", "demo"])
    player = Player(scenario, run, 1.0)
    for item in scenario.items:
        player.apply(item)
    player.write_status(force=True)
    (listed,) = json.loads(molt("runs", "--json")[1])
    assert [(alert["rule"], alert["level"]) for alert in listed["alerts"]] == [("replay-leaks", "warning")]
    assert "warning: replay-leaks" in molt("runs")[1]
    shown = json.loads(molt("show", "last", "--json")[1])
    assert shown["alerts"] == listed["alerts"] and shown["verdict"] == shown["alerts"][0]["text"]
    assert f"warning   {shown['verdict']}" in molt("show", "last")[1]
    before = json.loads(molt("show", "last", "--step", "40", "--json")[1])
    assert before["alerts"] == [] and before["metrics"]["time/step"]["step"] == 40


def test_what_is_not_shown_on_a_screen_ends_with_the_verdict_in_words_and_belongs_to_the_run_asked_for(molt, home, monkeypatch):
    monkeypatch.setattr("molt_tui.cli.start.HOLD_S", 0.0)
    code, out, err = molt("demo", "--scenario", "nan-loss", "--headless", "--speed", "1e6")
    run_id, told = out.strip(), err.splitlines()
    assert code == 1 and "step 60: alert not_finite: optim/grad_norm is nan: such a step leaves the weights as they are" in told
    assert told[-1] == "at step 96: loss/entropy is NaN since step 60 (and 5 more)"
    run_id = molt("demo", "--scenario", "healthy", "--headless", "--speed", "1e6")[1].strip()
    rollouts = json.loads(molt("trace", run_id, "--json")[1])
    assert {record["run"] for record in rollouts} == {run_id}
    packed = next((home / "runs" / run_id / "rollouts").glob("*.gz")).read_bytes()
    assert {json.loads(line)["run"] for line in gzip.decompress(packed).splitlines()} == {run_id}
    keys = [line.split()[0] for line in molt("show", run_id)[1].split("METRIC")[1].splitlines()[1:4]]
    assert all(key.startswith(("reward/", "eval/")) for key in keys)
    assert json.loads(molt("metrics", run_id, "--json")[1])[0]["key"].startswith(("reward/", "eval/"))


def test_a_run_named_by_its_id_is_read_from_its_directory_where_the_database_cannot_be_written(molt, golden, home):
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); from molt_tui.cli import main; sys.exit(main())"
    )

    def call(*arguments):
        return subprocess.run([sys.executable, "-c", limited, *arguments], capture_output=True, text=True)

    shown = call("show", RUN_ID[:12], "--json")
    assert json.loads(shown.stdout)["reward"] == 0.92, shown.stderr
    assert "read from the run's directory alone" in shown.stderr and len(shown.stderr.splitlines()) == 1
    refused = call("show", "last")
    assert refused.returncode == 1 and "free some space" in refused.stderr


def test_demo_lists_what_it_can_play(molt):
    code, out, _ = molt("demo", "--list")
    assert code == 0 and all(name in out for name in names())
    assert {s["name"] for s in json.loads(molt("demo", "--list", "--json")[1])} == set(names())


def test_runs_table_and_no_runs(molt, home):
    assert molt("runs") == (0, "", "no runs yet; start one with `molt-tui demo` or `molt-tui launch RECIPE`\n")
    assert molt("runs", "--json") == (0, "[]\n", "")
    shutil.copytree(GOLDEN, home / "runs" / RUN_ID)
    lines = molt("runs")[1].splitlines()
    assert lines[0].split()[:4] == ["ID", "STATE", "STEP", "REWARD"] and lines[1].split()[:4] == [
        RUN_ID,
        "completed",
        "9/9",
        "0.92",
    ]


def test_a_closed_output_is_no_failure(home):
    command = [sys.executable, "-m", "molt_tui", "runs"]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=30)
    assert (done.returncode, "unexpected" in done.stderr) == (0, False)


@pytest.mark.parametrize("reference", [RUN_ID, "20261130-10", "golden", "last"])
def test_a_run_is_found_by_id_prefix_name_or_last(molt, golden, reference):
    code, out, _ = molt("show", reference, "--json")
    shown = json.loads(out)
    assert code == 0 and shown["id"] == RUN_ID and shown["metrics"]["reward/mean"]["value"] == 0.92
    assert [a["reason"] for a in shown["attempt_list"]] == ["crashed", "completed"]


def test_not_found_and_ambiguous(molt, golden, home):
    assert molt("show", "nothing") == (3, "", "molt-tui: no run 'nothing'; `molt-tui runs` lists them\n")
    shutil.copytree(GOLDEN, home / "runs" / "20261130-101502-second")
    code, _, err = molt("show", "20261130")
    assert code == 2 and "fits 2 runs" in err
    assert molt("show", "last")[0] == 0


def test_metrics(molt, golden):
    code, out, _ = molt("metrics", "last", "loss/policy", "reward/mean", "--json")
    rows = json.loads(out)
    assert code == 0 and len(rows) == 18
    assert rows[2] == {"key": "loss/policy", "step": 3, "attempt": 1, "t": rows[2]["t"], "value": "nan"}
    assert [r["attempt"] for r in rows[9:]] == [1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert molt("metrics", "last", "reward/mean", "--last", "1")[1].splitlines()[1].split() == ["reward/mean", "9", "2", "0.92"]
    assert len(molt("metrics", "last")[1].splitlines()) > 20
    code, _, err = molt("metrics", "last", "reward/meen")
    assert code == 3 and "did you mean reward/mean" in err


def test_logs_read_as_in_the_app_without_their_colours(molt, golden):
    code, out, _ = molt("logs", "last")
    assert code == 0 and "\x1b" not in out and "warning" in out and "[31m" not in out
    assert molt("logs", "last", "--follow", "-n", "1")[1] == "step 9 of 9\n"
    assert molt("logs", "last", "--list", "--json")[1].count("engine.log") == 2
    assert molt("logs", "last", "--log", "nope")[0] == 3


def test_trace(molt, golden):
    code, out, _ = molt("trace", "last", "--json")
    assert code == 0 and [r["rollout_id"] for r in json.loads(out)] == ["g4-0", "g4-1", "g4-2", "g4-3"]
    assert "\x1b" not in molt("trace", "last", "--text")[1]
    assert molt("trace", "last", "--step", "99")[0] == 3
    assert len(json.loads(molt("trace", "last", "--search", "7-3", "--json")[1])) == 4
    assert json.loads(molt("trace", "last", "--search", "(", "--json")[1]) == []
    code, _, err = molt("trace", "last", "--sort", "beauty")
    assert code == 2 and err.count("\n") == 1
    ranked = json.loads(molt("trace", "last", "--sort", "reward", "--json")[1])
    assert [r["rollout_id"] for r in ranked] == ["g4-1", "g4-0", "g4-2", "g4-3"]  # NaN is no reward: last


def test_one_rollout_token_by_token(molt, golden):
    tokens = json.loads(molt("trace", "last", "--rollout", "g4-1", "--json")[1])
    reasons = [t["reason"].split(":")[0] for t in tokens]
    assert reasons[3:] == ["not trained", "trained", "not trained", "not trained", "masked", "trained"]
    assert tokens[4]["mismatched_layers"] == [1] and tokens[4]["version"] == 3 and tokens[4]["staleness"] == 1
    _, out, err = molt("trace", "last", "--rollout", "g4-1")
    assert "\x1b" not in out and "expected 4" in err and len(out.splitlines()) == 10
    assert molt("trace", "last", "--rollout", "nope")[0] == 3


def test_saved_queries(molt, golden):
    state = molt("query", "--saved", "runs by state", "--json")
    (row,) = json.loads(state[1])
    assert state[0] == 0 and row["state"] == "completed" and row["updated"].count(":") == 2, "a time that can be read"
    assert molt("query", "SELECT 1 AS one", "--save", "mine")[0] == 0
    assert molt("query", "--saved", "mine", "--csv")[1] == "one\n1\n"
    assert molt("query", "--saved", "mine", "--markdown")[1] == "| one |\n| --- |\n| 1 |\n"
    listed = json.loads(molt("query", "--list", "--json")[1])
    assert listed[0] == {"name": "mine", "sql": "SELECT 1 AS one", "own": True} and not listed[1]["own"]
    assert molt("query", "--delete", "mine")[0] == 0 and molt("query", "--saved", "mine")[0] == 3
    assert molt("query", "--delete", "runs by state")[0] == 2
    assert molt("query")[0] == 2 and molt("query", "SELECT 1", "--csv", "--json")[0] == 2


def test_every_shipped_query_runs(molt, golden):
    for saved in json.loads(molt("query", "--list", "--json")[1]):
        code, _, err = molt("query", "--saved", saved["name"], "--json")
        assert code == 0, err


def test_compare(molt, golden, home):
    other = shutil.copytree(GOLDEN, home / "runs" / "other")
    (other / "run.toml").write_text((other / "run.toml").read_text().replace("lr = 0.001", "lr = 0.5"))
    result = json.loads(molt("compare", RUN_ID, "other", "--json")[1])
    assert result["settings"] == {"actor.adam.lr": [0.001, 0.5]} and result["metrics"]["reward/mean"] == [0.92, 0.92]
    assert next(iter(result["metrics"])).startswith(("reward/", "eval/"))
    newer = shutil.copytree(GOLDEN, home / "runs" / "newer")
    (newer / "run.toml").write_text((newer / "run.toml").read_text().replace("[train]", "[train]\nseed = 42"))
    assert json.loads(molt("compare", RUN_ID, "newer", "--json")[1])["settings"] == {}, "a default is not a difference"
    code, out, _ = molt("compare", "last", "other")
    assert code == 0 and (out.startswith("SETTING") or out.startswith("no setting differs"))
    assert molt("compare", "last")[0] == 2


def test_query(molt, golden):
    sql = "SELECT id, step FROM run_summary"
    assert json.loads(molt("query", sql, "--json")[1]) == [{"id": RUN_ID, "step": 9}]
    code, out, err = molt("query", "SELECT * FROM metrics", "--limit", "2")
    assert code == 0 and len(out.splitlines()) == 3 and "only the first 2 rows" in err
    assert molt("query", "DELETE FROM runs")[0] == 2


def test_notes_and_tags(molt, golden):
    assert molt("note", "last", "looks", "good")[0] == 0
    assert molt("tag", "last", "best", "moe")[0] == 0
    assert molt("tag", "last", "--remove", "keep")[0] == 0
    assert json.loads(molt("runs", "--json")[1])[0]["tags"] == ["demo", "best", "moe"]
    assert "looks good" in molt("show", "last")[1]


def test_recipes(molt, recipe):
    assert molt("recipes", "list")[0] == 0
    assert json.loads(molt("recipes", "check", str(recipe), "--json")[1])[0]["ok"] is True
    recipe.write_text(recipe.read_text().replace("[train]", "[train]\nmax_steps = 0"))
    code, out, _ = molt("recipes", "check", str(recipe))
    assert code == 1 and "train.max_steps" in out
    assert molt("recipes", "show", "nothing")[0] == 3


def test_many_runs_on_few_cores_are_warned_of_before_they_start(molt, recipe, monkeypatch):
    monkeypatch.setattr(machine, "core_count", lambda: 4)
    code, out, err = molt("launch", str(recipe), "--dry-run", "--seeds", "3", "--json")
    words = "3 runs start at once on this machine's 4 cores"
    assert code == 0 and json.loads(out)["warnings"] == [words] and f"warning: {words}" in err
    code, out, err = molt("launch", str(recipe), "--dry-run", "--seeds", "2", "--json")
    assert code == 0 and json.loads(out)["warnings"] == [] and "warning" not in err


def test_gpus_that_several_runs_would_share_are_warned_of(monkeypatch):
    monkeypatch.setattr(machine, "core_count", lambda: 64)
    monkeypatch.setattr(machine, "gpu_count", lambda: 8)
    config = Config(placement={"device": "cuda"}, vllm={"num_engines": 4}, actor={"num_gpus_per_node": 2})
    assert config.engine_gpus + config.trainer_ranks == 6
    assert machine.crowding([config]) is None
    assert machine.crowding([config] * 2) == "2 runs start at once on this machine's 8 GPUs (12 wanted)"


def test_dry_run_makes_nothing(molt, recipe, home):
    code, out, _ = molt("launch", str(recipe), "--dry-run", "--actor.adam.lr", "0.5", "--seeds", "2", "--json")
    plan = json.loads(out)
    assert code == 0 and [r["name"] for r in plan["runs"]] == ["sums-s42", "sums-s43"]
    assert plan["runs"][1]["settings"]["actor.adam.lr"] == 0.5 and plan["command"][1:3] == ["-m", "engine.supervisor"]
    assert not home.exists()
    code, out, _ = molt("launch", str(recipe), "--dry-run", "--rollout.temperature=0.7")
    assert code == 0 and "rollout.temperature" in out and not home.exists()


def test_launch_refusals_start_nothing(molt, recipe, home):
    code, _, err = molt("launch", str(recipe), "--actor.adam.lrr", "1", "--train.max_steps", "x")
    assert code == 2 and "actor.adam.lr" in err and "train.max_steps" in err
    assert molt("launch", str(recipe), "--on", "moon") == (2, "", "molt-tui: --on takes local or slurm, got 'moon'\n")
    code, _, err = molt("launch", str(recipe), "--on", "slurm")
    assert code == 2 and "no runs_root is set" in err
    assert molt("launch", "--actor.adam.lr", "1")[0] == 2
    assert molt("launch", "no-such-recipe")[0] == 3
    assert molt("launch")[0] == 2
    assert not home.exists()


def test_life_of_a_run_from_the_command_line(molt, recipe, fake_engine):
    code, out, _ = molt("launch", str(recipe), "--name", "mine", "--tag", "moe", "--json")
    (started,) = json.loads(out)
    assert code == 0

    def state():
        return json.loads(molt("runs", "--json")[1])[0]["state"]

    until(lambda: state() == "running")
    assert molt("pause", "mine") == (0, "", f"{started['id']}: pause done\n")
    until(lambda: state() == "paused")
    assert molt("resume", "mine")[0] == 0
    code, out, _ = molt("evaluate", "mine", "--json")
    assert code == 1 and json.loads(out)["message"] == "eval.dataset is empty"
    assert molt("set", "mine", "actor.adam.lr=1e-4")[0] == 0
    code, _, err = molt("set", "mine", "rollout.batch_size=3")
    assert code == 2 and "rollout.temperature" in err
    assert molt("set", "mine", "actor.adam.lr")[0] == 2
    assert molt("checkpoint", "mine")[0] == 0
    code, _, err = molt("stop", "mine")
    assert code == 0 and "is cancelled at step 1: stopped as asked" in err
    code, _, err = molt("pause", "mine")
    assert code == 2 and f"`molt-tui resume {started['id']}` continues it" in err
    assert f"{started['id']}: attempt 2 starts; watch it" in molt("resume", "mine")[2]
    until(lambda: state() == "running")
    assert molt("stop", "mine", "--after-step")[0] == 0
    until(lambda: state() == "cancelled")


def test_no_answer_is_said_honestly(molt, recipe, fake_engine):
    molt("launch", str(recipe), "--name", "deaf")
    until(lambda: json.loads(molt("runs", "--json")[1])[0]["state"] == "running")
    code, _, err = molt("pause", "deaf", "--timeout", "0.1")
    assert code == 1 and "no answer yet after 0.1 s" in err
    assert molt("stop", "deaf", "--kill")[0] == 0


def test_watched_run_ends_with_its_own_exit_code(molt, recipe, fake_engine):
    code, out, err = molt("launch", str(recipe), "--name", "finishes", "--watch")
    assert code == 0 and out == "" and "is completed after 1 steps" in err and "reward 0.1" in err


def test_doctor(molt, home):
    code, out, _ = molt("doctor", "--json")
    checks = json.loads(out)
    assert code == 0 and all(set(c) == {"check", "ok", "detail", "fix"} for c in checks)
    assert {"python", "packages", "engine", "machine", "home", "runs_root", "disk", "terminal"} == {c["check"] for c in checks}
    home.chmod(0o700)
    (home / "molt.db").touch()
    assert "journal" in next(c["detail"] for c in checks if c["check"] == "home")


def test_db(molt, golden, home):
    assert molt("db", "path") == (0, f"{home / 'molt.db'}\n", "")
    assert json.loads(molt("db", "ingest", "--json")[1])["events"] == 41
    assert json.loads(molt("db", "ingest", "--json")[1])["events"] == 0
    (home / "molt.db").write_bytes(b"damaged" * 1000)
    code, _, err = molt("runs")
    assert code == 1 and "molt-tui db rebuild" in err and err.count("\n") == 1
    assert json.loads(molt("db", "rebuild", "--json")[1])["events"] == 41
    assert len(json.loads(molt("runs", "--json")[1])) == 1


def test_no_traceback_reaches_the_user(molt, home, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("boom\x1b[2J")

    monkeypatch.setattr("molt_tui.services.runs.refresh", broken)
    code, out, err = molt("runs")
    assert (code, out) == (1, "") and err.startswith("molt-tui: unexpected RuntimeError: boom\\e[2J (traceback in")
    assert "Traceback" in next((home / "logs").glob("*.log")).read_text()
    monkeypatch.setenv("MOLT_TUI_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["runs"])


def test_bad_usage(molt):
    for arguments in (["nope"], ["runs", "--nope"], ["show"], ["--on"], []):
        code, out, err = molt(*arguments)
        assert code == 2 and out == "" and err.count("\n") == 1, arguments
    code, out, _ = molt("--help")
    assert code == 0 and "requeue" in out and "launch" in out
    assert molt("--version")[1].strip()


def test_hostile_run_directory(molt, home):
    run = wire.RunDir(home / "runs" / "h").create()
    run.meta.write_text(json.dumps({"name": "\x1b]0;x\x07\u202e", "created": 1e300, "tags": ["\x9b", "\ud800"], "recipe": ["x"]}))
    run.status.write_text(json.dumps({"phase": "running\x1b", "step": -1, "beat": "x", "detail": "\x1b[2J" * 9, "attempt": 0}))
    for command in (["runs"], ["show", "h"], ["metrics", "h"], ["runs", "--json"]):
        code, out, err = molt(*command)
        assert code == 0 and not any(c in out + err for c in "\x1b\x07\x9b\u202e"), command


HEAVY = ("textual", "sqlite_utils", "rich", "engine.protocol", "engine.config", "torch", "ray", "vllm", "transformers", "numpy")


def test_reading_commands_import_nothing_heavy(home, golden):
    main(["runs"])
    code = (
        "import sys; from molt_tui.cli import main; assert main({!r}) == 0;"
        "print(*[m for m in {!r} if m in sys.modules], file=sys.stderr)"
    )
    for command in (["runs", "--json"], ["show", "last"], ["metrics", "last", "reward/mean"], ["logs", "last"], ["db", "path"],
                    ["query", "SELECT 1"], ["trace", "last"], ["--help"]):  # fmt: skip
        unwanted = (*HEAVY, "pydantic", "typer") if command[0] == "runs" else HEAVY
        script = code.format(command, unwanted)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stderr == "\n", command


def test_output_survives_a_closed_pipe(home, golden):
    shell = f"{sys.executable} -m molt_tui metrics last | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "0" and done.stderr == ""


def test_a_cluster_that_is_not_there(molt, home, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    code, out, err = molt("cluster", "--json")
    (here,) = json.loads(out)
    assert code == 1 and "is not installed here; run this on a login node" in err
    assert (here["partitions"], here["jobs"], here["answered"]) == ([], [], None)


def test_a_sweep_and_a_relaunch_without_starting(molt, recipe, golden):
    code, out, _ = molt("launch", str(recipe), "--dry-run", "--sweep", "train.seed=1,2", "--sweep", "actor.adam.lr=0.1,0.2")
    assert code == 0 and out.count("--actor.adam.lr=0.2") == 2 and "sums-seed=1,lr=0.1" in out
    code, out, err = molt("launch", str(recipe), "--dry-run", "--random", "2")
    assert (code, out) == (2, "") and "add --sweep" in err
    assert "prompts.jsonl does not exist" in molt("relaunch", "golden", "--dry-run")[2]
    (golden / "prompts.jsonl").write_text("{}\n")
    code, out, _ = molt("relaunch", "golden", "--dry-run", "--train.max_steps", "3", "--json")
    assert code == 0 and json.loads(out)["runs"][0]["settings"]["train.max_steps"] == 3


def test_numbers_that_json_has_not_travel_as_words(molt, golden):
    record = {"attempt": 1, "step": 99, "rollout_id": "r", "segments": [{"logprobs": [float("inf")]}], "reward": float("nan")}
    with gzip.open(golden / "rollouts" / "1-99.jsonl.gz", "wt") as file:
        file.write(json.dumps(record) + "\n")  # Infinity and NaN, which Python also reads
    code, out, err = molt("trace", RUN_ID, "--step", "99", "--json")
    assert (code, err) == (0, "") and json.loads(out)[0]["reward"] == "nan"


@pytest.mark.parametrize("command", [["runs", "--json"], ["keys"], ["query", "select 1"]])
def test_an_output_without_room_is_one_line(home, command):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "molt_tui", *command], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr == "molt-tui: cannot write the output: No space left on device\n"


def test_an_error_that_cannot_be_told_keeps_its_exit_code(home):
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-m", "molt_tui", "show", "nope"], stderr=full).returncode == 3
