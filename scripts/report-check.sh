#!/usr/bin/env bash
# Looks at pages in headless Chromium: makes the report of every committed run, and the page of the shipped game with its log, and checks
# them at desktop and phone width, light and dark (scripts/report-check.py says what is checked). Screenshots go to the directory given.
#
#     scripts/report-check.sh SCREENSHOTS [RUN-DIRECTORY ...]
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -ge 1 ] || { echo "usage: scripts/report-check.sh SCREENSHOTS [RUN-DIRECTORY ...]" >&2; exit 2; }
screenshots="$1"
shift
[ $# -gt 0 ] || set -- candle-bench/runs/*
command -v chromium >/dev/null || { apt-get update -q && apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core; }

mkdir -p "$screenshots"
pages=()
for run in "$@"; do
    page="$screenshots/$(basename "$run").html"
    cargo run -q --bin candle-bench -- report "$run" --out "$page"
    pages+=("$page")
done
# A name that is markup where it is not escaped.
game="$screenshots/<img src=x onerror=throw(1)>&.slp"
cp examples/data/simulated.slp "$game"
page="$screenshots/replay.html"
cargo run -q --bin candle-infer -- run weights/policy-mamba "$game" --html "$page" --out "${page%.html}.jsonl" >"$screenshots/replay.txt"
pages+=("$page")
exec python3 -B scripts/report-check.py "$screenshots" "${pages[@]}"
