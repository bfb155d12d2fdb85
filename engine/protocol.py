"""The run directory: the only wire between the engine and whoever watches it. Append and rename only, no locks.

    <run>/run.toml meta.json status.json agent/ notes.jsonl control/ rollouts/ checkpoints/
    <run>/attempts/<n>/events/000000.jsonl logs/ exit.json

Writers are the engine (events, rollouts), the supervisor (status, exit, phase events) and people (notes, control).
Readers tolerate a torn last line, rotation, and records they do not know. NaN and infinities travel as strings.
"""

import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from engine.wire import DIR_MODE, PROTOCOL, LogWriter, RunDir, encode_line, write_atomic

ExitReason = Literal["completed", "failed", "cancelled", "preempted", "timeout", "crashed"]


class Record(BaseModel):
    """Base of every record; unknown fields of a newer writer are kept, not refused."""

    model_config = ConfigDict(extra="allow")


class Event(Record):
    """One line of events/*.jsonl. `seq` counts from 0 within an attempt; fields of the kind sit beside these."""

    protocol: int = PROTOCOL
    run: str
    attempt: int
    seq: int
    t: float
    kind: str
    step: int | None = None
    version: int | None = None


class MetricsEvent(Event):
    """`metrics`: schema name -> number, list or label; those of an evaluation come in an event of their own. The ledger:
    `prompts` are the ids whose groups this step trained, `lost` those given up since the last step because no rollout of theirs
    was usable."""

    kind: str = "metrics"
    metrics: dict[str, Any]
    prompts: list[str] = Field(default_factory=list)
    lost: list[str] | None = None


class PhaseEvent(Event):
    kind: str = "phase"
    phase: str
    detail: str = ""


class SyncEvent(Event):
    """One weight publication: bytes, seconds, requests held, tokens at the border."""

    kind: str = "sync"
    bytes: int
    seconds: float
    pause_seconds: float
    held: int = 0


class FaultEvent(Event):
    """Something failed and was handled (or not): `what` is a stable word, `detail` a sentence without secrets."""

    kind: str = "fault"
    what: str
    detail: str = ""
    fatal: bool = False


class CheckpointEvent(Event):
    kind: str = "checkpoint"
    path: str
    seconds: float
    bytes: int
    why: str


class ControlEvent(Event):
    """The answer to one control command."""

    kind: str = "control"
    id: str
    name: str
    ok: bool
    message: str
    who: str = ""
    args: dict[str, Any] = Field(default_factory=dict)


class AlertEvent(Event):
    kind: str = "alert"
    rule: str
    message: str


class NoteEvent(Event):
    """A remark of the engine on its own run (people write notes.jsonl)."""

    kind: str = "note"
    text: str


class Meta(Record):
    """meta.json: who started what, written once by the launcher."""

    protocol: int = PROTOCOL
    run: str
    name: str
    created: float
    recipe: str
    group: str | None = None
    parent: str | None = None
    user: str = ""
    host: str = ""
    commit: str = ""
    command: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    tags: list[str] = Field(default_factory=list)
    cluster: str = "local"


class Progress(Record):
    """attempts/<n>/progress.json, replaced atomically by the controller; the supervisor merges it into status.json."""

    phase: str
    detail: str = ""
    step: int | None = None
    version: int | None = None
    last_checkpoint: int | None = None
    max_steps: int | None = None
    error: str | None = None


class Status(Progress):
    """status.json, replaced atomically. `beat` is a counter: a reader sees life when it changes on the reader's clock."""

    protocol: int = PROTOCOL
    run: str
    attempt: int
    beat: int
    job_id: str | None = None
    host: str = ""
    pid: int | None = None
    last_error: str | None = None
    time_left_s: float | None = None
    t: float = 0.0


class ExitRecord(Record):
    """attempts/<n>/exit.json, written by the supervisor when the attempt is over."""

    protocol: int = PROTOCOL
    run: str
    attempt: int
    reason: ExitReason
    detail: str = ""
    code: int | None = None
    signal: int | None = None
    step: int | None = None
    resumable: bool = False
    t: float = 0.0


class ControlCommand(Record):
    """control/<id>.json, created by rename. Names: pause resume checkpoint stop stop_after_step evaluate set."""

    id: str
    name: str
    args: dict[str, Any] = Field(default_factory=dict)
    who: str = ""
    t: float = 0.0


class Note(Record):
    """One line of notes.jsonl. `action`: note, tag, untag."""

    t: float
    who: str
    action: Literal["note", "tag", "untag"]
    text: str


class TraceSegment(Record):
    """Lists are per token. `pieces`: decoded text of each token; `kept`: 0 when not trained; `versions`: -1 where not sampled;
    `advantages` only where tokens of a segment differ in it; `routing_mismatch`: the MoE layers that differ."""

    token_ids: list[int]
    pieces: list[str]
    mask: list[int]
    logprobs: list[float | str]
    versions: list[int]
    train_logprobs: list[float | str] | None = None
    kept: list[int] | None = None
    advantages: list[float | str] | None = None
    routing_mismatch: list[list[int]] | None = None


class TraceRollout(Record):
    """One line of rollouts/<attempt>-<step>.jsonl.gz. `version`: the trainer's when it consumed the batch; tokens sampled
    before version - max_staleness were over age. `label`: the answer that the environment, else the data, expects."""

    run: str
    attempt: int
    step: int
    rollout_id: str
    prompt_id: str
    group_id: str
    version: int | None = None
    max_staleness: int | None = None
    label: str | None = None
    reward: float | str
    score: float | str
    advantage: float | str | None = None
    turns: int = 1
    truncated: bool = False
    info: dict[str, Any] = Field(default_factory=dict)
    segments: list[TraceSegment]


def write_record(path: Path, record: BaseModel) -> None:
    write_atomic(path, encode_line(record.model_dump(exclude_none=True)))


R = TypeVar("R", bound=BaseModel)


def read_record(path: Path, model: type[R]) -> R | None:
    """Parse one JSON record; None when it is missing or unreadable."""
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


class EventWriter(LogWriter):
    """The engine's writer: every event passes its model before it is written."""

    def emit(self, model: type[Event], *, step: int | None = None, version: int | None = None, **fields: Any) -> Event:
        """Validate and append one event; raises OSError when the file system refuses it."""
        event = model(run=self.run_id, attempt=self.attempt, seq=self.seq, t=time.time(), step=step, version=version, **fields)
        self.write(event.kind, step, version, **event.model_dump(exclude=set(Event.model_fields), exclude_none=True))
        return event


def send_command(run: RunDir, name: str, args: dict[str, Any] | None = None, who: str = "") -> ControlCommand:
    """Put a command into the inbox; the answer arrives as a `control` event with the same id."""
    command = ControlCommand(id=f"{time.time_ns():020d}-{uuid.uuid4().hex[:6]}", name=name, args=args or {}, who=who,
                             t=time.time())  # fmt: skip
    run.control.mkdir(mode=DIR_MODE, exist_ok=True)
    write_record(run.control / f"{command.id}.json", command)
    return command


def take_commands(run: RunDir) -> list[ControlCommand]:
    """Read and remove the inbox's commands, oldest first; an unreadable file is removed and left out."""
    commands = []
    for path in sorted(run.control.glob("[!.]*.json")):
        # Opening a pipe or a device that somebody put there could wait for ever.
        command = read_record(path, ControlCommand) if path.is_file() else None
        with suppress(OSError):
            path.unlink()
            if command is not None:
                commands.append(command)
    return commands
