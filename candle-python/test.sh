#!/usr/bin/env bash
# Tests the Python package with the library that cargo has built: `candle-python/test.sh TARGET_DIR PYTHON`. PYTHON has NumPy.
# TARGET_DIR is the folder of `debug`; build there first with `cargo build --workspace`. Where it holds the command as well, the two are
# compared.
set -euo pipefail
target=$(realpath "$1")
python=$2
cd "$(dirname "$0")"
package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
cp -r python/candle_models "$package"
case $(uname) in
    Darwin) library=$target/debug/lib_native.dylib ;;
    *) library=$target/debug/lib_native.so ;;
esac
cp "$library" "$package/candle_models/_native.abi3.so"
if [ -x "$target/debug/candle-infer" ]; then
    export CANDLE_INFER="$target/debug/candle-infer"
fi
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$package${PYTHONPATH:+:$PYTHONPATH}" "$python" -m unittest discover --start-directory tests "${@:3}"
