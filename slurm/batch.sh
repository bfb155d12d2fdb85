#!/usr/bin/env bash
# molt:directives
# One start of a molt-tui run. Slurm runs this on the first node of the allocation.
set -eo pipefail

# molt:variables

# shellcheck disable=SC1090,SC1091
# molt:setup

set -u
export PYTHONPATH="$MOLT_LIBRARY${PYTHONPATH:+:$PYTHONPATH}"
cd "$MOLT_RUN"
# exec, so that the signals that Slurm sends to the batch script reach the supervisor itself.
exec "$MOLT_JOB_PYTHON" -m slurm.job "$MOLT_RUN"
