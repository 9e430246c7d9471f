# The CUDA build and its tests on the emulated device, for .ci/run and .ci/deep. Sourced behind .ci/stages.sh.

# shellcheck source=/dev/null
source "$CI_CACHE/cuda/env.sh"
export CUDA_COMPUTE_CAP=80
# One selection for the build and for the tests, so that nothing is built with two sets of features.
CUDA_PACKAGES=(-p candle-models -p candle-train -p candle-bench --features "candle-models/cli,candle-bench/cuda")

cuda_build() {
    cargo test -q "${CUDA_PACKAGES[@]}" --no-run --test gpu --test on_gpu
    CUDA_EMULATOR="$CI_CACHE/cuda-emulator"
    cuda-emulator/build.sh "$CUDA_EMULATOR"
}

# The test programs side by side: most of a test is one thread that interprets a kernel.
cuda_tests() (
    export LD_LIBRARY_PATH="$CUDA_EMULATOR:$LD_LIBRARY_PATH" CANDLE_REQUIRE_CUDA=1
    # The emulator takes and frees its interpreter's memory with every launch: kept, the tests take less than half the time.
    export MALLOC_TRIM_THRESHOLD_=2000000000 MALLOC_MMAP_THRESHOLD_=2000000000
    "$CARGO_TARGET_DIR/debug/candle-infer" doctor weights/policy-mamba
    cargo test -q "${CUDA_PACKAGES[@]}" --test gpu --test on_gpu "$@"
)
