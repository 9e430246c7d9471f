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

template <typename T>
struct SkipBackward {
    Rows<const T> a;
    Rows<const T> b;
    Rows<const T> grad;
    Rows<T> da;
    Rows<T> db;         // null where there is no gain: the same as `da`
    const float* gain;  // null for 1
    u32 each;
    u32 act;
};

template <typename T>
void skip_backward(const SkipBackward<T>& s) {
    u64 row = row_number(s.da.width);
    const T *a = s.a.row(row), *b = s.b.row(row), *grad = s.grad.row(row);
    T *da = s.da.row(row), *db = s.db.row(row);
    for_columns(
        s.da.width,
        [&](u32 c) {
            float gain = s.gain ? s.gain[c % s.each] : 1.0f;
            return load(grad + c) * activate_slope(s.act, load(a + c) + load(b + c) * gain);
        },
        [&](u32 c, float d) {
            store(da + c, d);
            if (s.db.data) store(db + c, d * s.gain[c % s.each]);
        });
}
KERNELS(skip_backward, SkipBackward)
