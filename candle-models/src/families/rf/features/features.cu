// What is measured of chunks: see measures.rs and mod.rs, whose definitions these are. A block takes a chunk. Three kernels, between which cuFFT
// transforms: the samples themselves; the bins at whole places and half a bin above each; the autocorrelation. Sums are taken in f64, in a fixed order.

enum { THREADS = 512, WARPS = THREADS / 32 };
// Values of a digit of a number's bits. Without their sign they are three digits of 11, 10 and 10 bits.
enum { DIGITS = 2048, DIGITS_BELOW = 1024, DIGIT_BITS = 10 };
// `Measures` in measures.rs, in its order.
enum { POWER, MOST, MEAN, VARIANCE, CROSSINGS, PEAK, STRONGEST, STRONG, TOTAL, MOMENT, ROLLOFF, LOWEST, LAGS, MEASURES = LAGS + 4 };

// `Chunks` in cuda.rs.
struct Chunks {
    const float2* iq;   // [chunks, samples]
    float2* whole;      // [chunks, samples]: the transform at whole bins
    float2* half;       // [chunks, samples]: half a bin above each
    float* powers;      // [chunks, 2 samples]: of both, in turn
    float2* lags;       // [chunks, samples + 1]: the autocorrelation, times 2 samples
    float* floor;       // [chunks, samples]: the powers whose lowest are the noise floor
    double* measures;   // [chunks, MEASURES]
    double eps;
    u32 samples;
    u32 repaired;  // the form: 0 or 1
    u32 ranks[2];  // between which the median of the lowest powers lies
};

// The sum over the block, in every thread, as `block_sum`: of so many warps that are known here it needs fewer registers. All threads of the block call it,
// as they do the next two.
inline double block_total(double x) {
    __shared__ double partial[WARPS];
    x = warp_sum(x);
    __syncthreads();  // The sums of a call before have been read.
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0;
    for (u32 i = 0; i < WARPS; i++) x += partial[i];
    return x;
}

// The sum over this lane and those before it.
template <typename T>
inline T warp_scan(T x) {
    for (u32 step = 1; step < 32; step *= 2) {
        T before = __shfl_up_sync(0xffffffff, x, step);
        if (threadIdx.x % 32 >= step) x += before;
    }
    return x;
}

// The sum over this thread and those before it.
template <typename T>
inline T block_scan(T x) {
    __shared__ T totals[WARPS];
    x = warp_scan(x);
    __syncthreads();
    if (threadIdx.x % 32 == 31) totals[threadIdx.x / 32] = x;
    __syncthreads();
    T before = 0;
    for (u32 i = 0; i < threadIdx.x / 32; i++) before += totals[i];
    return before + x;
}

inline int sign(float x) { return (x > 0.0f) - (x < 0.0f); }

extern "C" __global__ void __launch_bounds__(THREADS) envelope(const __grid_constant__ Chunks a) {
    u32 n = a.samples;
    const float2* iq = a.iq + (u64)blockIdx.x * n;
    float2* half = a.half + (u64)blockIdx.x * n;
    double power = 0.0, sum = 0.0, crossings = 0.0, turn = 1.0 / (double)n;
    float most = 0.0f;
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        float2 x = iq[i];
        float squared = x.x * x.x + x.y * x.y, sine, cosine;
        power += squared;
        sum += sqrtf(squared);
        most = squared > most ? squared : most;
        if (i > 0 && sign(iq[i - 1].x) != sign(x.x)) crossings += 1.0;
        // Half a bin down.
        sincospif(-(float)((double)i * turn), &sine, &cosine);
        half[i] = {x.x * cosine - x.y * sine, x.x * sine + x.y * cosine};
    }
    double mean = block_total(sum) / n, squares = 0.0;
    power = block_total(power) / n;
    crossings = block_total(crossings);
    most = __uint_as_float((u32)block_max(__float_as_uint(most)));
    // From the mean, or the difference of two large numbers would be all rounding.
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        float2 x = iq[i];
        double distance = sqrtf(x.x * x.x + x.y * x.y) - mean;
        squares += distance * distance;
    }
    squares = block_total(squares);
    if (threadIdx.x == 0) {
        double* to = a.measures + (u64)blockIdx.x * MEASURES;
        to[POWER] = power;
        to[MOST] = most;
        to[MEAN] = mean;
        to[VARIANCE] = squares / n;
        to[CROSSINGS] = crossings;
    }
}

// Powers of whole bins from the lowest frequency up.
struct Bins {
    const float* powers;
    u32 samples;
    float at(u32 place) const {
        u32 bin = place + (samples + 1) / 2;
        return powers[2 * (u64)(bin < samples ? bin : bin - samples)] * (1.0f / (float)samples);
    }
};

// The power that a bin would have in a window of Hann, as if its noise were the same.
inline float faded(const float2* bins, u32 n, u32 k) {
    float2 below = bins[k > 0 ? k - 1 : n - 1], here = bins[k], above = bins[k + 1 < n ? k + 1 : 0];
    float re = here.x * 0.5f - (below.x + above.x) * 0.25f, im = here.y * 0.5f - (below.y + above.y) * 0.25f;
    return (re * re + im * im) * (1.0f / (0.375f * (float)n));
}

// The first place from `begin` on at which so much power is reached, `below` of which lies before `begin`. All lanes of a warp call it.
inline u32 reaches(const Bins& bins, u32 begin, u32 end, double below, double power) {
    for (u32 base = begin; base < end; base += 32) {
        u32 place = base + threadIdx.x % 32;
        double reached = below + warp_scan(place < end ? (double)bins.at(place) : 0.0);
        u32 found = __ballot_sync(0xffffffff, place < end && reached >= power);
        if (found != 0) return base + (u32)__ffs((int)found) - 1;
        below = __shfl_sync(0xffffffff, reached, 31);
    }
    return end - 1;
}

// The bits of a power, which have its order.
inline u32 bits_of(float power) { return __float_as_uint(power) & 0x7fffffffu; }

// The mean of the powers that have ranks[0] and ranks[1] others below them in the order of size; they are one rank or neighbours.
inline double between(const float* values, u32 n, const u32* ranks) {
    __shared__ u32 counts[DIGITS];
    __shared__ u32 chosen[3];
    u32 known = 0, mask = 0, rank = ranks[0], same = 0;
    for (int shift = 2 * DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        u32 digits = (mask == 0 ? DIGITS : DIGITS_BELOW) - 1;
        for (u32 i = threadIdx.x; i < DIGITS; i += THREADS) counts[i] = 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < n; i += THREADS) {
            u32 bits = bits_of(values[i]);
            if ((bits & mask) == known) atomicAdd(&counts[bits >> shift & digits], 1);
        }
        __syncthreads();
        u32 first = threadIdx.x * (DIGITS / THREADS), own = 0;
        for (u32 i = 0; i < DIGITS / THREADS; i++) own += counts[first + i];
        u32 below = block_scan(own) - own;
        if (below <= rank && rank < below + own) {
            for (; below + counts[first] <= rank; first++) below += counts[first];
            chosen[0] = first;
            chosen[1] = below;
            chosen[2] = counts[first];
        }
        __syncthreads();
        known |= chosen[0] << shift;
        mask |= digits << shift;
        rank -= chosen[1];
        same = chosen[2];
    }
    u32 next = known;
    if (ranks[1] > ranks[0] && rank + 1 >= same) {
        // The smallest that is larger.
        u64 complement = 0;
        for (u32 i = threadIdx.x; i < n; i += THREADS) {
            u32 bits = bits_of(values[i]);
            if (bits > known && (u32)~bits > complement) complement = (u32)~bits;
        }
        next = ~(u32)block_max(complement);
    }
    return ((double)__uint_as_float(known) + (double)__uint_as_float(next)) / 2.0;
}

// The transform at a bin that need not be whole, in every thread.
inline double2 at_bin(const float2* iq, u32 n, double bin) {
    double re = 0.0, im = 0.0, step = bin / n;
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        double turns = step * i;
        float2 x = iq[i];
        float sine, cosine;
        sincospif(-2.0f * (float)(turns - rint(turns)), &sine, &cosine);
        re += x.x * cosine - x.y * sine;
        im += x.x * sine + x.y * cosine;
    }
    return {block_total(re), block_total(im)};
}

// By how many bins a tone lies off, from the transform half a bin below and above.
inline double off(double2 below, double2 above) {
    double2 sum = {above.x + below.x, above.y + below.y}, difference = {above.x - below.x, above.y - below.y};
    double step = 0.5 * (sum.x * difference.x + sum.y * difference.y) / (difference.x * difference.x + difference.y * difference.y);
    // Where there is no tone the steps lead anywhere.
    return step - step == 0.0 ? fmin(fmax(step, -0.5), 0.5) : 0.0;
}

// The frequency of the tone whose strongest bin this is, in bins from the centre.
inline double refine(const float2* iq, const float2* half, u32 n, u32 bin) {
    float2 below = half[bin > 0 ? bin - 1 : n - 1], above = half[bin];
    double offset = off({below.x, below.y}, {above.x, above.y});
    double2 left = at_bin(iq, n, bin + offset - 0.5), right = at_bin(iq, n, bin + offset + 0.5);
    double bins = bin + offset + off(left, right);
    return bins >= n / 2.0 ? bins - n : bins;
}

// Writes the powers of the bins of a chunk, which begin at `row`, and those whose lowest are the noise floor.
inline void powers_of(const Chunks& a, u64 row) {
    u32 n = a.samples;
    const float2 *whole = a.whole + row, *half = a.half + row;
    for (u32 k = threadIdx.x; k < n; k += THREADS) {
        float2 x = whole[k], y = half[k];
        float power = x.x * x.x + x.y * x.y;
        a.powers[2 * (row + k)] = power;
        a.powers[2 * (row + k) + 1] = y.x * y.x + y.y * y.y;
        a.floor[row + k] = a.repaired ? faded(whole, n, k) : power * (1.0f / (float)n);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) spectrum(const __grid_constant__ Chunks a) {
    __shared__ double sums[THREADS];
    u32 n = a.samples, lane = threadIdx.x % 32;
    u64 row = (u64)blockIdx.x * n;
    powers_of(a, row);
    __syncthreads();
    // The power of segments of whole warps, at most one for each thread.
    const Bins bins = {a.powers + 2 * row, n};
    u32 length = ((n + THREADS - 1) / THREADS + 31) / 32 * 32;
    double moment = 0.0;
    u64 best = 0;
    for (u32 segment = threadIdx.x / 32; segment < THREADS; segment += WARPS) {
        double sum = 0.0;
        for (u64 place = (u64)segment * length + lane; place < (u64)(segment + 1) * length && place < n; place += 32) {
            float power = bins.at((u32)place);
            sum += power;
            moment += (double)place * power;
            // Of bins that are as strong the first counts.
            u64 key = (u64)bits_of(power) << 32 | (u32)~place;
            if (power >= 0.0f && key > best) best = key;
        }
        sum = warp_sum(sum);
        if (lane == 0) sums[segment] = sum;
    }
    __syncthreads();
    double own = sums[threadIdx.x], total = block_total(own), reached = block_scan(own), power = 0.85 * total;
    moment = block_total(moment);
    best = block_max(best);
    u32 first = THREADS - (u32)block_max(reached >= power ? THREADS - threadIdx.x : 0), at = ~(u32)best, rolloff = n - 1;
    sums[threadIdx.x] = reached;
    __syncthreads();
    if (first < THREADS) {
        u64 end = (u64)(first + 1) * length;
        rolloff = reaches(bins, first * length, end < n ? (u32)end : n, first > 0 ? sums[first - 1] : 0.0, power);
    }
    float peak = __uint_as_float((u32)(best >> 32));
    double strong = 0.0;
    for (u32 place = threadIdx.x; place < n; place += THREADS) {
        if (bins.at(place) > peak / 2.0f) strong += 1.0;
    }
    strong = block_total(strong);
    double lowest = between(a.floor + row, n, a.ranks), strongest = (double)at - n / 2;
    if (a.repaired) strongest = refine(a.iq + row, a.half + row, n, (u32)(((u64)at + n - n / 2) % n));
    if (threadIdx.x == 0) {
        double* to = a.measures + (u64)blockIdx.x * MEASURES;
        to[PEAK] = peak;
        to[STRONGEST] = strongest;
        to[STRONG] = strong;
        to[TOTAL] = total;
        to[MOMENT] = moment;
        to[ROLLOFF] = rolloff;
        to[LOWEST] = lowest;
    }
}

inline double squared(float2 x) { return (double)x.x * x.x + (double)x.y * x.y; }

extern "C" __global__ void __launch_bounds__(THREADS) correlation(const __grid_constant__ Chunks a) {
    u32 n = a.samples;
    const float2* lags = a.lags + (u64)blockIdx.x * (n + 1);
    double most = 0.0, scale = (0.5 / n) * (0.5 / n);
    for (u32 lag = threadIdx.x; lag < n; lag += THREADS) {
        double x = squared(lags[lag]);
        most = x > most ? x : most;
    }
    // The bits of numbers that are not negative have their order.
    most = __longlong_as_double((long long)block_max((u64)__double_as_longlong(most))) * scale;
    scale /= most + a.eps;
    double count = 0.0, sum = 0.0, first = 0.0, second = 0.0;
    for (u32 lag = threadIdx.x; lag < n; lag += THREADS) {
        double q = squared(lags[lag]) * scale, at = lag;
        if (q > 0.1) {
            count += 1.0;
            sum += q;
            first += q * at;
            second += q * at * at;
        }
    }
    const double sums[4] = {block_total(count), block_total(sum), block_total(first), block_total(second)};
    if (threadIdx.x < 4) a.measures[(u64)blockIdx.x * MEASURES + LAGS + threadIdx.x] = sums[threadIdx.x];
}
