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
    u32 coordinates;  // how many follow the channels: of across, or of down and across
    u32 periodic;     // 1 where the longest waves say where a place is
};

// Blocks share a row.
template <typename T>
void grid_rows(const Grid<T>& a) {
    u64 row = row_number(a.out.width);
    const T* x = a.x.row(row);
    T* out = a.out.row(row);
    u32 outputs = a.channels + a.coordinates;
    auto value = [&](u32 i) {
        u32 place = i / outputs, channel = i % outputs, down = place / a.to.across, across = place % a.to.across;
        if (channel >= a.channels) {
            u32 which = channel - a.channels, wave = a.periodic ? which / 2 : which;
            float x = (float)down / (float)a.to.down, y = (float)across / (float)a.to.across;
            if (a.to.down == 1) wave = 1;
            float part = wave == 0 ? x : wave == 1 ? y : wave == 2 ? x + y : x - y;
            if (!a.periodic) return part;
            return which % 2 ? sinf(6.2831853f * part) : cosf(6.2831853f * part);
        }
        u32 y = down + a.shift.down, at = across + a.shift.across;
        return y < a.from.down && at < a.from.across ? load(x + ((u64)y * a.from.across + at) * a.channels + channel) : 0.0f;
    };
    for_columns(a.out.width, value, [&](u32 i, float value) { store(out + i, value); });
}
KERNELS(grid_rows, Grid)
