"""`python -m engine run|check|flags|attempt`. Start-up is light: the engine proper is imported by `attempt` only."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.wire import RunDir

USAGE = """\
usage: python -m engine run RECIPE [--run.name NAME] [--run.group GROUP] [--runs-root DIR] [--dotted.flag value ...]
       python -m engine check RECIPE [--dotted.flag value ...]     say what is wrong, start nothing
       python -m engine flags [WORD]                               every flag: type, default, meaning
RECIPE is the name of a shipped recipe or a TOML file."""
OWN_OPTIONS = ("--run.name", "--run.group", "--runs-root")
OK, BAD_USAGE = 0, 2


class UsageError(Exception):
    """A command line that cannot be read; the message says why."""


def run(recipe_name: str, argv: list[str]) -> int:
    """Prepare a run, supervise it and print its progress until it ends; returns the run's exit code."""
    from engine import recipes, rundir

    options, flags = own_options(argv)
    recipe, config, problems = recipes.load(recipe_name, flags)
    if problems or recipe is None or config is None:
        return refuse(problems)
    try:
        root = Path(options.get("--runs-root", "runs"))
        directory = rundir.prepare_run(root, config, recipe, name=options.get("--run.name", ""),
                                       group=options.get("--run.group"), command=sys.argv)  # fmt: skip
    except rundir.RunDirError as error:
        return refuse([error])
    print(f"run {directory.path}", flush=True)
    return follow(directory, [sys.executable, "-m", "engine.supervisor", str(directory.path)])


def follow(directory: "RunDir", command: list[str]) -> int:
    """Start the supervisor and print lines until it ends. Ctrl-C stops the run after a checkpoint, twice at once."""
    from engine.console import Console

    console = Console(directory)
    supervisor = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL)

    def stop(number: int, _frame: object) -> None:
        show("stopping after a checkpoint; once more stops at once")
        supervisor.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, stop)
    ended = False
    while not ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(0.3)
            ended = True
        for line in console.lines():
            show(line)
    return supervisor.returncode


def show(line: str) -> None:
    """Print a line; when nobody reads any more the run goes on without it."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def own_options(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Take the options that are no settings of the run out of a command line. Raises UsageError for one without a value."""
    options: dict[str, str] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name in OWN_OPTIONS:
            options[name] = value if equals else next(words, "")
            if not options[name] or options[name].startswith("--"):
                raise UsageError(f"{name}: needs a value")
        else:
            rest.append(word)
    return options, rest


def check(recipe_name: str, argv: list[str]) -> int:
    from engine import recipes

    problems = recipes.load(recipe_name, own_options(argv)[1])[2]
    if problems:
        return refuse(problems)
    print("ok")
    return OK


def flags(word: str = "") -> int:
    """Print every flag whose name or help contains `word`."""
    from engine.flags import flag_table

    for info in flag_table().values():
        if word in info.path or word in info.help:
            print(
                f"--{info.path}  [{info.type}; default {shown(info.default)}]{'  (live)' if info.live else ''}\n    {info.help}"
            )
    return OK


def shown(default: object) -> str:
    """A default value as it is typed on the command line; what has no text is named."""
    if default is None:
        return "none"
    text = " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
    return (text.lower() if isinstance(default, bool) else text) or "empty"


def attempt(path: str, number: int) -> int:
    """The controller process of one attempt, started by the supervisor."""
    from engine import lifeline

    lifeline.hold()
    from engine.main import attempt

    return attempt(path, number)


def refuse(problems: list) -> int:
    for problem in problems:
        # A name in it may come from a file: nothing of it may act on a terminal.
        print("error: " + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(problem)), file=sys.stderr)
    return BAD_USAGE


def main(argv: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by who started this
            stream.reconfigure(errors="backslashreplace")
    try:
        return dispatch(argv)
    except UsageError as error:
        return refuse([error])


def dispatch(argv: list[str]) -> int:
    if {"-h", "--help"} & set(argv) or argv == ["help"]:
        print(USAGE)
        return OK
    match argv:
        case ["run", recipe, *rest] if not recipe.startswith("-"):
            return run(recipe, rest)
        case ["check", recipe, *rest] if not recipe.startswith("-"):
            return check(recipe, rest)
        case ["flags", *words] if len(words) < 2:
            return flags(*words)
        case ["attempt", path, "--attempt", number] if number.isdigit():
            return attempt(path, int(number))
    print(USAGE, file=sys.stderr)
    return BAD_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
