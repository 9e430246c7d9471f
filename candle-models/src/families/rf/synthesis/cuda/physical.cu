// Signals with what real emitters, paths and receivers do to them: see physical.rs. Five kernels: the power of what is to be sent; the amplifier; the
// emitter's oscillator; what arrives on all paths; the receiver's oscillator, noise, mixer and converter. A block makes a part of a signal; sums have a
// fixed order. Places among samples and phases are f64, samples f32.

// Samples of a part, threads of a block, and samples of a thread: a block of four random numbers is the steps of its walk.
enum { PART = 1024, THREADS = 256, EACH = 4 };
// As in delay.rs and fading.rs, and samples from one gain that is computed to the next.
enum { TAPS = 16, PHASES = 256, WAVES = 16, GAIN_EVERY = 16, GAINS = PART / GAIN_EVERY + 1 };
// `amplifier` in physical.rs.
enum { LINEAR, RAPP, SALEH };

// The structs of physical.rs.
struct Walk {
    Address steps;
    double deviation;  // turns
};

struct Emitter {
    Walk line;
    u64 step;          // of the carrier's phase, in turns times 2^64
    double half_drift; // turns a second and second
};

struct Path {
    double begin, step;
    double waves[WAVES][2];  // turns a sample, turns
    double seen[2];
    float fixed[2];
    float seen_weight, wave_weight;
};

struct Receiver {
    Walk line;
    Address noise;
    u64 step;
    double watts, deviation;
    double full_scale, quantum;  // 0: no converter
    float alpha[2], beta[2], constant[2];
};

struct Signals {
    const Emitter* emitters;    // [events]
    const Receiver* receivers;  // [events, receivers]
    const Path* paths;          // [events, receivers, paths]
    const float* weights;       // [PHASES + 1, TAPS]
    const float2* content;      // [events, sent]
    float2* signal;             // [events, sent]
    float2* out;                // [events, receivers, samples]
    double* loudness;           // of the content, [events, sent_parts]
    double* powers;             // of the amplified content, [events, sent_parts]; of what arrives, [events, receivers, parts]
    double* walks;              // the sum of each part's steps, like powers
    u32* clipped;               // [events, receivers, parts]
    u64 sent;
    u64 samples;
    double rate;
    double margin;
    float drive;
    float smoothness;
    u32 amplifier;
    u32 receivers_each;
    u32 paths_each;
    u32 sent_parts;
    u32 parts;
    u32 unused;
};

inline float2 times(float2 a, float2 b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }

// The point of a circle that is so many turns on.
inline float2 turned(double turns) {
    float2 point;
    sincospif(2.0f * (float)(turns - rint(turns)), &point.y, &point.x);
    return point;
}

inline double turns_of(u64 phase) { return (double)(long long)phase * (1.0 / 18446744073709551616.0); }

inline float power_of(float2 x) { return x.x * x.x + x.y * x.y; }

// The sum over the parts of a row, in every thread.
inline double whole(const double* parts, u32 count) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < count; i += THREADS) sum += parts[i];
    return block_sum(sum);
}

// The steps of the thread's samples, from sample `first` on, a multiple of four; their sum is returned.
inline double steps_of(const Walk& walk, u64 first, double* steps) {
    if (walk.deviation == 0.0) {
        for (u32 i = 0; i < EACH; i++) steps[i] = 0.0;
        return 0.0;
    }
    Words words = philox(walk.steps, first / 4);
    float2 pairs[2] = {normals_of(words.w[0], words.w[1]), normals_of(words.w[2], words.w[3])};
    steps[0] = walk.deviation * (double)pairs[0].x;
    steps[1] = walk.deviation * (double)pairs[0].y;
    steps[2] = walk.deviation * (double)pairs[1].x;
    steps[3] = walk.deviation * (double)pairs[1].y;
    return steps[0] + steps[1] + steps[2] + steps[3];
}

// The walk's phases at the thread's samples, from what all parts before this one and the threads before this one have added.
inline void walk_to(const Walk& walk, const double* walks, u32 part, u64 first, double* phases) {
    __shared__ double sums[THREADS];
    double own = steps_of(walk, first, phases), before = whole(walks, part);
    sums[threadIdx.x] = own;
    __syncthreads();
    for (u32 step = 1; step < THREADS; step *= 2) {
        double more = threadIdx.x >= step ? sums[threadIdx.x - step] : 0.0;
        __syncthreads();
        sums[threadIdx.x] += more;
        __syncthreads();
    }
    before += sums[threadIdx.x] - own;
    for (u32 i = 0; i < EACH; i++) phases[i] = before += phases[i];
}

extern "C" __global__ void measure(const __grid_constant__ Signals a) {
    u32 event = blockIdx.x / a.sent_parts;
    u64 first = (u64)(blockIdx.x % a.sent_parts) * PART + EACH * threadIdx.x;
    double power = 0.0;
    for (u64 n = first; n < first + EACH && n < a.sent; n++) power += (double)power_of(a.content[event * a.sent + n]);
    power = block_sum(power);
    if (threadIdx.x == 0) a.loudness[blockIdx.x] = power;
}

inline float2 amplified(const Signals& a, float2 x) {
    float square = power_of(x);
    if (a.amplifier == RAPP) {
        float scale = powf(1.0f + powf(square, a.smoothness), -0.5f / a.smoothness);
        return {x.x * scale, x.y * scale};
    }
    float scale = 2.1587f / (1.0f + 1.1517f * square);
    float2 turn;
    sincospif(4.0033f * square / (1.0f + 9.1040f * square) * 0.31830989f, &turn.y, &turn.x);
    turn = times(x, turn);
    return {turn.x * scale, turn.y * scale};
}

extern "C" __global__ void amplify(const __grid_constant__ Signals a) {
    u32 event = blockIdx.x / a.sent_parts;
    u64 first = (u64)(blockIdx.x % a.sent_parts) * PART + EACH * threadIdx.x, row = event * a.sent;
    double mean = whole(a.loudness + event * a.sent_parts, a.sent_parts) / (double)a.sent, power = 0.0, steps[EACH];
    float scale = (float)sqrt(1.0 / mean) * a.drive;
    for (u64 n = first; n < first + EACH && n < a.sent; n++) {
        float2 x = a.content[row + n];
        if (a.amplifier != LINEAR) x = amplified(a, {x.x * scale, x.y * scale});
        a.signal[row + n] = x;
        power += (double)power_of(x);
    }
    power = block_sum(power);
    double walk = block_sum(steps_of(a.emitters[event].line, first, steps));
    if (threadIdx.x == 0) {
        a.powers[blockIdx.x] = power;
        a.walks[blockIdx.x] = walk;
    }
}

extern "C" __global__ void modulate(const __grid_constant__ Signals a) {
    u32 event = blockIdx.x / a.sent_parts, part = blockIdx.x % a.sent_parts;
    const Emitter& emitter = a.emitters[event];
    u64 first = (u64)part * PART + EACH * threadIdx.x, row = event * a.sent;
    double mean = whole(a.powers + event * a.sent_parts, a.sent_parts) / (double)a.sent, phases[EACH];
    float scale = (float)sqrt(1.0 / mean);
    walk_to(emitter.line, a.walks + event * a.sent_parts, part, first, phases);
    for (u32 i = 0; i < EACH && first + i < a.sent; i++) {
        u64 n = first + i;
        double t = ((double)n - a.margin) / a.rate;
        float2 x = times(a.signal[row + n], turned(turns_of(emitter.step * n) + emitter.half_drift * t * t + phases[i]));
        a.signal[row + n] = {x.x * scale, x.y * scale};
    }
}

// The gain of a path at a sample.
inline float2 gain_at(const Path& path, double n) {
    float2 gain = {path.fixed[0], path.fixed[1]};
    if (path.seen_weight != 0.0f) {
        float2 seen = turned(path.seen[0] * n + path.seen[1]);
        gain = {gain.x + path.seen_weight * seen.x, gain.y + path.seen_weight * seen.y};
    }
    if (path.wave_weight != 0.0f) {
        float2 sum = {0.0f, 0.0f};
        for (u32 i = 0; i < WAVES; i++) {
            float2 wave = turned(path.waves[i][0] * n + path.waves[i][1]);
            sum = {sum.x + wave.x, sum.y + wave.y};
        }
        gain = {gain.x + path.wave_weight * sum.x, gain.y + path.wave_weight * sum.y};
    }
    return gain;
}

// What is sent at a place among its samples; nothing outside of them.
inline float2 sent_at(const Signals& a, const float2* sent, double place) {
    double floored = floor(place), scaled = (place - floored) * (double)PHASES;
    u32 phase = (u32)scaled < PHASES ? (u32)scaled : PHASES - 1;
    float mix = (float)(scaled - (double)phase);
    long long first = (long long)floored - (TAPS / 2 - 1);
    const float* weights = a.weights + TAPS * phase;
    float2 sum = {0.0f, 0.0f};
    for (u32 tap = 0; tap < TAPS; tap++) {
        long long n = first + tap;
        if (n < 0 || n >= (long long)a.sent) continue;
        float weight = weights[tap] + mix * (weights[TAPS + tap] - weights[tap]);
        sum = {sum.x + weight * sent[n].x, sum.y + weight * sent[n].y};
    }
    return sum;
}

extern "C" __global__ void arrive(const __grid_constant__ Signals a) {
    __shared__ float2 gains[GAINS];
    u32 which = blockIdx.x / a.parts;
    const float2* sent = a.signal + which / a.receivers_each * a.sent;
    u64 start = (u64)(blockIdx.x % a.parts) * PART, first = start + EACH * threadIdx.x, row = which * a.samples;
    float2 heard[EACH] = {{0.0f, 0.0f}, {0.0f, 0.0f}, {0.0f, 0.0f}, {0.0f, 0.0f}};
    for (u32 p = 0; p < a.paths_each; p++) {
        const Path& path = a.paths[which * a.paths_each + p];
        __syncthreads();  // The gains of the path before have been read.
        if (threadIdx.x < GAINS) gains[threadIdx.x] = gain_at(path, (double)(start + GAIN_EVERY * threadIdx.x));
        __syncthreads();
        for (u32 i = 0; i < EACH && first + i < a.samples; i++) {
            u32 at = EACH * threadIdx.x + i;
            float2 from = gains[at / GAIN_EVERY], to = gains[at / GAIN_EVERY + 1];
            float share = (float)(at % GAIN_EVERY) * (1.0f / GAIN_EVERY);
            float2 gain = {from.x + (to.x - from.x) * share, from.y + (to.y - from.y) * share};
            float2 x = times(gain, sent_at(a, sent, path.begin + (double)(first + i) * path.step));
            heard[i] = {heard[i].x + x.x, heard[i].y + x.y};
        }
    }
    double power = 0.0, steps[EACH];
    for (u32 i = 0; i < EACH && first + i < a.samples; i++) {
        a.out[row + first + i] = heard[i];
        power += (double)power_of(heard[i]);
    }
    power = block_sum(power);
    double walk = block_sum(steps_of(a.receivers[which].line, first, steps));
    if (threadIdx.x == 0) {
        a.powers[blockIdx.x] = power;
        a.walks[blockIdx.x] = walk;
    }
}

// The number that stands for a part of a sample; `clipped` counts those that have none.
inline float convert(const Receiver& receiver, float x, u32& clipped) {
    if (receiver.full_scale == 0.0) return x;
    clipped += fabs((double)x) > receiver.full_scale;
    double half = 0.5 * receiver.quantum, most = receiver.full_scale - half;
    double found = floor((double)x / receiver.quantum) * receiver.quantum + half;
    return (float)fmin(fmax(found, -most), most);
}

extern "C" __global__ void take(const __grid_constant__ Signals a) {
    u32 which = blockIdx.x / a.parts, part = blockIdx.x % a.parts;
    const Receiver& receiver = a.receivers[which];
    u64 first = (u64)part * PART + EACH * threadIdx.x, row = which * a.samples;
    double mean = whole(a.powers + which * a.parts, a.parts) / (double)a.samples, phases[EACH];
    float scale = mean > 0.0 ? (float)sqrt(receiver.watts / mean) : 0.0f, deviation = (float)receiver.deviation;
    walk_to(receiver.line, a.walks + which * a.parts, part, first, phases);
    u32 clipped = 0;
    for (u32 i = 0; i < EACH && first + i < a.samples; i++) {
        u64 n = first + i;
        // A block of four numbers is the noise of two samples.
        Words words = philox(receiver.noise, n / 2);
        float2 noise = normals_of(words.w[n % 2 * 2], words.w[n % 2 * 2 + 1]);
        float2 x = times(a.out[row + n], turned(turns_of(receiver.step * n) + phases[i]));
        x = {x.x * scale + noise.x * deviation, x.y * scale + noise.y * deviation};
        float2 own = times({receiver.alpha[0], receiver.alpha[1]}, x), image = times({receiver.beta[0], receiver.beta[1]}, {x.x, -x.y});
        x = {own.x + image.x + receiver.constant[0], own.y + image.y + receiver.constant[1]};
        a.out[row + n] = {convert(receiver, x.x, clipped), convert(receiver, x.y, clipped)};
    }
    float all = block_sum((float)clipped);
    if (threadIdx.x == 0) a.clipped[blockIdx.x] = (u32)all;
}
