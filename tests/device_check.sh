#!/usr/bin/env bash
# All that only a CUDA device can show, in under eight minutes: which ways of starting kernels work,
# the tests marked gpu, how long the attention takes beside its bytes, and how fast images are drawn
# and pixels trained on.
#   [DEADLINE=seconds] [STAGES='tests bench attention'] [MODELS='mnist …'] [SLOTS='1 10000']
#   tests/device_check.sh [folder for the full log]
# Needs a python3 ($PYTHON) with a CUDA build of PyTorch, Triton, safetensors, tqdm and pytest, and
# neither the package installed nor what the service imports; installs nothing. Every figure is printed as
# it comes, so that what is stopped half-way has told all that it knew.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
log=${1:-$(mktemp -d)}/device_check.log
mkdir -p "$(dirname "$log")"
: >"$log"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cores=$(nproc)
processes=$((cores > 16 ? 14 : cores > 5 ? cores - 4 : 2))
deadline=${DEADLINE:-480}
read -rd '' -a stages <<<"${STAGES:-tests bench attention}" || true
failed=0
for one in "${stages[@]}"; do
    case $one in
    tests | bench | attention) ;;
    *)
        echo "STAGES may name tests, bench and attention, not $one"
        exit 2
        ;;
    esac
done
stages=" ${stages[*]} "

# The package, importable without being installed.
mkdir "$work/scanline"
ln -s "$PWD/kernels" "$PWD/model" "$PWD/service" "$PWD/weights" "$work/scanline/"
export PYTHONPATH="$work" PYTHONUNBUFFERED=1
# What is compared with is torch alone: no build of ours, and none by every process at once.
export CXX=none

# Pytest's settings without the project's plugins; each of several processes takes its share.
cat >"$work/pytest.ini" <<'INI'
[pytest]
markers =
    gpu: needs a CUDA device
    slow: minutes, not seconds
    broad: one more of what others test
faulthandler_timeout = 120
INI
cat >"$work/share.py" <<'PYTHON'
import os
import pytest

@pytest.hookimpl(trylast=True)  # once -m and -k have chosen
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.name)
    items[:] = items[int(os.environ["SHARE"])::int(os.environ["SHARES"])]
PYTHON

# stage NAME SECONDS PATTERN COMMAND…: run it, add its lines to the log, show those that match at
# once.
stage() {
    local name=$1 seconds=$2 pattern=$3 began=$SECONDS code=0
    shift 3
    [ "$seconds" -lt $((deadline - SECONDS)) ] || seconds=$((deadline - SECONDS))
    if [ "$seconds" -lt 5 ]; then
        printf '%s: no time is left\n' "$name"
        failed=1
        return 1
    fi
    # An interrupt first, on which pytest tells what has failed so far.
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

# tests NAME SECONDS WHICH [OPTION…]: run those tests that need a device that WHICH chooses.
tests() {
    local name=$1 seconds=$2 which=$3
    shift 3
    stage "$name" "$seconds" \
        '\| (FAILED|ERROR) |(FAILED|ERROR) +\[|[0-9]+ (passed|failed|errors?)|collected|Timeout' \
        "$python" -m pytest -c "$work/pytest.ini" --rootdir . -p share -p no:cacheprovider \
        -m gpu --broad -k "$which" -v --tb=short "$@" tests/model/decoders tests/triton tests/kernels/cuda
}

stage versions 180 . "$python" -c '
import sys, torch, triton
print(torch.__version__, "Triton", triton.__version__)
if not torch.cuda.is_available(): sys.exit("there is no CUDA device")
print(torch.cuda.get_device_name())'
if [ $? -eq 1 ]; then  # and not 124: a first import may be slow
    SHARES=1 SHARE=0 tests collected 60 "" --collect-only  # all that there is to do
    exit 1
fi

options=()
stage starts 45 . "$python" -m scanline.model.bench.cuda_launch_modes
[ $? -ne 3 ] || options=(--plain)  # a server's way does not work, and another may

# Those that take the device's memory, or watch it, come alone.
alone='stays_flat or 32_bits'
running=()
models=()
[[ $stages != *' bench '* ]] || read -ra models <<<"${MODELS:-mnist-paper cifar10-paper mnist cifar10}"
[ -z "${SLOTS:-}" ] || options+=(--slots $SLOTS)
# Meanwhile each benchmark compiles what it will time.
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
# What matters most comes first: time may run out.
for model in "${models[@]}"; do
    stage "bench-$model" 75 . \
        "$python" -m scanline.model.bench.cuda "$model" --repeats 3 --seconds 0.5 "${options[@]}"
done
[[ $stages != *' attention '* ]] || stage attention 45 . "$python" -m scanline.model.bench.cuda_attention
echo "the full log: $log"
exit "$failed"
