#!/usr/bin/env bash
# Fill $VENV from the lock files: the light side and, unless the argument is `light`, the CPU engine and the test tools.
set -euo pipefail
VENV=${VENV:-.venv} PYTHON=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)

"$PYTHON" - <<'PY' || exit 1
import sys
if not (3, 11) <= sys.version_info[:2] < (3, 13):
    sys.exit(f"molt-tui needs Python 3.11 or 3.12, found {sys.version.split()[0]}: set PYTHON=python3.11")
PY
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV" ||
    { echo "could not make $VENV: install your system's python3-venv package" >&2; exit 1; }

pip() { "$VENV/bin/python" -m pip --disable-pip-version-check -q "$@"; }
engine() {
    echo "installing the locked packages into $VENV (about 3 GB, a few minutes the first time)" >&2
    torch=$(grep '^torch==' "$here/engine-cpu.lock")
    "$VENV/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('torch') != '${torch#torch==}')" 2>/dev/null ||
        pip install --no-deps "$torch" 2>/dev/null ||
        pip install --no-deps "$torch" --index-url https://download.pytorch.org/whl/cpu
    pip install --no-deps -r "$here/dev.lock" -r <(grep -v '^torch==' "$here/engine-cpu.lock")
}

[ "${1:-}" = light ] || engine
pip install --no-deps -r "$here/base.lock"
pip install "$(grep -o 'setuptools>=[0-9]*' "$here/../pyproject.toml")" wheel
pip install --no-deps --no-build-isolation -e "$here/.."
