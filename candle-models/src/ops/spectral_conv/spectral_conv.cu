// Spectral convolution, channels last: transforms as products with tables, and a product for each mode between them. Coefficients are f32.
//
// A thread makes several numbers of a channel, so that what it reads serves all of them. A table `[A, B, 2]` has a cosine and a sine for each index
// that is summed over and each result, both filled up with zeros: B to whole tiles, A to as many as are read at once. Threads that lie side by side have
// channels that do, and nearly always one tile. Threads of a launch are counted in 32 bits, as divisions in 64 would take longer than the sums.

// Results of a thread: waves across, coefficients down or lines, places.
#define WAVES 10
#define TURNED 8
#define PLACES 16
// Steps of a sum whose operands are read at once.
#define STEPS 8

// Some lines `[places or waves, channels]` that lie one behind another in the rows of a matrix; `count` are there.
template <typename P, u32 LINES>
struct Lines {
    P* first;
    u32 offset[LINES];  // from the first one's
    // `each` lines of `size` values to a row; those behind the last one are the last one again.
    Lines(const Rows<P>& x, u32 line, u32 count, u32 each, u32 size) {
        u32 row = line / each, last = count - 1;
        first = x.row(row) + (line - row * each) * size;
#pragma unroll
        for (u32 i = 0; i < LINES; i++) {
            u32 other = min(line + i, last), down = other / each;
            offset[i] = (down - row) * x.stride + (other - line) * size - (down - row) * each * size;
        }
    }
    P* operator[](u32 i) const { return first + offset[i]; }
};

// Sizes are those of a row.
template <typename T>
struct Across {
    Rows<const T> x;      // [n, m, C]
    Rows<float> lines;    // [n, L, 2, C]
    const float4* table;  // [m, waves, 2]
    u32 rows;
    u32 n;
    u32 m;
    u32 l;
    u32 c;
};

// A thread has so many lines, what is read of the table serving all of them, and reads so many places of each at once, while it sums those before.
template <u32 LINES, u32 AHEAD, typename T>
inline void across(const Across<T>& a) {
    u32 thread = thread_number(), unit = thread / a.c, channel = thread - unit * a.c;
    u32 tiles = (a.l + WAVES - 1) / WAVES, lines = a.rows * a.n, groups = (lines + LINES - 1) / LINES, tile = unit / groups;
    if (tile >= tiles) return;
    u32 first = (unit - tile * groups) * LINES;
    const Lines<const T, LINES> x(a.x, first, lines, a.n, a.m * a.c);
    float sum[LINES][2 * WAVES] = {}, next[AHEAD][LINES];
    auto bring = [&](u32 step, u32 place) {
        u32 at = min(place, a.m - 1) * a.c + channel;
#pragma unroll
        for (u32 i = 0; i < LINES; i++) next[step][i] = load(x[i] + at);
    };
#pragma unroll
    for (u32 step = 0; step < AHEAD; step++) bring(step, step);
    const float4* table = a.table + tile * (WAVES / 2);
#pragma unroll 1
    for (u32 start = 0; start < a.m; start += AHEAD) {
#pragma unroll
        for (u32 step = 0; step < AHEAD; step++) {
#pragma unroll
            for (u32 j = 0; j < WAVES / 2; j++) {
                float4 f = table[j];
#pragma unroll
                for (u32 i = 0; i < LINES; i++) {
                    sum[i][4 * j] += next[step][i] * f.x;
                    sum[i][4 * j + 1] += next[step][i] * f.y;
                    sum[i][4 * j + 2] += next[step][i] * f.z;
                    sum[i][4 * j + 3] += next[step][i] * f.w;
                }
            }
            table += tiles * (WAVES / 2);
            bring(step, start + AHEAD + step);
        }
    }
    const Lines<float, LINES> to(a.lines, first, lines, a.n, a.l * 2 * a.c);
#pragma unroll
    for (u32 i = 0; i < LINES; i++) {
        if (first + i >= lines) break;
        float* line = to[i] + tile * WAVES * 2 * a.c + channel;
#pragma unroll
        for (u32 j = 0; j < 2 * WAVES; j++)
            if (tile * WAVES + j / 2 < a.l) line[j * a.c] = sum[i][j];
    }
}
// Four blocks at once on a multiprocessor: 64 fields of 64 by 64 places and 64 channels are as many as an H200 then holds, and take one round.
template <typename T>
void spectral_across(const Across<T>& a) { across<4, 1>(a); }
// Where so few lines would leave most of a GPU without work.
template <typename T>
void spectral_across_few(const Across<T>& a) { across<1, 4>(a); }
KERNELS_WITH(__launch_bounds__(128, 4), spectral_across, Across)
KERNELS(spectral_across_few, Across)

// Coefficients of A frequencies or lines to those of B, for every wave across: times `cos - i sin`.
struct Turn {
    Rows<const float> from;  // [A, L, 2, C]
    Rows<float> to;          // [B, L, 2, C]
    const float4* table;     // [A, B, 2]
    u32 rows;
    u32 a;
    u32 b;
    u32 l;
    u32 c;
};

extern "C" __global__ void spectral_turn(const __grid_constant__ Turn a) {
    u32 thread = thread_number(), unit = thread / a.c, channel = thread - unit * a.c, above = unit / a.l, wave = unit - above * a.l;
    u32 tiles = (a.b + TURNED - 1) / TURNED, tile = above / a.rows, row = above - tile * a.rows;
    if (tile >= tiles) return;
    const float* from = a.from.row(row) + 2 * wave * a.c + channel;
    float re[TURNED] = {}, im[TURNED] = {};
    const float4* table = a.table + tile * (TURNED / 2);
#pragma unroll 1
    for (u32 start = 0; start < a.a; start += STEPS) {
        float r[STEPS], m[STEPS];
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            const float* at = from + 2 * min(start + step, a.a - 1) * a.l * a.c;
            r[step] = at[0];
            m[step] = at[a.c];
        }
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
#pragma unroll
            for (u32 j = 0; j < TURNED / 2; j++) {
                float4 f = table[j];
                re[2 * j] += r[step] * f.x;
                re[2 * j] += m[step] * f.y;
                im[2 * j] += m[step] * f.x;
                im[2 * j] -= r[step] * f.y;
                re[2 * j + 1] += r[step] * f.z;
                re[2 * j + 1] += m[step] * f.w;
                im[2 * j + 1] += m[step] * f.z;
                im[2 * j + 1] -= r[step] * f.w;
            }
            table += tiles * (TURNED / 2);
        }
    }
    float* to = a.to.row(row) + (tile * TURNED * a.l + wave) * 2 * a.c + channel;
#pragma unroll
    for (u32 j = 0; j < TURNED; j++) {
        if (tile * TURNED + j >= a.b) break;
        to[0] = re[j];
        to[a.c] = im[j];
        to += 2 * a.l * a.c;
    }
}

// Y = X W of every mode, in complex numbers.
struct Mix {
    Rows<const float> s;  // [modes, 2, C]
    Rows<float> y;        // [modes, 2, O]
    const float* weight;  // [modes, C, 2 O]
    const float* bias;    // null for none; a part of the coefficient of the mean
    u32 rows;
    u32 modes;
    u32 mean;
    u32 c;
    u32 o;
};

#define MIXED 8    // rows of a block
#define INPUTS 32  // channels that are read at a time

// A block takes a mode of some rows, a thread an output of all of them.
extern "C" __global__ void spectral_mix(const __grid_constant__ Mix a) {
    __shared__ float4 x[INPUTS][MIXED / 2];  // real and imaginary parts of two rows in one
    u32 mode = blockIdx.x, first = blockIdx.y * MIXED, output = blockIdx.z * blockDim.x + threadIdx.x;
    const float* weight = a.weight + (u64)mode * a.c * 2 * a.o + output;
    float re[MIXED] = {}, im[MIXED] = {};
    for (u32 begin = 0; begin < a.c; begin += INPUTS) {
        u32 count = min(a.c - begin, INPUTS);
        __syncthreads();  // What was read before has been used.
        for (u32 i = threadIdx.x; i < INPUTS * 2 * MIXED; i += blockDim.x) {
            u32 input = i % INPUTS, part = i / INPUTS, row = first + part / 2;
            bool there = input < count && row < a.rows;
            ((float*)x[input])[part] = there ? a.s.row(row)[((u64)2 * mode + part % 2) * a.c + begin + input] : 0.0f;
        }
        __syncthreads();
        if (output >= a.o) continue;
#pragma unroll 8
        for (u32 i = 0; i < count; i++) {
            const float* w = weight + (u64)(begin + i) * 2 * a.o;
            float wr = w[0], wi = w[a.o];
#pragma unroll
            for (u32 j = 0; j < MIXED / 2; j++) {
                float4 v = x[i][j];
                re[2 * j] += v.x * wr;
                re[2 * j] -= v.y * wi;
                im[2 * j] += v.x * wi;
                im[2 * j] += v.y * wr;
                re[2 * j + 1] += v.z * wr;
                re[2 * j + 1] -= v.w * wi;
                im[2 * j + 1] += v.z * wi;
                im[2 * j + 1] += v.w * wr;
            }
        }
    }
    if (output >= a.o) return;
    float bias = a.bias && mode == a.mean ? a.bias[output] : 0.0f;
#pragma unroll
    for (u32 j = 0; j < MIXED; j++) {
        if (first + j >= a.rows) break;
        float* to = a.y.row(first + j) + (u64)2 * mode * a.o + output;
        to[0] = re[j] + bias;
        to[a.o] = im[j];
    }
}

// The gradient of the weight, `conj(X) G` of every mode summed over the rows: as `Mix`, with G in the place of `y`. A block takes a mode of some channels
// of the input, a thread an output for all of them.
struct Weights {
    Rows<const float> s;  // [modes, 2, C]
    Rows<const float> g;  // [modes, 2, O]
    float* weight;        // [modes, C, 2 O]
    const float* bias;
    u32 rows;
    u32 modes;
    u32 mean;
    u32 c;
    u32 o;
};

extern "C" __global__ void spectral_weights(const __grid_constant__ Weights a) {
    __shared__ float4 x[INPUTS][MIXED / 2];  // of rows that are read at a time, two channels in one
    u32 mode = blockIdx.x, first = blockIdx.y * MIXED, output = blockIdx.z * blockDim.x + threadIdx.x;
    float re[MIXED] = {}, im[MIXED] = {};
    for (u32 begin = 0; begin < a.rows; begin += INPUTS) {
        u32 count = min(a.rows - begin, INPUTS);
        __syncthreads();  // What was read before has been used.
        for (u32 i = threadIdx.x; i < INPUTS * 2 * MIXED; i += blockDim.x) {
            u32 row = i / (2 * MIXED), part = i / MIXED % 2, channel = i % MIXED;
            bool there = row < count && first + channel < a.c;
            ((float*)x[row])[2 * channel + part] = there ? a.s.row(begin + row)[((u64)2 * mode + part) * a.c + first + channel] : 0.0f;
        }
        __syncthreads();
        if (output >= a.o) continue;
#pragma unroll 8
        for (u32 i = 0; i < count; i++) {
            const float* g = a.g.row(begin + i) + (u64)2 * mode * a.o + output;
            float gr = g[0], gi = g[a.o];
#pragma unroll
            for (u32 j = 0; j < MIXED / 2; j++) {
                float4 v = x[i][j];
                re[2 * j] += v.x * gr;
                re[2 * j] += v.y * gi;
                im[2 * j] += v.x * gi;
                im[2 * j] -= v.y * gr;
                re[2 * j + 1] += v.z * gr;
                re[2 * j + 1] += v.w * gi;
                im[2 * j + 1] += v.z * gi;
                im[2 * j + 1] -= v.w * gr;
            }
        }
    }
    if (output >= a.o) return;
#pragma unroll
    for (u32 j = 0; j < MIXED; j++) {
        if (first + j >= a.c) break;
        float* to = a.weight + ((u64)mode * a.c + first + j) * 2 * a.o + output;
        to[0] = re[j];
        to[a.o] = im[j];
    }
}

template <typename T>
struct Along {
    Rows<const float> lines;  // [n, L, 2, O]
    Rows<T> out;              // [n, m, O]
    const float4* table;      // [L, m, 2]
    u32 rows;
    u32 n;
    u32 m;
    u32 l;
    u32 o;
};

// As `across`: so many lines.
template <u32 LINES, typename T>
inline void along(const Along<T>& a) {
    u32 thread = thread_number(), unit = thread / a.o, channel = thread - unit * a.o;
    u32 tiles = (a.m + PLACES - 1) / PLACES, lines = a.rows * a.n, groups = (lines + LINES - 1) / LINES, tile = unit / groups;
    if (tile >= tiles) return;
    u32 first = (unit - tile * groups) * LINES;
    const Lines<const float, LINES> from(a.lines, first, lines, a.n, 2 * a.l * a.o);
    float sum[LINES][PLACES] = {}, next[LINES][2];
    auto bring = [&](u32 wave) {
        u32 at = 2 * min(wave, a.l - 1) * a.o + channel;
#pragma unroll
        for (u32 i = 0; i < LINES; i++) next[i][0] = from[i][at], next[i][1] = from[i][at + a.o];
    };
    bring(0);
    const float4* table = a.table + tile * (PLACES / 2);
#pragma unroll 1
    for (u32 wave = 0; wave < a.l; wave++) {
#pragma unroll
        for (u32 j = 0; j < PLACES / 2; j++) {
            float4 f = table[j];
#pragma unroll
            for (u32 i = 0; i < LINES; i++) {
                sum[i][2 * j] += next[i][0] * f.x;
                sum[i][2 * j] += next[i][1] * f.y;
                sum[i][2 * j + 1] += next[i][0] * f.z;
                sum[i][2 * j + 1] += next[i][1] * f.w;
            }
        }
        table += tiles * (PLACES / 2);
        bring(wave + 1);
    }
    const Lines<T, LINES> to(a.out, first, lines, a.n, a.m * a.o);
#pragma unroll
    for (u32 i = 0; i < LINES; i++) {
        if (first + i >= lines) break;
        T* line = to[i] + tile * PLACES * a.o + channel;
        if ((tile + 1) * PLACES <= a.m) {
#pragma unroll
            for (u32 j = 0; j < PLACES; j++) store(line + j * a.o, sum[i][j]);
        } else {
#pragma unroll
            for (u32 j = 0; j < PLACES; j++)
                if (tile * PLACES + j < a.m) store(line + j * a.o, sum[i][j]);
        }
    }
}
template <typename T>
void spectral_along(const Along<T>& a) { along<2>(a); }
template <typename T>
void spectral_along_few(const Along<T>& a) { along<1>(a); }
KERNELS(spectral_along, Along)
KERNELS(spectral_along_few, Along)
