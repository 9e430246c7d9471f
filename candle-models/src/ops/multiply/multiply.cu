// The product of two matrices value by value: a block takes a row.

template <typename T>
struct Multiply {
    Rows<const T> a;
    Rows<const T> b;
    Rows<T> out;
};

template <typename T>
void multiply_rows(const Multiply<T>& m) {
    u64 r = blockIdx.x;
    for (u32 c = blockIdx.y * blockDim.x + threadIdx.x; c < m.out.width; c += gridDim.y * blockDim.x)
        store(m.out.row(r) + c, load(m.a.row(r) + c) * load(m.b.row(r) + c));
}
KERNELS(multiply_rows, Multiply)
