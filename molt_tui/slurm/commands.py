"""The only place that calls Slurm's programs. Text formats, a clean environment, a timeout for every call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from molt_tui.slurm import parse
from molt_tui.spawn import Output, run_program

QUERY_SECONDS = 20.0
SUBMIT_SECONDS = 60.0
# Users' settings for Slurm's programs change what they print and what a job asks for.
CLEARED = ("SQUEUE_", "SINFO_", "SACCT_", "SBATCH_", "SCANCEL_", "SRUN_", "SLURM_")
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
# What Slurm says when its controller, or the way to it, is down: nobody knows whether the request arrived.
UNREACHABLE = ("Unable to contact slurm controller", "Socket timed out", "Communication connection failure",
               "Munge encode failed", "Protocol authentication error", "Connection refused", "Zero Bytes were transmitted",
               "Transport endpoint is not connected", "Unable to process configuration file",
               "Could not establish a configuration source", "Insane message length", "timed out")  # fmt: skip


class NoAnswer(Exception):
    """The controller did not answer; the message is Slurm's own, one line."""


class SlurmError(Exception):
    """Slurm answered with a refusal; the message is Slurm's own, one line."""


@dataclass(frozen=True)
class Submitted:
    """`job_id` is None when sbatch gave no certain answer; `message` is what it said."""

    job_id: str | None
    refused: bool
    message: str


def clean_environment() -> dict[str, str]:
    """This process's environment without what would change Slurm's defaults or its output."""
    kept = {k: v for k, v in os.environ.items() if k in KEPT or not k.startswith(CLEARED)}
    return kept | {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C.UTF-8"}


def said(output: Output) -> str:
    """Slurm's message in one line, without the programs' names."""
    lines = (line.strip() for line in (output.stderr or output.stdout).splitlines())
    words = [line.split(": ", 1)[-1] if line.startswith(("sbatch:", "squeue:", "scontrol:", "scancel:", "sacct:")) else line
             for line in lines if line]  # fmt: skip
    words = [w.removeprefix("error: ") for w in words]
    return "; ".join(dict.fromkeys(words))[:500] or f"exit code {output.code}"


def _unreachable(output: Output) -> bool:
    return output.code is None or any(text in output.stderr for text in UNREACHABLE)


class Slurm:
    """One cluster, asked through the programs on the path."""

    def _ask(self, argv: Sequence[str], seconds: float = QUERY_SECONDS) -> str:
        """Standard output of a query. Raises NoAnswer or SlurmError."""
        output = run_program(argv, timeout=seconds, environment=clean_environment())
        if output.code == 0:
            return output.stdout
        raise (NoAnswer if _unreachable(output) else SlurmError)(said(output))

    def ping(self) -> bool:
        """Whether the controller answers; cheap and quick also when it does not."""
        output = run_program(["scontrol", "ping"], timeout=QUERY_SECONDS, environment=clean_environment())
        return output.code == 0

    def version(self) -> str:
        return (self._ask(["sinfo", "--version"]).split() or [""])[-1]

    def config(self) -> dict[str, str]:
        return parse.parse_config(self._ask(["scontrol", "show", "config"]))

    def partitions(self) -> list[parse.Partition]:
        return parse.parse_partitions(self._ask(["scontrol", "show", "partition"]))

    def nodes(self) -> list[parse.Node]:
        return parse.parse_nodes(self._ask(["scontrol", "--details", "show", "node"]))

    def jobs(self, ids: Sequence[str]) -> list[parse.Job]:
        """The jobs that the controller still knows, ended ones for some minutes included. One call for all."""
        try:
            text = self._ask(["squeue", "-h", "-t", "all", "-j", ",".join(ids), "-o", parse.SQUEUE_FORMAT])
        except SlurmError as error:
            if "Invalid job id" in str(error):  # what a single forgotten job gives; among others it is left out
                return []
            raise
        return parse.parse_squeue(text)

    def own_jobs(self) -> list[parse.Job]:
        """Every job of this user that the controller still knows."""
        text = self._ask(["squeue", "-h", "-t", "all", "-u", str(os.getuid()), "-o", parse.SQUEUE_FORMAT])
        return parse.parse_squeue(text)

    def record(self, job_id: str) -> dict[str, str]:
        """Fields of `scontrol show job`. Raises SlurmError for a forgotten job."""
        records = parse.parse_records(self._ask(["scontrol", "show", "job", job_id]), "JobId")
        return records[0] if records else {}

    def ended(self, job_id: str) -> parse.Ended | None:
        """The newest end of a job by accounting; None when there is no accounting or it does not know the job."""
        try:
            text = self._ask(["sacct", "-X", "-n", "-P", "-D", "-j", job_id, "-o", ",".join(parse.SACCT_FIELDS)])
        except SlurmError:
            return None
        found = parse.parse_sacct(text)
        return found[-1] if found else None

    def associations(self, user: str) -> list[parse.Association]:
        """Accounts of a user, the default one first, with those limits that surely hold; empty without accounting.

        Limits that Slurm does not enforce are left out, and so are all where a QOS has limits of its own, which come first.
        """
        fields = ",".join(parse.ASSOCIATION_FIELDS)
        try:
            found = parse.parse_associations(
                self._ask(["sacctmgr", "-n", "-P", "show", "user", user, "withassoc", f"format={fields}"])
            )
            own = self._ask(["sacctmgr", "-n", "-P", "show", "qos", "format=MaxWall,MaxNodes"])
        except SlurmError:
            return []
        enforced = self.config().get("AccountingStorageEnforce", "").split(",")
        if own.replace("|", "").strip() or not {"limits", "safe", "all"} & set(enforced):
            return [parse.Association(a.account, a.default, a.partition) for a in found]
        return found

    def on_a_node(self, options: Sequence[str], command: Sequence[str], seconds: float) -> str:
        """Run a command in a small allocation of its own."""
        return self._ask(["srun", "--nodes=1", "--ntasks=1", "--time=1", "--quiet", *options, *command], seconds)

    def submit(self, script: Path, arguments: Sequence[str] = ()) -> Submitted:
        """Call sbatch once. Never raises for what Slurm says: no answer is an answer of its own kind."""
        argv = ["sbatch", "--parsable", *arguments, str(script)]
        output = run_program(argv, timeout=SUBMIT_SECONDS, environment=clean_environment(), cwd=script.parent)
        if output.code == 0:
            job_id = (output.stdout.strip().partition(";")[0].split() or [""])[-1]
            if job_id.isascii() and job_id.isdigit():
                return Submitted(job_id, False, said(output) if output.stderr.strip() else "")
            return Submitted(None, False, f"sbatch printed no job id: {said(output)}")
        return Submitted(None, not _unreachable(output), said(output))

    def test_only(self, script: Path, arguments: Sequence[str] = ()) -> tuple[float | None, str]:
        """(expected start in epoch seconds, nodes) of a job that is not submitted. Raises NoAnswer or SlurmError."""
        argv = ["sbatch", "--test-only", *arguments, str(script)]
        output = run_program(argv, timeout=SUBMIT_SECONDS, environment=clean_environment(), cwd=script.parent)
        if output.code != 0:
            raise (NoAnswer if _unreachable(output) else SlurmError)(said(output))
        return parse.parse_test_only(output.stderr + output.stdout)

    def cancel(self, job_id: str) -> None:
        self._ask(["scancel", job_id])

    def signal(self, job_id: str, name: str) -> None:
        """Send a signal to the batch script alone."""
        self._ask(["scancel", "--batch", f"--signal={name}", job_id])

    def requeue(self, job_id: str) -> None:
        self._ask(["scontrol", "requeue", job_id])

    def inside(self, job_id: str, command: Sequence[str], seconds: float) -> str:
        """Run a command once on every node of a running job, beside what runs there."""
        nodes = next((job.nodes for job in self.jobs([job_id]) if job.nodes), 1)
        argv = ["srun", f"--jobid={job_id}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1",
                "--gres=none", "--cpu-bind=none", *command]  # fmt: skip
        return self._ask(argv, seconds)
