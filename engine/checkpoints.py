"""Checkpoints of a run as one unit: trainer state on every rank, prompts in flight, finished groups, position, knobs."""

import asyncio
import pickle
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import Config
from engine.rollout.pool import with_payloads
from engine.train.checkpoint import latest_checkpoint, prune_checkpoints
from engine.wire import RunDir, write_atomic


@dataclass
class Saved:
    path: str
    seconds: float
    bytes: int


class Checkpoints:
    """Saves into ckpt.path (or checkpoints/ of the run) and restores the newest complete one."""

    def __init__(self, run: RunDir, config: Config) -> None:
        self.folder = Path(config.ckpt.path) / run.path.name if config.ckpt.path else run.checkpoints
        self.keep = config.ckpt.max_num
        self.save_hf = config.ckpt.save_hf

    async def save_best(
        self, cluster: Any, pool: Any, step: int, version: int, live: dict[str, Any], score: float
    ) -> Saved | None:
        """Keep these weights, which were just evaluated, in best/ if none before them scored as high."""
        mark = self.folder / "best" / "score"
        if mark.is_file() and float(mark.read_text()) >= score:
            return None
        saved = await self.save(cluster, pool, step, version, live, best=True)
        write_atomic(mark, repr(score).encode())
        return saved

    async def save(self, cluster: Any, pool: Any, step: int, version: int, live: dict[str, Any], best: bool = False) -> Saved:
        """Write one checkpoint; it counts once its completion mark is there. The best one stands alone in best/."""
        import ray

        started = time.perf_counter()
        # The state is taken here, on the loop, in one moment; only fetching its records may wait.
        records = await asyncio.to_thread(with_payloads, pool.state_dict(), ray.get)
        state = {"step": step, "version": version, "live": live, "pool": records}
        folder, keep = (self.folder / "best", 1) if best else (self.folder, self.keep)
        path = folder / f"step-{step:06d}"
        payload = pickle.dumps(state)
        await asyncio.gather(*[t.save(str(path), payload, self.save_hf) for t in cluster.trainers])
        await asyncio.to_thread(prune_checkpoints, folder, keep)
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        return Saved(str(path), time.perf_counter() - started, size)

    async def restore(self, cluster: Any, pool: Any) -> tuple[int, int, dict[str, Any]] | None:
        """Load the newest complete checkpoint into trainers and pool: its step, version and live knobs; None without one."""
        import ray

        path = latest_checkpoint(self.folder)
        if path is None:
            return None
        payloads = await asyncio.gather(*[t.load(str(path)) for t in cluster.trainers])
        state = pickle.loads(payloads[0])
        pool.load_state_dict(with_payloads(state["pool"], ray.put))
        return state["step"], state["version"], state["live"]
