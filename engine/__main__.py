"""`python -m engine run|check|flags|attempt`. Start-up is light: the engine proper is imported by `attempt` only."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.wire import RunDir

OK, BAD_USAGE = 0, 2


def run(options: argparse.Namespace, settings: list[str]) -> int:
    """Prepare a run, supervise it and print its progress until it ends; returns the run's exit code."""
    from engine import recipes, rundir

    recipe, config, problems = recipes.load(options.recipe, settings)
    if problems or recipe is None or config is None:
        return refuse(problems)
    try:
        directory = rundir.prepare_run(
            Path(options.runs_root), config, recipe, name=options.name or "", group=options.group, command=sys.argv
        )
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
    """Print a line; when nobody reads any more all goes on without it."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check(recipe_name: str, settings: list[str]) -> int:
    from engine import recipes

    problems = recipes.load(recipe_name, settings)[2]
    if problems:
        return refuse(problems)
    print("ok")
    return OK


def flags(word: str = "") -> int:
    """Print every flag whose name or help contains `word`."""
    from engine.flags import flag_table

    found = [info for info in flag_table().values() if word in info.path or word in info.help]
    for info in found:
        show(f"--{info.path}  [{info.type}; default {shown(info.default)}]{'  (live)' if info.live else ''}\n    {info.help}")
    return OK if found else refuse([f"no flag has the word {word!r}"])


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


def given(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("needs a value")
    return text


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m engine", description="Train by reinforcement learning, without the cockpit.")
    commands = top.add_subparsers(dest="command", required=True)
    for name, help in (("run", "train, and print lines until the end"), ("check", "say what is wrong, start nothing")):
        command = commands.add_parser(name, help=help, allow_abbrev=False, epilog="Settings: --dotted.flag value ...")
        command.add_argument("recipe", metavar="RECIPE", help="the name of a shipped recipe, or a TOML file")
        command.add_argument("--run.name", dest="name", type=given, help="name of the run; the recipe's if left out")
        command.add_argument("--run.group", dest="group", type=given, help="runs that belong together")
        command.add_argument("--runs-root", type=given, default="runs", help="folder of all run directories")
    flags = commands.add_parser("flags", help="every flag: type, default, meaning")
    flags.add_argument("word", nargs="?", default="", help="only flags with this word")
    attempt = commands.add_parser("attempt", help="one attempt of a run, as its supervisor starts it")
    attempt.add_argument("path")
    attempt.add_argument("--attempt", type=int, required=True)
    return top


def main(argv: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by who started this
            stream.reconfigure(errors="backslashreplace")
    top = parser()
    options, settings = top.parse_known_args(argv)
    match options.command:
        case "run":
            return run(options, settings)
        case "check":
            return check(options.recipe, settings)
    if settings:
        top.error(f"unexpected {settings!r}")
    return flags(options.word) if options.command == "flags" else attempt(options.path, options.attempt)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
