// One frame of a Mamba block between its two large products, in two kernels: a block is then norm, product, these two, product.
//
// As operations of their own these are six launches (convolution, two products, scan, gate, and the copies between them), and at
// a few sequences a launch is all that they cost. Bytes for B sequences, E channels, N states, K taps, rank R, values of s bytes:
// 8 B E (N + K - 1) of state, 5 B E s of rows, and E (2 R + 2 N) s of weights, which every sequence reads from the cache.

// Channels of a block of the first kernel.
#define SLICE 64u
#define MOST_TAPS 16u

// u = silu(conv(x)), and this slice's share of u W.
template <typename T>
struct MambaConv {
    Rows<const T> x;           // [batch, inner]
    Rows<T> u;                 // [batch, inner]
    Rows<const T> projection;  // W, [inner, rank + 2 states]
    const float* weight;       // [taps, inner]
    const float* bias;         // [inner]
    States state;              // [taps - 1, inner]
    const u8* resets;          // one per sequence; null for none
    float* shares;             // [batch, slices, rank + 2 states]
    u32 taps;
};

// A block: a slice of the channels of one sequence. One warp has every eighth row of the slice's part of W, a lane every 32nd column.
template <typename T>
void mamba_conv(const MambaConv<T>& a) {
    extern __shared__ float shared[];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, first = blockIdx.x * SLICE, b = blockIdx.y;
    const u32 width = a.x.width, columns = a.projection.width, count = min(SLICE, width - first);
    float *us = shared, *sums = us + SLICE;
    if (threadIdx.x < count) {
        u32 channel = first + threadIdx.x, before = a.taps - 1;
        bool reset = a.resets && a.resets[b];
        float *state = a.state.of(b) + channel, window[MOST_TAPS], y = a.bias[channel];
        float x = load(a.x.row(b) + channel);
#pragma unroll
        for (u32 j = 0; j < MOST_TAPS; j++) {
            if (j < before) window[j] = reset ? 0.0f : state[j * width];
            if (j == before) window[j] = x;
        }
#pragma unroll
        for (u32 j = 0; j < MOST_TAPS; j++) {
            if (j > before) continue;
            y += a.weight[j * width + channel] * window[j];
            if (j > 0) state[(j - 1) * width] = window[j];
        }
        y *= sigmoid(y);
        us[threadIdx.x] = y;
        store(a.u.row(b) + channel, y);
    }
    __syncthreads();
    for (u32 column = lane; column < columns; column += 32) {
        float sum = 0.0f;
#pragma unroll 8
        for (u32 i = warp; i < count; i += warps) sum += us[i] * load(a.projection.row(first + i) + column);
        sums[warp * columns + column] = sum;
    }
    __syncthreads();
    float* shares = a.shares + ((u64)b * gridDim.x + blockIdx.x) * columns;
    for (u32 column = threadIdx.x; column < columns; column += blockDim.x) {
        float sum = 0.0f;
        for (u32 i = 0; i < warps; i++) sum += sums[i * columns + column];
        shares[column] = sum;
    }
}
KERNELS(mamba_conv, MambaConv)

// out = (scan of u) silu(z), with the step size, B and C from the shares of the first kernel.
template <typename T>
struct MambaScan {
    Rows<const T> u;          // [batch, inner]
    Rows<const T> z;          // [batch, inner]
    Rows<T> out;              // [batch, inner]
    Rows<const T> dt_weight;  // [rank, inner]
    const float* dt_bias;     // [inner]
    const float* a;           // [states, inner], negative
    const float* skip;        // [inner]
    States state;             // [states, inner]
    const u8* resets;         // one per sequence; null for none
    const float* shares;      // [batch, slices, rank + 2 states]
    u32 slices;
    u32 rank;
    u32 states;
};

// A block: 32 channels of one sequence. A lane has a channel, a warp S states of it and a share of the step size's product.
template <u32 S, typename T>
void mamba_scan(const MambaScan<T>& a) {
    extern __shared__ float shared[];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, b = blockIdx.y;
    const u32 width = a.u.width, channel = blockIdx.x * 32 + lane, columns = a.rank + 2 * a.states;
    const bool inside = channel < width, reset = a.resets && a.resets[b];
    float *selection = shared, *steps = selection + columns, *ys = steps + blockDim.x;

    // What does not wait for the selection is under way first.
    float *state = a.state.of(b) + channel, h[S], rate[S];
#pragma unroll
    for (u32 s = 0; s < S; s++) {
        u32 n = warp * S + s;
        bool real = inside && n < a.states;
        h[s] = real && !reset ? state[n * width] : 0.0f;
        rate[s] = real ? a.a[n * width + channel] * LOG2_E : 0.0f;
    }
    float u = inside ? load(a.u.row(b) + channel) : 0.0f, z = inside ? load(a.z.row(b) + channel) : 0.0f;
    for (u32 i = threadIdx.x; i < columns; i += blockDim.x) {
        float sum = 0.0f;
#pragma unroll 8
        for (u32 slice = 0; slice < a.slices; slice++) sum += a.shares[((u64)b * a.slices + slice) * columns + i];
        selection[i] = sum;
    }
    __syncthreads();

    float raw = 0.0f;
    if (inside) {
#pragma unroll 8
        for (u32 r = warp; r < a.rank; r += warps) raw += selection[r] * load(a.dt_weight.row(r) + channel);
    }
    steps[threadIdx.x] = raw;
    __syncthreads();
    raw = inside ? a.dt_bias[channel] : 0.0f;
    for (u32 w = 0; w < warps; w++) raw += steps[w * 32 + lane];

    float dt = softplus(raw), du = dt * u, y = 0.0f;
#pragma unroll
    for (u32 s = 0; s < S; s++) {
        u32 n = warp * S + s;
        if (!inside || n >= a.states) continue;
        h[s] = exp2_fast(dt * rate[s]) * h[s] + du * selection[a.rank + n];
        y += selection[a.rank + a.states + n] * h[s];
        state[n * width] = h[s];
    }
    ys[threadIdx.x] = y;
    __syncthreads();
    if (warp > 0 || !inside) return;
    y = a.skip[channel] * u;
    for (u32 w = 0; w < warps; w++) y += ys[w * 32 + lane];
    store(a.out.row(b) + channel, y * z * sigmoid(z));
}

template <typename T>
void mamba_scan4(const MambaScan<T>& a) { mamba_scan<4>(a); }
template <typename T>
void mamba_scan8(const MambaScan<T>& a) { mamba_scan<8>(a); }
KERNELS(mamba_scan4, MambaScan)
KERNELS(mamba_scan8, MambaScan)
