"""The scripted half of FakeSource about launching and the cluster."""

from __future__ import annotations

from dataclasses import replace

from molt_tui.draft import Draft
from molt_tui.tui.cluster_view import ClusterView, JobRow, JobView, PartitionRow
from molt_tui.tui.launch_view import Checks, Form, FormField, PastRun, RecipeCard, Review, Started

NEW_RUN = "20270115-0812-sums-moe-a1f3"
FIELDS = (
    FormField("actor.adam.lr", "0.001", "1e-06", "recipe", "number >= 0", "learning rate (can be changed while the run is live)"),
    FormField("train.max_staleness", "2", "1", "recipe", "whole number >= 0", "versions a trained token may lag behind"),
    FormField("rollout.temperature", "1.0", "1.0", "default", "number > 0", "sampling temperature"),
    FormField("train.seed", "42", "42", "default", "whole number", "seed of data order, sampling and model building"),
    FormField("vllm.dtype", "auto", "auto", "default", "one of auto, bfloat16, float32", "precision of the sampler",
              choices=("auto", "bfloat16", "float32")),
    FormField("slurm.partition", "gpu", "none", "site", "text or none", "partition; empty: the cluster's default"),
    FormField("slurm.nodes", "1", "1", "default", "an integer >= 1", "nodes of the allocation"),
    FormField("slurm.time", "04:00:00", "04:00:00", "default", "text", "time limit as Slurm writes it"),
)  # fmt: skip
NUMBERS = ("actor.adam.lr", "train.max_staleness", "rollout.temperature", "train.seed", "slurm.nodes")
PAST = (PastRun("20270114-0900-demo-77c0", "demo", "completed", "demo", 1_799_900_000.0),
        PastRun("20270113-0700-other-12ab", "other", "failed", "countdown", 1_799_800_000.0))  # fmt: skip
SCRIPT = (
    "#!/bin/bash",
    "#SBATCH --job-name=molt-RUN",
    "#SBATCH --partition=gpu",
    "#SBATCH --nodes=2",
    "exec python -m slurm.job",
)
DIFF = ("@@ -2,2 +2,2 @@", " #SBATCH --partition=gpu", "-#SBATCH --nodes=1", "+#SBATCH --nodes=2")
MEMORY = (("trainer", "weights (bf16)", "7.5", "4.0 B parameters over 4 GPUs"), ("trainer", "optimizer", "24.1", "fp32 Adam"),
          ("sampler", "weights", "7.5", ""), ("sampler", "KV cache", "44.0", "0.9 of the GPU"))  # fmt: skip
FITS = ("trainer: 38.2 of 80 GiB on each GPU, fits (estimate)", "sampler: 72.0 of 80 GiB on each GPU, fits (estimate)")
CLUSTERS = (
    ClusterView("alps", (
        PartitionRow("gpu", True, "UP", "1-00:00:00", (("idle", 12), ("mixed", 30), ("down", 2)), (("h100", 104, 352),),
                     (("n07", "DOWN NOT_RESPONDING disk"), ("n31", "DRAIN thermal test"))),
        PartitionRow("debug", False, "UP", "00:30:00", (("allocated", 2),), (("h100", 0, 16),)),
        PartitionRow("cpu", False, "DOWN", "no limit", (("idle", 40),)),
    ), (
        JobRow(NEW_RUN, "sums-moe", "81240", "running", node_list="n[12-13]", nodes=2, end=1_800_009_000.0),
        JobRow("20270115-0900-long-55aa", "long-horizon", "81299", "queued", "jobs of higher priority come first", 8,
               start=1_800_030_000.0),
    ), 1_799_999_990.0),
    ClusterView("old", (PartitionRow("a100", True, "UP", "2-00:00:00", (("idle", 1),), (("a100", 4, 8),)),), (), 1_799_000_000.0,
                here=False),
)  # fmt: skip
JOB = JobView("alps", "81299", "submitted", "", "PENDING", "jobs of higher priority come first", start=1_800_030_000.0,
              answered=1_799_999_990.0)  # fmt: skip


class FakeLaunch:
    """Numbers must be numbers; 13 nodes are refused by the cluster."""

    calls: list[tuple]
    shown_clusters: tuple[ClusterView, ...] = CLUSTERS
    shown_job: JobView | None = None

    def recipes(self):
        return [RecipeCard("demo", "Sums and differences with a tiny MoE", "one-digit sums", "tiny:qwen3_moe", "2 CPU cores"),
                RecipeCard("countdown", "Countdown with SmolLM2", "countdown", "SmolLM2-135M", "1 GPU",
                           misfit="needs 16 GPUs (8 for the engines, 8 for the trainer), this machine has 0: launch it on Slurm,"
                                  " or lower vllm.num_engines and actor.num_gpus_per_node"),
                RecipeCard("broken", problem="recipe.toml line 3: expected a value")]  # fmt: skip

    def first_draft(self, recipe: str, parent: str) -> Draft:
        return Draft(recipe or "demo", parent=parent)

    def form(self, draft: Draft) -> Form:
        fields, wrong, runs = [], [], 1
        for field in FIELDS:
            shown = field
            if field.flag in draft.sweeps:
                values = draft.sweeps[field.flag].split(",")
                shown, runs = replace(field, value=draft.sweeps[field.flag], origin="sweep"), runs * len(values)
            elif field.flag in draft.changes:
                shown, values = replace(field, value=draft.changes[field.flag], origin="yours"), [draft.changes[field.flag]]
            else:
                values = []
            bad = next((v for v in values if field.flag in NUMBERS and not _is_number(v)), None)
            if bad is not None:
                shown = replace(shown, problem=f"expects {field.expects}, got {bad!r}")
                wrong.append(f"--{field.flag}: {shown.problem}")
            fields.append(shown)
        seeds = int(draft.seeds) if draft.seeds.isdigit() else 0
        wrong += [] if seeds else [f"run seeds expects a whole number from 1 to 64, got {draft.seeds!r}"]
        command = "molt-tui launch " + draft.recipe + "".join(f" --{k} {v}" for k, v in draft.changes.items())
        where = "this machine" if draft.on == "local" else "Slurm"
        return Form(draft.recipe, tuple(fields), tuple(wrong), command, runs * seeds if not wrong else 0, where, not wrong)

    def past_runs(self, draft: Draft):
        return PAST

    def review(self, draft: Draft, against: str | None) -> Review:
        past = next((p for p in PAST if p.id == against), PAST[0])
        changes = tuple((flag, "0.001", value) for flag, value in draft.changes.items())
        count = self.form(draft).runs
        runs = tuple((f"{draft.recipe}-{i}", "--train.seed=4") for i in range(count)) if count > 1 else ((draft.recipe, ""),)
        found = Review(
            self.form(draft).command, runs, draft.recipe if count > 1 else "", past, changes, "agent.py: 2 lines added, 1 removed"
        )
        if count > 2:
            found = replace(found, warning=f"{count} runs start at once on this machine's 2 cores")
        return replace(found, script=SCRIPT, script_diff=DIFF, memory=MEMORY, memory_words=FITS) if draft.on == "slurm" else found

    def checks(self, draft: Draft) -> Checks:
        self.calls.append(("checks",))
        if draft.changes.get("slurm.nodes") == "13":
            return Checks((("critical", "--slurm.nodes: 13 nodes are more than gpu gives one job (12)"),))
        return Checks((("warning", "--ckpt.max_num: 4 checkpoints need 180 GiB, /scratch has 90 GiB free"),),
                      "Slurm expects a start at Fri 03:10 on n[12-13]")  # fmt: skip

    def launch(self, draft: Draft) -> Started:
        self.calls.append(("launch", draft))
        count = self.form(draft).runs
        return Started((NEW_RUN,) * count, ("job 812",) if draft.on == "slurm" else ())

    def clusters(self):
        return self.shown_clusters

    def job(self, run_id: str) -> JobView | None:
        return self.shown_job

    def stacks(self, run_id: str) -> str:
        self.calls.append(("stacks", run_id))
        return "n12 trainer pid 77\n  File optim.py line 3 in step"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
