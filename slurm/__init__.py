"""What runs inside a Slurm allocation. Standard library and engine's light modules only.

batch.sh (rendered per run) -> job.py (supervises, restarts, requeues) -> attempt.py (Ray on every node, then the
controller) -> node.py (one per node). Everything is told apart by the attempt's marker, so that two runs on one node
never touch each other.
"""
