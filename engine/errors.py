"""Errors in one line, for records and screens; the traceback belongs into the log."""

from __future__ import annotations

MAX_CHARS = 500


def one_line(error: BaseException) -> str:
    """`Type: message` of the error that a remote call wraps, or of the error itself; at most 500 characters."""
    cause = getattr(error, "cause", None)
    if not isinstance(cause, BaseException):
        cause = error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip(" ^~")]
    return f"{type(cause).__name__}: {lines[-1] if lines else 'no message'}"[:MAX_CHARS]
