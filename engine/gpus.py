"""Use and memory of this host's GPUs over a step."""

import subprocess
import threading
from typing import Any

import numpy as np

from engine.metrics import spread

_QUERY = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits",
          "--loop-ms=1000"]  # fmt: skip


class GpuMonitor:
    """Samples every second through nvidia-smi; reports nothing where there is none, or what it cannot tell (MIG)."""

    def __init__(self) -> None:
        self._samples: list[tuple[str, float, float]] = []
        self._thread: threading.Thread | None = None

    def take(self) -> dict[str, Any]:
        """host/gpu_* as means since the last call; the first call starts the sampling."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        samples, self._samples = self._samples, []
        found = {}
        for column, name in ((1, "host/gpu_util"), (2, "host/gpu_mem")):
            means = {gpu: float(np.mean([s[column] for s in samples if s[0] == gpu])) for gpu in {s[0] for s in samples}}
            found |= spread(name, means, worst_is_high=name == "host/gpu_mem")
        return found

    def _sample(self) -> None:
        try:
            process = subprocess.Popen(_QUERY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return
        for line in process.stdout or ():
            index, *numbers = (part.strip() for part in line.split(","))
            if len(numbers) == 3 and all(number.isdigit() for number in numbers):
                self._samples.append((f"gpu-{index}", int(numbers[0]) / 100, int(numbers[1]) / int(numbers[2])))
