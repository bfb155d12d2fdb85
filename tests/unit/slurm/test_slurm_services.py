"""Submission, reconciliation, polling and rendering against a Slurm that answers as told."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engine.flags import resolve
from engine.protocol import ExitRecord, Meta, Status, write_record
from engine.wire import RunDir
from molt_tui.errors import Refused
from molt_tui.services import runs as run_service
from molt_tui.slurm import poll, submit
from molt_tui.slurm.commands import NoAnswer, Submitted, clean_environment
from molt_tui.slurm.parse import Job, parse_associations, parse_nodes, parse_partitions
from molt_tui.slurm.preflight import check
from molt_tui.slurm.render import comment, render
from molt_tui.slurm.site import propose, read_site
from molt_tui.store.database import open_store
from molt_tui.store.home import Home
from molt_tui.store.ingest import ingest


def config(**flags):
    tree, wrong = resolve({}, {name.replace("__", "."): [value] for name, value in flags.items()})
    assert not wrong
    return tree


def job(number: int, state: str = "RUNNING", **more) -> Job:
    fields = {"partition": "p", "nodes": 1, "node_list": "n1", "start": None, "end": None, "time_left": None, "elapsed": None,
              "submitted": None, "comment": "", "name": "x", "reason": ""}  # fmt: skip
    return Job(id=str(number), state=state, **(fields | more))


class FakeSlurm:
    """Answers with `queue`; `silent` makes it give none. Counts calls."""

    def __init__(self) -> None:
        self.queue: list[Job] = []
        self.answer = Submitted("7", False, "")
        self.silent = False
        self.calls = 0
        self.accounting = None

    def submit(self, script: Path, arguments=()) -> Submitted:
        assert script.read_text().startswith("#!")
        return self.answer

    def jobs(self, ids):
        self.calls += 1
        if self.silent:
            raise NoAnswer("Unable to contact slurm controller")
        return [j for j in self.queue if j.id in ids]

    def own_jobs(self):
        self.calls += 1
        if self.silent:
            raise NoAnswer("Socket timed out")
        return self.queue

    def ended(self, job_id):
        return self.accounting


@pytest.fixture
def store(tmp_path):
    with open_store(Home(tmp_path / "home", tmp_path / "runs").create()) as opened:
        yield opened


def make_run(store, name: str = "r1") -> RunDir:
    run = RunDir(store.home.runs_root / name).create()
    write_record(run.meta, Meta(run=name, name=name, created=time.time(), recipe="x", cluster="c"))
    write_record(run.status, Status(run=name, attempt=0, beat=0, phase="queued"))
    return run


def state(store, run: RunDir) -> tuple[str, str]:
    ingest(store, [run.path], rollouts=False)
    found = run_service.get_run(store, run.path.name)
    return found.state, found.detail


def ask(store, slurm, at: float) -> poll.Report:
    ingest(store, rollouts=False)
    return poll.poll(store, slurm, "c", clock=lambda: at)


def test_a_receipt_is_written_before_and_after(store):
    run, slurm = make_run(store), FakeSlurm()
    receipt = submit.submit(slurm, run, "#!/bin/bash\n", 1, "c")
    assert (receipt.state, receipt.job_id) == ("submitted", "7")
    assert json.loads((run.path / "slurm/submissions/1.json").read_text())["job_id"] == "7"
    with pytest.raises(Refused, match="exists already"):
        submit.submit(slurm, run, "#!/bin/bash\n", 1)


def test_no_second_submission_while_one_is_open(store):
    run, slurm = make_run(store), FakeSlurm()
    slurm.answer = Submitted(None, False, "Socket timed out")
    assert submit.submit(slurm, run, "#!", 1).state == "unknown"
    with pytest.raises(Refused, match="got no answer yet"):
        submit.submit(slurm, run, "#!", 2)


def test_an_unknown_submission_is_found_by_comment_or_called_absent_after_two_looks(store):
    run = make_run(store)
    open_one = submit.write(run, submit.Receipt(1, "unknown", t=100.0))
    assert (
        submit.reconcile(run, open_one, [job(1, comment="molt:r1.2"), job(2, comment="molt:other.1")], 200.0).state == "unknown"
    )
    found = submit.reconcile(run, open_one, [job(9, comment='{"a":"b","molt":"molt:r1.1"}')], 200.0)
    assert (found.state, found.job_id) == ("submitted", "9")
    once = submit.reconcile(run, open_one, [], 200.0)
    assert once.state == "unknown" and submit.reconcile(run, once, [], 210.0).state == "unknown"
    assert submit.reconcile(run, once, [], 231.0).state == "absent"


def test_a_killed_submitter_leaves_a_receipt_that_is_looked_for(store):
    run = make_run(store)
    left = submit.write(run, submit.Receipt(1, "submitting", t=100.0))
    assert submit.reconcile(run, left, [], 150.0).state == "submitting"
    assert submit.reconcile(run, left, [], 300.0).state == "unknown"


def test_polling_keeps_its_distance(store):
    run, slurm = make_run(store), FakeSlurm()
    submit.write(run, submit.Receipt(1, "submitted", "7", t=0.0))
    now = time.time()
    slurm.queue = [job(7, "PENDING", reason="Resources")]
    assert ask(store, slurm, now + 0).asked and state(store, run) == ("queued", "waiting for nodes to become free")
    assert not ask(store, slurm, now + 59).asked and ask(store, slurm, now + 61).asked
    slurm.queue = [job(7, "RUNNING")]
    assert ask(store, slurm, now + 122).asked and state(store, run)[0] == "starting"
    assert not ask(store, slurm, now + 136).asked and ask(store, slurm, now + 138).asked
    assert slurm.calls == 4


def test_without_an_answer_the_last_one_stands_with_its_time(store):
    run, slurm = make_run(store), FakeSlurm()
    submit.write(run, submit.Receipt(1, "submitted", "7", t=0.0))
    now = time.time()
    slurm.queue = [job(7, "RUNNING")]
    ask(store, slurm, now - 600)
    slurm.silent = True
    for at in (-560.0, -500.0, -300.0, 0.0):
        assert ask(store, slurm, now + at).error
    found = state(store, run)
    assert found[0] == "starting" and "Slurm does not answer" in found[1]
    failures = store.rows("SELECT failures FROM slurm_calls WHERE kind = 'jobs'")[0]["failures"]
    assert failures == 4 and poll.interval(["active"], failures) == 240.0


def test_the_runs_own_record_comes_before_slurms_word(store):
    run, slurm = make_run(store), FakeSlurm()
    submit.write(run, submit.Receipt(1, "submitted", "7", t=0.0))
    run.claim_attempt({"pid": 1, "host": "elsewhere"})
    slurm.queue = [job(7, "FAILED", reason="NonZeroExitCode")]
    ask(store, slurm, 1000.0)
    assert state(store, run) == ("failed", "the job failed")
    write_record(run.attempt(1) / "exit.json", ExitRecord(run="r1", attempt=1, reason="failed", detail="RunFailed: x"))
    assert state(store, run) == ("failed", "RunFailed: x")
    assert not ask(store, slurm, 2000.0).asked  # nothing lives any more


def test_a_forgotten_job_without_a_record_is_lost(store):
    run, slurm = make_run(store), FakeSlurm()
    submit.write(run, submit.Receipt(1, "submitted", "7", t=0.0))
    ask(store, slurm, 1000.0)
    found = state(store, run)
    assert found[0] == "lost" and "no longer knows job 7" in found[1]


def test_a_requeued_run_is_queued_again(store):
    run, slurm = make_run(store), FakeSlurm()
    submit.write(run, submit.Receipt(1, "submitted", "7", t=0.0))
    run.claim_attempt({"pid": 1, "host": "elsewhere"})
    write_record(run.attempt(1) / "exit.json", ExitRecord(run="r1", attempt=1, reason="timeout", resumable=True))
    slurm.queue = [job(7, "PENDING", reason="BeginTime")]
    ask(store, slurm, 1000.0)
    assert state(store, run)[0] == "queued"


def test_environment_of_slurms_programs_is_clean(monkeypatch):
    monkeypatch.setenv("SQUEUE_FORMAT", "%x")
    monkeypatch.setenv("SBATCH_PARTITION", "odd")
    monkeypatch.setenv("SLURM_CONF", "/x")
    found = clean_environment()
    assert "SQUEUE_FORMAT" not in found and "SBATCH_PARTITION" not in found
    assert found["SLURM_CONF"] == "/x" and found["SLURM_TIME_FORMAT"] == "standard"


def test_batch_script_quotes_what_users_write():
    tree = config(slurm__env="A=it's 5 $HOME", slurm__comment='say "hi" # now', slurm__partition="a b")
    text = render(tree, Path("/runs/a b"), "r1", 3)
    assert "export A='it'\"'\"'s 5 $HOME'" in text
    assert "#SBATCH --comment='say \"hi\" # now molt:r1.3'" in text
    assert "#SBATCH --partition='a b'" in text and "export MOLT_RUN='/runs/a b'" in text
    assert comment(replace_comment("plain"), "r1", 1) == "plain molt:r1.1"
    assert json.loads(comment(replace_comment('{"a": {"b": "1"}}'), "r1", 1)) == {"a": {"b": "1"}, "molt": "molt:r1.1"}


def replace_comment(text: str):
    return config().slurm.model_copy(update={"comment": text})


CLUSTER = (
    parse_partitions("PartitionName=gpu Default=YES State=UP MaxTime=1-00:00:00 MaxNodes=4 TotalNodes=4 AllowAccounts=lab\n"
                     "PartitionName=cpu Default=NO State=UP MaxTime=UNLIMITED MaxNodes=UNLIMITED TotalNodes=9"),
    parse_nodes("".join(f"NodeName=g{i} State={s} CPUTot=64 RealMemory=500000 Partitions=gpu Gres=gpu:h100:8\n"
                        for i, s in enumerate(("IDLE", "ALLOCATED", "DOWN", "MIXED")))),
)  # fmt: skip


ACCOUNTS = parse_associations("lab|lab||1-12:00:00|\nlab|lab|cpu|02:00:00|1\nlab|other|||\n|\n")


def findings(**flags) -> list[str]:
    return [f"{'' if f.refuse else 'warning '}{f}" for f in check(config(**flags), *CLUSTER, ACCOUNTS)]


def test_preflight_knows_what_can_never_run():
    good = {"slurm__account": "lab", "slurm__gpus_per_node": "8", "slurm__nodes": "2"}
    assert findings(**good) == []
    assert findings(**(good | {"slurm__nodes": "4"}))[0].startswith("warning --slurm.nodes: only 3 of 4 fitting nodes")
    assert "did you mean gpu" in findings(slurm__partition="gpus")[0]
    assert "more than gpu gives one job (4)" in findings(**(good | {"slurm__nodes": "5"}))[0]
    assert "above the limit" in findings(**(good | {"slurm__time": "2-00:00:00"}))[0]
    assert "other may not use gpu" in findings(**(good | {"slurm__account": "other"}))[0]
    assert "no 'a100'" in findings(**(good | {"slurm__gpu_type": "a100"}))[0]
    assert (
        "have no GPUs" not in str(findings(**good)) and "the most is 64" in findings(**(good | {"slurm__cpus_per_task": "65"}))[0]
    )
    assert "the most is 500000" in findings(**(good | {"slurm__mem": "1T"}))[0]
    assert "leaves nothing" in findings(**(good | {"slurm__time": "5"}))[0]


def test_preflight_knows_the_limits_of_the_account():
    cpu = {"slurm__partition": "cpu", "slurm__time": "03:00:00"}
    assert findings(**cpu) == ["--slurm.time: 03:00:00 is above the limit of account lab, 02:00:00; with less the run goes on"
                               " over several jobs by itself"]  # fmt: skip
    assert findings(**cpu, slurm__account="other") == []
    assert "2 nodes are more than account lab gives" in findings(**(cpu | {"slurm__time": "60", "slurm__nodes": "2"}))[0]
    assert findings(slurm__account="lab", slurm__time="20:00:00") == []


def test_site_profile_is_proposed_and_read_back(tmp_path):
    text = propose("alps", *CLUSTER, ["lab", "other"], {"SCRATCH": "/scratch/me"})
    (tmp_path / "site.toml").write_text(text)
    site = read_site(tmp_path)
    assert (site.cluster, str(site.runs_root)) == ("alps", "/scratch/me/molt-tui/runs")
    assert site.slurm == {"partition": "gpu", "gpus_per_node": 8, "gpu_type": "h100", "account": "lab"}
    (tmp_path / "site.toml").write_text('run_root = "x"\n[slurm]\npartiton = "gpu"\n')
    with pytest.raises(Refused, match="run_root") as refused:
        read_site(tmp_path)
    assert "slurm.partition" in str(refused.value)


def test_a_profile_of_hostile_names_is_toml_without_control_characters(tmp_path):
    text = propose("\x1b]0;x\x07", *CLUSTER, ["lab", "\x1b[2J", "\x00\x9b"], {"SCRATCH": "/s"})
    assert text.replace("\n", "").isprintable()
    (tmp_path / "site.toml").write_text(text)
    assert read_site(tmp_path).cluster == "\x1b]0;x\x07"


def test_receipts_survive_damage(store):
    run = make_run(store)
    submit.write(run, submit.Receipt(1, "submitted", "3"))
    (run.path / "slurm/submissions/2.json").write_text("{torn")
    (run.path / "slurm/submissions/3.json").write_text('{"number": 3, "state": "submitted", "job_id": "4", "new": 1}')
    assert [r.number for r in submit.receipts(run)] == [1, 3]
    assert submit.latest(run) == replace(submit.Receipt(3, "submitted", "4"))
