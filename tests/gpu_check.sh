#!/usr/bin/env bash
# Proves what only a GPU can prove: the tests marked gpu (ranks that share one GPU over gloo, a rank per GPU over NCCL),
# and a short training run on the device. Without a GPU it says so, and exits with 3: nothing was proved.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "No GPU that torch can use here: nothing was checked."
    exit 3
fi
"$python" -c 'import torch; print(torch.__version__, *(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())), sep="; ")'
"$python" -m course.cli doctor --ranks 2
"$python" -m course.cli run --ranks 2 --dp 2 --steps 3
"$python" -m pytest -m gpu -rs tests
