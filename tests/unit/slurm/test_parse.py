"""Text of Slurm's commands, from several releases, to records."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt_tui.slurm import parse
from molt_tui.slurm.state import END_STATES, view_of_accounting, view_of_job, why_pending

OUTPUTS = Path(__file__).parent / "outputs"


def read(name: str) -> str:
    return (OUTPUTS / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("5:30", 330), ("1:02:03", 3723), ("2-00:00:00", 172800), ("1-2", 93600), ("1-2:30", 95400),
     ("UNLIMITED", None),
     ("INVALID", None), ("", None), ("n/a", None), ("0:00", 0)],
)  # fmt: skip
def test_durations(text, seconds):
    assert parse.parse_duration(text) == seconds


@given(st.integers(0, 400 * 86400))
def test_a_written_duration_is_read_back(seconds):
    assert parse.parse_duration(parse.format_duration(seconds)) == seconds


def test_squeue_lines_survive_separators_and_damage():
    line = (
        "12|PENDING|train|2|(null)|N/A|N/A|4:00:00|0:00|2026-11-30T10:00:00|molt:run-a.1 {a|b}|molt-run-a|"
        "ReqNodeNotAvail, UnavailableNodes:n[1-2]"
    )
    jobs = parse.parse_squeue(f"{line}\ngarbage\n13|RUNNING|train\n\n")
    (job,) = jobs
    assert (job.id, job.state, job.nodes, job.node_list, job.time_left) == ("12", "PENDING", 2, "", 14400)
    assert job.comment == "molt:run-a.1 {a|b}" and job.name == "molt-run-a"
    assert job.reason == "ReqNodeNotAvail, UnavailableNodes:n[1-2]"
    assert job.submitted == datetime(2026, 11, 30, 10).timestamp() and job.start is None


@given(st.text())
def test_no_text_breaks_a_parser(text):
    parse.parse_squeue(text)
    parse.parse_sacct(text)
    parse.parse_config(text)
    parse.parse_test_only(text)
    parse.expand_nodes(text)
    parse.gpus_of_gres(text)
    parse.gpus_of_tres(text)
    parse.parse_partitions(f"PartitionName=a {text}")
    parse.parse_nodes(f"NodeName=a State=IDLE {text}")
    parse.parse_nodes(f"NodeName=a State={text}")
    parse.parse_duration(text)
    parse.parse_associations(text)
    parse.parse_squeue("|".join([text] * 13))
    parse.parse_sacct("|".join([text] * 9))


@pytest.mark.parametrize(
    ("name", "release", "cpus", "memory", "states", "gpus", "usable"),
    [
        ("node-20.02.6", "20.02.6", (48, 48), 182272, ("ALLOCATED",), {}, True),
        ("node-20.11.8", "20.11.8", (16, 16), 250000, ("ALLOCATED",), {}, True),
        ("node-21.08.0", "21.08.0", (64, 0), 244603, ("IDLE",), {"gpu": 6}, True),
        ("node-21.08.8", "21.08.8-2", (28, 0), 512000, ("IDLE",), {"k80": 7}, True),
        ("node-23.02.3", "23.02.3", (192, 0), 2097152, ("DOWN", "CLOUD", "FAIL", "NOT_RESPONDING"), {}, False),
        ("node-24.11.7", "24.11.7", (32, 0), 249036, ("IDLE", "CLOUD"), {"rtxproserver6000": 1}, True),
        ("node-25.11.4", "25.11.4", (12, 0), 7837, ("IDLE", "DYNAMIC_NORM"), {}, True),
    ],
)
def test_nodes_of_many_releases(name, release, cpus, memory, states, gpus, usable):
    node = parse.parse_nodes(read(name))[0]
    assert (node.version, (node.cpus, node.cpus_used), node.memory) == (release, cpus, memory)
    assert (node.states, node.gpus, node.usable) == (states, gpus, usable)
    assert node.partitions


def test_free_text_of_a_node_stays_whole():
    node = parse.parse_nodes(read("node-23.02.3"))[0]
    assert node.reason == "Action:Replace : Not responding [slurm@2024-02-21T01:53:15]"
    odd = parse.parse_nodes("NodeName=n1 State=DOWN\n   Reason=NHC: check opt=value State=IDLE\n   Comment=x\n")[0]
    assert odd.reason == "NHC: check opt=value State=IDLE" and odd.states == ("DOWN",)


def test_several_nodes_in_one_text():
    assert [n.name for n in parse.parse_nodes(read("node-25.11.4"))] == ["c1", "c2"]


def test_partitions_of_many_releases():
    cpu, gpu = parse.parse_partitions(read("partition-25.11.4"))
    assert (cpu.name, cpu.default, cpu.up, cpu.max_time, cpu.max_nodes, cpu.total_nodes) == ("cpu", True, True, None, None, 2)
    assert gpu.total_nodes == 0 and gpu.node_list == "" and gpu.gpus == {}
    batch, debug, huge = parse.parse_partitions(read("partition-owens"))
    assert (batch.state, batch.up, batch.deny_accounts) == ("INACTIVE", False, ("pcon0003", "pcon0014", "pcon0015"))
    assert (debug.max_nodes, debug.max_time, debug.gpus, debug.max_cpus_per_node) == (2, 3600, {"p100": 154}, 28)
    assert (huge.allow_accounts, huge.min_nodes, huge.max_time) == (("pzs0708", "pzs0710", "pzs0712"), 2, 4 * 86400)
    sky, agro = parse.parse_partitions(read("partition-grex"))
    assert (sky.max_time, sky.default_time, sky.allow_qos) == (21 * 86400, 10800, ("normal", "high"))
    assert (agro.preempt_mode, agro.grace_seconds, agro.gpus) == ("CANCEL", 100, {"gpu": 4})


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [("job-2022", "RUNNING", "None"), ("job-2025", "RUNNING", "None"),
     ("job-pending-2021", "PENDING",
      "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions")],
)  # fmt: skip
def test_job_records_of_many_releases(name, state, reason):
    (record,) = parse.parse_records(read(name), "JobId")
    assert (record["JobState"], record["Reason"]) == (state, reason)
    assert record["TimeLimit"] and record["Partition"]


def test_reasons_with_underscores_are_known():
    (record,) = parse.parse_records(read("job-pending-2021"), "JobId")
    assert why_pending(record["Reason"]) == ("the nodes it needs are down, drained or reserved", False)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [("gpu:8", {"gpu": 8}), ("gpu:a100:8(S:0-1)", {"a100": 8}), ("gpu:a100:4(S:0),gpu:h100:2,tmp:1", {"a100": 4, "h100": 2}),
     ("(null)", {}), ("gpu", {"gpu": 1}), ("gpu:a100:0(IDX:N/A)", {}), ("gpu:h100", {"h100": 1})],
)  # fmt: skip
def test_gpus_of_gres(gres, gpus):
    assert parse.gpus_of_gres(gres) == gpus


def test_gpus_of_tres_count_slices_once():
    assert parse.gpus_of_tres("cpu=192,gres/gpu=16,gres/gpu:nvidia_b200=4") == {"nvidia_b200": 4, "gpu": 12}
    assert parse.gpus_of_tres("cpu=4,gres/gpu=8") == {"gpu": 8}


def test_used_gpus_take_the_type_of_the_node():
    node = parse.parse_nodes("NodeName=n State=MIXED Gres=gpu:a100:8 CfgTRES=gres/gpu=8 AllocTRES=cpu=3,gres/gpu=5")[0]
    assert node.gpus_used == {"a100": 5}


@pytest.mark.parametrize(
    ("text", "names"),
    [("n1", ["n1"]), ("n[1-3]", ["n1", "n2", "n3"]), ("n[08-10],gpu7", ["n08", "n09", "n10", "gpu7"]),
     ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]), ("", []), ("r[1]-x,n", ["r1-x", "n"]), ("a[x]", ["a[x]"]),
     ("n[1-999999999]", ["n[1-999999999]"]), ("n" + "[0-99]" * 40, ["n" + "[0-99]" * 40]), ("n[²-3]", ["n[²-3]"])],
)  # fmt: skip
def test_node_lists(text, names):
    assert parse.expand_nodes(text) == names


def test_every_state_of_a_queue_means_something():
    for line in read("squeue-states").splitlines():
        number, state = line.split(",")
        (job,) = parse.parse_squeue(f"{number}|{state}|p|1|n1|N/A|N/A|1:00|0:10|N/A|(null)|x|None")
        view = view_of_job(job)
        assert view.state in {"queued", "active"} | {s for s, _ in END_STATES.values()}


def test_accounting_tells_who_cancelled():
    text = "7|CANCELLED by 1000|0:15|2026-11-30T10:00:00|2026-11-30T10:05:00|00:05:00|n[1-2]|None|0:0\n7.batch|x|0:0|||||\n"
    (ended,) = parse.parse_sacct(text)
    assert (ended.state, ended.by, ended.signal) == ("CANCELLED", "1000", 15)
    view = view_of_accounting(ended)
    assert (view.state, view.words) == ("cancelled", "the job was cancelled by 1000")


def test_a_job_that_can_never_start_is_named():
    words, hopeless = why_pending("PartitionTimeLimit")
    assert hopeless and "--slurm.time" in words
    assert why_pending("Resources") == ("waiting for nodes to become free", False)
    assert why_pending("SomethingNew") == ("Slurm says SomethingNew", False)


def test_test_only_estimate():
    text = "sbatch: Job 12 to start at 2026-11-30T11:00:00 using 2 processors on nodes node[1-2] in partition debug\n"
    assert parse.parse_test_only(text) == (datetime(2026, 11, 30, 11).timestamp(), "node[1-2]")


@pytest.mark.parametrize("number", ["9" * 5000, "²", "٣", "-1", "1e9", ""])
def test_numbers_that_are_none_are_left_out(number):
    assert parse.gpus_of_tres(f"gres/gpu={number}") == {}
    assert parse.gpus_of_gres(f"gpu:a100:{number}") == {"a100": 1}
    assert parse.parse_duration(f"{number}-1") is None and parse.parse_sacct("|".join([number] * 9)) == []
    (node,) = parse.parse_nodes(f"NodeName=a State= CPUTot={number}")
    assert node.cpus == 0 and node.states == ("UNKNOWN",) and not node.usable
