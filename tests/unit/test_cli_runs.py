"""The command line's twins of the Runs and Compare screens."""

import json
import shutil

import pytest

from engine.wire import encode_line
from molt_tui.cli import main
from tests.make_golden import GOLDEN, RUN_ID


@pytest.fixture
def molt(tmp_path, monkeypatch, capsys):
    """Run one command over three golden runs, two of them in one group: (exit code, stdout, stderr)."""
    monkeypatch.setenv("MOLT_TUI_HOME", str(tmp_path))
    monkeypatch.delenv("MOLT_TUI_RUNS", raising=False)
    shutil.copytree(GOLDEN, tmp_path / "runs" / RUN_ID)
    for name, created in (("s1", 2.0), ("s2", 1.0)):
        run = shutil.copytree(GOLDEN, tmp_path / "runs" / name)
        meta = json.loads((run / "meta.json").read_bytes()) | {"name": name, "group": "seeds", "created": created, "tags": []}
        (run / "meta.json").write_bytes(encode_line(meta))

    def call(*arguments: str):
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def ids(out: str) -> list[str]:
    return [run["id"] for run in json.loads(out)]


def test_runs_take_the_filter_language_and_the_orders_of_the_screen(molt):
    assert ids(molt("runs", "--json")[1]) == [RUN_ID, "s1", "s2"]
    assert ids(molt("runs", "--json", "--filter", "group:seeds reward:>0.9 tag:keep")[1]) == ["s1", "s2"]
    assert ids(molt("runs", "--json", "-f", "-group:seeds")[1]) == [RUN_ID]
    assert ids(molt("runs", "--json", "--sort", "name", "--reverse", "-n", "2")[1]) == ["s2", "s1"]
    assert molt("runs", "--filter", "state:running")[1:] == ("", "no run matches\n")
    code, _, err = molt("runs", "--filter", "reward:high")
    assert code == 2 and "character 8: expected a number" in err and err.count("\n") == 1
    assert molt("runs", "--sort", "colour")[0] == 2


def test_groups_with_mean_and_spread(molt):
    assert molt("runs", "--grouped")[1].splitlines()[1].split() == ["seeds", "2", "2", "completed", "0.92", "0", "2", "s1"]
    (group,) = json.loads(molt("runs", "--grouped", "--json")[1])
    assert group["reward"] == {"mean": 0.92, "sd": 0.0, "n": 2, "lost": 0} and group["runs"] == ["s1", "s2"]


def test_compare_a_group_with_a_run_and_a_curve(molt, tmp_path):
    found = json.loads(molt("compare", "seeds", RUN_ID, "--metric", "loss/policy", "--json")[1])
    assert found["runs"] == ["group:seeds", RUN_ID] and found["subjects"][0]["runs"] == ["s2", "s1"]
    assert len(found["curves"][0]) == 9 and found["curves"][0][2] == [3.0, "nan", None, 0]
    assert "curves" not in json.loads(molt("compare", "seeds", RUN_ID, "--json")[1])
    assert "seeds (n=2)" in molt("compare", "seeds", RUN_ID)[1]
    assert molt("compare", "seeds", RUN_ID, "--format", "csv")[1].startswith("what,name,subject,x,value,sd,n\n")
    assert molt("compare", "seeds", RUN_ID, "-o", str(tmp_path / "x.md"))[0] == 0 and (tmp_path / "x.md").exists()
    code, _, err = molt("compare", "seeds", RUN_ID, "--metric", "loss/polisy")
    assert code == 3 and "did you mean loss/policy" in err
    for wrong in (["--by", "day"], ["--format", "xml"], ["group:nothing"]):
        assert molt("compare", "seeds", RUN_ID, *wrong)[0] in (2, 3)


def test_delete_needs_a_yes_and_says_what_it_did(molt, tmp_path):
    code, _, err = molt("delete", "s1", "s2")
    assert code == 2 and "--yes deletes without a question" in err and "s1  s1  completed" in err
    code, out, err = molt("delete", "s1", "s2", "--yes", "--json")
    assert code == 0 and json.loads(out) == {"deleted": ["s1", "s2"], "problems": []} and "deleted 2 of 2" in err
    assert ids(molt("runs", "--json")[1]) == [RUN_ID] and not (tmp_path / "runs" / "s1").exists()
    assert molt("delete", "s1", "--yes")[0] == 3


@pytest.mark.parametrize("command", ["show", "metrics", "logs", "export", "stop", "relaunch"])
def test_a_name_that_is_no_text_is_the_name_of_nothing(molt, command):
    assert molt(command, "\udcff")[::2] == (3, "molt-tui: nothing here is called so: it is not Unicode text\n")


def test_a_step_beyond_every_database_is_not_there(molt):
    assert molt("show", "s1", "--step", str(10**30))[::2] == (3, "molt-tui: nothing here has so large a number\n")
