"""The command tree. Commands live in modules by purpose; this one holds what they share."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="molt-tui",
    help="Launch, watch and remember reinforcement-learning runs. Without a command: the screen.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Reference = Annotated[str, typer.Argument(metavar="RUN", help="id, unique prefix of one, name, or `last`")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.callback(invoke_without_command=True)
def screen(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
    theme: Annotated[str | None, typer.Option(help="dark, light, mono or terminal (its own colours)")] = None,
    ascii: Annotated[bool | None, typer.Option("--ascii", help="draw with ASCII characters only")] = None,
    read_only: Annotated[bool | None, typer.Option("--read-only", help="look, change nothing")] = None,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("molt-tui"))
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        from molt_tui.cli.screen import open_screen

        raise typer.Exit(open_screen(theme=theme, ascii=ascii, read_only=read_only))


from molt_tui.cli import change, cluster, compare, data, delete, look, manage, start  # noqa: E402  (they register their commands on `app`)

__all__ = ["app", "change", "cluster", "compare", "data", "delete", "look", "manage", "start"]
