// Burgers' equation on a periodic line: see burgers.rs. Between these kernels cuFFT turns waves into values and back; one thread has one wave or place of a run.

// `Lines` in burgers.rs.
struct Lines {
    double2* waves;        // of the states, [runs, side]
    double2* sum;          // of what the stages of a step have added so far; behind the last one free for values
    double2* slope;        // what a stage goes in with, its values, and its slope in turn
    const double* half;    // how diffusion shrinks each wave in half a step, [side]
    float* states;         // [runs, times, places]
    u64 values;            // runs side
    double step;
    u32 side;
    u32 places;
    u32 times;
    u32 time;              // the one that is written
    u32 stage;             // of the four of a step
    u32 unused;
};

#define TAU 6.283185307179586476925

// u^2 at a place.
extern "C" __global__ void square(const __grid_constant__ Lines a) {
    u64 i = thread_number();
    if (i >= a.values) return;
    double u = a.slope[i].x / (double)a.side;
    a.slope[i] = {u * u, 0.0};
}

// What stage `stage` of Runge and Kutta's method makes of its slope: what the next one goes in with, or the states a step on.
extern "C" __global__ void stage(const __grid_constant__ Lines a) {
    u64 i = thread_number();
    if (i >= a.values) return;
    u32 k = (u32)(i % a.side);
    double wave = TAU * (k <= a.side / 2 ? (double)k : (double)k - (double)a.side), h = a.half[k];
    double2 slope = {0.0, 0.0}, u = a.waves[i], sum = {0.0, 0.0}, next;
    // -dt (u^2 / 2)_x, without the upper third of the waves.
    if (fabs(wave) * 3.0 <= TAU * (double)a.side) {
        double2 square = a.slope[i];
        double turn = 0.5 * a.step * wave;
        slope = {turn * square.y, -turn * square.x};
    }
    if (a.stage > 0) sum = a.sum[i];
    switch (a.stage) {
        case 0:
            next = {(u.x + 0.5 * slope.x) * h, (u.y + 0.5 * slope.y) * h};
            sum = {(u.x + slope.x / 6.0) * h * h, (u.y + slope.y / 6.0) * h * h};
            break;
        case 1:
            next = {u.x * h + 0.5 * slope.x, u.y * h + 0.5 * slope.y};
            sum = {sum.x + slope.x * h / 3.0, sum.y + slope.y * h / 3.0};
            break;
        case 2:
            next = {(u.x * h + slope.x) * h, (u.y * h + slope.y) * h};
            sum = {sum.x + slope.x * h / 3.0, sum.y + slope.y * h / 3.0};
            break;
        default:
            next = {sum.x + slope.x / 6.0, sum.y + slope.y / 6.0};
            a.waves[i] = next;
    }
    if (a.stage < 3) a.sum[i] = sum;
    a.slope[i] = next;
}

// The state at the places that are looked at, from the values of the whole line in `sum`.
extern "C" __global__ void look(const __grid_constant__ Lines a) {
    u64 i = thread_number(), run = i / a.places;
    if (run * a.side >= a.values) return;
    u32 at = (u32)(i % a.places);
    double u = a.sum[run * a.side + at * (a.side / a.places)].x / (double)a.side;
    a.states[(run * a.times + a.time) * a.places + at] = (float)u;
}
