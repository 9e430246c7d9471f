// The indices of the frame before: a thread has one column of one sequence, frame by frame. `before/mod.rs` says what the state holds.

struct Before {
    Rows<const u32> ids;
    Rows<u32> out;
    States state;      // [columns]
    const u8* resets;  // one per row; null for none
    u32 steps;
};

extern "C" __global__ void before(const __grid_constant__ Before a) {
    u32 b = blockIdx.x, column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= a.ids.width) return;
    float* state = a.state.of(b) + column;
    float last = *state;
    for (u32 t = 0; t < a.steps; t++) {
        u64 row = (u64)b * a.steps + t;
        if (a.resets && a.resets[row]) last = 0.0f;
        u32 index = a.ids.row(row)[column];
        a.out.row(row)[column] = last > 0.0f ? (u32)last - 1 : index;
        last = (float)index + 1.0f;
    }
    *state = last;
}
