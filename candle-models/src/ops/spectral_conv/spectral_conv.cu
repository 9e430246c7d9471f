// Spectral convolution, channels last: five steps, in each of which a thread makes one number of a channel. The coefficients between them are f32.

template <typename T>
struct SpectralConv {
    Rows<const T> x;
    Rows<T> out;
    Rows<float> lines;  // [n, L, 2, channels] of the input, then of the result
    Rows<float> s;      // [K, L, 2, C]
    Rows<float> y;      // [K, L, 2, O]
    const float* mean;   // [2 L, m]
    const float* twice;  // [2 L, m]
    const float* down;   // [2 J, n]
    const float* weight;  // [K, L, C, 2 O]
    const float* bias;    // null for none
    u32 n;
    u32 m;
    u32 k;
    u32 l;
    u32 c;
    u32 o;
};

// The sign of a wave down, and its row in the table of absolute frequencies.
template <typename T>
inline float wave_down(const SpectralConv<T>& a, u32 number, const float** cosine, const float** sine) {
    u32 middle = a.k / 2, frequency = number < middle ? middle - number : number - middle;
    *cosine = a.down + (u64)(2 * frequency) * a.n;
    *sine = *cosine + a.n;
    return number < middle ? -1.0f : 1.0f;
}

// A block takes a wave across of a line.
template <typename T>
void spectral_across(const SpectralConv<T>& a) {
    u32 channel = blockIdx.y * blockDim.x + threadIdx.x, place = blockIdx.x % (a.n * a.l);
    if (channel >= a.c) return;
    u64 r = blockIdx.x / (a.n * a.l);
    u32 h = place / a.l, wave = place % a.l;
    const T* x = a.x.row(r) + (u64)h * a.m * a.c + channel;
    const float *cosine = a.mean + (u64)(2 * wave) * a.m, *sine = cosine + a.m;
    float re = 0.0f, im = 0.0f;
    for (u32 w = 0; w < a.m; w++) {
        float value = load(x + (u64)w * a.c);
        re += value * cosine[w];
        im += value * sine[w];
    }
    float* to = a.lines.row(r) + (u64)(2 * place) * a.c + channel;
    to[0] = re;
    to[a.c] = im;
}
KERNELS(spectral_across, SpectralConv)

// A block takes a mode.
template <typename T>
void spectral_down(const SpectralConv<T>& a) {
    u32 channel = blockIdx.y * blockDim.x + threadIdx.x, mode = blockIdx.x % (a.k * a.l);
    if (channel >= a.c) return;
    u64 r = blockIdx.x / (a.k * a.l);
    const float *cosine, *sine;
    float sign = wave_down(a, mode / a.l, &cosine, &sine), re = 0.0f, im = 0.0f;
    const float* lines = a.lines.row(r) + (u64)(2 * (mode % a.l)) * a.c + channel;
    for (u32 h = 0; h < a.n; h++) {
        const float* from = lines + (u64)(2 * h * a.l) * a.c;
        float s = sign * sine[h];
        re += from[0] * cosine[h] + from[a.c] * s;
        im += from[a.c] * cosine[h] - from[0] * s;
    }
    float* to = a.s.row(r) + (u64)(2 * mode) * a.c + channel;
    to[0] = re;
    to[a.c] = im;
}
KERNELS(spectral_down, SpectralConv)

// A block takes a mode.
template <typename T>
void spectral_mix(const SpectralConv<T>& a) {
    u32 channel = blockIdx.y * blockDim.x + threadIdx.x, modes = a.k * a.l, mode = blockIdx.x % modes;
    if (channel >= a.o) return;
    u64 r = blockIdx.x / modes;
    const float *s = a.s.row(r) + (u64)(2 * mode) * a.c, *weight = a.weight + (u64)mode * a.c * 2 * a.o + channel;
    float re = 0.0f, im = 0.0f;
    for (u32 i = 0; i < a.c; i++) {
        float wr = weight[(u64)i * 2 * a.o], wi = weight[(u64)i * 2 * a.o + a.o];
        re += s[i] * wr - s[a.c + i] * wi;
        im += s[i] * wi + s[a.c + i] * wr;
    }
    if (a.bias && mode == a.k / 2 * a.l) re += a.bias[channel];
    float* to = a.y.row(r) + (u64)(2 * mode) * a.o + channel;
    to[0] = re;
    to[a.o] = im;
}
KERNELS(spectral_mix, SpectralConv)

// A block takes a wave across of a line.
template <typename T>
void spectral_up(const SpectralConv<T>& a) {
    u32 channel = blockIdx.y * blockDim.x + threadIdx.x, place = blockIdx.x % (a.n * a.l);
    if (channel >= a.o) return;
    u64 r = blockIdx.x / (a.n * a.l);
    u32 h = place / a.l, wave = place % a.l;
    float re = 0.0f, im = 0.0f;
    for (u32 number = 0; number < a.k; number++) {
        const float *cosine, *sine, *y = a.y.row(r) + (u64)(2 * (number * a.l + wave)) * a.o + channel;
        float sign = wave_down(a, number, &cosine, &sine);
        float s = sign * sine[h], c = cosine[h];
        re += y[0] * c - y[a.o] * s;
        im += y[0] * s + y[a.o] * c;
    }
    float* to = a.lines.row(r) + (u64)(2 * place) * a.o + channel;
    to[0] = re;
    to[a.o] = im;
}
KERNELS(spectral_up, SpectralConv)

// A block takes a place.
template <typename T>
void spectral_along(const SpectralConv<T>& a) {
    u32 channel = blockIdx.y * blockDim.x + threadIdx.x, place = blockIdx.x % (a.n * a.m);
    if (channel >= a.o) return;
    u64 r = blockIdx.x / (a.n * a.m);
    u32 h = place / a.m, w = place % a.m;
    const float* lines = a.lines.row(r) + (u64)(2 * h * a.l) * a.o + channel;
    float sum = 0.0f;
    for (u32 i = 0; i < 2 * a.l; i++) sum += lines[(u64)i * a.o] * a.twice[(u64)i * a.m + w];
    store(a.out.row(r) + (u64)place * a.o + channel, sum);
}
KERNELS(spectral_along, SpectralConv)
