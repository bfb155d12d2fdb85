"""The keys of a curve that is drawn large, the same wherever one is: smoothed, logarithmic, a cursor."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from molt_tui.tui.widgets.chart import AS_REPORTED, AXIS, ChartLook

HINT = "left right move the cursor   s smooths   L logarithmic"


def column_size(places: Sequence[float], width: int) -> float:
    """How much of the x axis one cell of a chart `width` wide covers."""
    finite = [x for x in places if isfinite(x)]
    return (max(finite) - min(finite)) / max(1, width - AXIS) if finite else 0.0


class CurveKeys:
    """Mixin of what draws curves by its `chart_look`; a subclass says what moving the cursor means (`action_move`)."""

    CURVE_KEYS: ClassVar[list[BindingType]] = [
        Binding("s", "smooth", "Smooth", show=False, id="curve.smooth"),
        Binding("L", "log", "Logarithmic", show=False, id="curve.log"),
        Binding("left,h", "move(-1)", "Cursor", show=False, id="curve.left"),
        Binding("right", "move(1)", "Cursor", show=False, id="curve.right"),
    ]
    chart_look: ChartLook = AS_REPORTED

    if TYPE_CHECKING:

        def redraw(self) -> None: ...

    def action_smooth(self) -> None:
        self.chart_look = self.chart_look.smoother()
        self.redraw()

    def action_log(self) -> None:
        self.chart_look = self.chart_look.toggled()
        self.redraw()
