"""Faults of Textual that a subclass cannot mend."""

from __future__ import annotations

from functools import lru_cache, partial

from textual._styles_cache import StylesCache


def free_closed_widgets() -> None:
    """Key Textual's cache of background styles by the colours alone.

    It is a cache on a method: its thousand entries keep as many widgets' lines, long after the widgets are gone.
    """
    if not isinstance(vars(StylesCache)["get_inner_outer"], staticmethod):
        original = StylesCache.get_inner_outer.__wrapped__
        StylesCache.get_inner_outer = staticmethod(lru_cache(1024)(partial(original, StylesCache)))
