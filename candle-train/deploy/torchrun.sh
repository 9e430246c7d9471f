#!/usr/bin/env bash
# Ranks on the GPUs of this machine, started by torchrun, over NCCL. candle-train is built with `--features nccl`.
#   NPROC=8 candle-train/deploy/torchrun.sh policy --replays replays --out run
# On several machines, on each of them: NNODES=2 NODE_RANK=0 MASTER_ADDR=host-of-machine-0
# When a rank fails torchrun starts all of them again, and --resume goes on from the last checkpoint.
set -euo pipefail
exec torchrun --nproc-per-node "${NPROC:?number of GPUs}" --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-29500}" --max-restarts "${RESTARTS:-3}" \
    --no-python "${PROGRAM:-candle-train}" "$@" --resume
