"""The command line. `main` is the entry point; everything heavier than this file is imported when it is needed."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad usage or refused, 3 not found.

    No traceback reaches the user unless MOLT_TUI_DEBUG is set: it goes to a log file, and one line to stderr.
    """
    if sys.stdout is None:  # closed by who started this
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    from molt_tui.errors import MoltError

    try:
        code = _dispatch(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except MoltError as error:
        if os.environ.get("MOLT_TUI_DEBUG"):
            raise
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader left; nothing may fail at the final flush
        return 0
    except OSError as error:
        if os.environ.get("MOLT_TUI_DEBUG") or error.errno not in _NO_ROOM:
            return _unexpected(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _fail(f"cannot write {error.filename or 'the output'}: {error.strerror}", 1)
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    """A mistake of ours: one line, and the traceback in a file."""
    if os.environ.get("MOLT_TUI_DEBUG"):
        raise error
    return _fail(f"unexpected {type(error).__name__}: {error} ({_write_log()})", 1)


def _dispatch(arguments: list[str]) -> int:
    """Run the command. The two most frequent need no option parser, which takes longer to start than their answer."""
    if arguments in (["runs"], ["runs", "--json"]):
        from molt_tui.cli.runs_table import print_runs

        print_runs("--json" in arguments)
        return 0
    if not arguments:
        from molt_tui.cli.screen import open_screen

        return open_screen()
    from typer import Abort, TyperException

    from molt_tui.cli.app import app

    try:
        code = app(arguments, prog_name="molt-tui", standalone_mode=False)
    except TyperException as error:
        message = error.format_message()
        if message.startswith("Usage:"):  # a group of commands without a command: its help
            print(message, file=sys.stderr)
            return 2
        command = getattr(getattr(error, "ctx", None), "command_path", "molt-tui")
        return _fail(f"{message.rstrip('.')}; see `{command} --help`", 2)
    except Abort as error:
        raise KeyboardInterrupt from error
    except SystemExit as error:  # how typer reports a closed pipe
        raise BrokenPipeError from error
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    from molt_tui.text import clean

    lines = [clean(line) for line in message.splitlines()] or [""]
    with contextlib.suppress(OSError):  # nobody can be told, but the exit code can
        print("molt-tui: " + "\n  ".join(lines), file=sys.stderr, flush=True)
    return code


def _write_log() -> str:
    """Save the current traceback; returns where, or why not."""
    import time
    import traceback

    from molt_tui.store.home import find_home

    path = find_home().logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write(f"{sys.argv}\n{traceback.format_exc()}")
    except OSError as error:
        return f"the traceback could not be saved: {error.strerror}; set MOLT_TUI_DEBUG=1 to see it"
    return f"traceback in {path}"
