// Elementwise operations on the rows of matrices: a block takes some columns of one row.

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
    u64 row = row_number(a.x.width);
    const T *x = a.x.row(row), *residual = a.residual.row(row);
    T* out = a.out.row(row);
    for_columns(
        a.x.width,
        [&](u32 c) {
            float y = activate(a.act, load(x + c) + (a.bias ? a.bias[c] : 0.0f));
            return a.residual.data ? y + load(residual + c) : y;
        },
        [&](u32 c, float y) { store(out + c, y); });
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
    u64 row = row_number(a.x.width);
    const T *x = a.x.row(row), *grad = a.grad.row(row);
    T* dx = a.dx.row(row);
    for_columns(
        a.x.width, [&](u32 c) { return load(grad + c) * activate_slope(a.act, load(x + c) + (a.bias ? a.bias[c] : 0.0f)); },
        [&](u32 c, float slope) { store(dx + c, slope); });
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
    u64 row = row_number(a.x.width);
    const T *x = a.x.row(row), *z = a.z.row(row);
    T* out = a.out.row(row);
    for_columns(
        a.x.width,
        [&](u32 c) {
            float gate = load(z + c);
            return load(x + c) * gate * sigmoid(gate);
        },
        [&](u32 c, float y) { store(out + c, y); });
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
    u64 row = row_number(a.x.width);
    const T *xs = a.x.row(row), *zs = a.z.row(row), *grads = a.grad.row(row);
    T *dx = a.dx.row(row), *dz = a.dz.row(row);
    for_columns(
        a.x.width,
        [&](u32 c) -> float2 {
            float x = load(xs + c), z = load(zs + c), grad = load(grads + c);
            return {grad * z * sigmoid(z), grad * x * activate_slope(SILU, z)};
        },
        [&](u32 c, float2 slopes) {
            store(dx + c, slopes.x);
            store(dz + c, slopes.y);
        });
}
KERNELS(gate_backward, GateBackward)
