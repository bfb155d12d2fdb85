"""Colours. The first theme is the default; Textual's own themes stay available in the palette."""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

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
    Theme(
        name="molt-mono", dark=True, primary="#ffffff", secondary="#b0b0b0", accent="#ffffff", success="#e0e0e0",
        warning="#ffffff", error="#ffffff", foreground="#e0e0e0", background="#000000", surface="#000000", panel="#262626",
        variables={"footer-key-foreground": "#ffffff", "footer-background": "#262626", "quiet": "#a0a0a0", "track": "#404040"},
    ),
)  # fmt: skip

SHORT_NAMES = {"dark": "molt-dark", "light": "molt-light", "mono": "molt-mono", "terminal": "ansi-dark"}


def theme_names() -> list[str]:
    """Every name that `theme` in tui.toml takes."""
    return [*SHORT_NAMES, *(theme.name for theme in THEMES), *BUILTIN_THEMES]


def full_name(name: str) -> str:
    """The registered name of a theme; `terminal` is the palette of the terminal itself."""
    return SHORT_NAMES.get(name, name)
