// Spectral convolution, channels last: transforms as products with tables, and a product for each mode between them. Coefficients are f32.
//
// A thread makes several numbers of a channel, so that what it reads serves all of them. A table `[A, B, 2]` has a cosine and a sine for each index
// that is summed over and each result; B is filled up with zeros to whole tiles. Threads that lie side by side have channels that do, and
// nearly always one tile.

// Results of a thread: waves across, coefficients down or lines, places.
#define WAVES 10
#define TURNED 8
#define PLACES 16
// Lines of a thread where lines are what is read or written.
#define LINES 4
// Steps of a sum whose operands are read at once.
#define STEPS 2

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

template <typename T>
void spectral_across(const Across<T>& a) {
    u64 thread = thread_number(), unit = thread / a.c;
    u32 channel = thread % a.c, tiles = (a.l + WAVES - 1) / WAVES;
    u64 lines = (u64)a.rows * a.n, pairs = (lines + LINES - 1) / LINES;
    u32 tile = unit / pairs;
    if (tile >= tiles) return;
    u64 first = unit % pairs * LINES;
    const T* x[LINES];
#pragma unroll
    for (u32 i = 0; i < LINES; i++) {
        u64 line = min(first + i, lines - 1);
        x[i] = a.x.row(line / a.n) + line % a.n * a.m * a.c + channel;
    }
    float sum[LINES][2 * WAVES] = {};
    const float4* table = a.table + tile * (WAVES / 2);
    for (u32 start = 0; start < a.m; start += STEPS) {
        float value[STEPS][LINES];
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
#pragma unroll
            for (u32 i = 0; i < LINES; i++) value[step][i] = load(x[i] + (u64)min(start + step, a.m - 1) * a.c);
        }
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            if (start + step >= a.m) break;
#pragma unroll
            for (u32 j = 0; j < WAVES / 2; j++) {
                float4 f = table[(u64)(start + step) * tiles * (WAVES / 2) + j];
#pragma unroll
                for (u32 i = 0; i < LINES; i++) {
                    sum[i][4 * j] += value[step][i] * f.x;
                    sum[i][4 * j + 1] += value[step][i] * f.y;
                    sum[i][4 * j + 2] += value[step][i] * f.z;
                    sum[i][4 * j + 3] += value[step][i] * f.w;
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < LINES; i++) {
        u64 line = first + i;
        if (line >= lines) continue;
        float* to = a.lines.row(line / a.n) + (line % a.n * a.l + tile * WAVES) * 2 * a.c + channel;
#pragma unroll
        for (u32 j = 0; j < 2 * WAVES; j++)
            if (tile * WAVES + j / 2 < a.l) to[(u64)j * a.c] = sum[i][j];
    }
}
KERNELS(spectral_across, Across)

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
    u64 thread = thread_number(), unit = thread / a.c;
    u32 channel = thread % a.c, tiles = (a.b + TURNED - 1) / TURNED, wave = unit % a.l;
    u64 row = unit / a.l % a.rows;
    u32 tile = unit / a.l / a.rows;
    if (tile >= tiles) return;
    const float* from = a.from.row(row) + (u64)2 * wave * a.c + channel;
    float re[TURNED] = {}, im[TURNED] = {};
    const float4* table = a.table + tile * (TURNED / 2);
    for (u32 start = 0; start < a.a; start += STEPS) {
        float r[STEPS], m[STEPS];
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            const float* at = from + (u64)2 * min(start + step, a.a - 1) * a.l * a.c;
            r[step] = at[0];
            m[step] = at[a.c];
        }
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            if (start + step >= a.a) break;
#pragma unroll
            for (u32 j = 0; j < TURNED / 2; j++) {
                float4 f = table[(u64)(start + step) * tiles * (TURNED / 2) + j];
                re[2 * j] += r[step] * f.x + m[step] * f.y;
                im[2 * j] += m[step] * f.x - r[step] * f.y;
                re[2 * j + 1] += r[step] * f.z + m[step] * f.w;
                im[2 * j + 1] += m[step] * f.z - r[step] * f.w;
            }
        }
    }
#pragma unroll
    for (u32 j = 0; j < TURNED; j++) {
        u32 number = tile * TURNED + j;
        if (number >= a.b) continue;
        float* to = a.to.row(row) + ((u64)number * a.l + wave) * 2 * a.c + channel;
        to[0] = re[j];
        to[a.c] = im[j];
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
                re[2 * j] += v.x * wr - v.y * wi;
                im[2 * j] += v.x * wi + v.y * wr;
                re[2 * j + 1] += v.z * wr - v.w * wi;
                im[2 * j + 1] += v.z * wi + v.w * wr;
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
                re[2 * j] += v.x * gr + v.y * gi;
                im[2 * j] += v.x * gi - v.y * gr;
                re[2 * j + 1] += v.z * gr + v.w * gi;
                im[2 * j + 1] += v.z * gi - v.w * gr;
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

template <typename T>
void spectral_along(const Along<T>& a) {
    u64 thread = thread_number(), unit = thread / a.o;
    u32 channel = thread % a.o, tiles = (a.m + PLACES - 1) / PLACES;
    u64 lines = (u64)a.rows * a.n, pairs = (lines + LINES - 1) / LINES;
    u32 tile = unit / pairs;
    if (tile >= tiles) return;
    u64 first = unit % pairs * LINES;
    const float* from[LINES];
#pragma unroll
    for (u32 i = 0; i < LINES; i++) {
        u64 line = min(first + i, lines - 1);
        from[i] = a.lines.row(line / a.n) + line % a.n * 2 * a.l * a.o + channel;
    }
    float sum[LINES][PLACES] = {};
    const float4* table = a.table + tile * (PLACES / 2);
    for (u32 start = 0; start < a.l; start += STEPS / 2) {
        float re[STEPS / 2][LINES], im[STEPS / 2][LINES];
#pragma unroll
        for (u32 step = 0; step < STEPS / 2; step++) {
#pragma unroll
            for (u32 i = 0; i < LINES; i++) {
                const float* at = from[i] + (u64)2 * min(start + step, a.l - 1) * a.o;
                re[step][i] = at[0];
                im[step][i] = at[a.o];
            }
        }
#pragma unroll
        for (u32 step = 0; step < STEPS / 2; step++) {
            if (start + step >= a.l) break;
#pragma unroll
            for (u32 j = 0; j < PLACES / 2; j++) {
                float4 f = table[(u64)(start + step) * tiles * (PLACES / 2) + j];
#pragma unroll
                for (u32 i = 0; i < LINES; i++) {
                    sum[i][2 * j] += re[step][i] * f.x + im[step][i] * f.y;
                    sum[i][2 * j + 1] += re[step][i] * f.z + im[step][i] * f.w;
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < LINES; i++) {
        u64 line = first + i;
        if (line >= lines) continue;
        T* to = a.out.row(line / a.n) + (line % a.n * a.m + tile * PLACES) * a.o + channel;
#pragma unroll
        for (u32 j = 0; j < PLACES; j++)
            if (tile * PLACES + j < a.m) store(to + (u64)j * a.o, sum[i][j]);
    }
}
KERNELS(spectral_along, Along)
