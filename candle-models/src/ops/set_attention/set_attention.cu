// Attention over a set whose elements may be absent: a warp takes a head of a query of a row.

template <typename T>
struct SetAttention {
    Rows<const T> q, kv, presence;
    Rows<T> out;
    u32 queries;
    u32 elements;
    u32 heads;
    u32 width;  // of a query, a key and a value
};

template <typename T>
void set_attention(const SetAttention<T>& a) {
    extern __shared__ float weights[];
    u64 row = blockIdx.x / a.heads;
    u32 each = a.width / a.heads, first = blockIdx.x % a.heads * each, query = blockIdx.y;
    const T *q = a.q.row(row) + (u64)query * a.width + first, *kv = a.kv.row(row) + first;
    float scale = rsqrtf((float)each), most = -INFINITY;
    for (u32 j = threadIdx.x; j < a.elements; j += blockDim.x) {
        float score = -INFINITY;
        if (load(a.presence.row(row) + j) > 0.0f) {
            const T* k = kv + (u64)j * 2 * a.width;
            score = 0.0f;
            for (u32 i = 0; i < each; i++) score += load(q + i) * load(k + i);
            score *= scale;
        }
        weights[j] = score;
        most = fmaxf(most, score);
    }
    most = warp_max(most);
    float total = 0.0f;
    for (u32 j = threadIdx.x; j < a.elements; j += blockDim.x) {
        float there = load(a.presence.row(row) + j);
        weights[j] = there > 0.0f ? there * expf(weights[j] - most) : 0.0f;
        total += weights[j];
    }
    total = block_sum(total);
    for (u32 i = threadIdx.x; i < each; i += blockDim.x) {
        float sum = 0.0f;
        for (u32 j = 0; j < a.elements; j++) sum += weights[j] * load(kv + (u64)(2 * j + 1) * a.width + i);
        store(a.out.row(row) + (u64)query * a.width + first + i, total > 0.0f ? sum / total : 0.0f);
    }
}
KERNELS(set_attention, SetAttention)
