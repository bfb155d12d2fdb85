"""Where molt-tui keeps its own files, and which SQLite journal mode is safe there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from molt_tui.errors import Refused

LOCAL_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "f2fs", "apfs", "ramfs", "bcachefs"}
)


SITE_FILE = "site.toml"


@dataclass(frozen=True)
class Home:
    """The user's private folder: database, logs and, unless MOLT_TUI_RUNS says otherwise, the run directories."""

    path: Path
    runs_root: Path

    @property
    def database(self) -> Path:
        return self.path / "molt.db"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def create(self) -> Home:
        """Make the folders, private to the owner; raises Refused with what to change."""
        try:
            for folder in (self.path, self.logs, self.runs_root):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(f"cannot create {error.filename}: {error.strerror}; set MOLT_TUI_HOME to a writable folder") from error
        return self


def find_home() -> Home:
    """MOLT_TUI_HOME, else molt-tui in the XDG data directory. Nothing is created.

    Run directories lie where MOLT_TUI_RUNS says, else where the site profile says, else in runs/ of the home.
    """
    chosen = os.environ.get("MOLT_TUI_HOME")
    if chosen:
        path = Path(os.path.expanduser(chosen))
    else:
        data = os.environ.get("XDG_DATA_HOME")
        path = (Path(data) if data else Path(os.path.expanduser("~/.local/share"))) / "molt-tui"
    path = Path(os.path.abspath(path))
    runs = os.environ.get("MOLT_TUI_RUNS") or _runs_root_of_site(path / SITE_FILE)
    return Home(path, Path(os.path.abspath(os.path.expanduser(runs))) if runs else path / "runs")


def _runs_root_of_site(profile: Path) -> str | None:
    """runs_root of the site profile; a damaged profile is reported where it is used, not here."""
    try:
        text = profile.read_text("utf-8")
    except (OSError, ValueError):
        return None
    import tomllib

    try:
        root = tomllib.loads(text).get("runs_root")
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    return root if isinstance(root, str) and root else None


def file_system_type(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Type of the file system that holds `path` (or its nearest existing parent); "unknown" when it cannot be told."""
    probe = path.resolve()
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    best, found = "", "unknown"
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return found
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = _unescape(fields[4])
        inside = point == "/" or str(probe) == point or str(probe).startswith(point + "/")
        if inside and len(point) >= len(best):
            best, found = point, after.split()[0]
    return found


def _unescape(field: str) -> str:
    """The kernel writes space, tab, newline and backslash in mount points as octal escapes."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escape, character)
    return field


def journal_mode(path: Path) -> str:
    """Journal mode: "wal" on a local file system, "delete" on one that may be shared or is unknown, where WAL can corrupt."""
    return "wal" if file_system_type(path) in LOCAL_FILE_SYSTEMS else "delete"
