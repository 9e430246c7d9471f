# The CUDA build and its tests on the emulated device, for .ci/run and .ci/deep. Sourced in a stage, behind .ci/stages.sh.

fetched toolkit
# shellcheck source=/dev/null
source "$CI_CACHE/cuda/env.sh"
# Build scripts look for headers and libraries beside their nvcc.
mkdir -p "$CI_CACHE/nvcc/bin"
ln -sfn "$CUDA_HOME/include" "$CI_CACHE/nvcc/include"
ln -sfn "$CUDA_HOME/lib64" "$CI_CACHE/nvcc/lib64"
cmp -s .ci/nvcc "$CI_CACHE/nvcc/bin/nvcc" || cp .ci/nvcc "$CI_CACHE/nvcc/bin/nvcc"
export NVCC="$CI_CACHE/nvcc/bin/nvcc" CUDA_COMPUTE_CAP=80
CUDA_EMULATOR="$CI_CACHE/cuda-emulator"
# One selection of packages for everything, so that nothing is built with two sets of features.
CUDA_PACKAGES=(-p candle-models -p candle-train -p candle-bench --features "candle-models/cli,candle-bench/cuda")

# With the arguments of cargo test that say which tests.
cuda_tests() (
    export LD_LIBRARY_PATH="$CUDA_EMULATOR:$LD_LIBRARY_PATH" CANDLE_REQUIRE_CUDA=1
    # The emulator takes and frees its interpreter's memory with every launch: kept, the tests take less than half the time.
    export MALLOC_TRIM_THRESHOLD_=2000000000 MALLOC_MMAP_THRESHOLD_=2000000000
    cargo test -q "${CUDA_PACKAGES[@]}" "$@"
)
