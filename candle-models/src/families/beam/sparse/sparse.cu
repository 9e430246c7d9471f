// A sparse estimate of a channel: a block takes a row. Sums are made in the same order whatever the number of threads.

struct Pair {
    u32 receive;
    u32 transmit;
};

template <typename T>
struct SparseChannel {
    Rows<const T> x;
    Rows<const T> snr;
    Rows<T> out;
    const float* arrive;  // [A, N, 2]
    const float* leave;   // [D, M, 2]
    const float* sent;    // [T, 2, D] of conj(b_s^H f_t)
    const float* choices; // [C, M, 2]
    Pair antennas;
    Pair directions;
    u32 measurements;
    u32 paths;  // That are looked for, and how many of them again.
    u32 again;
    u32 count;  // Beams to choose among.
    u32 places; // That the first path is kept near, one after the other; none: everywhere.
    u32 width;  // How far two directions are apart that are near, in steps of the grid.
    float unexplained; // The least share of the mean power of the measurements that is taken for noise.
};

// Constants of the estimate, as on the CPU.
constexpr int STEPS = 4, TOLD = 5, PLACES = 8;
constexpr float SCALE = 2.4f, SNR_SCALE = 30.0f, GAIN = 0.5f, UNFOUND = 1.5f, CERTAIN = 0.7f, DOUBT = 5.0f, LEAST_NOISE = 0.01f, MOST_NOISE = 1e3f;
constexpr float LEAST = 1e-9f, LEAST_PROBABILITY = 1e-5f, LOGARITHM = 0.15f, LOGIT = 3.0f, NOTHING = 1e-8f;
// What x^H R^-1 x is taken for where a path cannot be: so much that its gain is 0, and it is as likely as 1e-15.
constexpr float NEVER = 1e30f;

struct Complex {
    float re;
    float im;
};

inline Complex times(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }

inline Complex conj(Complex a) { return {a.re, -a.im}; }

inline void add(Complex& sum, Complex a) {
    sum.re += a.re;
    sum.im += a.im;
}

inline float square(Complex a) { return a.re * a.re + a.im * a.im; }

inline float squares(const Complex* a, u32 n) {
    float sum = 0.0f;
    for (u32 i = 0; i < n; i++) sum += square(a[i]);
    return sum;
}

// x_rs[t].
template <typename T>
inline Complex given(const SparseChannel<T>& a, const Complex* seen, u32 t, u32 r, u32 s) {
    const float* sent = a.sent + (u64)t * 2 * a.directions.transmit + s;
    return times(seen[t * a.directions.receive + r], Complex{sent[0], -sent[a.directions.transmit]});
}

// x_rs^H z.
template <typename T>
inline Complex matched(const SparseChannel<T>& a, const Complex* seen, const Complex* z, u32 r, u32 s) {
    Complex sum = {0.0f, 0.0f};
    for (u32 t = 0; t < a.measurements; t++) add(sum, times(conj(given(a, seen, t, r, s)), z[t]));
    return sum;
}

// The covariance of what is measured.
template <typename T>
inline void covariance(const SparseChannel<T>& a, const Complex* seen, const float* gamma, float noise, Complex* matrix) {
    u32 count = a.measurements, columns = a.directions.transmit;
    for (u32 i = threadIdx.x; i < count * count; i += blockDim.x) {
        u32 t = i / count, u = i % count;
        if (u > t) continue;
        bool diagonal = u == t;
        const float *of_t = a.sent + (u64)t * 2 * columns, *of_u = a.sent + (u64)u * 2 * columns;
        Complex sum = {diagonal ? noise : 0.0f, 0.0f};
        for (u32 r = 0; r < a.directions.receive; r++) {
            Complex weighted = {0.0f, 0.0f};
            for (u32 s = 0; s < columns; s++) {
                Complex pair = times(Complex{of_t[s], -of_t[columns + s]}, Complex{of_u[s], of_u[columns + s]});
                float g = gamma[r * columns + s];
                add(weighted, {g * pair.re, diagonal ? 0.0f : g * pair.im});
            }
            const Complex* column = seen + r;
            add(sum, times(times(column[t * a.directions.receive], conj(column[u * a.directions.receive])), weighted));
        }
        matrix[t * count + u] = sum;
        matrix[u * count + t] = conj(sum);
    }
    __syncthreads();
}

inline void solve(const Complex* matrix, const Complex* y, Complex* z, u32 count) {
    for (u32 t = threadIdx.x; t < count; t += blockDim.x) {
        Complex sum = {0.0f, 0.0f};
        for (u32 i = 0; i < count; i++) add(sum, times(matrix[t * count + i], y[i]));
        z[t] = sum;
    }
    __syncthreads();
}

// A path at a pair of directions: the mean of its gain, that gain's variance, and how well it explains what was measured.
struct Path {
    Complex gain;
    float variance;
    float exponent;
};

inline Path path_of(Complex matched, float size) {
    float variance = 1.0f / (1.0f / GAIN + fmaxf(size, 0.0f));
    return {{matched.re * variance, matched.im * variance}, variance, square(matched) * variance};
}

// The inverse of a positive definite matrix, in its place and Hermitian, by Gauss and Jordan; row and column are to work in.
inline void invert(Complex* matrix, Complex* row, Complex* column, u32 count) {
    for (u32 k = 0; k < count; k++) {
        float pivot = 1.0f / matrix[k * count + k].re;
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            Complex across = matrix[k * count + i];
            row[i] = i == k ? Complex{pivot, 0.0f} : Complex{across.re * pivot, across.im * pivot};
            column[i] = matrix[i * count + k];
        }
        __syncthreads();
        for (u32 e = threadIdx.x; e < count * count; e += blockDim.x) {
            u32 i = e / count, j = e % count;
            Complex old = j == k ? Complex{0.0f, 0.0f} : matrix[e], product = times(column[i], row[j]);
            matrix[e] = i == k ? row[j] : Complex{old.re - product.re, old.im - product.im};
        }
        __syncthreads();
    }
    // Rounding has made the triangles differ, and likelihoods amplify that.
    for (u32 e = threadIdx.x; e < count * count; e += blockDim.x) {
        u32 i = e / count, j = e % count;
        if (i < j) continue;
        Complex below = matrix[e], above = conj(matrix[j * count + i]);
        Complex mean = {0.5f * (below.re + above.re), 0.5f * (below.im + above.im)};
        matrix[e] = mean;
        matrix[j * count + i] = conj(mean);
    }
    __syncthreads();
}

// u = H v and v of norm 1 by the power method; the norm of u.
inline float climb(const Complex* channel, Complex* u, Complex* v, u32 n, u32 m) {
    for (int step = 0; step <= STEPS; step++) {
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            Complex sum = {0.0f, 0.0f};
            for (u32 j = 0; j < m; j++) add(sum, times(channel[i * m + j], v[j]));
            u[i] = sum;
        }
        __syncthreads();
        if (step == STEPS) break;
        for (u32 j = threadIdx.x; j < m; j += blockDim.x) {
            Complex sum = {0.0f, 0.0f};
            for (u32 i = 0; i < n; i++) add(sum, times(conj(channel[i * m + j]), u[i]));
            v[j] = sum;
        }
        __syncthreads();
        float norm = sqrtf(squares(v, m) + LEAST);
        __syncthreads();
        for (u32 j = threadIdx.x; j < m; j += blockDim.x) v[j] = {v[j].re / norm, v[j].im / norm};
        __syncthreads();
    }
    return sqrtf(squares(u, n) + LEAST);
}

// The element of a steering vector. Half turns that are whole are taken off, so that angles stay small.
inline Complex element(u32 m, float direction) {
    float half_turns = (float)m * direction, angle = 3.14159265f * (half_turns - 2.0f * (float)(int)(half_turns / 2.0f));
    return {cosf(angle), sinf(angle)};
}

inline float likelihood(Path path, float most, float certainty) {
    return expf(certainty * (path.exponent - most)) * sqrtf(path.variance);
}

template <typename T>
inline void tell(const Complex* x, u32 n, float by, T* out) {
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        store(out + 2 * i, by * sqrtf((float)n) * x[i].re);
        store(out + 2 * i + 1, by * sqrtf((float)n) * x[i].im);
    }
}

// Paths of a beam, by matching pursuit among the steering vectors of the grid. rest and power are to work in.
template <typename T>
inline void split(const Complex* grid, const Complex* v, Complex* rest, float* power, u32 m, u32 count, T* out) {
    for (u32 j = threadIdx.x; j < m; j += blockDim.x) rest[j] = {sqrtf((float)m) * v[j].re, sqrtf((float)m) * v[j].im};
    __syncthreads();
    for (int k = 0; k < TOLD; k++) {
        for (u32 s = threadIdx.x; s < count; s += blockDim.x) {
            Complex sum = {0.0f, 0.0f};
            for (u32 j = 0; j < m; j++) add(sum, times(conj(grid[(u64)s * m + j]), rest[j]));
            power[s] = square(sum);
        }
        __syncthreads();
        u32 most = 0;
        for (u32 s = 1; s < count; s++) most = power[s] > power[most] ? s : most;
        float before = power[(most + count - 1) % count], behind = power[(most + 1) % count];
        float between = 0.5f * (behind - before) / fmaxf(2.0f * power[most] - before - behind, LEAST);
        float direction = (2.0f * ((float)most + between) / (float)count - 1.0f) * power[most] / (power[most] + NOTHING * (float)(m * m));
        Complex gain = {0.0f, 0.0f};
        for (u32 j = 0; j < m; j++) add(gain, times(conj(element(j, direction)), rest[j]));
        gain = {gain.re / (float)m, gain.im / (float)m};
        __syncthreads();
        for (u32 j = threadIdx.x; j < m; j += blockDim.x) {
            Complex explained = times(gain, element(j, direction));
            rest[j] = {rest[j].re - explained.re, rest[j].im - explained.im};
        }
        if (threadIdx.x == 0) {
            store(out + 3 * k, direction);
            store(out + 3 * k + 1, gain.re);
            store(out + 3 * k + 2, gain.im);
        }
        __syncthreads();
    }
}

// What a row is worked in.
struct Work {
    Complex* u;
    Complex* v;
    Complex* rest;
    float* power;
};

// Paths that the transmitter is told, and the strongest pairs of singular vectors; the place behind them.
template <typename T>
inline T* strongest(const SparseChannel<T>& a, Complex* channel, const float* leaves, Work work, T* out) {
    u32 n = a.antennas.receive, m = a.antennas.transmit, columns = a.directions.transmit;
    Complex *u = work.u, *v = work.v;
    const Complex* leave = (const Complex*)a.leave;
    for (u32 j = threadIdx.x; j < m; j += blockDim.x) {
        Complex sum = {0.0f, 0.0f};
        for (u32 s = 0; s < columns; s++) add(sum, {leaves[s] * leave[(u64)s * m + j].re, leaves[s] * leave[(u64)s * m + j].im});
        v[j] = sum;
    }
    __syncthreads();

    float first = climb(channel, u, v, n, m);
    split(leave, v, work.rest, work.power, m, columns, out);
    out += 3 * TOLD;
    tell(u, n, 1.0f / first, out);
    tell(v, m, 1.0f, out + 2 * n);
    for (u32 i = threadIdx.x; i < n * m; i += blockDim.x) {
        Complex explained = times(u[i / m], conj(v[i % m]));
        channel[i] = {channel[i].re - explained.re, channel[i].im - explained.im};
    }
    __syncthreads();
    for (u32 j = threadIdx.x; j < m; j += blockDim.x) {
        Complex sum = {0.0f, 0.0f};
        for (u32 i = 0; i < n; i++) add(sum, conj(channel[i * m + j]));
        v[j] = sum;
    }
    __syncthreads();
    float next = climb(channel, u, v, n, m);
    out += 2 * (n + m);
    tell(u, n, 1.0f / first, out);
    tell(v, m, next / first, out + 2 * n);
    out += 2 * (n + m);
    return out;
}

// The beams to receive the transmitter's choices with, and their logits; the place behind them.
template <typename T>
inline T* answers(const SparseChannel<T>& a, const Complex* channel, Complex* powers, T* out) {
    u32 n = a.antennas.receive, m = a.antennas.transmit;
    const Complex* choices = (const Complex*)a.choices;
    for (u32 c = threadIdx.x; c < a.count; c += blockDim.x) {
        float power = 0.0f;
        for (u32 i = 0; i < n; i++) {
            Complex sum = {0.0f, 0.0f};
            for (u32 j = 0; j < m; j++) add(sum, times(channel[i * m + j], choices[(u64)c * m + j]));
            power += square(sum);
        }
        powers[c] = {power, sqrtf((float)n / (power + LEAST))};
    }
    __syncthreads();
    float total = LEAST;
    for (u32 c = 0; c < a.count; c++) total += powers[c].re;
    for (u32 i = threadIdx.x; i < a.count * n; i += blockDim.x) {
        u32 c = i / n;
        Complex sum = {0.0f, 0.0f};
        for (u32 j = 0; j < m; j++) add(sum, times(channel[(i % n) * m + j], choices[(u64)c * m + j]));
        store(out + 2 * i, powers[c].im * sum.re);
        store(out + 2 * i + 1, powers[c].im * sum.im);
    }
    out += 2 * n * a.count;
    for (u32 c = threadIdx.x; c < a.count; c += blockDim.x) store(out + c, LOGIT * logf(powers[c].re / total + LEAST_PROBABILITY));
    return out + a.count;
}

// Whether two of so many directions, in a circle, are at most so many steps apart.
inline bool near(u32 a, u32 b, u32 count, u32 steps) {
    u32 apart = a > b ? a - b : b - a;
    return apart <= steps || count - apart <= steps;
}

// Whether two pairs of directions, numbered row by row, are near each other.
template <typename T>
inline bool near_pair(const SparseChannel<T>& a, u32 one, u32 other) {
    u32 columns = a.directions.transmit;
    return near(one / columns, other / columns, a.directions.receive, a.width) && near(one % columns, other % columns, columns, a.width);
}

// The memory of a block.
struct Memory {
    Complex* seen;
    Complex* matrix;
    Complex* row;
    Complex* measured;
    Complex* y;
    Complex* z;
    Complex* v;
    Complex* mean;
    Complex* channel;
    float* gamma;
    float* sizes;
    float* arrives;
    float* leaves;
    float* moments;
};

// The place of the next pass by its first step: the pair of directions that explains most among those that are near none of the places before. What is not near it
// is excluded; `highest` is this thread's largest exponent of the rest.
template <typename T>
inline u32 begin(const SparseChannel<T>& a, const Memory& k, const u32* places, u32 start, float& highest) {
    u32 columns = a.directions.transmit, grid = a.directions.receive * columns;
    // Exponents are not negative, so that their bits are in the order of their values; of equal ones the first pair is taken.
    u64 best = 0;
    for (u32 i = threadIdx.x; i < grid; i += blockDim.x) {
        bool taken = false;
        for (u32 before = 0; before < start; before++) taken = taken || near_pair(a, places[before], i);
        if (taken) continue;
        float exponent = path_of(matched(a, k.seen, k.z, i / columns, i % columns), k.sizes[i]).exponent;
        u64 found = ((u64)__float_as_uint(exponent) << 32) | (u32)~i;
        best = found > best ? found : best;
    }
    u32 place = ~(u32)block_max(best);
    highest = 0.0f;
    for (u32 i = threadIdx.x; i < grid; i += blockDim.x) {
        if (near_pair(a, place, i))
            highest = fmaxf(highest, path_of(matched(a, k.seen, k.z, i / columns, i % columns), k.sizes[i]).exponent);
        else
            k.sizes[i] = NEVER;
    }
    return place;
}

// All steps, from the next place if there are any: a part of what is found is added to the channel and to the marginals. The power of what is left of the
// measurements, times the inverse of the covariance.
template <typename T>
inline float pass(const SparseChannel<T>& a, const Memory& k, float noise, float certainty, float part, u32* places, u32 start) {
    u32 n = a.antennas.receive, m = a.antennas.transmit, rows = a.directions.receive, columns = a.directions.transmit, count = a.measurements;
    Complex *seen = k.seen, *matrix = k.matrix, *row = k.row, *y = k.y, *z = k.z, *v = k.v, *mean = k.mean, *channel = k.channel;
    float *gamma = k.gamma, *sizes = k.sizes, *moments = k.moments;
    const Complex *arrive = (const Complex*)a.arrive, *leave = (const Complex*)a.leave;
    for (u32 i = threadIdx.x; i < rows * columns; i += blockDim.x) gamma[i] = 0.0f;
    for (u32 t = threadIdx.x; t < count; t += blockDim.x) y[t] = k.measured[t];
    __syncthreads();

    float share = 1.0f, most = 0.0f;
    // Gamma is of all other paths; moments are of those that are looked for again, [., A, D].
    for (u32 step = 0; step < a.paths + a.again; step++) {
        float* own = moments + (u64)(step % a.paths) * rows * columns;
        if (step >= a.paths) {
            for (u32 i = threadIdx.x; i < rows * columns; i += blockDim.x) gamma[i] = fmaxf(gamma[i] - own[i], 0.0f);
            __syncthreads();
        }
        covariance(a, seen, gamma, noise + UNFOUND * (step < a.paths ? (float)(a.paths - 1 - step) : 0.0f), matrix);
        invert(matrix, row, z, count);
        solve(matrix, y, z, count);
        float highest = 0.0f;
        for (u32 i = threadIdx.x; i < rows * columns; i += blockDim.x) {
            u32 r = i / columns, s = i % columns;
            float size = 0.0f;
            for (u32 t = 0; t < count; t++) {
                Complex sum = {0.0f, 0.0f};
                for (u32 j = 0; j < count; j++) add(sum, times(matrix[t * count + j], given(a, seen, j, r, s)));
                size += times(conj(given(a, seen, t, r, s)), sum).re;
            }
            sizes[i] = size;
            highest = fmaxf(highest, path_of(matched(a, seen, z, r, s), size).exponent);
        }
        if (step == 0 && a.places > 0) places[start] = begin(a, k, places, start, highest);
        most = block_max(highest);
        float likely = 0.0f;
        for (u32 i = threadIdx.x; i < rows * columns; i += blockDim.x) {
            Path found = path_of(matched(a, seen, z, i / columns, i % columns), sizes[i]);
            likely += likelihood(found, most, certainty);
        }
        share = 1.0f / block_sum(likely);
        if (step + 1 == a.paths + a.again) break;
        for (u32 i = threadIdx.x; i < rows * columns; i += blockDim.x) {
            Path found = path_of(matched(a, seen, z, i / columns, i % columns), sizes[i]);
            float p = share * likelihood(found, most, certainty);
            float moment = p * (square(found.gain) + found.variance);
            if (step < a.again) own[i] = moment;
            gamma[i] += moment;
        }
        __syncthreads();
    }

    // What the last step's path explains in the mean is taken off.
    for (u32 t = threadIdx.x; t < count; t += blockDim.x) row[t] = y[t];
    for (u32 r = 0; r < rows; r++) {
        for (u32 s = threadIdx.x; s < columns; s += blockDim.x) {
            Path found = path_of(matched(a, seen, z, r, s), sizes[r * columns + s]);
            float p = share * likelihood(found, most, certainty);
            mean[s] = {p * found.gain.re, p * found.gain.im};
        }
        __syncthreads();
        for (u32 t = threadIdx.x; t < count; t += blockDim.x) {
            Complex sum = {0.0f, 0.0f};
            for (u32 s = 0; s < columns; s++) add(sum, times(given(a, seen, t, r, s), mean[s]));
            row[t] = {row[t].re - sum.re, row[t].im - sum.im};
        }
        __syncthreads();
    }
    solve(matrix, row, y, count);

    // The mean of the channel, by what arrives from one direction after the other: the last step's path, and the others by what is left.
    for (u32 r = 0; r < rows; r++) {
        for (u32 s = threadIdx.x; s < columns; s += blockDim.x) {
            u32 i = r * columns + s;
            Path found = path_of(matched(a, seen, z, r, s), sizes[i]);
            Complex before = matched(a, seen, y, r, s);
            float p = share * likelihood(found, most, certainty);
            mean[s] = {part * (p * found.gain.re + gamma[i] * before.re), part * (p * found.gain.im + gamma[i] * before.im)};
            gamma[i] += p * (square(found.gain) + found.variance);
        }
        __syncthreads();
        for (u32 j = threadIdx.x; j < m; j += blockDim.x) {
            Complex sum = {0.0f, 0.0f};
            for (u32 s = 0; s < columns; s++) add(sum, times(mean[s], conj(leave[(u64)s * m + j])));
            v[j] = sum;
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < n * m; i += blockDim.x) add(channel[i], times(arrive[(u64)r * n + i / m], v[i % m]));
        __syncthreads();
    }
    for (u32 r = threadIdx.x; r < rows; r += blockDim.x) {
        float sum = 0.0f;
        for (u32 s = 0; s < columns; s++) sum += gamma[r * columns + s];
        k.arrives[r] += part * sum;
    }
    for (u32 s = threadIdx.x; s < columns; s += blockDim.x) {
        float sum = 0.0f;
        for (u32 r = 0; r < rows; r++) sum += gamma[r * columns + s];
        k.leaves[s] += part * sum;
    }
    float left = squares(y, count);
    __syncthreads();
    return left;
}

template <typename T>
void sparse_channel(const SparseChannel<T>& a) {
    extern __shared__ Complex shared[];
    u32 n = a.antennas.receive, m = a.antennas.transmit, rows = a.directions.receive, columns = a.directions.transmit, count = a.measurements;
    Complex *seen = shared, *matrix = seen + count * rows, *row = matrix + count * count, *y = row + count, *z = y + count, *u = z + count, *v = u + n;
    Complex *mean = v + m, *measured = mean + (columns > a.count ? columns : a.count), *channel = measured + count;
    float *gamma = (float*)(channel + n * m), *sizes = gamma + rows * columns, *arrives = sizes + rows * columns, *leaves = arrives + rows, *moments = leaves + columns;
    const Complex *arrive = (const Complex*)a.arrive;
    const T* x = a.x.row(blockIdx.x);
    T* out = a.out.row(blockIdx.x);

    // Beams are turned by the phase of what was received, so that measurements are real.
    float whole = 0.0f;
    for (u32 t = threadIdx.x; t < count; t += blockDim.x) {
        float received = 1e-24f;
        for (u32 i = 0; i < 2 * n; i++) received += load(x + t * 2 * n + i) * load(x + t * 2 * n + i);
        measured[t] = {sqrtf(received), 0.0f};
        whole += received / (SCALE * SCALE);
    }
    whole = block_sum(whole) + LEAST;
    for (u32 i = threadIdx.x; i < count * rows; i += blockDim.x) {
        u32 t = i / rows;
        Complex sum = {0.0f, 0.0f};
        for (u32 j = 0; j < n; j++) {
            Complex beam = {load(x + t * 2 * n + 2 * j) / measured[t].re, load(x + t * 2 * n + 2 * j + 1) / measured[t].re};
            add(sum, times(conj(beam), arrive[(i % rows) * n + j]));
        }
        seen[i] = sum;
    }
    for (u32 i = threadIdx.x; i < n * m; i += blockDim.x) channel[i] = {0.0f, 0.0f};
    for (u32 d = threadIdx.x; d < rows + columns; d += blockDim.x) arrives[d] = 0.0f;
    __syncthreads();
    for (u32 t = threadIdx.x; t < count; t += blockDim.x) measured[t].re /= SCALE;
    float noise = fminf(fmaxf(expf(-0.23025851f * SNR_SCALE * load(a.snr.row(blockIdx.x))), LEAST_NOISE), MOST_NOISE);
    float certainty = CERTAIN / (1.0f + noise / DOUBT);
    noise = fmaxf(noise, a.unexplained * whole / (float)count);
    __syncthreads();

    Memory memory = {seen, matrix, row, measured, y, z, v, mean, channel, gamma, sizes, arrives, leaves, moments};
    u32 places[PLACES], starts = a.places > 0 ? a.places : 1;
    float left = 0.0f, part = 1.0f / (float)starts;
    for (u32 start = 0; start < starts; start++) left += part * pass(a, memory, noise, certainty, part, places, start);

    float all = LEAST;
    for (u32 r = 0; r < rows; r++) all += arrives[r];
    __syncthreads();
    for (u32 d = threadIdx.x; d < rows + columns; d += blockDim.x) arrives[d] /= all;
    __syncthreads();
    out = a.count > 0 ? answers(a, channel, mean, out) : strongest(a, channel, leaves, Work{u, v, mean, gamma}, out);
    if (threadIdx.x == 0) store(out, left * noise * noise / whole);
    for (u32 d = threadIdx.x; d < rows + columns; d += blockDim.x) {
        float p = d < rows ? arrives[d] : leaves[d - rows];
        store(out + 1 + d, 1.0f + LOGARITHM * logf(p + LEAST_PROBABILITY));
    }
}
KERNELS(sparse_channel, SparseChannel)
