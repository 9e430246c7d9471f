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

// Gradients of the input, and by block those of gain and offset: a block takes whole rows, `gridDim.x` apart.
template <typename T>
struct NormBackward {
    Rows<const T> x;
    Rows<const T> grad;
    Rows<T> dx;
    const float* weight;
    const float* bias;  // null for none
    float* sums;        // [blocks, 2 width]: gain, offset; null for none
    u32 rows;
    u32 kind;
    u32 act;
    float eps;
};

// Every thread has columns of its own, `blockDim.x` apart: nobody else touches their sums in shared memory.
template <typename T>
void norm_backward(const NormBackward<T>& a) {
    extern __shared__ float sums[];
    u32 width = a.x.width;
    float n = (float)width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) sums[i] = sums[width + i] = 0.0f;
    for (u32 r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const T *x = a.x.row(r), *grad = a.grad.row(r);
        float sum = 0.0f, squares = 0.0f;
        if (a.kind == LAYER) {
            for (u32 i = threadIdx.x; i < width; i += blockDim.x) sum += load(x + i);
            sum = block_sum(sum);
        }
        float mean = sum / n;
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
            float d = load(x + i) - mean;
            squares += d * d;
        }
        float scale = 1.0f / sqrtf(block_sum(squares) / n + a.eps);
        float shift = 0.0f, slope = 0.0f;
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
            float y = (load(x + i) - mean) * scale, g = load(grad + i);
            if (a.act != NONE) g *= activate_slope(a.act, y * a.weight[i] + (a.bias ? a.bias[i] : 0.0f));
            sums[i] += g * y;
            sums[width + i] += g;
            g *= a.weight[i];
            shift += g;
            slope += g * y;
        }
        shift = a.kind == LAYER ? block_sum(shift) / n : 0.0f;
        slope = block_sum(slope) / n;
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
            float y = (load(x + i) - mean) * scale, g = load(grad + i);
            if (a.act != NONE) g *= activate_slope(a.act, y * a.weight[i] + (a.bias ? a.bias[i] : 0.0f));
            store(a.dx.row(r) + i, scale * (g * a.weight[i] - shift - y * slope));
        }
    }
    if (!a.sums) return;
    float* out = a.sums + (u64)blockIdx.x * 2 * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        out[i] = sums[i];
        out[width + i] = sums[width + i];
    }
}

KERNELS(norm_backward, NormBackward)
