// Two-dimensional convolution, channels last: a block takes a place of a row, a thread a channel of the result.

struct Pair {
    u32 down;
    u32 across;
};

template <typename T>
struct Conv2d {
    Rows<const T> x;
    Rows<T> out;
    const T* weight;    // [kernel.down, kernel.across, channels, outputs]
    const float* bias;  // null for none
    Pair input;
    Pair output;
    Pair kernel;
    Pair stride;
    Pair padding;
    u32 channels;
    u32 outputs;
};

template <typename T>
void conv2d(const Conv2d<T>& a) {
    u32 places = a.output.down * a.output.across, place = blockIdx.x % places;
    u32 o = blockIdx.y * blockDim.x + threadIdx.x;
    if (o >= a.outputs) return;
    u64 r = blockIdx.x / places;
    const T* x = a.x.row(r);
    float sum = a.bias ? a.bias[o] : 0.0f;
    for (u32 k = 0; k < a.kernel.down; k++) {
        // Below zero it wraps to a number above every height.
        u32 y = place / a.output.across * a.stride.down + k - a.padding.down;
        if (y >= a.input.down) continue;
        for (u32 l = 0; l < a.kernel.across; l++) {
            u32 column = place % a.output.across * a.stride.across + l - a.padding.across;
            if (column >= a.input.across) continue;
            const T* from = x + ((u64)y * a.input.across + column) * a.channels;
            const T* weight = a.weight + ((u64)(k * a.kernel.across + l) * a.channels) * a.outputs + o;
            for (u32 c = 0; c < a.channels; c++) sum += load(from + c) * load(weight + (u64)c * a.outputs);
        }
    }
    store(a.out.row(r) + (u64)place * a.outputs + o, sum);
}
KERNELS(conv2d, Conv2d)
