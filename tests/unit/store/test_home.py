from pathlib import Path

import pytest

from molt_tui.errors import Refused
from molt_tui.store.home import Home, file_system_type, find_home, journal_mode

MOUNTS = r"""22 28 0:20 / /proc rw - proc proc rw
28 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
40 28 0:50 / /home rw - nfs4 server:/home rw
41 40 0:51 / /home/with\040space rw - lustre mgs:/fs rw
"""


def test_home_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MOLT_TUI_HOME", str(tmp_path / "x"))
    monkeypatch.delenv("MOLT_TUI_RUNS", raising=False)
    home = find_home()
    assert (home.path, home.runs_root, home.database) == (tmp_path / "x", tmp_path / "x/runs", tmp_path / "x/molt.db")
    assert not home.path.exists()
    monkeypatch.delenv("MOLT_TUI_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MOLT_TUI_RUNS", str(tmp_path / "elsewhere"))
    assert find_home() == Home(tmp_path / "data/molt-tui", tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/ada/x", "nfs4"), ("/home/with space/x", "lustre"), ("/srv/home", "ext4"), ("/homes", "ext4"), ("/", "ext4")],
)
def test_file_system_of_a_path(tmp_path, path, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    # Only "/" exists of these paths everywhere, so the lookup is told not to climb.
    assert file_system_type(_Here(path), mounts) == kind


class _Here(type(Path())):
    def resolve(self, strict=False):
        return self

    def exists(self, **_):
        return True


def test_unknown_file_system_gets_the_safe_journal(tmp_path, monkeypatch):
    assert file_system_type(tmp_path, tmp_path / "absent") == "unknown"
    for kind, mode in (("nfs4", "delete"), ("fuse.sshfs", "delete"), ("unknown", "delete"), ("xfs", "wal"), ("overlay", "wal")):
        monkeypatch.setattr("molt_tui.store.home.file_system_type", lambda _path, kind=kind: kind)
        assert journal_mode(tmp_path) == mode


def test_home_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="MOLT_TUI_HOME"):
        Home(tmp_path / "file/home", tmp_path / "runs").create()
