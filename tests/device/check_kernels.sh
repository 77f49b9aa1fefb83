#!/usr/bin/env bash
# Checks that need a GPU, in under eight minutes: the launch modes of the kernels, the tests marked gpu,
# and benchmarks of drawing and training.
#   [DEADLINE=seconds] [STAGES='tests bench'] [MODELS='mnist …'] [SLOTS='1 10000']
#       tests/device/check_kernels.sh [folder for the full log]
# It needs a python3 ($PYTHON) with a CUDA build of PyTorch, Triton, safetensors, tqdm and pytest. The
# package need not be installed, nor the dependencies of the service. Results are printed as soon as they
# are known, so that an interrupted run is still useful.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
log=${1:-$(mktemp -d)}/check_kernels.log
mkdir -p "$(dirname "$log")"
: >"$log"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cores=$(nproc)
processes=$((cores > 16 ? 14 : cores > 5 ? cores - 4 : 2))
deadline=${DEADLINE:-480}
read -rd '' -a stages <<<"${STAGES:-tests bench}" || true
failed=0
for one in "${stages[@]}"; do
    case $one in
    tests | bench) ;;
    *)
        echo "unknown stage in STAGES: $one (use tests, bench)"
        exit 2
        ;;
    esac
done
stages=" ${stages[*]} "

# shellcheck source=tests/device/importable.sh
. tests/device/importable.sh
make_importable "$work"
# Compare with PyTorch only: without a compiler, no process builds the native decoder.
export CXX=none

# Pytest settings without the project's plugins. Each process runs its share of the tests.
cat >"$work/pytest.ini" <<'INI'
[pytest]
markers =
    gpu: needs a CUDA device
    slow: takes minutes
    broad: further cases of what other tests cover
faulthandler_timeout = 120
INI
cat >"$work/share.py" <<'PYTHON'
import os
import pytest

@pytest.hookimpl(trylast=True)  # after -m and -k have selected
def pytest_collection_modifyitems(items):
    # The tests of what has run on no device yet come first, because time may run out.
    items.sort(key=lambda item: ("fused" not in item.nodeid and "prefill" not in item.nodeid, item.name))
    items[:] = items[int(os.environ["SHARE"])::int(os.environ["SHARES"])]
PYTHON

# stage NAME SECONDS PATTERN COMMAND…: run a command with a time limit, append its output to the log, and
# print the lines that match the pattern.
stage() {
    local name=$1 seconds=$2 pattern=$3 began=$SECONDS code=0
    shift 3
    [ "$seconds" -lt $((deadline - SECONDS)) ] || seconds=$((deadline - SECONDS))
    if [ "$seconds" -lt 5 ]; then
        printf '%s: skipped, the deadline is near\n' "$name"
        failed=1
        return 1
    fi
    # Interrupt first, so that pytest reports the failures so far.
    timeout --signal=INT --kill-after=10 "$seconds" "$@" 2>&1 | sed -u "s/^/$name| /" |
        tee -a "$log" | grep --line-buffered -E "$pattern" | sed -u 's/^\(.\{240\}\).*/\1/'
    code=${PIPESTATUS[0]}
    if [ "$code" -ne 0 ]; then
        failed=1
        grep "^$name| " "$log" | tail -5 | cut -c1-240
    fi
    printf '%s: exit %d, %d s\n' "$name" "$code" "$((SECONDS - began))"
    return "$code"
}

# tests NAME SECONDS EXPRESSION [OPTION…]: run the GPU tests that the -k expression selects.
tests() {
    local name=$1 seconds=$2 expression=$3
    shift 3
    stage "$name" "$seconds" \
        '\| (FAILED|ERROR) |(FAILED|ERROR) +\[|[0-9]+ (passed|failed|errors?)|collected|Timeout' \
        "$python" -m pytest -c "$work/pytest.ini" --rootdir . -p share -p no:cacheprovider \
        -m gpu --broad -k "$expression" -v --tb=short "$@" \
        tests/model/decoders tests/triton tests/kernels/cuda/test_fused_decode_on_gpu.py
}

stage versions 180 . "$python" -c '
import sys, torch, triton
print(torch.__version__, "Triton", triton.__version__)
if not torch.cuda.is_available(): sys.exit("no CUDA device")
print(torch.cuda.get_device_name())'
if [ $? -eq 1 ]; then  # 124 is a timeout: a first import may be slow
    SHARES=1 SHARE=0 tests collected 60 "" --collect-only
    exit 1
fi

options=()
running=()
launch_modes() { stage launch-modes 45 . "$python" -m scanline.model.bench.cuda_launch_modes; }
if [[ $stages == *' bench '* ]]; then
    launch_modes
    [ $? -ne 3 ] || options=(--plain)  # the server's launch mode fails, but others may work
else
    launch_modes &
    running+=($!)
fi

# Tests that fill or measure the device's memory run alone.
alone='stays_flat or 32_bits'
models=()
[[ $stages != *' bench '* ]] || read -ra models <<<"${MODELS:-mnist-paper cifar10-paper mnist cifar10}"
[ -z "${SLOTS:-}" ] || options+=(--slots $SLOTS)
# Meanwhile, compile the kernels of the benchmarks.
for model in "${models[@]}"; do
    stage "compile-$model" 200 'Error|not timed' \
        "$python" -m scanline.model.bench.cuda "$model" --repeats 1 --seconds 0.01 "${options[@]}" &
    running+=($!)
done
if [[ $stages == *' tests '* ]]; then
    for i in $(seq 0 $((processes - 1))); do
        SHARES=$processes SHARE=$i tests "tests-$i" 200 "not ($alone)" &
        running+=($!)
    done
fi
for job in "${running[@]}"; do wait "$job" || failed=1; done
[[ $stages != *' tests '* ]] || SHARES=1 SHARE=0 tests tests-alone 45 "$alone"
# The most important stages run first, because time may run out.
for model in "${models[@]}"; do
    stage "bench-$model" 75 . \
        "$python" -m scanline.model.bench.cuda "$model" --repeats 3 --seconds 0.5 "${options[@]}"
done
echo "the full log: $log"
exit "$failed"
