#!/usr/bin/env bash
# All that only a CUDA device can show, in under eight minutes: the tests marked gpu, how long the
# attention takes beside its bytes, and how fast images are drawn and pixels trained on.
#   kernels/cuda/device_check.sh [folder for full logs]
# Needs a python3 ($PYTHON) with a CUDA build of PyTorch and what the package and its tests import,
# pytest-timeout and typer among them; installs nothing.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
logs=${1:-$(mktemp -d)}
mkdir -p "$logs"
table="$logs/table.txt"
: >"$table"
failed=0

# stage NAME SECONDS PATTERN COMMAND…: run it, keep its log, put the lines that match in the table.
stage() {
    local name=$1 seconds=$2 pattern=$3 began=$SECONDS code=0
    shift 3
    timeout "$seconds" "$@" >"$logs/$name.log" 2>&1 || code=$?
    [ "$code" -eq 0 ] || failed=1
    printf '%s: exit %d, %d s\n' "$name" "$code" "$((SECONDS - began))" >>"$table"
    if [ "$code" -eq 0 ] || [ "$pattern" != . ]; then
        grep -E "$pattern" "$logs/$name.log" | tail -25 | cut -c1-150 | sed 's/^/    /' >>"$table"
    fi
    [ "$code" -eq 0 ] || tail -5 "$logs/$name.log" | cut -c1-150 | sed 's/^/  ! /' >>"$table"
}

stage versions 60 '.' "$python" -c '
import torch, triton
print(torch.cuda.get_device_name(), torch.__version__, "Triton", triton.__version__)'
stage tests 240 '^(FAILED|ERROR)|passed|failed' \
    "$python" -m pytest -m gpu -q -p no:cacheprovider tests
stage attention 60 '.' "$python" -m scanline.kernels.cuda.attention_bench
stage bench 120 '.' "$python" -m scanline.service bench --device cuda

cat "$table"
exit "$failed"
