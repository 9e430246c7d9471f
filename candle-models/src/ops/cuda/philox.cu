// Uniform numbers and dropout from addressed random numbers. A thread makes a block of four.

struct Uniform {
    float* out;
    u64 n;
    Address address;
};

extern "C" __global__ void uniform(const __grid_constant__ Uniform a) {
    u64 block = thread_number();
    Words words = philox(a.address, block);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u64 at = 4 * block + i;
        if (at < a.n) a.out[at] = uniform_of(words.w[i]);
    }
}

template <typename T>
struct Dropout {
    const T* x;
    T* out;
    u64 n;
    Address address;
    float drop;
    float scale;
};

template <typename T>
void dropout(const Dropout<T>& a) {
    u64 block = thread_number();
    Words words = philox(a.address, block);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u64 at = 4 * block + i;
        if (at < a.n) store(a.out + at, load(a.x + at) * (uniform_of(words.w[i]) < a.drop ? 0.0f : a.scale));
    }
}
KERNELS(dropout, Dropout)
