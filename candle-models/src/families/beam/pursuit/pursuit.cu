// Matching pursuit among pairs of directions: a block takes a row. Sums over directions are made in the order of the directions.

struct Pair {
    u32 receive;
    u32 transmit;
};

template <typename T>
struct Pursuit {
    Rows<const T> x;
    Rows<T> out;
    const float* arrive;  // [2 N, N, 2]
    const float* leave;   // [2 M, M, 2]
    const float* beams;   // [T, M, 2]
    const float* sent;    // [T, 2, columns]
    const float* power;   // [T]
    Pair antennas;
    Pair directions;
    u32 columns;
    u32 measurements;
    u32 paths;
};

// Constants of the search, as on the CPU.
constexpr int SHARPNESS = 32;
constexpr float MISFIT = 0.1f, UNSEEN = 0.1f, WEAK = 1e-3f, LEAST = 1e-9f, LEAST_PROBABILITY = 1e-5f, LOGARITHM = 0.15f;

struct Complex {
    float re;
    float im;
};

inline Complex times(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }

inline float square(Complex a) { return a.re * a.re + a.im * a.im; }

// a^H b.
inline Complex inner(const Complex* a, const Complex* b, u32 n) {
    Complex sum = {0.0f, 0.0f};
    for (u32 i = 0; i < n; i++) {
        sum.re += a[i].re * b[i].re + a[i].im * b[i].im;
        sum.im += a[i].re * b[i].im - a[i].im * b[i].re;
    }
    return sum;
}

inline float squares(const Complex* a, u32 n) {
    float sum = 0.0f;
    for (u32 i = 0; i < n; i++) sum += square(a[i]);
    return sum;
}

// How likely a path is that arrives from direction r and leaves in direction s.
template <typename T>
inline float likelihood(const Pursuit<T>& a, const Complex* seen, const Complex* left, float floor, float energy, u32 r, u32 s) {
    Complex matched = {0.0f, 0.0f};
    float power = floor;
    for (u32 t = 0; t < a.measurements; t++) {
        const float* sent = a.sent + (u64)t * 2 * a.columns + s;
        Complex w = seen[t * a.directions.receive + r], f = {sent[0], sent[a.columns]};
        Complex given = times(Complex{w.re, -w.im}, left[t]);
        matched.re += given.re * f.re + given.im * f.im;
        matched.im += given.im * f.re - given.re * f.im;
        power += square(w) * square(f);
    }
    float likely = 1.0f / fmaxf(1.0f + MISFIT - square(matched) / (power * energy), MISFIT);
    for (int n = 1; n < SHARPNESS; n *= 2) likely *= likely;
    return likely;
}

template <typename T>
void pursuit(const Pursuit<T>& a) {
    extern __shared__ Complex shared[];
    u32 n = a.antennas.receive, m = a.antennas.transmit, rows = a.directions.receive, columns = a.directions.transmit, count = a.measurements;
    Complex *w = shared, *seen = w + count * n, *left = seen + count * rows, *given = left + count, *u = given + count, *v = u + n;
    float *arrives = (float*)(v + m), *leaves = arrives + rows;
    const Complex *arrive = (const Complex*)a.arrive, *leave = (const Complex*)a.leave, *beams = (const Complex*)a.beams;
    const T* x = a.x.row(blockIdx.x);
    T* out = a.out.row(blockIdx.x);

    // Beams are turned by the phase of what was received, so that measurements are real.
    float whole = 0.0f;
    for (u32 t = threadIdx.x; t < count; t += blockDim.x) {
        float y = 1e-24f;
        for (u32 i = 0; i < 2 * n; i++) y += load(x + t * 2 * n + i) * load(x + t * 2 * n + i);
        y = sqrtf(y);
        for (u32 i = 0; i < n; i++) w[t * n + i] = {load(x + t * 2 * n + 2 * i) / y, load(x + t * 2 * n + 2 * i + 1) / y};
        left[t] = {y, 0.0f};
        whole += y * y;
    }
    whole = block_sum(whole) + LEAST;
    float power = 0.0f;
    for (u32 i = threadIdx.x; i < count * rows; i += blockDim.x) {
        seen[i] = inner(w + i / rows * n, arrive + (u64)(i % rows) * n, n);
        power += square(seen[i]) * a.power[i / rows];
    }
    float floor = block_sum(power) * (UNSEEN / (float)(rows * columns)) + LEAST;

    for (u32 k = 0; k < a.paths; k++) {
        __syncthreads();
        float energy = squares(left, count) + LEAST, total = 0.0f;
        for (u32 s = threadIdx.x; s < columns; s += blockDim.x) {
            float sum = 0.0f;
            for (u32 r = 0; r < rows; r++) sum += likelihood(a, seen, left, floor, energy, r, s);
            leaves[s] = sum;
            total += sum;
        }
        for (u32 r = threadIdx.x; r < rows; r += blockDim.x) {
            float sum = 0.0f;
            for (u32 s = 0; s < columns; s++) sum += likelihood(a, seen, left, floor, energy, r, s);
            arrives[r] = sum;
        }
        total = block_sum(total);
        for (u32 i = threadIdx.x; i < n + m; i += blockDim.x) {
            bool receives = i < n;
            u32 at = receives ? i : i - n, width = receives ? n : m;
            const float* likely = receives ? arrives : leaves;
            const Complex* steering = receives ? arrive : leave;
            Complex sum = {0.0f, 0.0f};
            for (u32 d = 0; d < (receives ? rows : columns); d++) {
                Complex direction = steering[(u64)d * width + at];
                sum.re += likely[d] / total * direction.re;
                sum.im += likely[d] / total * direction.im;
            }
            (receives ? u : v)[at] = sum;
        }
        __syncthreads();
        for (u32 t = threadIdx.x; t < count; t += blockDim.x) given[t] = times(inner(w + t * n, u, n), inner(v, beams + (u64)t * m, m));
        __syncthreads();
        Complex gain = inner(given, left, count);
        float size = squares(given, count) + WEAK;
        gain = {gain.re / size, gain.im / size};
        __syncthreads();
        for (u32 t = threadIdx.x; t < count; t += blockDim.x) {
            Complex explained = times(given[t], gain);
            left[t] = {left[t].re - explained.re, left[t].im - explained.im};
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            Complex path = times(u[i], gain);
            store(out + 2 * i, path.re);
            store(out + 2 * i + 1, path.im);
        }
        out += 2 * n;
        for (u32 i = threadIdx.x; i < m; i += blockDim.x) {
            store(out + 2 * i, v[i].re);
            store(out + 2 * i + 1, v[i].im);
        }
        out += 2 * m;
        if (threadIdx.x == 0) store(out, squares(left, count) / whole);
        out += 1;
        for (u32 d = threadIdx.x; d < rows + columns; d += blockDim.x) {
            float p = (d < rows ? arrives[d] : leaves[d - rows]) / total;
            store(out + d, 1.0f + LOGARITHM * logf(p + LEAST_PROBABILITY));
        }
        out += rows + columns;
    }
}
KERNELS(pursuit, Pursuit)
