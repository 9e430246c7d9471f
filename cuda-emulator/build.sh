#!/bin/sh
# Builds the emulator and puts it into DIR under the names of the four libraries that it stands in for.
#   cuda-emulator/build.sh DIR
#   LD_LIBRARY_PATH=DIR:$LD_LIBRARY_PATH program
set -eu
[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
target=${CARGO_TARGET_DIR:-$here/target}
cargo build --release --manifest-path "$here/Cargo.toml" --target-dir "$target"
cp -f "$target/release/libcuda_emulator.so" "$1/libcuda.so.1"
# One file, four names: the loader maps it once, so that the libraries share their streams and memory.
for name in libcuda.so libcublas.so.13 libcublas.so libcufft.so.12 libcufft.so libcurand.so.10 libcurand.so; do
    ln -sf libcuda.so.1 "$1/$name"
done
