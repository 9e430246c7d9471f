#!/usr/bin/env bash
# What the libraries pull in without features, as a program that depends on them gets it: prints how many crates that are, and fails where
# one of the commands' is among them.
set -euo pipefail
cd "$(dirname "$0")/.."
commands='clap|peppi|arrow2|zstd|nvml-wrapper|libloading|mimalloc|tokio|axum|hyper|tungstenite|gif|noto-sans-mono-bitmap'
for crate in candle-models candle-envs candle-train candle-models-c candle-models-python; do
    tree=$(cargo tree --locked --edges normal --package "$crate" --no-default-features --prefix none | sed 's/ .*//' | sort -u)
    echo "$crate: $(wc -l <<<"$tree") crates"
    if found=$(grep -xE "$commands" <<<"$tree"); then
        echo "$crate pulls in what only commands want:" $found
        exit 1
    fi
done
