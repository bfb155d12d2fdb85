"""The base of every dashboard panel: a title line and lines below it, drawn again only when its own data changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget

Line = Content | str


class Panel(Widget, can_focus=True):
    """Subclasses say what they show (`select`), what their title adds (`headline`) and how it is drawn (`paint`)."""

    ALLOW_MAXIMIZE = True
    TITLE: ClassVar[str] = ""
    HELP: ClassVar[str] = ""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("z,enter", "zoom", "Zoom", id="panel.zoom")]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.data: Any = None
        self._seen = ""
        self.border_title = self.TITLE

    def select(self, view: Any) -> Any:
        """The part of the view this panel shows; compared with the last one by equality."""
        raise NotImplementedError

    def headline(self, data: Any) -> str:
        """The main figures, beside the title."""
        return ""

    def paint(self, data: Any, width: int, height: int) -> Sequence[Line]:
        """At most `height` lines, each at most `width` cells."""
        raise NotImplementedError

    def show(self, view: Any) -> None:
        data = self.select(view)
        seen = repr(data)  # unlike the data itself, equal to itself when it holds a NaN
        if seen == self._seen:
            return
        self.data, self._seen = data, seen
        self.redraw()

    def redraw(self) -> None:
        """Draw again what is already known."""
        if self.data is not None:
            self._entitle()
            self.refresh()

    def _entitle(self) -> None:
        figures = self.headline(self.data)
        broken = "NaN" in figures or "inf" in figures
        style = "$text-error" if broken else "not bold $quiet"
        self.border_title = Content.assemble(self.TITLE, (f"  {figures}" if figures else "", style))

    def render(self) -> Content:
        width, height = self.size
        if self.data is None or width < 1 or height < 1:
            return Content("")
        lines = [Content(line) if isinstance(line, str) else line for line in self.paint(self.data, width, height)]
        return Content("\n").join(line.truncate(width, ellipsis=True) for line in lines[:height])

    def action_zoom(self) -> None:
        if self.screen.maximized is self:
            self.screen.minimize()
        else:
            self.screen.maximize(self, container=False)
