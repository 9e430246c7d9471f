// What every kernel stands on: number formats, rows, reductions. It comes before each source; NVRTC needs no other header.
//
// Kernels read and write f32, bf16 or f16 and compute in f32. Every reduction has a fixed order, so results repeat bit for bit.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define INFINITY __int_as_float(0x7f800000)

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

inline float load(const float* p) { return *p; }
inline float load(const bf16* p) { return __uint_as_float((u32)p->bits << 16); }
inline float load(const f16* p) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(p->bits));
    return x;
}

inline void store(float* p, float x) { *p = x; }
inline void store(bf16* p, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(p->bits) : "f"(x)); }
inline void store(f16* p, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(p->bits) : "f"(x)); }

// The values in 16 bytes: four, or eight of half the width.
inline void unpack(const uint4& q, float* to, const float*) {
    to[0] = __uint_as_float(q.x), to[1] = __uint_as_float(q.y), to[2] = __uint_as_float(q.z), to[3] = __uint_as_float(q.w);
}
template <typename T>
inline void unpack(const uint4& q, float* to, const T*) {
    const u32 words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        T low = {(u16)words[i]}, high = {(u16)(words[i] >> 16)};
        to[2 * i] = load(&low), to[2 * i + 1] = load(&high);
    }
}

// Values as 16 bytes, each rounded.
inline uint4 pack(const float* x, const float*) {
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
}
template <typename T>
inline uint4 pack(const float* x, const T*) {
    u32 words[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        T low, high;
        store(&low, x[2 * i]), store(&high, x[2 * i + 1]);
        words[i] = low.bits | (u32)high.bits << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}
// Whether pieces of 16 bytes of rows that are so many values apart lie at multiples of 16.
template <typename T>
inline bool in_pieces(const T* data, u32 stride) {
    return stride % (16 / sizeof(T)) == 0 && (u64)data % 16 == 0;
}

// Starts a copy of 16 bytes from memory to shared memory, both at multiples of 16; of those behind the first `bytes`, zeros take the place.
inline void copy16(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes) : "memory");
}
// Ends a group of copies of this thread.
inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the last N groups of this thread are on their way.
template <u32 N>
inline void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// A matrix: `Matrix` in gpu.rs. Rows lie `stride` values apart.
template <typename T>
struct Rows {
    T* data;
    u32 stride;
    u32 width;
    T* row(u64 r) const { return data + r * stride; }
};

// The f32 states of the sequences of a batch: `States` in gpu.rs. Sequence b has the state of slot `slots[b]`, or of slot b where
// `slots` is null; slots lie `stride` values apart. Updated in place.
struct States {
    float* data;
    u64 stride;
    const u32* slots;
    float* of(u32 b) const { return data + (slots ? slots[b] : b) * stride; }
};

// One function per dtype: name_f32, name_bf16, name_f16, each with the arguments `Args<T>` by value.
#define KERNELS(name, Args) KERNELS_WITH(, name, Args)
#define KERNELS_WITH(bounds, name, Args)                                                               \
    extern "C" __global__ void bounds name##_f32(const __grid_constant__ Args<float> a) { name(a); }   \
    extern "C" __global__ void bounds name##_bf16(const __grid_constant__ Args<bf16> a) { name(a); }   \
    extern "C" __global__ void bounds name##_f16(const __grid_constant__ Args<f16> a) { name(a); }

// The number of this thread in a grid of one axis.
inline u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// Values of a thread in `for_columns`: as many loads are under way at once.
#define AT_ONCE 4

// Whether rows are so narrow that several share a block, a warp each, as `Matrix::grid` in gpu.rs divides them.
inline bool is_narrow(u32 width) { return width <= 32 * AT_ONCE; }

// The row of this thread.
inline u64 row_number(u32 width) { return is_narrow(width) ? (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x; }

// Runs over some columns of this thread's row: a warp has columns side by side, and reads all that a thread needs before the first is written, which the
// compiler could not know to be elsewhere.
template <typename Read, typename Write>
inline void for_columns(u32 width, Read read, Write write) {
    u32 lane = is_narrow(width) ? threadIdx.x % 32 : threadIdx.x, lanes = is_narrow(width) ? 32 : blockDim.x;
    for (u64 first = (u64)blockIdx.y * AT_ONCE * lanes + lane; first < width; first += (u64)gridDim.y * AT_ONCE * lanes) {
        decltype(read(0u)) values[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++)
            if (first + k * lanes < width) values[k] = read((u32)first + k * lanes);
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++)
            if (first + k * lanes < width) write((u32)first + k * lanes, values[k]);
    }
}

template <typename T>
inline T warp_sum(T x) {
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffff, x, lane);
    return x;
}

inline float warp_max(float x) {
    for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lane));
    return x;
}

// The sum over a block of whole warps, in every thread. All threads of the block call it.
template <typename T>
inline T block_sum(T x) {
    __shared__ T partial[32];
    u32 warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    x = warp_sum(x);
    __syncthreads();  // The sums of a call before have been read.
    if (threadIdx.x % 32 == 0) partial[warp] = x;
    __syncthreads();
    x = 0;
    for (u32 i = 0; i < warps; i++) x += partial[i];
    return x;
}

// The largest number of a block of whole warps, in every thread. All threads of the block call it.
template <typename T>
inline T block_max(T x) {
    __shared__ T partial[32];
    for (int lane = 16; lane > 0; lane /= 2) {
        T other = __shfl_xor_sync(0xffffffff, x, lane);
        x = other > x ? other : x;
    }
    __syncthreads();  // The numbers of a call before have been read.
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    for (u32 i = 0; i < blockDim.x / 32; i++) x = partial[i] > x ? partial[i] : x;
    return x;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

#define LOG2_E 1.44269504f

// 2^x, at most two units of the last place off; 0 far below zero.
inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ln(1 + e^x) without overflow, relative error below 1e-6: ln(1 + e) = 2 atanh(s), s = e / (2 + e) in (0, 1/3]. Half the
// instructions of log1pf(expf(x)), and no branch.
inline float softplus(float x) {
    float e = exp2_fast(-fabsf(x) * LOG2_E), s = __fdividef(e, 2.0f + e), q = s * s;
    float p = 1.0f / 13.0f;
    p = p * q + 1.0f / 11.0f;
    p = p * q + 1.0f / 9.0f;
    p = p * q + 1.0f / 7.0f;
    p = p * q + 0.2f;
    p = p * q + 1.0f / 3.0f;
    p = p * q + 1.0f;
    return fmaxf(x, 0.0f) + 2.0f * s * p;
}

// Addressed random numbers, as in random.rs: four of them from every 128-bit counter. `Address` in philox.rs.
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

// Two normal numbers from two words (Box-Muller), as random.rs makes them but for rounding.
inline float2 normals_of(u32 a, u32 b) {
    float radius = sqrtf(-2.0f * logf((float)(a | 1) * (1.0f / 4294967296.0f))), sine, cosine;
    sincospif((float)(int)b * (1.0f / 2147483648.0f), &sine, &cosine);
    return {radius * cosine, radius * sine};
}

// `Activation` in activation.rs, numbered as in `activation_code`.
enum { NONE, RELU, GELU, SILU };

// The share of a normal distribution below x, at most 1e-7 off (Abramowitz and Stegun 7.1.26): a third of the instructions of erff, and no branch.
inline float normal_cdf(float x) {
    float z = fabsf(x) * 0.70710678f, t = __fdividef(1.0f, 1.0f + 0.3275911f * z);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    float above = 0.5f * p * t * exp2_fast(-z * z * LOG2_E);
    return x > 0.0f ? 1.0f - above : above;
}

inline float activate(u32 act, float x) {
    switch (act) {
        case RELU: return x > 0.0f ? x : 0.0f;
        case GELU: return x * normal_cdf(x);
        case SILU: return x * sigmoid(x);
        default: return x;
    }
}

// The derivative of an activation at x.
inline float activate_slope(u32 act, float x) {
    switch (act) {
        case RELU: return x > 0.0f ? 1.0f : 0.0f;
        case GELU: return x * 0.39894228f * expf(-0.5f * x * x) + normal_cdf(x);
        case SILU: {
            float s = sigmoid(x);
            return s * (1.0f + x * (1.0f - s));
        }
        default: return 1.0f;
    }
}
