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
};

// The resets of the frames `[first, first + count)` as bits, count at most 32.
inline u32 reset_bits(const u8* resets, u64 first, u32 count) {
    u32 lane = threadIdx.x % 32;
    return __ballot_sync(0xffffffff, resets && lane < count && resets[first + lane]);
}

// TILE: frames of a tile, a divisor of KEPT where states are kept, at most 32. WARPS: those of a block, or 0 if the launch decides. BRING: the most step sizes or inputs
// of a tile that a thread brings.
template <u32 S, u32 C, u32 TILE, u32 WARPS, u32 BRING, typename T>
void scan(const Scan<T>& a) {
    constexpr u32 CHANNELS = 32 * C, BRING_STATES = TILE * S / 32, tile = TILE;
    extern __shared__ __align__(16) float shared[];
    const u32 parts = WARPS ? WARPS : blockDim.x / 32, threads = parts * 32, padded = parts * S;
    const u32 lane = threadIdx.x % 32, part = threadIdx.x / 32;
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

    // This thread brings one channel of every `lines`th frame of a tile, and one state of every `state_lines`th. No branch parts the
    // loads: what lies outside is read where the last one was, and nobody sees what comes of it. Converted when they have come.
    const u32 own = threadIdx.x % CHANNELS, line = threadIdx.x / CHANNELS, lines = threads / CHANNELS;
    const u32 own_state = threadIdx.x % padded, state_line = threadIdx.x / padded, state_lines = threads / padded;
    const bool inside = first + own < width, state_inside = own_state < states;
    const float skip = inside ? a.skip[first + own] : 0.0f;
    T next_dt[BRING], next_u[BRING], next_b[BRING_STATES], next_c[BRING_STATES];
    auto bring = [&](u32 start) {
        const u32 count = min(tile, a.steps - start), channel = inside ? first + own : 0, state = state_inside ? own_state : 0;
        const u64 from = row + start + min(line, count - 1), state_from = row + start + min(state_line, count - 1);
        const T *dt = a.dt.row(from) + channel, *u = a.u.row(from) + channel;
        const T *b = a.b.row(state_from) + state, *c = a.c.row(state_from) + state;
#pragma unroll
        for (u32 k = 0; k < BRING; k++) {
            next_dt[k] = *dt;
            next_u[k] = *u;
            bool more = line + (k + 1) * lines < count;
            dt += more ? lines * a.dt.stride : 0;
            u += more ? lines * a.u.stride : 0;
        }
#pragma unroll
        for (u32 k = 0; k < BRING_STATES; k++) {
            next_b[k] = *b;
            next_c[k] = *c;
            bool more = state_line + (k + 1) * state_lines < count;
            b += more ? state_lines * a.b.stride : 0;
            c += more ? state_lines * a.c.stride : 0;
        }
    };

    bring(0);
    for (u32 start = 0; start < a.steps; start += tile) {
        u32 count = min(tile, a.steps - start);
        __syncthreads();  // The tile before has been written out.
#pragma unroll
        for (u32 k = 0; k < BRING; k++) {
            u32 t = line + k * lines;
            if (t >= tile) break;
            dts[t * CHANNELS + own] = softplus(load(next_dt + k));
            us[t * CHANNELS + own] = load(next_u + k);
        }
#pragma unroll
        for (u32 k = 0; k < BRING_STATES; k++) {
            u32 t = state_line + k * state_lines;
            if (t >= tile) break;
            bs[t * padded + own_state] = state_inside ? load(next_b + k) : 0.0f;
            cs[t * padded + own_state] = state_inside ? load(next_c + k) : 0.0f;
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
        if (a.out.data && inside) {
            T* out = a.out.row(row + start) + first + own;
            for (u32 t = line; t < count; t += lines) {
                float y = skip * us[t * CHANNELS + own];
                for (u32 p = 0; p < parts; p++) y += ys[(p * tile + t) * CHANNELS + own];
                store(out + t * a.out.stride, y);
            }
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

// Up to 16 states and many frames: where sequences and channels are many, two channels share what a thread reads of B and C; otherwise four times as many warps
// hide each other's latency. Few states or one frame: more threads, each with less to do. More states: blocks of up to 1024 threads, which leaves each 64
// registers.
template <typename T>
void scan_window(const Scan<T>& a) { scan<8, 2, 16, 2, 16>(a); }
template <typename T>
void scan_wide(const Scan<T>& a) { scan<4, 1, 32, 4, 8>(a); }
template <typename T>
void scan_narrow(const Scan<T>& a) { scan<4, 1, 16, 0, 16>(a); }
template <typename T>
void scan_deep(const Scan<T>& a) { scan<8, 1, 8, 0, 3>(a); }
KERNELS(scan_window, Scan)
KERNELS(scan_wide, Scan)
KERNELS(scan_narrow, Scan)
KERNELS_WITH(__launch_bounds__(1024), scan_deep, Scan)
