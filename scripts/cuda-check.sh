#!/usr/bin/env bash
# Type-checks the feature `cuda` on a machine without a CUDA toolkit or GPU: the build scripts below Candle only want an
# `nvcc` that states its version and leaves the files behind that they ask for.
set -euo pipefail
cd "$(dirname "$0")/.."

bin="$(mktemp -d)"
trap 'rm -rf "$bin"' EXIT
cat >"$bin/nvcc" <<'NVCC'
#!/usr/bin/env bash
# A stand-in: no code comes out of it.
if [[ " $* " == *" --version "* ]]; then
    printf '%s\n' 'nvcc: NVIDIA (R) Cuda compiler driver' 'stand-in' 'for type checks' 'Cuda compilation tools, release 13.0, V13.0.88' 'Build none'
    exit 0
fi
out='' dir='' sources=()
while [ $# -gt 0 ]; do
    case "$1" in
        -o) out="$2"; shift ;;
        --output-directory) dir="$2"; shift ;;
        *.cu) sources+=("$1") ;;
    esac
    shift
done
[ -z "$out" ] || : >"$out"
[ -z "$dir" ] || for source in "${sources[@]}"; do : >"$dir/$(basename "${source%.cu}").ptx"; done
NVCC
chmod +x "$bin/nvcc"

PATH="$bin:$PATH" CUDA_COMPUTE_CAP=90 CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/cuda-check" \
    cargo check -p candle-models --lib --features cuda
