#!/usr/bin/env bash
# Pons' test sets for Connect Four, five files of 1000 lines "moves score": scripts/connect-four-sets.sh [DIR]
# They lie in the package of a solver whose licence is no matter here: it is unpacked, and nothing of it is built or linked. Prints the
# folder, which by default is in the user's cache; what lies there already is not fetched again.
set -euo pipefail
folder="${1:-${XDG_CACHE_HOME:-$HOME/.cache}/candle-envs/connect-four-sets}"
sets=(Test_L1_R1 Test_L1_R2 Test_L2_R1 Test_L2_R2 Test_L3_R1)
complete() {
    for set in "${sets[@]}"; do
        [ "$(grep -cE '^[1-7]+ -?[0-9]+$' "$folder/$set" 2>/dev/null)" = 1000 ] || return 1
    done
}

if ! complete; then
    project="$(mktemp -d)"
    trap 'rm -rf "$project"' EXIT
    mkdir "$project/src"
    touch "$project/src/lib.rs"
    printf '[package]\nname = "sets"\nedition = "2024"\n[dependencies]\nconnect-four-solver = "=0.2.4"\n[workspace]\n' >"$project/Cargo.toml"
    (cd "$project" && cargo vendor --quiet vendor >/dev/null)
    mkdir -p "$folder"
    for set in "${sets[@]}"; do cp "$project/vendor/connect-four-solver/tests/$set" "$folder/"; done
    complete || { echo "connect-four-sets: $folder is incomplete" >&2; exit 1; }
fi
echo "$folder"
