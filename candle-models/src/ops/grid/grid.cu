// Grids of places, channels last: a grid through a window, zeros where that reaches beyond it, and coordinates behind its channels.

struct Pair {
    u32 down;
    u32 across;
};

template <typename T>
struct Grid {
    Rows<const T> x;
    Rows<T> out;
    Pair from;
    Pair to;
    Pair shift;  // a place of the input is that of the result moved by so much; below zero it wraps to a number above every size
    u32 channels;
    u32 coordinates;  // how many follow the channels: across, or down and across
};

// A block takes a row.
template <typename T>
void grid_rows(const Grid<T>& a) {
    u64 r = blockIdx.x;
    u32 outputs = a.channels + a.coordinates;
    for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < a.out.width; i += gridDim.y * blockDim.x) {
        u32 place = i / outputs, channel = i % outputs, down = place / a.to.across, across = place % a.to.across;
        float value = 0.0f;
        if (channel >= a.channels) {
            bool is_down = a.coordinates == 2 && channel == a.channels;
            value = is_down ? (float)down / (float)a.to.down : (float)across / (float)a.to.across;
        } else {
            u32 y = down + a.shift.down, x = across + a.shift.across;
            if (y < a.from.down && x < a.from.across) value = load(a.x.row(r) + ((u64)y * a.from.across + x) * a.channels + channel);
        }
        store(a.out.row(r) + i, value);
    }
}
KERNELS(grid_rows, Grid)
