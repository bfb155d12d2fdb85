"""Colours. The first theme is the default; Textual's own themes stay available in the palette."""

from __future__ import annotations

from textual.theme import Theme

THEMES = (
    Theme(
        name="molt-dark", dark=True, primary="#6ea8fe", secondary="#9aa7bd", accent="#56c7c0", success="#7ccf7c",
        warning="#e6b450", error="#f0706a", foreground="#d7dce4", background="#11151c", surface="#11151c", panel="#1b212b",
        variables={"footer-key-foreground": "#56c7c0", "footer-background": "#1b212b", "quiet": "#8b95a7", "track": "#2e3745"},
    ),
    Theme(
        name="molt-light", dark=False, primary="#1f5fbf", secondary="#5a6675", accent="#0b7a75", success="#2c7a2c",
        warning="#8a5a00", error="#b3261e", foreground="#1b1f24", background="#fbfbfa", surface="#fbfbfa", panel="#ecebe8",
        variables={"quiet": "#6a717c", "track": "#d8d7d2"},
    ),
)  # fmt: skip
