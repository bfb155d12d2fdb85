"""Slurm from the login node: submit, follow, explain. Every call of a Slurm program is in commands.py; parsing is pure."""
