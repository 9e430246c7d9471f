// The product of two matrices value by value: blocks share a row.

template <typename T>
struct Multiply {
    Rows<const T> a;
    Rows<const T> b;
    Rows<T> out;
};

template <typename T>
void multiply_rows(const Multiply<T>& m) {
    u64 row = row_number(m.out.width);
    const T *a = m.a.row(row), *b = m.b.row(row);
    T* out = m.out.row(row);
    for_columns(m.out.width, [&](u32 c) { return load(a + c) * load(b + c); }, [&](u32 c, float product) { store(out + c, product); });
}
KERNELS(multiply_rows, Multiply)
