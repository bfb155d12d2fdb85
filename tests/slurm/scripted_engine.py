"""The engine with a scripted sampler in the place of vLLM; controller, trainer, checkpoints, Ray and transfer are the real ones.

Called as the engine is: `attempt RUNDIR --attempt N`. The sampler holds its requests at the version that the file `ceiling`
of the run directory names, so that a test decides how far a run may come.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import zlib
from pathlib import Path
from typing import Any

from engine.rollout.transport import GenerateRequest, GenerateResult
from tests.scripted import Script, ScriptedEngine, base_id

# Of the tokenizer of tiny models: four special tokens, then a line feed and the printable characters from 32 on.
VOCAB, END, ZERO = 100, 3, 4 + 1 + ord("0") - 32
STEP_S, POLL_S = 0.01, 0.05


class Digits(Script):
    """Answers of three to five digits, which differ between the rollouts of a group."""

    def __init__(self) -> None:
        super().__init__(length=lambda turn: 4 + zlib.crc32(turn.encode()) % 3)

    def token(self, request: GenerateRequest, position: int) -> int:
        last = position == self.end(request) - 1
        return END if last else ZERO + zlib.crc32(f"{base_id(request)}{position}".encode()) % 10


class ScriptedSampler(ScriptedEngine):
    """What the attempt calls on VllmEngine beyond what ScriptedEngine has: start, the transfer link, shutdown."""

    def __init__(self) -> None:
        # A random model is about uniform, so that the trainer's correction keeps the tokens.
        super().__init__(Digits(), step_s=lambda running: STEP_S, logprob=lambda version: -math.log(VOCAB))

    async def start(self, spec: Any) -> dict[str, Any]:
        self._ceiling = Path(spec.model_path).parent / "ceiling"
        return {"routed_layers": []}

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        while self.version >= int(self._ceiling.read_text()):
            await asyncio.sleep(POLL_S)
        return await super().generate(request)

    async def init_transfer(self, host: str, port: int, rank: int, world: int, kind: str) -> None:
        from engine.sync.link import open_link

        self._link = await asyncio.to_thread(open_link, kind, host, port, rank, world, "cpu")

    async def update_weights(self, manifest: Any, version: int) -> None:
        """Receive every bucket as vLLM's worker does; what arrived must be weights of the manifest's size."""
        received = await asyncio.to_thread(self._receive, manifest)
        if received != manifest.total_bytes:
            raise RuntimeError(f"{received} bytes arrived, the manifest has {manifest.total_bytes}")
        await super().update_weights(manifest, version)

    def _receive(self, manifest: Any) -> int:
        from engine.sync.transfer import receive

        tensors = [tensor for bucket in receive(self._link, manifest) for _, tensor in bucket]
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            raise RuntimeError("weights that are not finite arrived")
        return sum(tensor.nbytes for tensor in tensors)

    async def shutdown(self) -> None:
        self.crash()


def slow_down_saving(file: Path) -> None:
    """Let every checkpoint take as many seconds more as `file` says, as that of a large model does."""
    from engine.checkpoints import Checkpoints

    save = Checkpoints.save

    async def slow(self: Checkpoints, *arguments: Any, **more: Any) -> Any:
        await asyncio.sleep(float(file.read_text()) if file.exists() else 0)
        return await save(self, *arguments, **more)

    Checkpoints.save = slow  # type: ignore[method-assign]


def main() -> int:
    from engine import lifeline

    lifeline.hold()
    import engine.rollout.engine
    from engine.main import attempt
    from tests.slurm.scripted_engine import ScriptedSampler as Sampler

    engine.rollout.engine.VllmEngine = Sampler  # type: ignore[misc]
    slow_down_saving(Path(sys.argv[2]) / "slow_save")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return attempt(sys.argv[2], int(sys.argv[4]))


if __name__ == "__main__":
    sys.exit(main())
