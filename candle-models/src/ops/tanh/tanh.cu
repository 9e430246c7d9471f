// tanh(x) of every value: a block takes a row.

template <typename T>
struct Tanh {
    Rows<const T> x;
    Rows<T> out;
};

template <typename T>
void tanh_rows(const Tanh<T>& a) {
    for (u32 c = blockIdx.y * blockDim.x + threadIdx.x; c < a.x.width; c += gridDim.y * blockDim.x)
        store(a.out.row(blockIdx.x) + c, tanhf(load(a.x.row(blockIdx.x) + c)));
}
KERNELS(tanh_rows, Tanh)
