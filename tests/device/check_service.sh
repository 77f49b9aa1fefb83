#!/usr/bin/env bash
# Checks of the service on a GPU machine that lacks its packages, in at most two minutes.
#   [DEADLINE=seconds] tests/device/check_service.sh WHEELS [option of check_service.py …]
# WHEELS is a folder made by download_wheels.py. The machine needs a python3 ($PYTHON) of the version
# that the wheels are for, with pip, a CUDA build of PyTorch and Triton. The wheels are installed into
# a temporary folder, and nothing else on the machine changes.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || {
    echo "usage: tests/device/check_service.sh WHEELS [option of check_service.py …]"
    exit 2
}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-index --no-deps \
    --no-compile --target "$work" "$1"/*.whl
shift
# shellcheck source=tests/device/importable.sh
. tests/device/importable.sh
make_importable "$work"
echo "wheels installed in $SECONDS s"
# Kill the server too, because it would drain at SIGTERM.
timeout --signal=KILL $((${DEADLINE:-120} - SECONDS)) "$python" -m tests.device.check_service "$@"
