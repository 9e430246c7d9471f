#!/usr/bin/env bash
# A CUDA 13.0 toolkit in a directory of one's own, without root and without a GPU: scripts/cuda-toolkit.sh DIR
# Assembles it from the wheels pinned in cuda-toolkit.txt (x86-64 Linux), repairs what is missing from an earlier run, and
# prints the environment to build and run with; the same lines lie in DIR/env.sh. Needs python3 with pip, cc and cargo.
set -euo pipefail
[ $# = 1 ] || { echo "usage: scripts/cuda-toolkit.sh DIR" >&2; exit 2; }
here="$(cd "$(dirname "$0")" && pwd)"
mkdir -p "$1"
root="$(cd "$1" && pwd)"
cuda="$root/nvidia/cu13"

[ "$(uname -sm)" = "Linux x86_64" ] || { echo "the pinned wheels are for x86-64 Linux, this is $(uname -sm)" >&2; exit 1; }
for tool in python3 cc cargo flock; do
    command -v "$tool" >/dev/null || { echo "cuda-toolkit: $tool is missing" >&2; exit 1; }
done

# Two calls at once would unpack over each other.
exec 9>"$root/.lock"
flock 9

# What a wheel holds is listed in its RECORD with sizes. The RECORD is unpacked last, so a killed run leaves none behind.
wheel() {
    python3 - "$root" "$@" <<'PYTHON'
import csv, os, sys, zipfile

root, action, argument = sys.argv[1:]

def rows(lines):
    return [(name, int(size)) for name, _, size in csv.reader(lines) if size]

def complete(record):
    if not os.path.exists(record):
        return False
    with open(record) as lines:
        return all(os.path.exists(os.path.join(root, name)) and os.path.getsize(os.path.join(root, name)) == size for name, size in rows(lines))

if action == "have":
    name, version = argument.split("==")
    sys.exit(not complete(os.path.join(root, f"{name.replace('-', '_')}-{version}.dist-info", "RECORD")))

with zipfile.ZipFile(argument) as archive:  # its CRC of every file is checked while unpacking
    members = sorted(archive.infolist(), key=lambda member: member.filename.endswith(".dist-info/RECORD"))
    for member in members:
        path = archive.extract(member, root)
        if member.external_attr >> 16 & 0o111 and os.path.isfile(path):
            os.chmod(path, 0o755)
PYTHON
}

while read -r requirement hash; do
    case "$requirement" in '' | '#'*) continue ;; esac
    wheel have "$requirement" && continue
    echo "cuda-toolkit: fetching $requirement" >&2
    rm -rf "$root/.wheel"
    printf '%s %s\n' "$requirement" "$hash" >"$root/.requirement"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir --only-binary=:all: --require-hashes \
        --dest "$root/.wheel" --requirement "$root/.requirement" >&2
    wheel unpack "$root"/.wheel/*.whl
    wheel have "$requirement" || { echo "cuda-toolkit: $requirement is incomplete after unpacking" >&2; exit 1; }
done <"$here/cuda-toolkit.txt"
rm -rf "$root/.wheel" "$root/.requirement"
chmod +x "$cuda"/bin/* "$cuda"/nvvm/bin/*

# Names that linkers and build scripts ask for.
ln -sfn lib "$cuda/lib64"
ln -sf ../../nccl/include/* "$cuda/include/"
ln -sf ../../nccl/lib/libnccl.so.2 "$cuda/lib/libnccl.so.2"
for library in "$cuda"/lib/lib*.so.*; do
    name="$(basename "$library")"
    ln -sf "$name" "$cuda/lib/${name%%.so.*}.so"
done

# Where candle-flash-attn looks for CUTLASS before it fetches it with git: a checkout whose HEAD is the commit of release 3.5.0.
cutlass=7d49e6c7e2f8896c47f586706e67e1fb215529dc
checkout="$root/cudaforge/git/checkouts/cutlass-${cutlass:0:16}"
mkdir -p "$checkout/.git/objects" "$checkout/.git/refs"
ln -sfn "$root/cutlass_library/source/include" "$checkout/include"
ln -sfn "$root/cutlass_library/source/tools" "$checkout/tools"
echo "$cutlass" >"$checkout/.git/HEAD"

# A driver to link against, which finds no device. It exports every function that cudarc declares; 100 is CUDA_ERROR_NO_DEVICE.
stubs="$cuda/lib/stubs"
manifest="$(cd "$here/.." && cargo metadata --format-version 1 --locked --features candle-models/cuda |
    python3 -c 'import json, sys; print(*[p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "cudarc"])')"
functions="$(sed -n 's/^ *fn \(cu[A-Z][A-Za-z0-9_]*\)(.*/\1/p' "$(dirname "$manifest")/src/driver/sys/mod.rs" | sort -u)"
[ "$(wc -w <<<"$functions")" -ge 400 ] || { echo "cuda-toolkit: cudarc declares its driver functions in a new way" >&2; exit 1; }
mkdir -p "$stubs"
source="$(printf 'int %s(void) { return 100; }\n' $functions)"
if [ "$source" != "$(cat "$stubs/libcuda.c" 2>/dev/null)" ] || [ ! -e "$stubs/libcuda.so.1" ]; then
    cc -shared -fPIC -O1 -Wno-builtin-declaration-mismatch -Wl,-soname,libcuda.so.1 -x c -o "$stubs/.libcuda.so" - <<<"$source"
    mv -f "$stubs/.libcuda.so" "$stubs/libcuda.so"
    ln -sf libcuda.so "$stubs/libcuda.so.1"
    printf '%s\n' "$source" >"$stubs/libcuda.c"
fi

# The stub stands last on the loader's path and only where the machine has no driver: it must never hide a real one.
cat >"$root/.env.sh" <<ENV
export CUDA_HOME='$cuda'
export CUDAFORGE_HOME='$root/cudaforge'
export PATH="\$CUDA_HOME/bin:\$PATH"
export LIBRARY_PATH="\$CUDA_HOME/lib:\$CUDA_HOME/lib/stubs\${LIBRARY_PATH:+:\$LIBRARY_PATH}"
export LD_LIBRARY_PATH="\${LD_LIBRARY_PATH:+\$LD_LIBRARY_PATH:}\$CUDA_HOME/lib"
/sbin/ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' || export LD_LIBRARY_PATH="\$LD_LIBRARY_PATH:\$CUDA_HOME/lib/stubs"
ENV
mv -f "$root/.env.sh" "$root/env.sh"

"$cuda/bin/nvcc" --version | tail -n 2 | head -n 1 >&2
cat "$root/env.sh"
