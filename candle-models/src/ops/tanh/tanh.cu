// tanh(x) of every value: blocks share a row.

template <typename T>
struct Tanh {
    Rows<const T> x;
    Rows<T> out;
};

template <typename T>
void tanh_rows(const Tanh<T>& a) {
    u64 row = row_number(a.x.width);
    const T* x = a.x.row(row);
    T* out = a.out.row(row);
    for_columns(a.x.width, [&](u32 c) { return load(x + c); }, [&](u32 c, float value) { store(out + c, tanhf(value)); });
}
KERNELS(tanh_rows, Tanh)
