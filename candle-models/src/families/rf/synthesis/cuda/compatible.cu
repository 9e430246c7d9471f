// The published generator: see compatible.rs. Three kernels: the carrier with its trembling phase; what arrives on all paths, with its amplitude, and the
// power of each part; what is left when it has its power and its noise. A block makes a part of a signal; sums have a fixed order.

// Samples of a part, and threads of a block.
enum { PART = 1024, THREADS = 256, ECHOES = 3, MEAN_OF = 10, BEFORE = 5 };
// Phases that a part needs: from two blocks of four before its first sample to one behind its last.
enum { LEAD = 8, PHASES = PART + LEAD + 4 };

// `Signal` in cuda.rs.
struct Signal {
    Address phase;
    Address noise;
    u64 step;  // of the carrier's phase, in turns times 2^64
    const float* amplitudes;
    float gains[2 * ECHOES];
    u32 delays[ECHOES];
    u32 echoes;
    u32 hold;
    u32 count;
    float watts;
    float deviation;
};

// `Signals` in cuda.rs.
struct Signals {
    const Signal* signals;
    float2* clean;
    float2* out;
    float* powers;  // [signals, parts]
    u64 samples;
    u32 parts;
    float turn;  // of the sum of phases, in turns times 2^32
};

extern "C" __global__ void carrier(const __grid_constant__ Signals a) {
    __shared__ float theta[PHASES];
    u32 which = blockIdx.x / a.parts;
    const Signal& s = a.signals[which];
    u64 start = (u64)(blockIdx.x % a.parts) * PART;
    for (u32 block = threadIdx.x; block < PHASES / 4; block += THREADS) {
        // Phases before the first sample and behind the last one are zero.
        long long first = (long long)start - LEAD + 4 * (long long)block;
        float2 pairs[2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
        if (first >= 0) {
            Words words = philox(s.phase, (u64)first / 4);
            pairs[0] = normals_of(words.w[0], words.w[1]);
            pairs[1] = normals_of(words.w[2], words.w[3]);
        }
        const float values[4] = {pairs[0].x, pairs[0].y, pairs[1].x, pairs[1].y};
        for (u32 i = 0; i < 4; i++) theta[4 * block + i] = (u64)(first + i) < a.samples ? values[i] : 0.0f;
    }
    __syncthreads();
    for (u32 k = threadIdx.x; k < PART && start + k < a.samples; k += THREADS) {
        float sum = 0.0f;
        for (u32 i = 0; i < MEAN_OF; i++) sum += theta[k + LEAD - BEFORE + i];
        u32 phase = (u32)(s.step * (start + k) >> 32) + (u32)__float2int_rz(sum * a.turn);
        float sine, cosine;
        sincospif((float)(int)phase * (1.0f / 2147483648.0f), &sine, &cosine);
        a.clean[which * a.samples + start + k] = {cosine, sine};
    }
}

extern "C" __global__ void arrive(const __grid_constant__ Signals a) {
    u32 which = blockIdx.x / a.parts;
    const Signal& s = a.signals[which];
    u64 start = (u64)(blockIdx.x % a.parts) * PART, row = which * a.samples;
    float power = 0.0f;
    for (u32 k = threadIdx.x; k < PART && start + k < a.samples; k += THREADS) {
        u64 n = start + k;
        float2 y = a.clean[row + n];
        for (u32 e = 0; e < s.echoes; e++) {
            if (n < s.delays[e]) continue;
            float2 x = a.clean[row + n - s.delays[e]];
            float re = s.gains[2 * e], im = s.gains[2 * e + 1];
            y.x += re * x.x - im * x.y;
            y.y += re * x.y + im * x.x;
        }
        u64 held = n / s.hold;
        float amplitude = s.amplitudes[held < s.count ? held : s.count - 1];
        y = {y.x * amplitude, y.y * amplitude};
        a.out[row + n] = y;
        power += y.x * y.x + y.y * y.y;
    }
    power = block_sum(power);
    if (threadIdx.x == 0) a.powers[blockIdx.x] = power;
}

extern "C" __global__ void finish(const __grid_constant__ Signals a) {
    u32 which = blockIdx.x / a.parts;
    const Signal& s = a.signals[which];
    u64 start = (u64)(blockIdx.x % a.parts) * PART, row = which * a.samples;
    float power = 0.0f;
    for (u32 i = threadIdx.x; i < a.parts; i += THREADS) power += a.powers[which * a.parts + i];
    float mean = block_sum(power) / (float)a.samples, gain = mean > 0.0f ? sqrtf(s.watts / mean) : 0.0f;
    // A block of four numbers is the noise of two samples.
    for (u32 k = 2 * threadIdx.x; k < PART && start + k < a.samples; k += 2 * THREADS) {
        u64 n = start + k;
        Words words = philox(s.noise, n / 2);
        const float2 noise[2] = {normals_of(words.w[0], words.w[1]), normals_of(words.w[2], words.w[3])};
        for (u32 i = 0; i < 2 && n + i < a.samples; i++) {
            float2 y = a.out[row + n + i];
            a.out[row + n + i] = {y.x * gain + noise[i].x * s.deviation, y.y * gain + noise[i].y * s.deviation};
        }
    }
}
