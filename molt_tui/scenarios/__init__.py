"""Recorded runs that ship with molt-tui: NAME.tar.gz beside this file, played live by player.py, made by recorder.py."""
