"""The C library's allocator, where it is glibc's: what a long session has freed goes back to the system."""

from __future__ import annotations

import ctypes

ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def one_pool() -> None:
    """Threads that start from now on share one pool: each of their own would have holes, for no gain under Python's lock."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(ARENA_MAX, 1)


def give_back() -> None:
    """Free pages anywhere in the pools; takes a few milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
