"""What a database holds, through the views that people query: two databases of the same runs compare equal."""

import multiprocessing
from collections.abc import Callable

from molt_tui.store.database import Store
from molt_tui.store.home import Home

VIEWS = ("metrics", "metric_curve", "latest_metric", "events", "run_summary")


def content(store: Store) -> dict[str, list[tuple]]:
    """Everything that comes from run directories, through the views that people query."""
    found = {view: sorted((tuple(r) for r in store.rows(f"SELECT * FROM {view}")), key=repr) for view in VIEWS}
    rollouts = "SELECT run, attempt, step, rollout_id, reward, sampled, masked, text FROM rollouts"
    found["rollouts"] = sorted((tuple(r) for r in store.rows(rollouts)), key=repr)
    for table in ("attempts", "notes", "cursors"):
        sql = f"SELECT r.id, t.* FROM {table} t JOIN runs r ON r.num = t.run_num"
        found[table] = sorted((tuple(r)[:1] + tuple(r)[2:] for r in store.rows(sql)), key=repr)
    return found


def in_two_processes(work: Callable, home: Home) -> list[int | None]:
    """Exit codes of two processes that call `work(home, barrier)` side by side."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    workers = [context.Process(target=work, args=(home, barrier)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    return [worker.exitcode for worker in workers]
