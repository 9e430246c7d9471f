#!/bin/sh
# Makes the virtual environment of the Python peers.
#     candle-bench/peers/setup.sh [DIR]      default DIR: candle-bench/peers/.venv
# PYTHON chooses the interpreter (3.11 or newer, default python3).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$here/.venv}
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
"$dir/bin/python" - <<'CHECK'
import jax, numpy, onnx, onnxruntime, safetensors, torch
print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}, jax {jax.__version__}, numpy {numpy.__version__}, safetensors {safetensors.__version__}")
CHECK
echo "peers: $dir/bin/python"
