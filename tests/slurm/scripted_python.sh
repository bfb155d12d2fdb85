#!/usr/bin/env bash
# The interpreter of jobs whose sampler alone is a stand-in.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$here/../../.venv/bin/python
case "${2:-}" in
  engine) shift 2; exec "$python" -m tests.slurm.scripted_engine "$@" ;;
  *) exec "$python" "$@" ;;
esac
