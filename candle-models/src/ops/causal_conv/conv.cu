// Causal depthwise convolution and SiLU: a thread has one channel of one sequence for PIECE frames, its window in registers.
//
// Bytes it cannot do without: every input and output once, the state once each way. Pieces of a window read TAPS - 1 frames before
// their own again, from the cache.

// Frames of a thread, at least the longest window.
#define PIECE 32u

template <typename T>
struct Conv {
    Rows<const T> x;
    Rows<T> out;
    const float* weight;  // [taps, width]
    const float* bias;    // [width]
    States state;         // [taps - 1, width]
    const u8* resets;     // one per row; null for none
    u32 steps;
    u32 taps;
};

// What a thread reads: a channel of a sequence. TAPS at least the number of taps; the first ones have weight zero.
template <u32 TAPS, typename T>
struct Channel {
    Rows<const T> x;
    const float* state;
    const u8* resets;
    u32 width, channel, taps;
    u64 row;  // of frame 0
    float weight[TAPS], bias;

    Channel(Rows<const T> x, const float* weights, const float* biases, const States& states, const u8* resets, u32 steps, u32 taps)
        : x(x), state(states.of(blockIdx.z)), resets(resets), width(x.width), taps(taps) {
        channel = blockIdx.x * blockDim.x + threadIdx.x;
        row = (u64)blockIdx.z * steps;
        if (channel >= width) return;
        bias = biases[channel];
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) weight[j] = j + taps < TAPS ? 0.0f : weights[(j + taps - TAPS) * width + channel];
    }

    bool reset(u32 t) const { return resets && resets[row + t]; }
    float input(u32 t) const { return load(x.row(row + t) + channel); }

    // The frames before frame t as its taps see them: earlier frames, then the state; zeros behind a reset.
    void fill(float (&window)[TAPS], u32 t) const {
#pragma unroll
        for (u32 j = 0; j < TAPS - 1; j++) {
            if (t + j >= TAPS - 1) {
                u32 i = t + j - (TAPS - 1);
                window[j] = input(i);
                if (reset(i)) clear(window, j);
            } else {
                // Slot taps - 1 of the state would be frame 0.
                window[j] = t + j + taps >= TAPS ? state[(t + j + taps - TAPS) * width + channel] : 0.0f;
            }
        }
    }

    static void clear(float (&window)[TAPS], u32 count) {
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) {
            if (j < count) window[j] = 0.0f;
        }
    }

    // Before the activation.
    float sum(const float (&window)[TAPS]) const {
        float y = bias;
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) y += weight[j] * window[j];
        return y;
    }

    static void shift(float (&window)[TAPS]) {
#pragma unroll
        for (u32 j = 0; j + 1 < TAPS; j++) window[j] = window[j + 1];
    }
};

template <u32 TAPS, typename T>
void conv(const Conv<T>& a) {
    Channel<TAPS, T> c(a.x, a.weight, a.bias, a.state, a.resets, a.steps, a.taps);
    if (c.channel >= c.width) return;
    u32 start = blockIdx.y * PIECE, end = min(a.steps, start + PIECE);
    float window[TAPS];
    c.fill(window, start);
    for (u32 t = start; t < end; t++) {
        if (c.reset(t)) c.clear(window, TAPS - 1);
        window[TAPS - 1] = c.input(t);
        float y = c.sum(window);
        store(a.out.row(c.row + t) + c.channel, y * sigmoid(y));
        c.shift(window);
    }
    // The state is read by the first piece alone, which writes it therefore.
    if (start > 0) return;
    if (end < a.steps) c.fill(window, a.steps);
    float* state = a.state.of(blockIdx.z);
#pragma unroll
    for (u32 j = 0; j < TAPS - 1; j++) {
        if (j + a.taps >= TAPS) state[(j + a.taps - TAPS) * c.width + c.channel] = window[j];
    }
}

template <typename T>
void conv4(const Conv<T>& a) { conv<4>(a); }
template <typename T>
void conv16(const Conv<T>& a) { conv<16>(a); }
KERNELS(conv4, Conv)
KERNELS(conv16, Conv)

template <typename T>
struct ConvBackward {
    Rows<const T> x;
    Rows<const T> grad;
    Rows<T> dx;
    const float* weight;
    const float* bias;
    States before;     // the state before the sequences; not written
    const u8* resets;  // null for none
    float* sums;       // [batch, pieces, taps + 1, width]: gradients of taps and bias
    u32 steps;
    u32 taps;
};

template <u32 TAPS, typename T>
void conv_backward(const ConvBackward<T>& a) {
    Channel<TAPS, T> c(a.x, a.weight, a.bias, a.before, a.resets, a.steps, a.taps);
    if (c.channel >= c.width) return;
    u32 begin = blockIdx.y * PIECE, end = min(a.steps, begin + PIECE), last = min(a.steps, end + a.taps - 1);
    // d[j]: gradient of the frame that tap j sees. A frame before the last reset gets no more of it.
    float window[TAPS], d[TAPS] = {}, dw[TAPS] = {}, db = 0.0f;
    c.fill(window, begin);
    u32 visible = begin;
    for (u32 t = begin; t < last; t++) {
        if (c.reset(t)) {
            c.clear(window, TAPS - 1);
            visible = t;
        }
        window[TAPS - 1] = c.input(t);
        float g = load(a.grad.row(c.row + t) + c.channel) * activate_slope(SILU, c.sum(window));
        c.shift(d);
        d[TAPS - 1] = 0.0f;
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) {
            if (t + j >= visible + TAPS - 1) d[j] += c.weight[j] * g;
            if (t < end) dw[j] += g * window[j];
        }
        if (t < end) db += g;
        if (t >= begin + TAPS - 1) store(a.dx.row(c.row + t - (TAPS - 1)) + c.channel, d[0]);
        c.shift(window);
    }
    // Frames that a tap still sees behind the last one, unless they have been written or belong to the next piece.
#pragma unroll
    for (u32 j = 1; j < TAPS; j++) {
        u32 i = last + j;  // TAPS frames late
        if (i >= begin + TAPS && i < end + TAPS) store(a.dx.row(c.row + i - TAPS) + c.channel, d[j]);
    }
    float* sums = a.sums + ((u64)blockIdx.z * gridDim.y + blockIdx.y) * (a.taps + 1) * c.width + c.channel;
#pragma unroll
    for (u32 j = 0; j < TAPS; j++) {
        if (j + a.taps >= TAPS) sums[(j + a.taps - TAPS) * c.width] = dw[j];
    }
    sums[a.taps * c.width] = db;
}

template <typename T>
void conv4_backward(const ConvBackward<T>& a) { conv_backward<4>(a); }
template <typename T>
void conv16_backward(const ConvBackward<T>& a) { conv_backward<16>(a); }
KERNELS(conv4_backward, ConvBackward)
KERNELS(conv16_backward, ConvBackward)
