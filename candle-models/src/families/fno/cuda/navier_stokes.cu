// Flows on a periodic square: see navier_stokes.rs. Between these kernels cuFFT turns waves into values and back; one thread has one wave or place of a run.

// `Flows` in navier_stokes.rs. Planes are [n, n], the first axis is x.
struct Flows {
    double2* vorticity;   // waves, [runs, n, n]
    double2* first;       // what the flow carries at the beginning of a step, as the two below
    double2* product;     // waves of u . grad w, before its upper third is left out
    double2* pairs;       // velocities, and behind those of all runs slopes of the vorticity, [2, runs, n, n]: two real fields as one complex one
    const double2* force; // waves, [n, n]
    float* views;         // [runs, count, n / every, n / every]
    u64 values;           // runs n n
    double step;
    double viscosity;
    u32 n;
    u32 every;
    u32 count;
    u32 view;             // the number of the one that is written
};

#define TAU 6.283185307179586476925

struct Wave {
    double x, y, squares;
    bool kept;  // whether products have it
};

inline double frequency(u32 i, u32 n) { return TAU * (i < n / 2 ? (double)i : (double)i - (double)n); }

inline Wave wave_of(u32 at, u32 n) {
    double x = frequency(at / n, n), y = frequency(at % n, n), most = TAU * (double)n / 3.0;
    return {x, y, x * x + y * y, fabs(x) <= most && fabs(y) <= most};
}

// The wave that changes its sign from place to place has no slope.
inline double own(double wave, u32 n) { return fabs(wave) >= TAU * (double)(n / 2) ? 0.0 : wave; }

// Velocities and slopes of a wave of the vorticity.
inline void part(const Flows& a, u64 i, u32 at, const Wave& wave, double2 w) {
    double2 velocity = {0.0, 0.0}, slope = {0.0, 0.0};
    if (at > 0) {
        double x = own(wave.x, a.n), y = own(wave.y, a.n);
        double2 psi = {w.x / wave.squares, w.y / wave.squares};
        // i y psi + i (-i x psi), and i x w + i (i y w).
        velocity = {x * psi.x - y * psi.y, x * psi.y + y * psi.x};
        slope = {-y * w.x - x * w.y, -y * w.y + x * w.x};
    }
    a.pairs[i] = velocity;
    a.pairs[a.values + i] = slope;
}

// A step on from the waves `w`, with what is carried on the way.
inline double2 moved(const Flows& a, u32 at, const Wave& wave, double2 w, double2 carried) {
    double half = 0.5 * a.step * a.viscosity * wave.squares, over = 1.0 / (1.0 + half), left = 1.0 - half;
    double2 force = a.force[at];
    return {((force.x - carried.x) * a.step + w.x * left) * over, ((force.y - carried.y) * a.step + w.y * left) * over};
}

// The pairs of the flow as it is.
extern "C" __global__ void begin(const __grid_constant__ Flows a) {
    u64 i = thread_number();
    if (i >= a.values) return;
    u32 at = (u32)(i % (a.n * a.n));
    part(a, i, at, wave_of(at, a.n), a.vorticity[i]);
}

// u . grad w at a place.
extern "C" __global__ void multiply(const __grid_constant__ Flows a) {
    u64 i = thread_number();
    if (i >= a.values) return;
    double all = (double)a.n * (double)a.n;
    double2 velocity = a.pairs[i], slope = a.pairs[a.values + i];
    a.product[i] = {(velocity.x * slope.x + velocity.y * slope.y) / (all * all), 0.0};
}

// Euler's step, of which only the pairs are kept, and what was carried.
extern "C" __global__ void predict(const __grid_constant__ Flows a) {
    u64 i = thread_number();
    if (i >= a.values) return;
    u32 at = (u32)(i % (a.n * a.n));
    Wave wave = wave_of(at, a.n);
    double2 carried = {0.0, 0.0};
    if (wave.kept) carried = a.product[i];
    a.first[i] = carried;
    part(a, i, at, wave, moved(a, at, wave, a.vorticity[i], carried));
}

// The step with the mean of what is carried at its beginning and at its end.
extern "C" __global__ void correct(const __grid_constant__ Flows a) {
    u64 i = thread_number();
    if (i >= a.values) return;
    u32 at = (u32)(i % (a.n * a.n));
    Wave wave = wave_of(at, a.n);
    double2 carried = a.first[i];
    if (wave.kept) {
        double2 second = a.product[i];
        carried.x += second.x;
        carried.y += second.y;
    }
    double2 w = moved(a, at, wave, a.vorticity[i], {0.5 * carried.x, 0.5 * carried.y});
    a.vorticity[i] = w;
    part(a, i, at, wave, w);
}

// The vorticity at the places that are looked at; the values of the whole plane lie in `product`.
extern "C" __global__ void look(const __grid_constant__ Flows a) {
    u32 places = a.n / a.every;
    u64 i = thread_number(), plane = (u64)places * places;
    u64 run = i / plane;
    if (run * a.n * a.n >= a.values) return;
    u32 at = (u32)(i % plane);
    u64 from = (run * a.n + at / places * a.every) * a.n + at % places * a.every;
    a.views[(run * a.count + a.view) * plane + at] = (float)(a.product[from].x / ((double)a.n * (double)a.n));
}
