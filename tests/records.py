"""The records of a run directory, read for assertions; None where one is missing or damaged."""

from engine.protocol import ExitRecord, Meta, Status, read_record
from engine.wire import RunDir


def read_meta(run: RunDir) -> Meta | None:
    return read_record(run.meta, Meta)


def read_status(run: RunDir) -> Status | None:
    return read_record(run.status, Status)


def read_exit(run: RunDir, attempt: int) -> ExitRecord | None:
    return read_record(run.attempt(attempt) / "exit.json", ExitRecord)
