#!/usr/bin/env bash
# Checks and lints every CUDA feature of the workspace, all targets, on a machine without a CUDA toolkit or GPU: the build
# scripts below Candle only want an `nvcc` that states its version and leaves the files behind that they ask for.
set -euo pipefail
cd "$(dirname "$0")/.."

features=cuda,flash-attn,nccl
target="${CARGO_TARGET_DIR:-$PWD/target}/cuda-check"
tools="$target/stand-in"
mkdir -p "$tools"
cat >"$tools/nvcc.$$" <<'NVCC'
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
chmod +x "$tools/nvcc.$$"
mv -f "$tools/nvcc.$$" "$tools/nvcc"

# candle-flash-attn fetches CUTLASS with git unless a checkout of this commit is there; a type check reads none of it.
cutlass=7d49e6c7e2f8896c47f586706e67e1fb215529dc
checkout="$tools/git/checkouts/cutlass-${cutlass:0:16}"
mkdir -p "$checkout/include" "$checkout/.git/objects" "$checkout/.git/refs"
echo "$cutlass" >"$checkout/.git/HEAD"

PATH="$tools:$PATH" CUDAFORGE_HOME="$tools" CUDA_COMPUTE_CAP=90 CARGO_TARGET_DIR="$target" \
    cargo clippy --workspace --all-targets --features "$features" -- -D warnings
