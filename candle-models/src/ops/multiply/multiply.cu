// The product of two matrices value by value: blocks share a row.

template <typename T>
struct Multiply {
    Rows<const T> a;
    Rows<const T> b;
    Rows<T> out;
};

template <typename T>
void multiply_rows(const Multiply<T>& m) {
    const T *a = m.a.row(blockIdx.x), *b = m.b.row(blockIdx.x);
    T* out = m.out.row(blockIdx.x);
    for_columns(m.out.width, [&](u32 c) { return load(a + c) * load(b + c); }, [&](u32 c, float product) { store(out + c, product); });
}
KERNELS(multiply_rows, Multiply)
