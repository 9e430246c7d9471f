#!/usr/bin/env bash
# What a new user does, from an empty crate to an agent of their own: scripts/new-user.sh TARGET_DIR PYTHON
#
# TARGET_DIR keeps the builds from one call to the next; where it is empty, everything is compiled. PYTHON has NumPy and ONNX Runtime. Prints
# the time of every step, and that from the clone to the trained agent.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
target=$(realpath "$1")
python=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CARGO_TERM_COLOR=never
began=$SECONDS
said() { printf '%4d s  %s\n' $((SECONDS - began)) "$*"; }

git clone -q "$repository" "$folder/candle-models"
cd "$folder/candle-models"
said "cloned"

# A crate of one's own, with the README's program and profile.
cargo new -q --vcs none "$folder/mine"
(
    cd "$folder/mine"
    cargo add -q --path "$folder/candle-models/candle-models"
    sed -n '/^```toml$/,/^```$/p' ../candle-models/README.md | sed '1d;$d' >>Cargo.toml
    sed -n '/^```rust/,/^```$/p' ../candle-models/README.md | sed '1d;$d' >src/main.rs
    cp ../candle-models/Cargo.lock .
    CARGO_TARGET_DIR="$target/mine" cargo build -q
)
actions=$("$target/mine/debug/mine" | sort -u | wc -l)
[ "$actions" -gt 1 ] || { echo "the README's program chose one action in every state"; exit 1; }
said "the README's program in a crate of one's own: $actions different actions"

export CARGO_TARGET_DIR="$target/all"
cargo build -q --release --workspace --bins --lib
export PATH="$target/all/release:$PATH"
said "the programs are built"

# Episodes as the guide records them, of its made-up game.
mkdir "$folder/games"
cat >"$folder/record.py" <<'RECORD'
import json, pathlib, sys
import numpy as np

def save(path, tensors):  # safetensors without its package
    header, start = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": {"float32": "F32", "uint32": "U32"}[x.dtype.name], "shape": x.shape, "data_offsets": [start, start + x.nbytes]}
        start += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(x.tobytes() for x in tensors.values()))

random = np.random.default_rng(1)
for game in range(60):
    signal = np.where(random.random(64) < 0.25, random.integers(1, 3, 64), 0).astype(np.uint32)
    distance = random.random((64, 2), np.float32)
    turn = np.concatenate([np.zeros(3, np.uint32), signal[:-3]])
    action = np.stack([turn, (distance[:, 0] * 5).astype(np.uint32)], 1)
    # What an agent does not see may lie beside it.
    others = {"reset": np.eye(1, 64, dtype=np.uint32)[0], "reward": np.zeros(64, np.float32)}
    save(f"{sys.argv[1]}/game{game}.safetensors", {"distance": distance, "signal": signal.reshape(-1, 1), "action": action, **others})
RECORD
"$python" "$folder/record.py" "$folder/games"
candle-train agent --description examples/data/agent.toml --episodes "$folder/games" --out "$folder/run" >"$folder/trained" 2>&1
grep '^| ' "$folder/trained"
said "from the clone to a trained agent of one's own"

bundle="$folder/run/bundle"
candle-infer inspect "$bundle" | grep distance >/dev/null
candle-infer inspect --forward "$bundle" >"$folder/agent.py"
"$python" -m py_compile "$folder/agent.py"
candle-infer run "$bundle" "$folder/games/game7.safetensors" --out "$folder/answers.safetensors" | tail -n 1
candle-infer export "$bundle" "$folder/small" --dtype q8 | sed -n 1p
candle-infer onnx "$bundle" "$folder/onnx" --runtime "$python" | sed -n 1p
candle-bench latency --bundles "$bundle" --batches 1 --window-batches 1 --threads 1 --max-windows 3 --out "$folder/rows" | tail -n 3
said "inspected, run, exported, in ONNX Runtime, measured"

cc -std=c99 scripts/new_user.c -Icandle-c/include -L"$target/all/release" -lcandle_models_c -Wl,-rpath,"$target/all/release" -o "$folder/new_user"
in_c=$("$folder/new_user" "$bundle" 10)
mkdir "$folder/python"
cp -r candle-python/python/candle_models "$folder/python"
cp "$target/all/release/lib_native.so" "$folder/python/candle_models/_native.abi3.so"
in_python=$(PYTHONPATH="$folder/python${PYTHONPATH:+:$PYTHONPATH}" "$python" - "$bundle" <<'AGENT'
import sys
import candle_models

with candle_models.open(sys.argv[1]) as engine, engine.session() as agent:
    for spec in engine.signature.inputs:
        if spec.required:
            agent.inputs[spec.name][:] = 0
    for _ in range(10):
        agent.step()
    print(*agent.outputs["action"])
AGENT
)
[ "$in_c" = "$in_python" ] || { echo "from C: $in_c, from Python: $in_python"; exit 1; }
said "the same action from C and from Python: $in_c"
