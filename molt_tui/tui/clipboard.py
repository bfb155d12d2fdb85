"""Copying to the clipboard of the terminal that the user sits at: OSC 52, which works over SSH and through tmux."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping

from textual.app import App

from molt_tui.text import shorten

MAX_ENCODED = 74_994  # what terminals take in one sequence


def sequences(text: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The escape sequences that set the clipboard to `text`.

    tmux answers the plain one only with `set-clipboard on`, and passes the wrapped one on with `allow-passthrough on`:
    it gets both.
    """
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    plain = f"\x1b]52;c;{encoded}\x07"
    if not environment.get("TMUX"):
        return [plain]
    return [plain, "\x1bPtmux;" + plain.replace("\x1b", "\x1b\x1b") + "\x1b\\"]


def copy(app: App, text: str, what: str = "") -> None:
    """Copy `text` and say so; the terminal does not answer, so the message shows what should be in the clipboard.

    `what` names it ("token", "run id"). A text that is too long for a terminal is cut, and the message says that too.
    """
    data = text.encode("utf-8", "replace")
    room = MAX_ENCODED // 4 * 3
    cut = len(data) > room
    if cut:
        text = data[:room].decode("utf-8", "ignore")
    app._clipboard = text  # what Textual's own fields paste
    driver = app._driver
    if driver is not None:
        for sequence in sequences(text):
            driver.write(sequence)
    head = f"copied the first {len(text)} characters of the {what or 'text'}" if cut else f"copied {what}".rstrip()
    app.notify(f"{head}: {shorten(text, 60)}{_about_tmux(app)}", markup=False)


def _about_tmux(app: App) -> str:
    """What tmux needs, said once: by default it drops what it was sent."""
    if not os.environ.get("TMUX") or getattr(app, "_told_of_tmux", False):
        return ""
    app._told_of_tmux = True  # type: ignore[attr-defined]
    return "\n(if nothing arrives: tmux needs `set -g set-clipboard on`)"
