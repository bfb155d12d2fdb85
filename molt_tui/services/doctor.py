"""Checks of this machine: each with what is there and, where something is wrong or missing, what to change."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from molt_tui.errors import MoltError
from molt_tui.services.launch import engine_python
from molt_tui.store.home import Home, file_system_type, find_home, journal_mode

LIGHT_PACKAGES = ("textual", "sqlite-utils", "typer", "pydantic")
PYTHONS = ((3, 11), (3, 13))
MIN_CORES, MIN_MEMORY_GB = 2, 8


@dataclass(frozen=True)
class Check:
    """`fix` is empty when there is nothing to do; `needed` is False for what only some uses need."""

    check: str
    ok: bool
    detail: str
    fix: str = ""
    needed: bool = True


def run_checks() -> list[Check]:
    """Every check, in the order in which they are worth fixing. Nothing is changed but an empty home folder."""
    home = find_home()
    return [check for group in CHECKS for check in group(home)]


def _python(_: Home) -> Iterator[Check]:
    low, high = PYTHONS
    version = sys.version_info[:2]
    yield Check("python", low <= version < high, f"{sys.version.split()[0]} at {sys.executable}",
                "" if low <= version < high else "use Python 3.11 or 3.12")  # fmt: skip


def _packages(_: Home) -> Iterator[Check]:
    missing, found = [], []
    for name in LIGHT_PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    yield Check("packages", not missing, ", ".join(found + [f"{name} is missing" for name in missing]),
                f"pip install {' '.join(missing)}" if missing else "")  # fmt: skip


def _engine(_: Home) -> Iterator[Check]:
    try:
        yield Check("engine", True, f"runs are started with {engine_python()}", needed=False)
    except MoltError as error:
        yield Check("engine", False, "no engine for local runs", str(error), needed=False)


def _machine(_: Home) -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    enough = cores >= MIN_CORES and memory >= MIN_MEMORY_GB
    yield Check("machine", enough, f"{cores} cores, {memory:.0f} GiB of memory",
                "" if enough else f"local runs want {MIN_CORES} cores and {MIN_MEMORY_GB} GiB", needed=False)  # fmt: skip


def _home(home: Home) -> Iterator[Check]:
    kind, mode = file_system_type(home.path), journal_mode(home.path)
    why = "" if mode == "wal" else "; write-ahead logging is not used, because this file system may be shared"
    yield _writable("home", home.path, f"{home.path} on {kind}, journal {mode}{why}", "MOLT_TUI_HOME")
    yield _writable("runs_root", home.runs_root, f"{home.runs_root} on {file_system_type(home.runs_root)}", "MOLT_TUI_RUNS")
    probe = next(p for p in (home.runs_root, *home.runs_root.parents) if p.exists())
    free = shutil.disk_usage(probe).free / 1024**3
    yield Check("disk", free > 1, f"{free:.0f} GiB free for runs", "" if free > 1 else "free some space or set MOLT_TUI_RUNS")


def _writable(name: str, folder: Path, detail: str, variable: str) -> Check:
    probe = folder / f".doctor-{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        return Check(name, False, f"{detail}; {error.strerror}", f"make it writable or set {variable}")
    return Check(name, True, detail)


def _terminal(_: Home) -> Iterator[Check]:
    kind = os.environ.get("TERM", "")
    size = shutil.get_terminal_size()
    able = kind not in ("", "dumb", "unknown")
    fix = "" if able else "the screen needs a terminal that can place text; the commands work without"
    encoding = (sys.stdout.encoding or "unknown").lower()
    if able and "utf" not in encoding:
        fix = "set a UTF-8 locale, e.g. LC_ALL=C.UTF-8"
    yield Check("terminal", able, f"TERM={kind or 'not set'}, {size.columns}x{size.lines}, {encoding}", fix, needed=False)


CHECKS: tuple[Callable[[Home], Iterator[Check]], ...] = (_python, _packages, _engine, _machine, _home, _terminal)
