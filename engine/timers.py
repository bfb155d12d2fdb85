"""Wall-clock accounting of one training step: named phases, and the share that no phase covers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepTimer:
    """Phases of one step. Phases do not nest; their sum against the wall time gives the unaccounted share."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - begin)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def metrics(self) -> dict[str, float]:
        """time/* of the step that ends now. Idle is waiting for a batch; probe, eval and saving are counted apart."""
        step = time.perf_counter() - self.started
        accounted = sum(self.seconds.values())
        found = {f"time/{name}": value for name, value in self.seconds.items()}
        found["time/step"] = step
        found["time/unaccounted_frac"] = max(0.0, step - accounted) / step if step > 0 else 0.0
        found["time/trainer_idle_frac"] = self.seconds.get("wait_batch", 0.0) / step if step > 0 else 0.0
        return found
