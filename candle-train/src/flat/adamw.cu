// Gradients of all parameters side by side, their norm, and AdamW on all of them. One block a chunk of one parameter.
//
// The update repeats the operations of the one on the CPU in their order, each rounded by itself, so that the same gradients
// give the same parameters on both.

// A stretch of a parameter: `Chunk` in mod.rs.
struct Chunk {
    u64 data;  // address of its values, of the parameter or of a gradient
    u32 at;    // its place among all values
    u32 length;
    u32 flag;  // gather: add to what is there; update: decay
    u32 unused;
};

struct Gather {
    const Chunk* chunks;
    float* sum;
};

extern "C" __global__ void gather(const __grid_constant__ Gather a) {
    Chunk chunk = a.chunks[blockIdx.x];
    const float* gradient = (const float*)chunk.data;
    float* sum = a.sum + chunk.at;
    for (u32 i = threadIdx.x; i < chunk.length; i += blockDim.x) sum[i] = chunk.flag ? sum[i] + gradient[i] : gradient[i];
}

// The sum over a block of whole warps, in thread 0.
inline double block_sum(double x) {
    __shared__ double partial[32];
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_down_sync(0xffffffff, x, lane);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0.0;
    if (threadIdx.x == 0)
        for (u32 i = 0; i < blockDim.x / 32; i++) sum += partial[i];
    return sum;
}

struct Squares {
    const Chunk* chunks;
    const float* gradient;
    double* partial;  // one sum a chunk
};

extern "C" __global__ void squares(const __grid_constant__ Squares a) {
    Chunk chunk = a.chunks[blockIdx.x];
    const float* gradient = a.gradient + chunk.at;
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < chunk.length; i += blockDim.x) sum += (double)gradient[i] * (double)gradient[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

// What the update needs to know of the whole gradient.
struct Verdict {
    float norm;
    float scale;  // what gradients are multiplied by; NaN where nothing is to be changed
};

struct Clip {
    const double* partial;
    const float* loss;
    Verdict* verdict;
    double limit;  // 0 for none
    double unscale;
    u32 chunks;
};

extern "C" __global__ void clip(const __grid_constant__ Clip a) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < a.chunks; i += blockDim.x) sum += a.partial[i];
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    double norm = sqrt(sum) * a.unscale;
    bool finite = isfinite((float)norm) && isfinite(*a.loss);
    a.verdict->norm = (float)norm;
    a.verdict->scale = !finite ? __uint_as_float(0x7fc00000) : a.limit > 0.0 && norm > a.limit ? (float)(a.limit / norm * a.unscale) : (float)a.unscale;
}

// `AdamwFactors` in candle-models' ops/slices.rs.
struct Factors {
    float beta1, beta2, fresh1, fresh2, eps, keep, rate, unbias, follow;
};

struct Update {
    const Chunk* chunks;
    const float* gradient;
    float* mean;
    float* square;
    float* average;
    const Verdict* verdict;
    Factors factors;
};

extern "C" __global__ void update(const __grid_constant__ Update a) {
    Chunk chunk = a.chunks[blockIdx.x];
    float scale = a.verdict->scale;
    if (isnan(scale)) return;
    Factors f = a.factors;
    float* parameter = (float*)chunk.data;
    float keep = chunk.flag ? f.keep : 1.0f;
    for (u32 i = threadIdx.x; i < chunk.length; i += blockDim.x) {
        u32 at = chunk.at + i;
        float g = __fmul_rn(a.gradient[at], scale), p = parameter[i], e = a.average[at];
        float m = __fadd_rn(__fmul_rn(f.beta1, a.mean[at]), __fmul_rn(f.fresh1, g));
        float v = __fadd_rn(__fmul_rn(f.beta2, a.square[at]), __fmul_rn(__fmul_rn(f.fresh2, g), g));
        float below = __fadd_rn(__fmul_rn(__fsqrt_rn(v), f.unbias), f.eps);
        p = __fsub_rn(__fmul_rn(p, keep), __fdiv_rn(__fmul_rn(f.rate, m), below));
        a.mean[at] = m;
        a.square[at] = v;
        parameter[i] = p;
        a.average[at] = __fadd_rn(e, __fmul_rn(f.follow, __fsub_rn(p, e)));
    }
}
