# What .ci/run and .ci/deep share. Sourced, with the repository's root as the working directory.
#
#   stage NAME "PATH..." FUNCTION   runs FUNCTION in a subshell, prints its time, and ends the script if it fails. Where the files below
#                                   the paths, .ci and the compiler are those of a run that passed on this machine, the stage is skipped
#                                   and says so; without paths it always runs. CI_ALL=1 skips none.
#   side_by_side FUNCTION FUNCTION  runs both at once, for a stage whose parts use one core each.
#   fetch NAME FUNCTION             starts FUNCTION in the background: what waits for the network need not wait for the processor.
#   fetched NAME                    waits for it, and fails with its output if it failed.
#   finish                          prints every stage with its time, and the total beside the budget of .ci/budget.

export CI_CACHE="${CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/candle-models-ci}"
export CARGO_TARGET_DIR="$CI_CACHE/target"
export CARGO_TERM_COLOR=never
# Nothing here is built twice in a row: what an incremental build keeps for the next one costs time and disk.
export CARGO_INCREMENTAL=0
# And no unit of code generation has to wait for a neighbour: one takes a third less of the processor than sixteen, which are joined again.
export CARGO_PROFILE_DEV_CODEGEN_UNITS=1
# Real replays, where they lie beside the clone; without them the tests that need them say that they were skipped.
if [ -z "${CANDLE_DATA:-}" ] && [ -d ../shared/data ]; then
    CANDLE_DATA="$(cd ../shared/data && pwd)"
    export CANDLE_DATA
fi
# A start is cold when this machine has built nothing of the project yet.
[ -d "$CARGO_TARGET_DIR" ] && CI_START=warm || CI_START=cold
mkdir -p "$CI_CACHE/passed" "$CI_CACHE/fetch"

# What says how crates are built, and what every crate of the workspace is built from.
MANIFESTS=".cargo Cargo.toml Cargo.lock clippy.toml candle-models/Cargo.toml candle-envs/Cargo.toml candle-train/Cargo.toml candle-bench/Cargo.toml candle-serve/Cargo.toml candle-c/Cargo.toml candle-python/Cargo.toml examples/Cargo.toml"
RUST="$MANIFESTS candle-models candle-envs candle-train candle-bench candle-serve candle-c candle-python examples weights"
STAGES=()

# The hash of all files below those paths, as they lie in the working tree. A file that was removed there and is still in the index has none.
digest() {
    git ls-files -z --cached --others --exclude-standard -- "$@" | sort -zu | { xargs -0 -r sha256sum 2>/dev/null || true; } | sha256sum
}

stage() {
    local name="$1" paths="$2" work="$3" began=$SECONDS passed='' status
    if [ -n "$paths" ]; then
        # shellcheck disable=SC2086
        passed="$CI_CACHE/passed/$work-$({ echo "$name"; rustc -vV; uname -m; digest .ci $paths; } | sha256sum | cut -c1-20)"
        if [ -e "$passed" ] && [ -z "${CI_ALL:-}" ]; then
            printf '\n== %s: skipped, the same files passed on %s\n' "$name" "$(cat "$passed")"
            STAGES+=("$name|skipped")
            return 0
        fi
    fi
    printf '\n== %s (%ss)\n' "$name" "$SECONDS"
    set +e
    (set -euo pipefail; "$work")
    status=$?
    set -e
    STAGES+=("$name|$((SECONDS - began)) s")
    if [ "$status" != 0 ]; then
        finish
        printf 'FAILED: %s, exit status %s\n' "$name" "$status"
        exit "$status"
    fi
    [ -z "$passed" ] || date -u +%FT%TZ >"$passed"
}

# What the second one prints comes last.
side_by_side() {
    local first second failed=0 log="$CI_CACHE/$2.log"
    "$1" &
    first=$!
    "$2" >"$log" 2>&1 &
    second=$!
    wait "$first" || failed=1
    wait "$second" || failed=1
    cat "$log"
    return "$failed"
}

fetch() {
    rm -f "$CI_CACHE/fetch/$1.status"
    {
        set +e
        (set -euo pipefail; "$2") >"$CI_CACHE/fetch/$1.log" 2>&1
        echo $? >"$CI_CACHE/fetch/$1.status"
    } &
}

fetched() {
    # Stages are subshells, which cannot wait for a child of their parent.
    while [ ! -s "$CI_CACHE/fetch/$1.status" ]; do sleep 0.2; done
    [ "$(cat "$CI_CACHE/fetch/$1.status")" = 0 ] || { cat "$CI_CACHE/fetch/$1.log"; return 1; }
}

# Installs Debian packages.
debian() {
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# What stages need beside Rust.
packages() {
    local missing=()
    command -v g++ >/dev/null || missing+=(gcc g++ libc6-dev)
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    command -v valgrind >/dev/null || missing+=(valgrind)
    command -v chromium >/dev/null || missing+=(chromium fonts-dejavu-core)
    { command -v mpirun && command -v mpicc && ls /usr/lib/llvm-*/lib/libclang.so*; } >/dev/null 2>&1 || missing+=(libopenmpi-dev openmpi-bin libclang-dev)
    # Two replicas behind a balancer, and snapshots in Redis, in the tests of the server.
    command -v haproxy >/dev/null || missing+=(haproxy)
    command -v redis-server >/dev/null || missing+=(redis-server)
    [ ${#missing[@]} = 0 ] || debian "${missing[@]}"
}

# The CUDA toolkit, without a GPU.
toolkit() {
    fetched packages
    scripts/cuda-toolkit.sh "$CI_CACHE/cuda"
}

finish() {
    local line budget
    printf '\n%-60s %s\n' stage time
    for line in "${STAGES[@]}"; do printf '%-60s %s\n' "${line%|*}" "${line#*|}"; done
    budget="$(awk -v script="$(basename "$0")" -v start="$CI_START" '$1 == script && $2 == start { print $3 }' .ci/budget)"
    printf '%-60s %s s of %s s (%s start)\n' total "$SECONDS" "${budget:-no budget}" "$CI_START"
    # A busy neighbour is no reason to lose a change: the budget is for people to see, and for them to keep.
    [ -z "$budget" ] || [ "$SECONDS" -le "$budget" ] || echo "OVER THE BUDGET: make a stage cheaper, or move a part of it to .ci/deep"
}
