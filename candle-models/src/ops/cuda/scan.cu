// Selective scan: h = e^(dt a) h + dt u B, y = sum over n of C h + D u, with dt = softplus(raw).
//
// A block has 32 C channels of one sequence: a lane of a warp C channels, a warp of the block S states of each, in registers over
// all frames. Frames come in tiles through shared memory: step sizes and inputs by channel, B and C by state; the next tile is on
// its way in registers while the present one is computed. A warp leaves its share of y in shared memory, and the shares are added
// in the order of the warps.
//
// Floors for B x T x E channels x N states, values of s bytes: B T (3 E + 2 N) s + 8 B E N bytes (32 x 1024 x 512 x 16 in f32:
// 206 MB), and B T E (N + 2) exponentials of which a multiprocessor starts 16 a cycle.

// Frames between two states that are kept for the backward.
#define KEPT 16u
template <typename T>
struct Scan {
    Rows<const T> u;
    Rows<const T> dt;  // before softplus
    Rows<const T> b;   // [rows, states]
    Rows<const T> c;
    Rows<T> out;
    const float* a;     // [states, width], negative
    const float* skip;  // [width]
    States state;       // [states, width]
    const u8* resets;   // one per row; null for none
    float* kept;        // in place of `out` and of the new state, the state before every KEPT frames: [batch, pieces, states, width]
    u32 steps;
    u32 tile;  // frames of a tile, a divisor of KEPT
};

// The resets of the frames `[first, first + count)` as bits, count at most 32.
inline u32 reset_bits(const u8* resets, u64 first, u32 count) {
    u32 lane = threadIdx.x % 32;
    return __ballot_sync(0xffffffff, resets && lane < count && resets[first + lane]);
}

// BRING: the most step sizes or inputs of a tile that a thread brings.
template <u32 S, u32 C, u32 BRING, typename T>
void scan(const Scan<T>& a) {
    constexpr u32 CHANNELS = 32 * C, BRING_STATES = KEPT * S / 32;
    extern __shared__ __align__(16) float shared[];
    const u32 lane = threadIdx.x % 32, part = threadIdx.x / 32, parts = blockDim.x / 32, tile = a.tile, padded = parts * S;
    const u32 width = a.u.width, states = a.b.width, first = blockIdx.x * CHANNELS;
    const u64 row = (u64)blockIdx.y * a.steps;
    float *dts = shared, *us = dts + tile * CHANNELS, *bs = us + tile * CHANNELS, *cs = bs + tile * padded, *ys = cs + tile * padded;

    float h[C][S], rate[C][S];
    float* state = a.state.of(blockIdx.y);
#pragma unroll
    for (u32 c = 0; c < C; c++) {
#pragma unroll
        for (u32 s = 0; s < S; s++) {
            u32 channel = first + c * 32 + lane, n = part * S + s;
            bool real = channel < width && n < states;
            h[c][s] = real ? state[n * width + channel] : 0.0f;
            rate[c][s] = real ? a.a[n * width + channel] * LOG2_E : 0.0f;
        }
    }

    float next_dt[BRING], next_u[BRING], next_b[BRING_STATES], next_c[BRING_STATES];
    auto bring = [&](u32 start) {
        u32 count = min(tile, a.steps - start);
#pragma unroll
        for (u32 k = 0; k < BRING; k++) {
            u32 i = threadIdx.x + k * blockDim.x, t = i / CHANNELS, channel = first + i % CHANNELS;
            if (t >= count) break;
            next_dt[k] = channel < width ? load(a.dt.row(row + start + t) + channel) : -1e30f;
            next_u[k] = channel < width ? load(a.u.row(row + start + t) + channel) : 0.0f;
        }
#pragma unroll
        for (u32 k = 0; k < BRING_STATES; k++) {
            u32 i = threadIdx.x + k * blockDim.x, t = i / padded, n = i % padded;
            if (t >= count) break;
            next_b[k] = n < states ? load(a.b.row(row + start + t) + n) : 0.0f;
            next_c[k] = n < states ? load(a.c.row(row + start + t) + n) : 0.0f;
        }
    };

    bring(0);
    for (u32 start = 0; start < a.steps; start += tile) {
        u32 count = min(tile, a.steps - start);
        __syncthreads();  // The tile before has been written out.
#pragma unroll
        for (u32 k = 0; k < BRING; k++) {
            u32 i = threadIdx.x + k * blockDim.x;
            if (i >= count * CHANNELS) break;
            dts[i] = softplus(next_dt[k]);
            us[i] = next_u[k];
        }
#pragma unroll
        for (u32 k = 0; k < BRING_STATES; k++) {
            u32 i = threadIdx.x + k * blockDim.x;
            if (i >= count * padded) break;
            bs[i] = next_b[k];
            cs[i] = next_c[k];
        }
        __syncthreads();
        if (start + tile < a.steps) bring(start + tile);

        if (a.kept && start % KEPT == 0) {
            u32 pieces = (a.steps + KEPT - 1) / KEPT;
            float* kept = a.kept + ((u64)blockIdx.y * pieces + start / KEPT) * states * width;
#pragma unroll
            for (u32 c = 0; c < C; c++) {
#pragma unroll
                for (u32 s = 0; s < S; s++) {
                    u32 channel = first + c * 32 + lane, n = part * S + s;
                    if (channel < width && n < states) kept[n * width + channel] = h[c][s];
                }
            }
        }

        u32 resets = reset_bits(a.resets, row + start, count);
        for (u32 t = 0; t < count;) {
            if (resets >> t & 1) {
#pragma unroll
                for (u32 c = 0; c < C; c++) {
#pragma unroll
                    for (u32 s = 0; s < S; s++) h[c][s] = 0.0f;
                }
            }
            u32 later = resets & ~((2u << t) - 1), end = later ? __ffs(later) - 1 : count;
            // Without a branch inside, so that the loads of a frame begin while the one before is computed.
#pragma unroll 2
            for (; t < end; t++) {
                float b[S], c[S];
#pragma unroll
                for (u32 s = 0; s < S; s += 4) {
                    *(float4*)(b + s) = *(const float4*)(bs + t * padded + part * S + s);
                    *(float4*)(c + s) = *(const float4*)(cs + t * padded + part * S + s);
                }
#pragma unroll
                for (u32 k = 0; k < C; k++) {
                    float dt = dts[t * CHANNELS + k * 32 + lane], du = dt * us[t * CHANNELS + k * 32 + lane], y = 0.0f;
#pragma unroll
                    for (u32 s = 0; s < S; s++) {
                        h[k][s] = exp2_fast(dt * rate[k][s]) * h[k][s] + du * b[s];
                        y += c[s] * h[k][s];
                    }
                    ys[(part * tile + t) * CHANNELS + k * 32 + lane] = y;
                }
            }
        }
        __syncthreads();
        if (a.kept) continue;
        for (u32 i = threadIdx.x; i < count * CHANNELS; i += blockDim.x) {
            u32 channel = first + i % CHANNELS;
            if (channel >= width) continue;
            float y = a.skip[channel] * us[i];
            for (u32 p = 0; p < parts; p++) y += ys[p * tile * CHANNELS + i];
            store(a.out.row(row + start + i / CHANNELS) + channel, y);
        }
    }

    if (a.kept) return;
#pragma unroll
    for (u32 c = 0; c < C; c++) {
#pragma unroll
        for (u32 s = 0; s < S; s++) {
            u32 channel = first + c * 32 + lane, n = part * S + s;
            if (channel < width && n < states) state[n * width + channel] = h[c][s];
        }
    }
}

// Few states or one frame: more threads, each with less to do. Otherwise two channels share what a thread reads of B and C. Blocks
// of very many states have up to 1024 threads, which leaves each 64 registers.
template <typename T>
void scan_narrow(const Scan<T>& a) { scan<4, 1, 16>(a); }
template <typename T>
void scan_wide(const Scan<T>& a) { scan<8, 2, 16>(a); }
template <typename T>
void scan_deep(const Scan<T>& a) { scan<8, 1, 1>(a); }
KERNELS(scan_narrow, Scan)
KERNELS(scan_wide, Scan)
KERNELS_WITH(__launch_bounds__(1024), scan_deep, Scan)
