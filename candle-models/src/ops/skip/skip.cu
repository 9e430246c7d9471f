// The sum of a branch and what went around it: a block takes a row.

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
    u64 r = blockIdx.x;
    for (u32 c = blockIdx.y * blockDim.x + threadIdx.x; c < s.out.width; c += gridDim.y * blockDim.x) {
        float b = load(s.b.row(r) + c);
        store(s.out.row(r) + c, activate(s.act, load(s.a.row(r) + c) + (s.gain ? s.gain[c % s.each] * b : b)));
    }
}
KERNELS(skip_rows, Skip)
