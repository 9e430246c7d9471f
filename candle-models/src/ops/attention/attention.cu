// Sliding-window attention over a cache: one block a head of a frame; then the cache moves on.

template <typename T>
struct Attend {
    Rows<const T> q, k, v;
    Rows<T> out;
    States keys, values, count;  // [window - 1, width] each, oldest first; how many are valid
    const float* slopes;         // [heads]: what a frame of distance costs
    const u8* resets;            // one per row; null for none
    u32 heads;
    u32 window;
    u32 steps;
};

// How many frames before frame t of sequence b may be seen.
template <typename T>
inline u32 available(const Attend<T>& a, u32 b, u32 t) {
    u32 keep = a.window - 1;
    if (a.resets) {
        for (u32 i = 0; i <= t; i++) {
            if (a.resets[(u64)b * a.steps + t - i]) return min(i, keep);
        }
    }
    return min((u32)a.count.of(b)[0] + t, keep);
}

template <typename T>
void attend(const Attend<T>& a) {
    extern __shared__ float shared[];
    u32 head = blockIdx.x % a.heads, b = blockIdx.x / a.heads, t = blockIdx.y;
    u32 width = a.q.width / a.heads, keep = a.window - 1, seen = available(a, b, t) + 1;
    u64 row = (u64)b * a.steps + t;
    float *scores = shared, *q = shared + a.window;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) q[i] = load(a.q.row(row) + head * width + i);
    __syncthreads();
    float scale = rsqrtf((float)width), most = -INFINITY;
    for (u32 j = threadIdx.x; j < seen; j += blockDim.x) {
        float dot = 0.0f;
        if (j <= t) {
            const T* k = a.k.row(row - j) + head * width;
            for (u32 i = 0; i < width; i++) dot += q[i] * load(k + i);
        } else {
            const float* k = a.keys.of(b) + (u64)(keep + t - j) * a.q.width + head * width;
            for (u32 i = 0; i < width; i++) dot += q[i] * k[i];
        }
        scores[j] = dot * scale - a.slopes[head] * (float)j;
        most = fmaxf(most, scores[j]);
    }
    __shared__ float tops[32];
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = most;
    __syncthreads();
    for (u32 i = 0; i < blockDim.x / 32; i++) most = fmaxf(most, tops[i]);
    float total = 0.0f;
    for (u32 j = threadIdx.x; j < seen; j += blockDim.x) {
        scores[j] = expf(scores[j] - most);
        total += scores[j];
    }
    total = block_sum(total);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0.0f;
        u32 column = head * width + i;
        for (u32 j = 0; j < seen; j++) {
            float v = j <= t ? load(a.v.row(row - j) + column) : a.values.of(b)[(u64)(keep + t - j) * a.q.width + column];
            sum += scores[j] * v;
        }
        store(a.out.row(row) + column, sum / total);
    }
}

KERNELS(attend, Attend)

// The cache behind the pass: a thread takes one column of one sequence.
template <typename T>
void attend_shift(const Attend<T>& a) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y, width = a.q.width;
    u32 keep = a.window - 1, fresh = min(a.steps, keep);
    if (column >= width) return;
    float *keys = a.keys.of(b) + column, *values = a.values.of(b) + column;
    for (u32 i = 0; i < keep - fresh; i++) {
        keys[(u64)i * width] = keys[(u64)(i + fresh) * width];
        values[(u64)i * width] = values[(u64)(i + fresh) * width];
    }
    for (u32 i = 0; i < fresh; i++) {
        u64 row = (u64)b * a.steps + a.steps - fresh + i, at = (u64)(keep - fresh + i) * width;
        keys[at] = load(a.k.row(row) + column);
        values[at] = load(a.v.row(row) + column);
    }
    if (column == 0) a.count.of(b)[0] = (float)min(available(a, b, a.steps - 1) + 1, keep);
}

KERNELS(attend_shift, Attend)
