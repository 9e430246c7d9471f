// The beam that a few paths make: a block takes a row, a thread an antenna.

template <typename T>
struct SteeredBeam {
    Rows<const T> x;  // [K, 3]
    Rows<T> out;      // [M, 2]
    u32 paths;
    u32 antennas;
};

template <typename T>
void steered_beam(const SteeredBeam<T>& a) {
    const T* x = a.x.row(blockIdx.x);
    T* out = a.out.row(blockIdx.x);
    for (u32 m = threadIdx.x; m < a.antennas; m += blockDim.x) {
        float re = 0.0f, im = 0.0f;
        for (u32 k = 0; k < a.paths; k++) {
            float direction = load(x + 3 * k), gain_re = load(x + 3 * k + 1), gain_im = load(x + 3 * k + 2);
            // Half turns that are whole are taken off, so that angles stay small.
            float half_turns = (float)m * direction, angle = 3.14159265f * (half_turns - 2.0f * (float)(int)(half_turns / 2.0f));
            float c = cosf(angle), s = sinf(angle);
            re += gain_re * c - gain_im * s;
            im += gain_re * s + gain_im * c;
        }
        store(out + 2 * m, re);
        store(out + 2 * m + 1, im);
    }
}
KERNELS(steered_beam, SteeredBeam)
