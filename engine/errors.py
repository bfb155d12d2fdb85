"""Errors in one line, for records and screens; the traceback belongs into the log."""

MAX_CHARS = 500


def name_and_message(error: BaseException) -> tuple[str, str]:
    """(type, last line of the message) of the error that a remote call wraps, or of the error itself."""
    cause = getattr(error, "cause", None)
    if not isinstance(cause, BaseException):
        cause = error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip(" ^~")]
    return type(cause).__name__, (lines[-1] if lines else "no message")[:MAX_CHARS]


def one_line(error: BaseException) -> str:
    """`Type: message` of the same; at most 500 characters."""
    return ": ".join(name_and_message(error))[:MAX_CHARS]
