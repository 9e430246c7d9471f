// The gradients of the selective scan (scan.cu has the equations).
//
// A block has 32 channels of one sequence; a lane has a channel, each of the four warps four states of it. Pieces of KEPT frames
// are run from the last to the first: forwards once more from the state that was kept before them, with the states of every
// frame in shared memory, then backwards. More than 16 states are done 16 at a time, one group after the other.

#define KEPT 16u
#define S 4u
#define WARPS 4u
// States of a group.
#define GROUP (S * WARPS)

template <typename T>
struct ScanBackward {
    Rows<const T> u;
    Rows<const T> dt;
    Rows<const T> b;
    Rows<const T> c;
    Rows<const T> grad;
    Rows<T> du;
    Rows<T> ddt;
    const float* a;     // [states, width], negative
    const float* skip;  // [width]
    const float* kept;  // [batch, pieces, states, width]
    const u8* resets;   // null for none
    float* dbc;         // by block of channels: [blocks, rows, 2 states], B and then C
    float* dparams;     // by sequence: [batch, states + 1, width], A and then D
    float* sums;        // [2, rows, width] between groups; null for a single one
    u32 steps;
};

struct Tile {
    float raw[KEPT][32], dt[KEPT][32], u[KEPT][32], grad[KEPT][32];
    float b[KEPT][GROUP], c[KEPT][GROUP], db[KEPT][GROUP], dc[KEPT][GROUP];
    float h[KEPT][GROUP][32];
    // By warp: gradients of dt u and of dt a.
    float input[WARPS][KEPT][32], through[WARPS][KEPT][32];
};

// The sums of eight values over a warp: lane l has that of value l / 4. Halves are exchanged, so that nine exchanges do.
inline float sum_eight(float (&v)[8]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 half = 4, mask = 16; half > 0; half /= 2, mask /= 2) {
        bool upper = lane & mask;
#pragma unroll
        for (u32 i = 0; i < half; i++) {
            float give = upper ? v[i] : v[i + half], keep = upper ? v[i + half] : v[i];
            v[i] = keep + __shfl_xor_sync(0xffffffff, give, mask);
        }
    }
    float x = v[0] + __shfl_xor_sync(0xffffffff, v[0], 2);
    return x + __shfl_xor_sync(0xffffffff, x, 1);
}

template <typename T>
void scan_backward(const ScanBackward<T>& a) {
    extern __shared__ __align__(16) float shared[];
    Tile& tile = *(Tile*)shared;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * 32, channel = first + lane;
    const u32 width = a.u.width, states = a.b.width, pieces = (a.steps + KEPT - 1) / KEPT, rows = gridDim.y * a.steps;
    const u64 row = (u64)blockIdx.y * a.steps;
    float* dparams = a.dparams + (u64)blockIdx.y * (states + 1) * width;
    float dskip = 0.0f;

    for (u32 group = 0; group < states; group += GROUP) {
        const bool last = group + GROUP >= states;
        float carry[S] = {}, da[S] = {}, rate[S];
#pragma unroll
        for (u32 s = 0; s < S; s++) {
            u32 n = group + warp * S + s;
            rate[s] = channel < width && n < states ? a.a[n * width + channel] * LOG2_E : 0.0f;
        }
        for (u32 piece = pieces; piece-- > 0;) {
            const u32 start = piece * KEPT, count = min(KEPT, a.steps - start);
            __syncthreads();  // The piece before has been written out.
            for (u32 i = threadIdx.x; i < count * 32; i += blockDim.x) {
                u32 t = i / 32;
                bool real = channel < width;
                tile.raw[t][lane] = real ? load(a.dt.row(row + start + t) + channel) : -1e30f;
                tile.dt[t][lane] = softplus(tile.raw[t][lane]);
                tile.u[t][lane] = real ? load(a.u.row(row + start + t) + channel) : 0.0f;
                tile.grad[t][lane] = real ? load(a.grad.row(row + start + t) + channel) : 0.0f;
            }
            for (u32 i = threadIdx.x; i < count * GROUP; i += blockDim.x) {
                u32 t = i / GROUP, n = i % GROUP;
                bool real = group + n < states;
                tile.b[t][n] = real ? load(a.b.row(row + start + t) + group + n) : 0.0f;
                tile.c[t][n] = real ? load(a.c.row(row + start + t) + group + n) : 0.0f;
            }
            const u32 resets = __ballot_sync(0xffffffff, a.resets && lane < count && a.resets[row + start + lane]);
            __syncthreads();

            float before[S], h[S];
#pragma unroll
            for (u32 s = 0; s < S; s++) {
                u32 n = group + warp * S + s;
                bool real = channel < width && n < states;
                before[s] = real ? a.kept[(((u64)blockIdx.y * pieces + piece) * states + n) * width + channel] : 0.0f;
                h[s] = before[s];
            }
            for (u32 t = 0; t < count; t++) {
                float dt = tile.dt[t][lane], du = dt * tile.u[t][lane];
#pragma unroll
                for (u32 s = 0; s < S; s++) {
                    if (resets >> t & 1) h[s] = 0.0f;
                    h[s] = exp2_fast(dt * rate[s]) * h[s] + du * tile.b[t][warp * S + s];
                    tile.h[t][warp * S + s][lane] = h[s];
                }
            }
            for (u32 t = count; t-- > 0;) {
                float dt = tile.dt[t][lane], du = dt * tile.u[t][lane], grad = tile.grad[t][lane];
                float input = 0.0f, through = 0.0f, dbc[2 * S];
                const bool reset = resets >> t & 1;
#pragma unroll
                for (u32 s = 0; s < S; s++) {
                    u32 n = warp * S + s;
                    float gh = grad * tile.c[t][n] + carry[s];
                    dbc[s] = gh * du;
                    dbc[S + s] = grad * h[s];
                    input += gh * tile.b[t][n];
                    h[s] = t > 0 ? tile.h[t - 1][n][lane] : before[s];
                    float decayed = gh * exp2_fast(dt * rate[s]);
                    // Behind a reset neither the state nor its gradient passes.
                    float exponent = reset ? 0.0f : decayed * h[s];
                    carry[s] = reset ? 0.0f : decayed;
                    da[s] += exponent * dt;
                    through += exponent * rate[s];
                }
                tile.input[warp][t][lane] = input;
                tile.through[warp][t][lane] = through;
                float sum = sum_eight(dbc);
                if (lane % 4 == 0) (lane / 4 < S ? tile.db : tile.dc)[t][warp * S + lane / 4 % S] = sum;
                if (warp == 0 && group == 0) dskip += grad * tile.u[t][lane];
            }
            __syncthreads();

            for (u32 i = threadIdx.x; i < count * GROUP; i += blockDim.x) {
                u32 t = i / GROUP, n = i % GROUP;
                if (group + n >= states) continue;
                float* dbc = a.dbc + ((u64)blockIdx.x * rows + row + start + t) * 2 * states + group + n;
                dbc[0] = tile.db[t][n];
                dbc[states] = tile.dc[t][n];
            }
            if (channel >= width) continue;
            for (u32 i = threadIdx.x; i < count * 32; i += blockDim.x) {
                u32 t = i / 32;
                u64 r = row + start + t, at = r * width + channel, apart = (u64)rows * width;
                float input = group > 0 ? a.sums[at] : 0.0f, through = group > 0 ? a.sums[apart + at] : 0.0f;
                for (u32 w = 0; w < WARPS; w++) {
                    input += tile.input[w][t][lane];
                    through += tile.through[w][t][lane];
                }
                if (!last) {
                    a.sums[at] = input;
                    a.sums[apart + at] = through;
                    continue;
                }
                // The rates are A times log2(e): ln(2) brings their products back.
                float ddt = (through * 0.69314718f + tile.u[t][lane] * input) * sigmoid(tile.raw[t][lane]);
                store(a.ddt.row(r) + channel, ddt);
                store(a.du.row(r) + channel, tile.dt[t][lane] * input + tile.grad[t][lane] * a.skip[channel]);
            }
        }
#pragma unroll
        for (u32 s = 0; s < S; s++) {
            u32 n = group + warp * S + s;
            if (channel < width && n < states) dparams[n * width + channel] = da[s];
        }
    }
    if (warp == 0 && channel < width) dparams[states * width + channel] = dskip;
}
KERNELS(scan_backward, ScanBackward)
