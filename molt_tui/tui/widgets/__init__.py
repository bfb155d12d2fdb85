"""Widgets that know nothing of runs' files: they draw what they are given."""
