#!/usr/bin/env bash
# The tests and benchmarks that need a GPU, in one file that carries everything to a machine with one.
#
#     scripts/gpu-suite.sh build [FILE]          needs Rust and a CUDA toolkit (scripts/cuda-toolkit.sh), no GPU;
#                                                writes FILE [default: gpu-suite.tar.gz], below 60 MB
#     tar xzf gpu-suite.tar.gz && gpu-suite/run.sh run [--tests] [DIR]
#                                                needs a driver and the CUDA 13 runtime libraries, of the system or of a Python
#                                                installation of PyTorch; no Rust, no network. Ends within 8 minutes.
#
# GPU_SUITE_HOST names the machine in the tables. `run` looks at the machine, runs the correctness tests, then the benchmarks beside PyTorch on the same weights where
# Python (PYTHON, default python3) has it, and writes host, method and tables into DIR [default: runs/<date>-<host>].
# Every part has a time limit of its own and leaves behind what it has; --tests leaves the benchmarks out. Without a device
# it says so and ends well.
set -euo pipefail

usage() { sed -n '4,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }

# ---------------------------------------------------------------------------------------------------------------- build

FEATURES=cuda
LIMIT_MB=60

build() {
    cd "$(dirname "$0")/.."
    local file="${1:-gpu-suite.tar.gz}" target="${CARGO_TARGET_DIR:-target}" stage tests bytes
    command -v nvcc >/dev/null && [ -n "${CUDA_HOME:-}" ] || { echo "no CUDA toolkit: source the env.sh that scripts/cuda-toolkit.sh writes" >&2; exit 1; }
    # PTX for the oldest architecture, which every newer one compiles when it loads it.
    export CUDA_COMPUTE_CAP="${CUDA_COMPUTE_CAP:-80}"
    local features="candle-models/cli,candle-train/nccl"
    for feature in ${FEATURES//,/ }; do features+=",candle-models/$feature,candle-bench/$feature"; done
    local packages=(-p candle-models -p candle-train -p candle-bench --features "$features")
    cargo build --release "${packages[@]}" --bin candle-infer --bin candle-bench --bin candle-train
    tests="$(cargo test --release "${packages[@]}" --test gpu --test train_gpu --no-run --message-format=json |
        sed -n 's/.*"name":"\(gpu\|train_gpu\)".*"executable":"\([^"]*\)".*/\1 \2/p')"

    stage="$(mktemp -d)"
    # Expanded now: the variable is gone when the trap runs.
    # shellcheck disable=SC2064
    trap "rm -rf '$stage'" EXIT
    local suite="$stage/gpu-suite"
    # Laid out like the repository: tests and benchmarks read weights and data by relative paths.
    mkdir -p "$suite"/{bin,stub,weights,candle-models/tests,candle-train,candle-bench,examples}
    local name path
    for name in gpu train_gpu; do
        path="$(sed -n "s/^$name //p" <<<"$tests" | tail -n 1)"
        [ -x "$path" ] || { echo "the tests $name were not built" >&2; exit 1; }
        cp "$path" "$suite/bin/tests-$name"
    done
    cp "$target"/release/{candle-bench,candle-infer,candle-train} "$suite/bin/"
    strip "$suite"/bin/*
    cp -L "$CUDA_HOME/lib/stubs/libcuda.so" "$suite/stub/libcuda.so.1"
    cp -r weights/policy-mlp weights/policy-mamba weights/beam-c3 weights/localiser weights/classifier "$suite/weights/"
    cp -r candle-models/tests/golden "$suite/candle-models/tests/"
    mkdir "$suite/candle-bench/peers" && cp candle-bench/peers/*.py "$suite/candle-bench/peers/"
    cp -r examples/data "$suite/examples/"
    cp "$0" "$suite/run.sh" 2>/dev/null || cp scripts/gpu-suite.sh "$suite/run.sh"
    { git rev-parse HEAD; git status --porcelain --untracked-files=no | head -n 1 | sed 's/.*/with changes/'; echo "features $FEATURES, CUDA_COMPUTE_CAP $CUDA_COMPUTE_CAP"; } >"$suite/commit.txt"
    tar -C "$stage" --owner=0 --group=0 -c gpu-suite | gzip -9 >"$file.partial"
    mv -f "$file.partial" "$file"
    bytes="$(stat -c %s "$file")"
    echo "$file: $((bytes / 1000)) kB"
    [ "$bytes" -lt $((LIMIT_MB * 1000000)) ] || { echo "larger than $LIMIT_MB MB" >&2; exit 1; }
}

# ------------------------------------------------------------------------------------------------------------------ run

TOTAL_S=470
LIBRARIES=(libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libcufft.so.12 libcurand.so.10 libnvrtc.so.13)

# Whether the loader finds a library as things stand.
loads() {
    local dir
    IFS=: read -ra dirs <<<"${LD_LIBRARY_PATH:-}"
    for dir in "${dirs[@]}"; do [ -n "$dir" ] && [ -e "$dir/$1" ] && return 0; done
    { ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null; } | grep -F "$1 " >/dev/null
}

# Folders that may hold CUDA libraries: those of the driver and the toolkit, then those of Python's packages.
folders() {
    printf '%s\n' /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/local/cuda/lib64 /usr/lib/wsl/lib
    "$python" -c 'import glob, sys; [print(d) for p in sys.path for pattern in ("cu13/lib", "*/lib") for d in sorted(glob.glob(f"{p}/nvidia/{pattern}"))]' 2>/dev/null || true
}

# Puts the folder of a library that the loader does not find on its path, if there is one.
find_library() {
    local dir
    loads "$1" && return 0
    while read -r dir; do
        [ -e "$dir/$1" ] || continue
        export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$dir"
        return 0
    done < <(folders)
}

find_libraries() {
    local library missing=()
    for library in libcuda.so.1 "${LIBRARIES[@]}"; do
        find_library "$library"
        loads "$library" || missing+=("$library")
    done
    # NVRTC opens its built-in headers by name, from the same folder: that folder must be on the path too.
    if [ "${missing[0]:-}" = libcuda.so.1 ]; then
        echo "no NVIDIA driver here (libcuda.so.1 is not found): a stub stands in for it"
        export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$root/stub"
        missing=("${missing[@]:1}")
    fi
    [ ${#missing[@]} = 0 ] || { echo "missing: ${missing[*]} (install the CUDA 13 runtime libraries, or PyTorch for CUDA 13 in \$PYTHON)" >&2; exit 1; }
}

# What is to be known beside the table of parts.
note() { echo "$1" | tee -a "$out/notes.txt"; }

finish() {
    { printf '%s\n' '# GPU suite' '' '| part | | time |' '|---|---|---|'; cat "$out/parts.txt"; printf '\n'; cat "$out/notes.txt"; } >"$out/summary.md"
    rm -f "$out/parts.txt" "$out/notes.txt"
    printf '\n'
    cat "$out/summary.md"
    echo "written: $out"
}

# part NAME LIMIT_S COMMAND...: runs a part within its limit and within what is left, and notes how it ended.
part() {
    local name="$1" limit="$2" left=$((TOTAL_S - SECONDS)) start=$SECONDS status=0
    shift 2
    [ "$limit" -le "$left" ] || limit="$left"
    if [ "$limit" -lt 5 ]; then
        echo "| $name | left out, no time left | |" >>"$out/parts.txt"
        return 0
    fi
    printf '\n== %s (at most %s s)\n' "$name" "$limit"
    # Interrupted, a benchmark still writes what it has.
    timeout -s INT -k 5 "$limit" "$@" 2>&1 | tee "$out/$name.log" || status=${PIPESTATUS[0]}
    local ended="done"
    case "$status" in 0) ;; 124 | 130 | 137) ended="cut off after $limit s, what it had is kept" ;; *) ended="FAILED with status $status" ;; esac
    [ "$status" = 0 ] || failed=1
    echo "| $name | $ended | $((SECONDS - start)) s |" >>"$out/parts.txt"
}

describe_host() {
    date -u +'%Y-%m-%d %H:%M UTC'
    uname -srm
    sed -n 's/^model name[^:]*: /CPU: /p' /proc/cpuinfo | sort | uniq -c
    sed 's/^/commit: /' "$root/commit.txt"
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv 2>/dev/null || echo "no nvidia-smi"
    "$python" -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda)' 2>/dev/null || echo "no PyTorch in $python"
    echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
}

run() {
    local tests_only=''
    [ "${1:-}" != --tests ] || { tests_only=yes; shift; }
    [ $# -le 1 ] || usage
    root="$(cd "$(dirname "$0")" && pwd)" python="${PYTHON:-python3}" failed=0
    [ -x "$root/bin/tests-gpu" ] || { echo "run this in an unpacked bundle (gpu-suite/run.sh run)" >&2; exit 1; }
    out="${1:-runs/$(date -u +%F)-$(uname -n)}"
    mkdir -p "$out"
    out="$(cd "$out" && pwd)"
    find_libraries
    describe_host >"$out/host.txt"
    cp "$root/commit.txt" "$out/"
    : >"$out/parts.txt" && : >"$out/notes.txt"
    # Whatever happens, what there is gets summed up.
    trap finish EXIT
    cd "$root/candle-models"

    part doctor 30 "$root/bin/candle-infer" doctor "$root/weights/policy-mamba"
    if ! grep -q '^  cuda:0' "$out/doctor.log"; then
        note "No CUDA device on this machine: tests and benchmarks need one."
        return 0
    fi
    local emulated=''
    if grep -q 'CUDA emulator' "$out/doctor.log"; then
        tests_only=yes emulated=yes
        note "The device is emulated: benchmarks would measure the emulator."
    fi
    part tests 180 "$root/run.sh" each-test gpu
    cd "$root/candle-train"
    # The trainer's tests link to NCCL, whose test of a group of one GPU needs a real device.
    find_library libnccl.so.2
    if loads libnccl.so.2; then
        part training 100 "$root/run.sh" each-test train_gpu ${emulated:+a_group_of_one_gpu}
    else
        note "No libnccl.so.2: the trainer's tests, which link to it, are left out."
    fi
    if [ -z "$tests_only" ]; then
        cd "$root"
        local peer=() bench="$root/bin/candle-bench"
        local host=(${GPU_SUITE_HOST:+--host "$GPU_SUITE_HOST"})
        CANDLE_BENCH_COMMIT="$(head -c 10 commit.txt)$(grep -q 'with changes' commit.txt && echo -dirty || true)"
        export CANDLE_BENCH_COMMIT
        python="$(command -v "$python" || echo "$python")"
        if "$python" -c 'import torch, numpy, safetensors; assert torch.cuda.is_available()' 2>/dev/null; then
            peer=(--python "$python" --script candle-bench/peers/peer.py)
        else
            note "PyTorch with CUDA, numpy and safetensors are not all in $python: no comparisons."
        fi
        part gpu 120 "$bench" gpu --device cuda:0 --dtypes bf16 --out "$out" --warm-up 0.2 --window-length 0.2 --rounds 4 --limit 4 \
            "${host[@]}" "${peer[@]:---alone}"
        part signals 30 "$bench" rf --device cuda:0 --out "$out" --warm-up 0.2 --window-length 0.2 "${host[@]}"
        part operators 40 "$bench" latency --backbones fno-64x64 --batches 1,64 --window-batches 1 --window 1 --dtypes f32,bf16 --threads 1 --device cuda:0 \
            --out "$out/operators" --warm-up 0.2 --window-length 0.1 "${host[@]}"
        # Every suite, as on a CPU. Its comparison with PyTorch is short: a longer one follows, into a folder of its own.
        part all 170 "$bench" all --quick --device cuda:0 --out "$out" "${host[@]}" "${peer[@]}"
        if [ ${#peer[@]} -gt 0 ]; then
            local compare=("$bench" peers --device cuda:0 --backbones mlp,mamba --passes step --threads 1
                --rounds 4 --limit 2 --warm-up 0.2 --window-length 0.2 "${host[@]}" "${peer[@]}")
            part peers 80 "${compare[@]}" --libraries pytorch,pytorch-graphs --dtypes bf16,f32 --batches 1,32,256 --out "$out/peers"
            # Compiling takes PyTorch longer than everything else.
            part compiled 60 "${compare[@]}" --libraries pytorch-compile --dtypes bf16 --batches 1 --out "$out/compiled"
        fi
    fi
    return "$failed"
}

# Every test of a program, but for those whose names contain the second argument, in a process of its own: a kernel that fails leaves its
# process without a device. Starting takes most of their time, so that a few run at once.
AT_ONCE=6
each_test() {
    "$(dirname "$0")/bin/tests-$1" --list 2>/dev/null | sed -n 's/: test$//p' | { if [ -n "${2:-}" ]; then grep -v "$2"; else cat; fi; } |
        xargs -P "$AT_ONCE" -I NAME "$0" one-test "$(cd "$(dirname "$0")" && pwd)/bin/tests-$1" NAME || { echo "some failed"; return 1; }
    echo "none failed"
}

one_test() {
    local said status=0
    said="$(timeout -k 5 60 "$1" --exact "$2" --test-threads=1 </dev/null 2>&1)" || status=$?
    # In one piece, as others write beside it.
    sed '/^$/d; /^running 1 test$/d' <<<"$said"
    return "$status"
}

case "${1:-}" in
    build) shift; build "$@" ;;
    run) shift; run "$@" ;;
    each-test) shift; each_test "$@" ;;
    one-test) shift; one_test "$@" ;;
    *) usage ;;
esac
