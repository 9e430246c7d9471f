// Addressed random numbers, as in random.rs: four of them from every 128-bit counter. A thread makes a block of four.

struct Address {
    u64 seed;
    u64 stream;
    u64 first;  // blocks before the first value
};

struct Words {
    u32 w[4];
};

inline Words philox(const Address& a, u64 block) {
    block += a.first;
    u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = (u32)a.stream, c3 = (u32)(a.stream >> 32);
    u32 k0 = (u32)a.seed, k1 = (u32)(a.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 p0 = (u64)c0 * 0xd2511f53u, p1 = (u64)c2 * 0xcd9e8d57u;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c3 = (u32)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
}

inline float uniform_of(u32 bits) { return (float)(bits >> 8) * (1.0f / 16777216.0f); }

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
