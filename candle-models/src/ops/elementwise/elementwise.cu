// Elementwise operations on the rows of matrices: a block takes some columns of one row.

// Values of a thread: as many loads are under way at once.
#define EACH 4

// Runs over the columns of this thread, a block's width apart, so that a warp reads what lies side by side.
#define FOR_COLUMNS(c, width)                                                                    \
    _Pragma("unroll") for (u32 k = 0, c = blockIdx.y * EACH * blockDim.x + threadIdx.x; k < EACH; \
                           k++, c += blockDim.x) if (c < (width))

// out = act(x + bias) + residual
template <typename T>
struct Epilogue {
    Rows<const T> x;
    Rows<const T> residual;  // null for none
    Rows<T> out;
    const float* bias;  // null for none
    u32 act;
};

template <typename T>
void epilogue(const Epilogue<T>& a) {
    const T* x = a.x.row(blockIdx.x);
    FOR_COLUMNS(c, a.x.width) {
        float y = activate(a.act, load(x + c) + (a.bias ? a.bias[c] : 0.0f));
        if (a.residual.data) y += load(a.residual.row(blockIdx.x) + c);
        store(a.out.row(blockIdx.x) + c, y);
    }
}
KERNELS(epilogue, Epilogue)

// dx = grad act'(x + bias)
template <typename T>
struct EpilogueBackward {
    Rows<const T> x;
    Rows<const T> grad;
    Rows<T> dx;
    const float* bias;  // null for none
    u32 act;
};

template <typename T>
void epilogue_backward(const EpilogueBackward<T>& a) {
    FOR_COLUMNS(c, a.x.width) {
        float x = load(a.x.row(blockIdx.x) + c) + (a.bias ? a.bias[c] : 0.0f);
        store(a.dx.row(blockIdx.x) + c, load(a.grad.row(blockIdx.x) + c) * activate_slope(a.act, x));
    }
}
KERNELS(epilogue_backward, EpilogueBackward)

// out = x silu(z)
template <typename T>
struct Gate {
    Rows<const T> x;
    Rows<const T> z;
    Rows<T> out;
};

template <typename T>
void gate(const Gate<T>& a) {
    FOR_COLUMNS(c, a.x.width) {
        float z = load(a.z.row(blockIdx.x) + c);
        store(a.out.row(blockIdx.x) + c, load(a.x.row(blockIdx.x) + c) * z * sigmoid(z));
    }
}
KERNELS(gate, Gate)

template <typename T>
struct GateBackward {
    Rows<const T> x;
    Rows<const T> z;
    Rows<const T> grad;
    Rows<T> dx;
    Rows<T> dz;
};

template <typename T>
void gate_backward(const GateBackward<T>& a) {
    FOR_COLUMNS(c, a.x.width) {
        float x = load(a.x.row(blockIdx.x) + c), z = load(a.z.row(blockIdx.x) + c), grad = load(a.grad.row(blockIdx.x) + c);
        store(a.dx.row(blockIdx.x) + c, grad * z * sigmoid(z));
        store(a.dz.row(blockIdx.x) + c, grad * x * activate_slope(SILU, z));
    }
}
KERNELS(gate_backward, GateBackward)
