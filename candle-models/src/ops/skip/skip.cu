// The sum of a branch and what went around it: blocks share a row.

template <typename T>
struct Skip {
    Rows<const T> a;
    Rows<const T> b;
    Rows<T> out;
    const float* gain;  // null for 1
    u32 each;           // values of a place
    u32 act;
};

template <typename T>
void skip_rows(const Skip<T>& s) {
    u64 row = row_number(s.out.width);
    const T *a = s.a.row(row), *b = s.b.row(row);
    T* out = s.out.row(row);
    for_columns(
        s.out.width, [&](u32 c) { return load(a + c) + load(b + c) * (s.gain ? s.gain[c % s.each] : 1.0f); },
        [&](u32 c, float sum) { store(out + c, activate(s.act, sum)); });
}
KERNELS(skip_rows, Skip)
