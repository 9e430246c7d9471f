// Gates of a gated recurrent unit; the products with the weights are matrix products of their own.
//
// r, z = sigmoid(x + h), n = tanh(x_n + r h_n), h' = (1 - z) n + z h. A block has some columns of one sequence's frame. The product
// in the same kernel would need every block to read the whole state before any writes its part of the new one.

// The states as the operand of the first product: zeros where the frame begins with a reset.
template <typename T>
struct GruHidden {
    States state;
    Rows<T> hidden;    // [batch, width]
    const u8* resets;  // that of sequence b at `b * reset_stride`; null for none
    u32 reset_stride;
};

template <typename T>
void gru_hidden(const GruHidden<T>& a) {
    u32 b = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= a.hidden.width) return;
    bool reset = a.resets && a.resets[b * a.reset_stride];
    store(a.hidden.row(b) + i, reset ? 0.0f : a.state.of(b)[i]);
}
KERNELS(gru_hidden, GruHidden)

template <typename T>
struct GruGates {
    Rows<const T> x;        // [batch, 3 width]: products of the inputs
    Rows<const T> product;  // [batch, 3 width]: products of the states
    Rows<T> out;            // [batch, width]: the new state
    Rows<T> hidden;         // [batch, width]: the same, zeros before a reset: the operand of the next product; null for none
    const float* bias;      // [3 width], of the states' product
    States state;           // updated in place
    const u8* resets;       // that of sequence b at `b * reset_stride`, the next frame's behind it; null for none
    float* kept;            // [batch, 4 width]: r, z, n and h_n for the backward; null for none
    float* before;          // [batch, width]: the state that the frame started from; null for none
    u32 reset_stride;
};

template <typename T>
void gru_gates(const GruGates<T>& a) {
    u32 b = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x, width = a.out.width;
    if (i >= width) return;
    const u8* resets = a.resets ? a.resets + b * a.reset_stride : nullptr;
    const T *x = a.x.row(b), *product = a.product.row(b);
    float* state = a.state.of(b);
    // A selection, not a product with zero: a reset also clears what is not finite.
    float h = resets && resets[0] ? 0.0f : state[i];
    float r = sigmoid(load(x + i) + load(product + i) + a.bias[i]);
    float z = sigmoid(load(x + width + i) + load(product + width + i) + a.bias[width + i]);
    float hn = load(product + 2 * width + i) + a.bias[2 * width + i];
    float n = tanhf(load(x + 2 * width + i) + r * hn);
    float y = n + z * (h - n);
    state[i] = y;
    store(a.out.row(b) + i, y);
    if (a.hidden.data) store(a.hidden.row(b) + i, resets && resets[1] ? 0.0f : y);
    if (!a.kept) return;
    float* kept = a.kept + (u64)b * 4 * width + i;
    kept[0] = r;
    kept[width] = z;
    kept[2 * width] = n;
    kept[3 * width] = hn;
    a.before[(u64)b * width + i] = h;
}
KERNELS(gru_gates, GruGates)

template <typename T>
struct GruBackward {
    Rows<const T> grad;     // [batch, width]: of the frame's output
    Rows<const T> product;  // [batch, width]: dh of the frame behind times the transposed weight; null behind the last frame
    Rows<T> dx;             // [batch, 3 width]
    Rows<T> dh;             // [batch, 3 width]
    const float* kept;      // as `GruGates` left it
    const float* before;
    float* carry;      // [batch, width]: the direct share of the state's gradient; in place
    const u8* resets;  // that of sequence b at `b * reset_stride`, the next frame's behind it; null for none
    u32 reset_stride;
};

template <typename T>
void gru_backward(const GruBackward<T>& a) {
    u32 b = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x, width = a.grad.width;
    if (i >= width) return;
    float g = load(a.grad.row(b) + i);
    if (a.product.data && !(a.resets && a.resets[b * a.reset_stride + 1])) {
        g += a.carry[(u64)b * width + i] + load(a.product.row(b) + i);
    }
    const float* kept = a.kept + (u64)b * 4 * width + i;
    float r = kept[0], z = kept[width], n = kept[2 * width], hn = kept[3 * width];
    float candidate = g * (1.0f - z) * (1.0f - n * n);
    float reset = candidate * hn * r * (1.0f - r);
    float update = g * (a.before[(u64)b * width + i] - n) * z * (1.0f - z);
    T *dx = a.dx.row(b) + i, *dh = a.dh.row(b) + i;
    store(dx, reset);
    store(dh, reset);
    store(dx + width, update);
    store(dh + width, update);
    store(dx + 2 * width, candidate);
    store(dh + 2 * width, candidate * r);
    a.carry[(u64)b * width + i] = g * z;
}
KERNELS(gru_backward, GruBackward)
