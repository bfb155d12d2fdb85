"""Errors that a user sees: one line that says what to do, and the exit code of the command line."""

from __future__ import annotations


class MoltError(Exception):
    """The work failed."""

    exit_code = 1


class Refused(MoltError):
    """Bad usage, or a request that is refused before anything is started."""

    exit_code = 2


class NotFound(MoltError):
    """The run, recipe, step or file that was named does not exist."""

    exit_code = 3


class StoreError(MoltError):
    """The database cannot be used; run directories are not affected."""


class NotWritable(StoreError):
    """The database cannot be written: a full disk, or a read-only one."""
