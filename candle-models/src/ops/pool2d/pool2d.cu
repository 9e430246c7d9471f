// Two-dimensional pooling, channels last: a block takes a place of a row, a thread a channel.

struct Pair {
    u32 down;
    u32 across;
};

template <typename T>
struct Pool2d {
    Rows<const T> x;
    Rows<T> out;
    u32 across;  // width of the input
    Pair output;
    Pair kernel;
    Pair stride;
    u32 channels;
    u32 average;  // otherwise the largest value
};

template <typename T>
void pool2d(const Pool2d<T>& a) {
    u32 places = a.output.down * a.output.across, place = blockIdx.x % places;
    u32 c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= a.channels) return;
    u64 r = blockIdx.x / places;
    u32 down = place / a.output.across * a.stride.down, across = place % a.output.across * a.stride.across;
    const T* x = a.x.row(r) + c;
    float most = -INFINITY, sum = 0.0f;
    for (u32 k = 0; k < a.kernel.down; k++) {
        for (u32 l = 0; l < a.kernel.across; l++) {
            float value = load(x + ((u64)(down + k) * a.across + across + l) * a.channels);
            sum += value;
            if (value > most) most = value;
        }
    }
    store(a.out.row(r) + (u64)place * a.channels + c, a.average ? sum / (float)(a.kernel.down * a.kernel.across) : most);
}
KERNELS(pool2d, Pool2d)
