"""A run directory with rollouts that show everything: two turns, two versions, two segments, masked tokens, other experts."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.wire import PROTOCOL, RunDir, encode_line, write_atomic

RUN_ID = "20270115-081200-tools-4f2a"
CONFIG = """\
[actor]
model_name_or_path = "tiny:qwen3_moe"

[data]
prompt_dataset = ["tools.jsonl"]

[algo.advantage]
estimator = "grpo"
is_correction_level = "token"
is_correction_threshold = [0.5, 2.0]

[train]
agent_path = "agent/tools.py"
max_staleness = 2
"""
CONFIG_FLAT = {"algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_threshold": [0.5, 2.0],
               "train.max_staleness": 2}  # fmt: skip
PROMPT = ["<|user|>", "What", " is", " 17", " ×", " 23", "?", " Use", " the", " calculator", ".", "\n", "<|assistant|>"]
CALL = ["I", " will", " multiply", ":", " <", "tool", ">", "17", "*", "23", "</", "tool", ">"]
RESULT = ["\n", "<|tool|>", "391", "\n", "<|assistant|>"]
GOOD = ["The", " answer", " is", " **", "391", "**", ".", "<|end|>"]
BAD = ["So", " it", " is", " 17", " ×", " 20", " +", " 3", " =", " 343", " …", " nearly", ".", "<|end|>"]


def segment(turns: Sequence[tuple[Sequence[str], int | None]], gaps: dict[int, float], old: Sequence[int] = (),
            experts: dict[int, list[int]] | None = None) -> dict[str, Any]:  # fmt: skip
    """`turns`: (pieces, version), None for what the policy did not sample. `gaps`: index -> trainer minus sampler log-prob."""
    pieces = [p for part, _ in turns for p in part]
    versions = [-1 if v is None else v for part, v in turns for _ in part]
    sampled = [v >= 0 for v in versions]
    logprobs = [-1.25 - 0.4 * abs(math.sin(i * 1.3)) if s else 0.0 for i, s in enumerate(sampled)]
    all_gaps = [gaps.get(i, 0.04 * math.sin(i * 2.1)) if s else 0.0 for i, s in enumerate(sampled)]
    kept = [int(s and i not in old and 0.5 <= math.exp(g) <= 2.0) for i, (s, g) in enumerate(zip(sampled, all_gaps))]
    return {
        "token_ids": [1000 + sum(map(ord, p)) % 30000 for p in pieces], "pieces": pieces, "mask": [int(s) for s in sampled],
        "logprobs": [round(x, 6) for x in logprobs], "versions": versions, "kept": kept,
        "train_logprobs": [round(x + g, 6) for x, g in zip(logprobs, all_gaps)],
        "routing_mismatch": [(experts or {}).get(i, []) for i in range(len(pieces))],
    }  # fmt: skip


def rollout(step: int, group: int, index: int, reward: Any, segments: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "run": RUN_ID, "attempt": 1, "step": step, "rollout_id": f"tools:{group}#{step}/{index}",
        "prompt_id": f"tools.jsonl:{group}@0",
        "group_id": f"tools:{group}#{step}", "version": step - 1, "max_staleness": 2, "label": "391",
        "reward": reward, "score": reward,
        "advantage": None if not isinstance(reward, float) else round(2 * reward - 0.8, 3), "turns": 2, "truncated": False,
        "info": {"exact": reward, "tool_calls": 1.0}, "segments": segments, **more,
    }  # fmt: skip


def records(step: int) -> list[dict[str, Any]]:
    """Two groups; the first shows a masked token of each kind, two segments, a cut-off answer."""
    now = step - 1
    good = segment([(PROMPT, None), (CALL[:7], now - 1), (CALL[7:], now), (RESULT, None), (GOOD, now)],
                   {15: 0.25, 20: -0.8, 36: 1.0}, experts={14: [1], 20: [0, 3], 36: [3]})  # fmt: skip
    bad = segment([(PROMPT, None), (CALL, now - 3), (RESULT, None), (BAD, now)], {33: -0.3, 40: -1.2, 41: 0.9},
                  old=range(13, 26), experts={40: [1, 2]})  # fmt: skip
    short = segment([(PROMPT, None), (GOOD, now)], {17: 0.4})
    first, second = (segment([(PROMPT, None), (CALL, now)], {}), segment([(PROMPT[:3], None), (BAD[:9], now)], {5: 1.8}))
    return [
        rollout(step, 1, 0, 1.0, [good]), rollout(step, 1, 1, 0.0, [bad]), rollout(step, 1, 2, 1.0, [short], turns=1),
        rollout(step, 1, 3, 0.0, [first, second], truncated=True),
        rollout(step, 2, 0, 0.5, [short], turns=1), rollout(step, 2, 1, "nan", [first]),
    ]  # fmt: skip


def write_run(folder: Path, steps: Sequence[int] = (8, 12), made: Any = records) -> RunDir:
    """A finished run with the records of some steps, below `folder`."""
    run = RunDir(folder / RUN_ID).create()
    run.run_toml.write_text(CONFIG)
    head = {"protocol": PROTOCOL, "run": RUN_ID, "attempt": 1, "t": 1_800_000_000.0}
    write_atomic(run.meta, encode_line({"protocol": PROTOCOL, "run": RUN_ID, "name": "tools", "created": 1_800_000_000.0,
                                        "recipe": "agents", "cluster": "local"}))  # fmt: skip
    number = run.claim_attempt()
    events = run.attempt(number) / "events"
    events.mkdir(exist_ok=True)
    lines = [
        encode_line({**head, "seq": i, "kind": "metrics", "step": step, "version": step,
                     "metrics": {"reward/mean": 0.5, "routing/layer_mismatch": [0.1, 0.2, 0.1, 0.3]}})
        for i, step in enumerate(steps)
    ]  # fmt: skip
    (events / "000000.jsonl").write_bytes(b"".join(lines))
    for step in steps:
        data = b"".join(encode_line(record) for record in made(step))
        write_atomic(run.rollouts / f"1-{step:06d}.jsonl.gz", gzip.compress(data, mtime=0))
    last = max(steps, default=0)
    ending = {**head, "step": last}
    write_atomic(run.attempt(number) / "exit.json", encode_line({**ending, "reason": "completed", "detail": "", "code": 0}))
    write_atomic(run.status, encode_line({**ending, "phase": "completed", "beat": 9, "version": last, "max_steps": last}))
    return run
