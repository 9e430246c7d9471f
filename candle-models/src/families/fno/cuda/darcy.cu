// Darcy flow by conjugate gradients: see darcy.rs. A block solves one medium after all, in the memory of its own six planes: how often it goes on does not depend
// on the others, and no sum leaves the block.

// `Media` in darcy.rs. Planes are [n + 1, n + 1], those of the edge included.
struct Media {
    const double* field;  // a is `contrast` where it is positive and 1 elsewhere, [runs, n + 1, n + 1]
    double* planes;       // [runs, 6, n + 1, n + 1]
    float* fields;        // the medium and its solution, [runs, 2, places, places]
    u32* unsolved;        // [runs]
    double contrast;
    double scale;
    double tolerance;
    u32 n;
    u32 places;
    u32 finer;
    u32 unused;
};

// Over the nodes inside: a warp has those of a row, side by side.
template <typename F>
inline void inside(u32 n, F visit) {
    u32 side = n + 1, warps = blockDim.x / 32;
    for (u32 i = 1 + threadIdx.x / 32; i < n; i += warps)
        for (u32 j = 1 + threadIdx.x % 32; j < n; j += 32) visit(i * side + j);
}

extern "C" __global__ void solve(const __grid_constant__ Media a) {
    u32 n = a.n, side = n + 1, run = blockIdx.x, nodes = side * side;
    const double* field = a.field + (u64)run * nodes;
    double* down = a.planes + (u64)run * 6 * nodes;
    double *right = down + nodes, *u = right + nodes, *r = u + nodes, *q = r + nodes, *direction = q + nodes;
    double source = 1.0 / ((double)n * (double)n);
    auto conductance = [&](u32 p) { return field[p] > 0.0 ? a.contrast : 1.0; };
    for (u32 p = threadIdx.x; p < nodes; p += blockDim.x) {
        double here = conductance(p), below = p + side < nodes ? conductance(p + side) : here, beside = p + 1 < nodes ? conductance(p + 1) : here;
        down[p] = 2.0 * here * below / (here + below);
        right[p] = 2.0 * here * beside / (here + beside);
        u[p] = r[p] = direction[p] = 0.0;
    }
    __syncthreads();
    auto diagonal = [&](u32 p) { return down[p] + down[p - side] + right[p] + right[p - 1]; };
    double along = 0.0;
    inside(n, [&](u32 p) {
        r[p] = source;
        direction[p] = source / diagonal(p);
        along += source * direction[p];
    });
    along = block_sum(along);
    double limit = a.tolerance * source;
    limit = limit * limit * (double)(n - 1) * (double)(n - 1);
    bool is_solved = false;
    for (u32 round = 0; round < 100 * n && !is_solved; round++) {
        __syncthreads();
        double against = 0.0;
        inside(n, [&](u32 p) {
            double x = direction[p];
            double y = diagonal(p) * x - down[p] * direction[p + side] - down[p - side] * direction[p - side] - right[p] * direction[p + 1] -
                       right[p - 1] * direction[p - 1];
            q[p] = y;
            against += x * y;
        });
        double step = along / block_sum(against), size = 0.0, next = 0.0;
        inside(n, [&](u32 p) {
            u[p] += step * direction[p];
            double left = r[p] - step * q[p];
            r[p] = left;
            size += left * left;
            next += left * left / diagonal(p);
        });
        is_solved = block_sum(size) <= limit;
        next = block_sum(next);
        if (!(next < INFINITY)) break;
        double share = next / along;
        along = next;
        if (!is_solved) inside(n, [&](u32 p) { direction[p] = r[p] / diagonal(p) + share * direction[p]; });
    }
    __syncthreads();
    if (threadIdx.x == 0) a.unsolved[run] = !is_solved;
    for (u32 at = threadIdx.x; at < a.places * a.places; at += blockDim.x) {
        u32 from = at / a.places * a.finer * side + at % a.places * a.finer;
        float* to = a.fields + (u64)run * 2 * a.places * a.places + at;
        to[0] = field[from] > 0.0 ? 1.0f : 0.0f;
        to[a.places * a.places] = (float)(a.scale * u[from]);
    }
}
