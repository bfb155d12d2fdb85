"""`LaunchSource` over the services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from molt_tui.draft import Draft
from molt_tui.errors import MoltError, Refused
from molt_tui.services import differences, drafts, launch, recipes, runs
from molt_tui.services.machine import gpu_count, has_slurm
from molt_tui.services.once import only_once
from molt_tui.store.database import Store
from molt_tui.store.home import Home
from molt_tui.text import clean
from molt_tui.tui.launch_view import Checks, Form, FormField, PastRun, RecipeCard, Review, Started
from molt_tui.tui.read_only import REFUSAL, changes

if TYPE_CHECKING:
    from engine.config import Config
    from molt_tui.services.drafts import Examined
    from molt_tui.services.slurm import MemoryTable

PAST_RUNS = 200


class LaunchAnswers:
    """A part of StoreSource."""

    home: Home
    read_only: bool

    if TYPE_CHECKING:

        @property
        def store(self) -> Store: ...

    def recipes(self) -> Sequence[RecipeCard]:
        return [RecipeCard(r.name, clean(r.title), clean(r.task), clean(r.model), clean(r.hardware),
                           clean(r.problems[0]) if r.problems else "", clean(r.misfit))
                for r in recipes.list_recipes(check=True)]  # fmt: skip

    def first_draft(self, recipe: str, parent: str) -> Draft:
        if parent:
            run = runs.get_run(self.store, parent)
            return Draft(run.recipe or "", "local" if run.cluster == "local" else "slurm", parent=run.id)
        needs_gpus = bool(recipes.check_recipe(recipe).misfit)
        return Draft(recipe, "slurm" if needs_gpus and has_slurm() and not gpu_count() else "local")

    def _parent(self, draft: Draft) -> runs.Run | None:
        return runs.get_run(self.store, draft.parent) if draft.parent else None

    def _plan(self, draft: Draft) -> launch.Plan:
        examined = drafts.examine(self.home, draft, self._parent(draft))
        if examined.plan is None:
            raise Refused("\n".join(map(str, examined.problems)))
        return examined.plan

    def form(self, draft: Draft) -> Form:
        examined = drafts.examine(self.home, draft, self._parent(draft))
        plan = examined.sketch
        where = "this machine" if draft.on == "local" else "Slurm"
        problems = [*([REFUSAL] if self.read_only else []), *map(clean, examined.problems)]
        return Form(clean(draft.recipe), _fields(draft, examined), tuple(problems),
                    clean(drafts.command(draft, examined.folder)), len(plan.runs) if plan else 0, where,
                    plan is not None)  # fmt: skip

    def past_runs(self, draft: Draft) -> Sequence[PastRun]:
        found = [_past(run) for run in runs.list_runs(self.store, limit=PAST_RUNS)]
        return sorted(found, key=lambda run: run.recipe != draft.recipe)

    def review(self, draft: Draft, against: str | None) -> Review:
        examined = drafts.examine(self.home, draft, self._parent(draft))
        plan = examined.sketch
        if plan is None:
            raise Refused("\n".join(map(str, examined.problems)))
        past = self._compared_with(draft, against)
        own = tuple((clean(r.name), clean(" ".join(r.flags))) for r in plan.runs)
        review = Review(
            clean(drafts.command(draft, examined.folder)),
            own,
            clean(plan.group or ""),
            warning=plan.warning or "" if draft.on == "local" else "",
        )
        config = plan.runs[0].config
        if draft.on == "slurm":
            review = _with_script(review, plan, past)
        return review if past is None else _with_changes(review, past, config)

    def _compared_with(self, draft: Draft, against: str | None) -> runs.Run | None:
        if against or draft.parent:
            return runs.get_run(self.store, against or draft.parent)
        return next((r for r in runs.list_runs(self.store, limit=PAST_RUNS) if r.recipe == draft.recipe), None)

    def checks(self, draft: Draft) -> Checks:
        from molt_tui.services import slurm as service
        from molt_tui.slurm.commands import Slurm
        from molt_tui.slurm.site import read_site

        plan, slurm = self._plan(draft), Slurm()
        found = service.preflight_all(self.store, slurm, read_site(self.home.path), plan).findings
        findings = [("critical" if f.refuse else "warning", clean(f)) for f in found]
        start = ""
        if not any(level == "critical" for level, _ in findings):
            try:
                start = service.expected_start(slurm, service.with_interpreter(plan.runs[0].config), plan.runs_root)
            except Refused as refusal:
                findings.append(("critical", clean(refusal)))
        return Checks(tuple(findings), clean(start))

    @changes
    def launch(self, draft: Draft) -> Started:
        plan, said = self._plan(draft), list[str]()
        self.home.create()
        with only_once(self.home.path / "launches", draft.content()) as started:
            if draft.on == "local":
                started += launch.launch(plan, say=said.append)
            else:
                started += self._submit(plan, said)
        return Started(tuple(started), tuple(clean(line) for line in said))

    def _submit(self, plan: launch.Plan, said: list[str]) -> list[str]:
        from molt_tui.services import slurm as service
        from molt_tui.slurm.commands import Slurm
        from molt_tui.slurm.site import read_site

        done = service.launch(self.store, Slurm(), read_site(self.home.path), plan, say=said.append)
        return [one.run_id for one in done]


def _fields(draft: Draft, examined: Examined) -> tuple[FormField, ...]:
    from engine.flags import flag_table

    problems: dict[str, str] = {}
    for problem in examined.problems:
        problems.setdefault(problem.flag, clean(problem.message))
    fields = []
    for one in examined.fields:
        info = flag_table()[one.flag]
        choices = ("true", "false") if info.kind == "bool" and info.length is None else info.choices
        row = FormField(one.flag, clean(drafts.typed(one.flag, one.value, examined.folder)),
                        clean(drafts.typed(one.flag, one.default)), one.origin, info.type, info.help,
                        problems.get(one.flag, ""), choices)  # fmt: skip
        if one.flag in draft.sweeps:
            row = replace(row, value=clean(draft.sweeps[one.flag]), origin="sweep", choices=())
        elif one.flag in draft.changes:
            row = replace(row, value=clean(draft.changes[one.flag]), origin="yours")
        fields.append(row)
    return tuple(fields)


def _past(run: runs.Run) -> PastRun:
    return PastRun(run.id, clean(run.name), clean(run.state), clean(run.recipe or ""), run.created or 0.0)


def _with_script(review: Review, plan: launch.Plan, past: runs.Run | None) -> Review:
    from molt_tui.services.slurm import memory_table, with_interpreter
    from molt_tui.slurm.render import render

    place = differences.PLACEHOLDER
    config = with_interpreter(plan.runs[0].config)
    script = render(config, plan.runs_root / place, place, 1).splitlines()
    before = differences.past_script(past.path, plan.runs_root) if past is not None else []
    rows, words = _memory(memory_table(config))
    diff = differences.lines(before, script) if before else []
    return replace(review, script=tuple(map(clean, script)), script_diff=tuple(map(clean, diff)), memory=rows,
                   memory_words=words)  # fmt: skip


def _memory(table: MemoryTable | None) -> tuple[tuple[tuple[str, str, str, str], ...], tuple[str, ...]]:
    if table is None:
        return (), ("this run uses no GPU: there is nothing to estimate",)
    if table.found is None:
        return (), (f"no estimate: {clean(table.unknown)}",)
    found = table.found
    rows = tuple((p.where, p.part, f"{p.gib:.1f}", clean(p.note)) for p in found.parts)
    sums = (("trainer", found.trainer_gib, found.trainer_fits), ("sampler", found.sampler_gib, found.sampler_fits))
    words = [f"{name}: {gib:.1f} of {found.gpu_gib:.0f} GiB on each GPU, {'fits' if fits else 'does NOT fit'} (estimate)"
             for name, gib, fits in sums]  # fmt: skip
    return rows, (*words, *(f"would fit with {flag}" for flag in table.flags))


def _with_changes(review: Review, past: runs.Run, config: Config) -> Review:
    from engine.flags import load_run_toml

    try:
        before = load_run_toml(past.directory.run_toml)
    except (OSError, ValueError) as error:
        raise MoltError(f"the settings of {past.id} cannot be read: {error}; choose another run with d") from error
    found = differences.settings(before, config)
    changes = tuple((c.flag, clean(drafts.typed(c.flag, c.before)), clean(drafts.typed(c.flag, c.after))) for c in found)
    agent = ""
    if before.train.agent_path and config.train.agent_path:
        agent = differences.agent_code(past.path / before.train.agent_path, Path(config.train.agent_path))
    return replace(review, against=_past(past), changes=changes, agent=clean(agent))
