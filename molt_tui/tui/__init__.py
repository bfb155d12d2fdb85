"""The Textual app; only the commands that open it import this package. Textual reads its settings while it is imported."""

from molt_tui.tui.terminal import prepare_environment

prepare_environment()
