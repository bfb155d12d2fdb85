"""What Textual keeps longer than a long session can afford, or dies of, and offers no way to change."""

from __future__ import annotations

from codecs import getincrementaldecoder
from functools import lru_cache, partial

from textual._segment_tools import make_blank
from textual._styles_cache import StylesCache
from textual.css.scalar import Scalar
from textual.drivers import linux_driver
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


def free_closed_widgets() -> None:
    """Key Textual's cache of background styles by the colours alone.

    It is a cache on a method: its thousand entries keep as many widgets' lines, long after the widgets are gone.
    """
    if not isinstance(vars(StylesCache)["get_inner_outer"], staticmethod):
        original = StylesCache.get_inner_outer.__wrapped__
        StylesCache.get_inner_outer = staticmethod(lru_cache(1024)(partial(original, StylesCache)))


def read_any_bytes() -> None:
    """A terminal may send what is no UTF-8 (another locale, an old report of the mouse): Textual would end the program."""
    linux_driver.getincrementaldecoder = lambda encoding: partial(getincrementaldecoder(encoding), "replace")


def forget_other_places() -> None:
    """Empty the caches of geometry, blank lines and styles: tens of thousands of entries, most of them for sizes that the
    terminal had, or for places on screens that were left."""
    for owner in (Region, Scalar, Strip):
        for name in vars(owner):
            clear = getattr(getattr(owner, name), "cache_clear", None)
            if clear is not None:
                clear()
    make_blank.cache_clear()


def drop_drawn_lines(root: Widget) -> None:
    """Forget how this widget and those in it looked: more than half of what a screen takes. They are drawn again when shown."""
    for widget in root.walk_children(Widget, with_self=True):
        widget._styles_cache.clear()
