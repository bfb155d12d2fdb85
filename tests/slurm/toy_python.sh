#!/usr/bin/env bash
# The interpreter of jobs whose engine and Ray are stand-ins; everything else is the real thing.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$here/../../.venv/bin/python
case "${2:-}" in
  engine) shift 2; exec "$python" "$here/toy_engine.py" "$@" ;;
  slurm.node) shift 2; exec "$python" "$here/toy_node.py" "$@" ;;
  *) exec "$python" "$@" ;;
esac
