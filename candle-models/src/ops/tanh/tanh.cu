// tanh(x) of every value: blocks share a row.

template <typename T>
struct Tanh {
    Rows<const T> x;
    Rows<T> out;
};

template <typename T>
void tanh_rows(const Tanh<T>& a) {
    const T* x = a.x.row(blockIdx.x);
    T* out = a.out.row(blockIdx.x);
    for_columns(a.x.width, [&](u32 c) { return load(x + c); }, [&](u32 c, float value) { store(out + c, tanhf(value)); });
}
KERNELS(tanh_rows, Tanh)
