"""What a database holds, through the views that people query: two databases of the same runs compare equal."""

from molt_tui.store.database import Store

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
