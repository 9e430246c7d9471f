// Numbers from normal distributions: blocks share a row, a thread a number. The quantile is that of `quantile.rs`.

struct Gaussian {
    Rows<const float> parameters;  // means, and behind them what the logarithms of the deviations are made of
    Rows<const float> uniform;     // negative: the mean
    Rows<float> out;               // numbers, means, logarithms of the deviations
    float low;
    float high;
};

inline float horner(float x, const float* coefficients) {
    float sum = coefficients[0];
    for (u32 i = 1; i < 9; i++) sum = sum * x + coefficients[i];
    return sum;
}

inline float quantile(float u) {
    const float middle[9] = {2.8102264e-8f,  3.4327394e-7f,  -3.5233877e-6f, -4.3915065e-6f, 0.00021858087f,
                             -0.001253725f, -0.0041776816f, 0.24664073f,    1.5014094f};
    const float tails[9] = {-0.00020021426f, 0.00010095056f, 0.0013493432f, -0.0036734284f, 0.0057395077f,
                            -0.0076224613f,  0.0094388705f,  1.0016741f,    2.8329768f};
    u = fminf(fmaxf(u, 2.98023224e-8f), 0.99999994f);
    float w = -logf(4.0f * u * (1.0f - u));
    float p = w < 5.0f ? horner(w - 2.5f, middle) : horner(sqrtf(w) - 3.0f, tails);
    return 1.41421356f * p * (2.0f * u - 1.0f);
}

extern "C" __global__ void gaussian(const __grid_constant__ Gaussian a) {
    u32 n = a.uniform.width;
    u64 r = row_number(n);
    const float* parameters = a.parameters.row(r);
    float* out = a.out.row(r);
    const float* uniform = a.uniform.row(r);
    for_columns(
        n,
        [&](u32 i) -> float3 {
            float mean = parameters[i], log = -1.5f + 3.5f * tanhf(parameters[n + i]), u = uniform[i];
            return {u < 0.0f ? mean : mean + expf(log) * quantile(u), mean, log};
        },
        [&](u32 i, float3 number) {
            out[i] = fminf(fmaxf(number.x, a.low), a.high);
            out[n + i] = number.y;
            out[2 * n + i] = number.z;
        });
}
