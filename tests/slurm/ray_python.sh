#!/usr/bin/env bash
# The interpreter of jobs with the real Ray and a stand-in for the engine that only looks at it.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$here/../../.venv/bin/python
case "${2:-}" in
  engine) shift 2; exec "$python" "$here/ray_engine.py" "$@" ;;
  *) exec "$python" "$@" ;;
esac
