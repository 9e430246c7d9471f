// Measurements of a closed loop and their gradients, as `Loop` in beam/episode.rs says them for the host. A block has one episode.

enum { SCALARS, ANTENNAS };             // `View`
enum { MEASUREMENTS, NOISE, NOTHING };  // `Sensing`

struct Complex {
    float re, im;
};
inline Complex times(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
inline Complex times(float s, Complex a) { return {s * a.re, s * a.im}; }
inline Complex plus(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
inline Complex conjugate(Complex a) { return {a.re, -a.im}; }
inline Complex block_sum(Complex a) { return {block_sum(a.re), block_sum(a.im)}; }

template <typename T>
inline Complex pair(const T* x, u64 n) {
    return {load(x + 2 * n), load(x + 2 * n + 1)};
}
template <typename T>
inline void store_pair(T* x, u64 n, Complex a) {
    store(x + 2 * n, a.re);
    store(x + 2 * n + 1, a.im);
}

// What all steps have in common.
struct Episode {
    Rows<const float> responses;  // [B T, 2 N_RX]: H f in step t of episode b at b T + t
    Rows<const float> course;     // [B, 2 + 2 T]: where the sweep starts, SNR in dB, noise of every step
    const float* first;           // [2 N_RX]: the beam of step 0
    float* measured;              // [T, B, 2]: before it is turned to the reference
    u32 steps;
    u32 beams;     // of the codebook
    u32 places;    // of a beam in the record
    u32 relative;  // whether the networks see every sweep from its start
    u32 view;
    u32 sensing;
    float last;  // number of the last step that there can be, 1 at least
    float scale;
    float antenna_scale;
};

// What the step of an episode is about.
struct Place {
    u32 sent;    // the beam of the codebook
    u32 seen;    // the number under which the networks see it
    u32 record;  // its place in the record, in values
};
inline Place place(const Episode& e, u32 b, u32 step) {
    u32 start = (u32)e.course.row(b)[0], seen = ((e.relative ? 0 : start) + step) % e.beams;
    return {(start + step) % e.beams, seen, (seen * e.places + step / e.beams) * e.responses.width};
}

// What measurements are turned by so that the first, y_0, has no phase; nothing where nothing was received.
inline Complex reference(const Episode& e, Complex y0) {
    float modulus = hypotf(y0.re, y0.im);
    if (e.view == SCALARS || !(modulus > 0.0f)) return {1.0f, 0.0f};
    return {y0.re / modulus, -y0.im / modulus};
}

template <typename T>
struct Measure {
    Episode episode;
    Rows<const T> beams;  // [B, 2 N_RX]; null in step 0
    Rows<T> features;     // [B, ...]: what the network reads
    Rows<float> record;   // [B, ...]
    u32 step;
};

template <typename T>
void measure(const Measure<T>& a) {
    const Episode& e = a.episode;
    u32 b = blockIdx.x, pairs = e.responses.width / 2;
    const float *response = e.responses.row((u64)b * e.steps + a.step), *course = e.course.row(b);
    auto beam = [&](u32 n) { return a.beams.data ? pair(a.beams.row(b), n) : pair(e.first, n); };
    Complex y = {0.0f, 0.0f}, noise = pair(course + 2, a.step);
    for (u32 n = threadIdx.x; n < pairs; n += blockDim.x) y = plus(y, times(conjugate(beam(n)), pair(response, n)));
    y = block_sum(y);
    if (e.sensing == MEASUREMENTS) y = plus(y, noise);
    if (e.sensing == NOISE) y = noise;
    if (e.sensing == NOTHING) y = {0.0f, 0.0f};
    if (threadIdx.x == 0) store_pair(e.measured, (u64)a.step * gridDim.x + b, y);
    y = times(y, reference(e, a.step == 0 ? y : pair(e.measured, b)));
    Place at = place(e, b, a.step);
    T* features = a.features.row(b);
    if (e.view == SCALARS) {
        if (threadIdx.x == 0) store_pair(features, 0, y);
        if (threadIdx.x == 0) store(features + 2, (float)at.sent);
    }
    // In antenna space.
    Complex scaled = times(e.antenna_scale, y);
    for (u32 i = threadIdx.x; i < e.beams * pairs; i += blockDim.x) {
        Complex z = {0.0f, 0.0f};
        if (i / pairs == at.seen) {
            z = times(scaled, beam(i % pairs));
            store_pair(a.record.row(b) + at.record, i % pairs, z);
        }
        if (e.view == ANTENNAS) store_pair(features, i, z);
    }
    if (e.view == SCALARS) return;
    T* rest = features + e.beams * e.responses.width;
    for (u32 i = threadIdx.x; i < e.beams + 4; i += blockDim.x) {
        float x = i - 2 == at.sent ? 1.0f : 0.0f;
        if (i == 0) x = e.scale * y.re;
        if (i == 1) x = e.scale * y.im;
        if (i == e.beams + 2) x = (float)a.step / e.last;
        if (i == e.beams + 3) x = course[1] / 30.0f;
        store(rest + i, x);
    }
}
KERNELS(measure, Measure)

// Gradients of a complex number are pairs as well: by the real and by the imaginary part.
template <typename T>
struct MeasureBackward {
    Episode episode;
    Rows<const T> beams;      // as in the forward
    Rows<const T> grad;       // [B, ...]: of what the network read
    Rows<const float> outer;  // [B, ...]: of the record
    Rows<T> beams_grad;       // [B, 2 N_RX], but in step 0
    float* first_grad;        // [B, 2 N_RX]; null in other steps
    float* responses_grad;    // [B, T, 2 N_RX]
    float* references;        // [B, 2]: of the reference; in place, from the last step on
    u32 step;
};

template <typename T>
void measure_backward(const MeasureBackward<T>& a) {
    const Episode& e = a.episode;
    u32 b = blockIdx.x, width = e.responses.width, pairs = width / 2;
    u64 row = (u64)b * e.steps + a.step;
    auto beam = [&](u32 n) { return a.beams.data ? pair(a.beams.row(b), n) : pair(e.first, n); };
    Place at = place(e, b, a.step);
    const float* outer = a.outer.row(b) + at.record;
    const T *grad = a.grad.row(b), *antennas = grad + at.seen * width, *rest = e.view == SCALARS ? grad : grad + e.beams * width;
    Complex y = pair(e.measured, (u64)a.step * gridDim.x + b), turn = reference(e, pair(e.measured, b)), turned = times(y, turn);
    // Of z_n = s y' w_n by the record and by what the network read, times s.
    auto by_antenna = [&](u32 n) {
        Complex dz = pair(outer, n);
        if (e.view == ANTENNAS) dz = plus(dz, pair(antennas, n));
        return times(e.antenna_scale, dz);
    };
    Complex drho = {0.0f, 0.0f}, dy = {0.0f, 0.0f};
    if (a.step + 1 < e.steps) drho = pair(a.references, b);
    for (u32 n = threadIdx.x; n < pairs; n += blockDim.x) dy = plus(dy, times(by_antenna(n), conjugate(beam(n))));
    // Every thread has read the reference's gradient behind this.
    dy = plus(block_sum(dy), times(e.view == SCALARS ? 1.0f : e.scale, pair(rest, 0)));
    // y' = y rho
    drho = plus(drho, times(dy, conjugate(y)));
    if (threadIdx.x == 0) store_pair(a.references, b, drho);
    dy = times(dy, conjugate(turn));
    float power = y.re * y.re + y.im * y.im;
    if (a.step == 0 && e.view == ANTENNAS && power > 0.0f) {
        // rho = exp(-j arg y_0), whose derivative by the argument is -j rho.
        float by_argument = times(turn, conjugate(drho)).im / power;
        dy = plus(dy, {-by_argument * y.im, by_argument * y.re});
    }
    // y = w^H (H f) + n
    if (e.sensing != MEASUREMENTS) dy = {0.0f, 0.0f};
    for (u32 n = threadIdx.x; n < pairs; n += blockDim.x) {
        Complex dw = plus(times(by_antenna(n), conjugate(turned)), times(conjugate(dy), pair(e.responses.row(row), n)));
        store_pair(a.responses_grad + row * width, n, times(dy, beam(n)));
        if (a.first_grad) {
            store_pair(a.first_grad + (u64)b * width, n, dw);
        } else {
            store_pair(a.beams_grad.row(b), n, dw);
        }
    }
}
KERNELS(measure_backward, MeasureBackward)
