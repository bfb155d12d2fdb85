"""The pages of the review, as lines. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.content import Content

from molt_tui.tui import glyphs
from molt_tui.tui.launch_view import Checks, Review
from molt_tui.tui.widgets.key_table import fit

DIFF_STYLE = {"+": "$text-success", "-": "$text-error", "@": "$text-accent"}


@dataclass(frozen=True)
class Looked:
    """What a page is made from. `checks` is None until Slurm answered; `whole`: the script itself, not its diff; `problems`:
    what keeps it from starting."""

    review: Review
    checks: Checks | None
    whole: bool
    width: int
    problems: Sequence[str] = ()


def problems_page(look: Looked) -> list[Content]:
    head = Content.styled("nothing can be started before this is repaired; esc goes back to it", "$quiet")
    return [head, *(Content.styled(f"{glyphs.MARK['critical']} {words}", "$text-error") for words in look.problems)]


def checks_page(look: Looked) -> list[Content]:
    if look.checks is None:
        return [Content.styled("no answer from Slurm yet; r asks it again", "$quiet")]
    lines = [Content.styled(f"{glyphs.MARK[level]} {words}", glyphs.LEVEL_STYLE[level]) for level, words in look.checks.findings]
    if not lines:
        lines = [Content.styled(f"{glyphs.MARK['good']} partition, limits, account, hardware and disk fit", "$text-success")]
    if look.checks.start:
        lines.append(Content.styled(f"{glyphs.MARK['info']} {look.checks.start}", "$text-accent"))
    return [*lines, Content(""), *_memory_words(look.review)]


def memory_page(look: Looked) -> list[Content]:
    rows = [
        Content(f"{fit(where, 9)} {fit(part, 22)} {fit(gib, 8, True)}  {note}") for where, part, gib, note in look.review.memory
    ]
    head = [Content.styled(f"{fit('where', 9)} {fit('part', 22)} {fit('GiB', 8, True)}  note", "bold $quiet")] if rows else []
    return [*head, *rows, Content(""), *_memory_words(look.review)]


def _memory_words(review: Review) -> list[Content]:
    def style(line: str) -> str:
        return "$text-error" if "does NOT fit" in line else "$text-accent" if line.startswith("would fit") else "$quiet"

    return [Content.styled(line, style(line)) for line in review.memory_words]


def changes_page(look: Looked) -> list[Content]:
    review, past = look.review, look.review.against
    if past is None:
        return [Content.styled("no past run of this recipe; d chooses any other run to compare with", "$quiet")]
    state = glyphs.state_look(past.state)
    lines = [Content.assemble("compared with ", (past.name, "bold"), f"  {past.id}  ", (state.word, state.style))]
    if not review.changes and not review.agent:
        return [*lines, Content.styled("nothing differs: the same settings and agent", "$quiet")]
    names = min(40, max([len(flag) for flag, _, _ in review.changes], default=0))
    room = max(10, (look.width - names - 6) // 2)
    for flag, before, after in review.changes:
        lines.append(Content.assemble(fit(flag, names), "  ", (fit(before or "(empty)", room), "$text-error"), " → ",
                                      (fit(after or "(empty)", room).rstrip(), "$text-success")))  # fmt: skip
    if review.agent:
        lines.append(Content.assemble(("agent  ", "bold"), review.agent))
    return lines


def script_page(look: Looked) -> list[Content]:
    review = look.review
    if look.whole or review.against is None or not review.script_diff:
        why = "" if look.whole else "; that of the past run is the same, or there is none"
        return [Content.styled(f"the batch script{why if review.against else ''}", "$quiet"), *map(Content, review.script)]
    head = Content.styled(f"against {review.against.name}: - there, + here; t shows the whole script", "$quiet")
    return [head, *(Content.styled(line, DIFF_STYLE.get(line[:1], "")) for line in review.script_diff)]


def runs_page(look: Looked) -> list[Content]:
    group = look.review.group
    note = Content.styled(f"all in group {group}" if group else "in no group", "$quiet")
    return [note, *(Content.assemble((name, "bold"), (f"  {flags}", "$text-accent")) for name, flags in look.review.runs)]


PAGES: dict[str, Callable[[Looked], list[Content]]] = {
    "Problems": problems_page, "Checks": checks_page, "Memory": memory_page, "Changes": changes_page, "Script": script_page,
    "Runs": runs_page,
}  # fmt: skip


def pages_of(on_slurm: bool, problems: bool) -> tuple[str, ...]:
    """The pages there are; Slurm is asked only about what could be submitted."""
    own = ("Memory", "Changes", "Script", "Runs") if on_slurm else ("Changes", "Runs")
    return ("Problems", *own) if problems else ("Checks", *own) if on_slurm else own
