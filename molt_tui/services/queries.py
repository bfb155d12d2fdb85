"""Queries by name: those that ship with molt-tui, and the user's own in queries.sql of the home, a plain file.

    -- name: masked share of my runs
    SELECT ...

The file is the user's: it is not in the database, which may be deleted, and it may be edited by hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.wire import write_atomic
from molt_tui.errors import MoltError, NotFound, Refused
from molt_tui.store.home import Home
from molt_tui.text import clean

FILE = "queries.sql"
MAX_NAME = 60
_HEADER = re.compile(r"^--\s*name:[ \t]*(.*?)[ \t]*$", re.M)


@dataclass(frozen=True)
class SavedQuery:
    """`own`: from the user's file, not shipped."""

    name: str
    sql: str
    own: bool = False


def path_of(home: Home) -> Path:
    return home.path / FILE


def saved(home: Home) -> list[SavedQuery]:
    """The user's own queries, then the shipped ones that no own one replaces. Raises MoltError when the file cannot be read."""
    own = _read(path_of(home))
    shipped = [SavedQuery(name, sql) for name, sql in SHIPPED.items() if name not in own]
    return [SavedQuery(name, sql, own=True) for name, sql in own.items()] + shipped


def find(home: Home, name: str) -> SavedQuery:
    """The query of this name, or the only one that begins with it. Raises NotFound."""
    known = saved(home)
    hits = [q for q in known if q.name == name] or [q for q in known if name and q.name.lower().startswith(name.lower())]
    if len(hits) == 1:
        return hits[0]
    names = "; ".join(clean(q.name) for q in hits or known)
    raise NotFound(f"{'several saved queries begin with' if hits else 'no saved query'} {clean(name)!r}; there are: {names}")


def save(home: Home, name: str, sql: str) -> None:
    """Keep a query under a name; one of the same name is replaced. Raises Refused, or MoltError where it cannot be written."""
    name = " ".join(name.split())
    if not name or len(name) > MAX_NAME or clean(name) != name:
        raise Refused(f"a name has 1 to {MAX_NAME} printable characters")
    if not sql.strip():
        raise Refused("there is no SQL to save")
    own = _read(path_of(home))
    own[name] = sql.strip()
    _write(path_of(home), own)


def delete(home: Home, name: str) -> None:
    """Forget one of the user's own queries. Raises NotFound or Refused."""
    own = _read(path_of(home))
    if name not in own:
        if name in SHIPPED:
            raise Refused(f"{name!r} ships with molt-tui; save another one under its name to replace it")
        raise NotFound(f"no saved query {clean(name)!r}")
    del own[name]
    _write(path_of(home), own)


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise MoltError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from error
    parts = _HEADER.split(text)[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2]) if name and sql.strip()}


def _write(path: Path, queries: dict[str, str]) -> None:
    """What stands before the first query stays. A line of SQL that looks like a header gets a blank in front of it."""
    blocks = [f"-- name: {name}\n{_HEADER.sub(lambda m: ' ' + m[0], sql)}\n" for name, sql in queries.items()]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        preamble = _HEADER.split(path.read_text("utf-8"))[0].strip() if path.exists() else ""
        blocks = [preamble + "\n", *blocks] if preamble else blocks
        write_atomic(path, "\n".join(blocks).encode("utf-8", "replace"))
    except OSError as error:
        raise MoltError(f"cannot write {path}: {error.strerror}") from error


SHIPPED = {
    "runs by state": """\
SELECT state, count(*) AS runs, datetime(max(updated), 'unixepoch', 'localtime') AS updated
FROM runs GROUP BY state ORDER BY runs DESC""",
    "best reward per group": """\
SELECT coalesce("group", name) AS "group", count(*) AS runs, max(reward) AS best, avg(reward) AS mean, id AS run
FROM run_summary WHERE reward IS NOT NULL
GROUP BY 1 ORDER BY best DESC""",
    "slowest steps": """\
SELECT run, step, value AS seconds
FROM metric_curve WHERE key = 'time/step'
ORDER BY value DESC LIMIT 50""",
    "masked share over time": """\
SELECT run, step, value AS masked_share
FROM metric_curve WHERE key = 'is/masked_frac'
ORDER BY run DESC, step""",
    "newest metrics of the newest run": """\
SELECT run, key, step, coalesce(special, json, value) AS value
FROM latest_metric WHERE run = (SELECT id FROM runs ORDER BY created DESC LIMIT 1)
ORDER BY key""",
    "reward before and now": """\
SELECT r.id AS run, r.name, first.value AS first_reward, r.reward AS newest_reward, r.step
FROM run_summary r JOIN metrics first ON first.run = r.id AND first.key = 'reward/mean' AND first.step = 1
ORDER BY newest_reward - first_reward DESC""",
    "rollouts with the largest ratio": """\
SELECT run, step, rollout_id, reward, ratio_extreme, masked, sampled
FROM rollouts WHERE ratio_extreme IS NOT NULL
ORDER BY max(ratio_extreme, 1 / ratio_extreme) DESC LIMIT 50""",
    "groups without a signal": """\
SELECT run, step, group_id, count(*) AS rollouts, min(reward) AS reward, min(prompt_id) AS prompt
FROM rollouts GROUP BY run, attempt, step, group_id
HAVING count(*) > 1 AND min(reward) = max(reward) ORDER BY step DESC LIMIT 200""",
    "faults and alerts": """\
SELECT run, step, kind, json_extract(data, '$.what') AS what, json_extract(data, '$.rule') AS rule,
       coalesce(json_extract(data, '$.detail'), json_extract(data, '$.message')) AS said
FROM events WHERE kind IN ('fault', 'alert') ORDER BY t DESC LIMIT 200""",
    "attempts and their ends": """\
SELECT r.id AS run, a.attempt, a.reason, a.step, a.detail
FROM attempts a JOIN runs r ON r.num = a.run_num ORDER BY a.t DESC LIMIT 200""",
}
