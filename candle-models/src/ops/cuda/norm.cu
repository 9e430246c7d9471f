// Layer and RMS normalisation with gain, offset and activation: one block a group of a row.

enum { LAYER, RMS };

template <typename T>
struct Norm {
    Rows<const T> x;
    Rows<T> out;
    const float* weight;
    const float* bias;  // null for none
    u32 rows;
    u32 group;  // values that are normalised together; a row holds a whole number of groups
    u32 kind;
    u32 act;
    float eps;
};

template <typename T>
void norm(const Norm<T>& a) {
    u32 groups = a.x.width / a.group;
    u64 row = blockIdx.x / groups;
    u32 start = blockIdx.x % groups * a.group;
    const T* x = a.x.row(row) + start;
    T* out = a.out.row(row) + start;
    float n = (float)a.group, sum = 0.0f;
    if (a.kind == LAYER) {
        for (u32 i = threadIdx.x; i < a.group; i += blockDim.x) sum += load(x + i);
        sum = block_sum(sum);
    }
    float mean = sum / n, squares = 0.0f;
    for (u32 i = threadIdx.x; i < a.group; i += blockDim.x) {
        float d = load(x + i) - mean;
        squares += d * d;
    }
    float scale = 1.0f / sqrtf(block_sum(squares) / n + a.eps);
    for (u32 i = threadIdx.x; i < a.group; i += blockDim.x) {
        float y = (load(x + i) - mean) * scale * a.weight[i];
        if (a.bias) y += a.bias[i];
        store(out + i, activate(a.act, y));
    }
}

KERNELS(norm, Norm)
