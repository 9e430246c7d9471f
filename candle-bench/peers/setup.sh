#!/bin/sh
# Makes what `candle-bench peers` compares with: the virtual environment of the Python peers, and the program of those in Rust.
#     candle-bench/peers/setup.sh [DIR [TARGET]]      default DIR: candle-bench/peers/.venv, default TARGET: candle-bench/peers/rust/target
# PYTHON chooses the interpreter (3.11 or newer, default python3). Without cargo there are no peers in Rust.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$here/.venv}
target=${2:-$here/rust/target}
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
# What it asks for beside the operators it has no use for here: experiment tracking, plots, configuration. What its models import is required above.
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps neuraloperator==2.0.0
"$dir/bin/python" - <<'CHECK'
import jax, neuralop.models, numpy, onnx, onnxruntime, openvino, safetensors, torch
print(f"torch {torch.__version__}, neuraloperator {neuralop.__version__}, onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}, openvino {openvino.__version__}, jax {jax.__version__}, numpy {numpy.__version__}, safetensors {safetensors.__version__}")
CHECK
echo "peers in Python: $dir/bin/python"
if command -v cargo >/dev/null; then
    cargo build --release --quiet --locked --manifest-path "$here/rust/Cargo.toml" --target-dir "$target"
    echo "peers in Rust: $target/release/candle-bench-peer"
else
    echo "peers in Rust: none, there is no cargo"
fi
