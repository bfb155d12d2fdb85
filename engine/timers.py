"""Wall-clock accounting: the named phases of a training step with the share that none covers, and levels over time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Level:
    """Something that has a level at each moment, such as the requests that run; `integral` is its sum over time in
    level-seconds, so that a difference over seconds is the mean."""

    def __init__(self) -> None:
        self.level, self._total, self._since = 0.0, 0.0, time.perf_counter()

    def set(self, level: float) -> None:
        now = time.perf_counter()
        self._total += self.level * (now - self._since)
        self.level, self._since = level, now

    def integral(self) -> float:
        return self._total + self.level * (time.perf_counter() - self._since)


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
