"""The part of the scripted source that is about recorded rollouts and queries."""

from __future__ import annotations

from molt_tui.errors import Refused
from molt_tui.services import queries, traces
from molt_tui.store.query import QueryResult
from molt_tui.tokens import parse, real
from molt_tui.tui.data_source import TokenPage, TraceView, Vocabulary
from molt_tui.tui.store_data import trace_line
from tests.traced_run import CONFIG_FLAT, records

STEPS = (8, 12)


class FakeData:
    """`records` may be replaced; a `result` of None lets queries run until they are cancelled."""

    def __init__(self) -> None:
        self.records = {step: records(step) for step in STEPS}
        self.result: QueryResult | None = QueryResult(["run", "reward"], [("r1", 0.5), ("r2", None)], "", 0.01)
        self.asked: list[str] = []

    def traces(self, run_id, step, sort, reverse):
        if not self.records:
            return TraceView(run_id, "tools", (), None, ())
        at = max(self.records) if step is None else step
        rows = traces.ordered(traces.summaries(self.records[at]), sort, reverse=reverse)
        return TraceView(run_id, "tools", sorted(self.records), at, [trace_line(row) for row in rows])

    def all_traces(self, run_id, text, sort, reverse):
        rows = [row for found in self.records.values() for row in traces.summaries(found) if text.lower() in row["text"].lower()]
        lines = [trace_line(row) for row in traces.ordered(rows, sort, reverse=reverse)]
        return TraceView(run_id, "tools", sorted(self.records), None, lines)

    def _record(self, place):
        return next(r for r in self.records[place.step] if r["rollout_id"] == place.rollout_id)

    def rollout(self, run_id, place):
        found = self._record(place)
        rewards = [real(r.get("reward")) for r in self.records[place.step] if r["group_id"] == found["group_id"]]
        return TokenPage(parse(found, CONFIG_FLAT), rewards, 4)

    def group(self, run_id, place):
        group = self._record(place)["group_id"]
        return [parse(r, CONFIG_FLAT) for r in self.records[place.step] if r["group_id"] == group]

    def query(self, sql, cancelled):
        self.asked.append(sql)
        if self.result is None:
            while not cancelled():
                pass
            raise Refused("the query was cancelled")
        return self.result

    def vocabulary(self):
        shipped = [queries.SavedQuery(name, sql) for name, sql in queries.SHIPPED.items()]
        return Vocabulary(("metrics", "run_summary", "reward", "SELECT"), ("reward/mean", "reward/std"), shipped)

    def save_query(self, name, sql):
        self.asked.append(f"save {name}")

    def delete_query(self, name):
        self.asked.append(f"delete {name}")

    def write_result(self, result, style, path):
        self.asked.append(f"write {style} {path}")
        return path

    def find_place(self, row):
        return (row["run"], None) if "run" in row else None
