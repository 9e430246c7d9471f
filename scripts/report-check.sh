#!/usr/bin/env bash
# Looks at reports in headless Chromium: makes the page of every committed run and checks it at desktop and phone width, light and
# dark (scripts/report-check.py says what is checked). Screenshots go to the directory given.
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
exec python3 scripts/report-check.py "$screenshots" "${pages[@]}"
