"""Use and memory of this host's GPUs over a step."""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import Any

from engine.metrics import spread

_QUERY = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits",
          "--loop-ms=1000"]  # fmt: skip


class GpuMonitor:
    """Samples every second through nvidia-smi; reports nothing where there is none, or what it cannot tell (MIG)."""

    def __init__(self) -> None:
        self._samples: list[tuple[str, float, float]] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        if shutil.which(_QUERY[0]) is None:
            return
        self._process = subprocess.Popen(_QUERY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, lines: Any) -> None:
        for line in lines:
            index, *numbers = (part.strip() for part in line.split(","))
            if len(numbers) == 3 and all(number.isdigit() for number in numbers):
                use, used, total = map(float, numbers)
                self._samples.append((f"gpu-{index}", use / 100, used / total))

    def take(self) -> dict[str, Any]:
        """host/gpu_* as means since the last call; the first call starts the sampling."""
        if self._process is None:
            self.start()
        samples, self._samples = self._samples, []
        labels = sorted({label for label, _, _ in samples})
        mean = {label: [sum(x) / len(x) for x in zip(*(s[1:] for s in samples if s[0] == label))] for label in labels}
        return spread("host/gpu_util", {label: m[0] for label, m in mean.items()}, worst_is_high=False) | spread(
            "host/gpu_mem", {label: m[1] for label, m in mean.items()}
        )
