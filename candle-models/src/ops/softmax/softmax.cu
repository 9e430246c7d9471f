// Softmax over every group of a row: a warp takes a group.

template <typename T>
struct Softmax {
    Rows<const T> x;
    Rows<T> out;
    u32 rows;
    u32 group;
};

template <typename T>
void softmax(const Softmax<T>& a) {
    u64 number = thread_number() / 32;
    u32 lane = threadIdx.x % 32, groups = a.x.width / a.group;
    if (number >= (u64)a.rows * groups) return;
    u32 first = (u32)(number % groups) * a.group;
    const T* x = a.x.row(number / groups) + first;
    T* out = a.out.row(number / groups) + first;
    float most = -INFINITY;
    for (u32 i = lane; i < a.group; i += 32) most = fmaxf(most, load(x + i));
    most = warp_max(most);
    float sum = 0.0f;
    for (u32 i = lane; i < a.group; i += 32) sum += expf(load(x + i) - most);
    sum = warp_sum(sum);
    for (u32 i = lane; i < a.group; i += 32) store(out + i, expf(load(x + i) - most) / sum);
}
KERNELS(softmax, Softmax)
