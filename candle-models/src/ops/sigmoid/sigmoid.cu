// 1 / (1 + exp(-x)) of every value: a block takes a row.

template <typename T>
struct Sigmoid {
    Rows<const T> x;
    Rows<T> out;
};

template <typename T>
void sigmoid_rows(const Sigmoid<T>& a) {
    for (u32 c = blockIdx.y * blockDim.x + threadIdx.x; c < a.x.width; c += gridDim.y * blockDim.x)
        store(a.out.row(blockIdx.x) + c, sigmoid(load(a.x.row(blockIdx.x) + c)));
}
KERNELS(sigmoid_rows, Sigmoid)
