// y = then(act(x W + b + table rows) + gain residual) for a few rows, and the part behind the product alone for many.
//
// W is [inputs, outputs] in T; x, y and the residual are T or f32, as the bits of `wide` say.

enum { X_WIDE = 1, OUT_WIDE = 2, RESIDUAL_WIDE = 4 };

template <typename T>
inline float load_as(const void* p, u64 i, u32 wide) {
    return wide ? ((const float*)p)[i] : load((const T*)p + i);
}

// What happens to a value of the product on its way out.
template <typename T>
struct Epilogue {
    Rows<void> out;
    Rows<const void> residual;  // null for none
    const float* bias;          // null for none
    const float* gain;          // of the residual; null for 1
    const T* table;             // [entries, outputs]: row `ids[row][column] + base` is added for each gather
    Rows<const u32> ids;
    const u32* gathers;  // pairs of column and base
    u32 gather_count;
    u32 act;
    u32 then;  // the activation of the sum with the residual
    u32 wide;
    u32 rows;
};

template <typename T>
inline void finish(const Epilogue<T>& e, u64 row, u32 column, float y) {
    if (e.bias) y += e.bias[column];
    for (u32 i = 0; i < e.gather_count; i++) {
        u64 entry = e.ids.row(row)[e.gathers[2 * i]] + e.gathers[2 * i + 1];
        y += load(e.table + entry * e.out.width + column);
    }
    y = activate(e.act, y);
    if (e.residual.data) {
        float residual = load_as<T>(e.residual.data, row * e.residual.stride + column, e.wide & RESIDUAL_WIDE);
        y = activate(e.then, y + (e.gain ? e.gain[column] * residual : residual));
    }
    u64 at = row * e.out.stride + column;
    if (e.wide & OUT_WIDE) {
        ((float*)e.out.data)[at] = y;
    } else {
        store((T*)e.out.data + at, y);
    }
}

// Values of a thread that lie side by side in a row: 16 bytes.
template <typename T>
constexpr u32 PIECE = 16 / sizeof(T);

// The same for a piece of a row, of which `count` values are there; what lies at multiples of 16 bytes is read and written at once. The residual of a whole
// piece may have been brought to shared memory.
template <typename T>
inline void finish_piece(const Epilogue<T>& e, u64 row, u32 column, float (&y)[PIECE<T>], u32 count, const T* brought = nullptr) {
    constexpr u32 N = PIECE<T>;
    const bool whole = count == N;
    if (e.bias) {
#pragma unroll
        for (u32 j = 0; j < N; j++)
            if (j < count) y[j] += e.bias[column + j];
    }
    const bool table_pieces = whole && in_pieces(e.table, e.out.width);
#pragma unroll 4
    for (u32 i = 0; i < e.gather_count; i++) {
        u64 entry = e.ids.row(row)[e.gathers[2 * i]] + e.gathers[2 * i + 1];
        const T* from = e.table + entry * e.out.width + column;
        float more[N];
        if (table_pieces) {
            unpack(*(const uint4*)from, more, from);
        } else {
#pragma unroll
            for (u32 j = 0; j < N; j++) more[j] = j < count ? load(from + j) : 0.0f;
        }
#pragma unroll
        for (u32 j = 0; j < N; j++) y[j] += more[j];
    }
    // Each activation in one place, so that a launch waits for the instructions of one alone.
    auto through = [&](u32 act) {
        if (act == GELU) {
#pragma unroll
            for (u32 j = 0; j < N; j++) y[j] = activate(GELU, y[j]);
        } else if (act == SILU) {
#pragma unroll
            for (u32 j = 0; j < N; j++) y[j] = activate(SILU, y[j]);
        } else if (act == RELU) {
#pragma unroll
            for (u32 j = 0; j < N; j++) y[j] = activate(RELU, y[j]);
        }
    };
    through(e.act);
    if (e.residual.data) {
        u64 at = row * e.residual.stride + column;
        const T* from = (const T*)e.residual.data + at;
        float residual[N];
        if (brought) {
            unpack(*(const uint4*)brought, residual, brought);
        } else if (whole && !(e.wide & RESIDUAL_WIDE) && in_pieces((const T*)e.residual.data, e.residual.stride)) {
            unpack(*(const uint4*)from, residual, from);
        } else {
#pragma unroll
            for (u32 j = 0; j < N; j++) residual[j] = j < count ? load_as<T>(e.residual.data, at + j, e.wide & RESIDUAL_WIDE) : 0.0f;
        }
#pragma unroll
        for (u32 j = 0; j < N; j++) {
            float gain = e.gain && j < count ? e.gain[column + j] : 1.0f;
            y[j] += gain * residual[j];
        }
        through(e.then);
    }
    u64 at = row * e.out.stride + column;
    if (e.wide & OUT_WIDE) {
#pragma unroll
        for (u32 j = 0; j < N; j++)
            if (j < count) ((float*)e.out.data)[at + j] = y[j];
        return;
    }
    T* to = (T*)e.out.data + at;
    if (whole && in_pieces((T*)e.out.data, e.out.stride)) {
        *(uint4*)to = pack(y, to);
    } else {
#pragma unroll
        for (u32 j = 0; j < N; j++)
            if (j < count) store(to + j, y[j]);
    }
}

template <typename T>
struct Product {
    Epilogue<T> epilogue;
    Rows<const void> x;
    const T* weight;
    u32 residual_at;  // where tiles have room for the residual, in bytes; 0 for none
};

const u32 WARPS = 8;
// Loads of weights that a thread has under way.
const u32 AHEAD = 8;

// A block: 32 columns of R rows, over shares of the inputs. x lies in shared memory as f32. A thread has a few columns side by side, 16 bytes of a row of the
// weight, and every so many inputs; where rows are no whole pieces of 16 bytes, it has one column.
template <u32 R, typename T>
inline void product(const Product<T>& a) {
    constexpr u32 N = PIECE<T>, SIDE = 32 / N, SHARES = 32 * WARPS / SIDE;
    extern __shared__ float x[];  // [R, inputs]
    __shared__ float partial[WARPS][R][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, inputs = a.x.width, outputs = a.epilogue.out.width, first = blockIdx.y * R;
    u32 share = threadIdx.x / SIDE, piece = blockIdx.x * 32 + threadIdx.x % SIDE * N;
    bool pieces = in_pieces(a.weight, outputs);
    uint4 next[AHEAD];
    auto bring = [&](u32 begin) {
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            u32 k = begin + share + i * SHARES;
            next[i] = make_uint4(0, 0, 0, 0);
            if (k < inputs && piece < outputs) next[i] = *(const uint4*)(a.weight + (u64)k * outputs + piece);
        }
    };
    // The first weights are on their way while x is.
    if (pieces) bring(0);
    for (u32 i = threadIdx.x; i < R * inputs; i += blockDim.x) {
        u32 row = first + i / inputs;
        x[i] = row < a.epilogue.rows ? load_as<T>(a.x.data, (u64)row * a.x.stride + i % inputs, a.epilogue.wide & X_WIDE) : 0.0f;
    }
    __syncthreads();
    if (pieces) {
        float sum[R][N] = {};
        for (u32 begin = 0; begin < inputs; begin += AHEAD * SHARES) {
            if (begin > 0) bring(begin);
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                float weight[N];
                unpack(next[i], weight, a.weight);
                // Behind the last input the weights are 0.
                u32 k = min(begin + share + i * SHARES, inputs - 1);
#pragma unroll
                for (u32 r = 0; r < R; r++) {
                    float value = x[r * inputs + k];
#pragma unroll
                    for (u32 j = 0; j < N; j++) sum[r][j] += value * weight[j];
                }
            }
        }
#pragma unroll
        for (u32 r = 0; r < R; r++) {
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                float total = sum[r][j];
#pragma unroll
                for (u32 other = SIDE; other < 32; other *= 2) total += __shfl_xor_sync(0xffffffff, total, other);
                if (lane < SIDE) partial[warp][r][lane * N + j] = total;
            }
        }
    } else {
        u32 column = blockIdx.x * 32 + lane;
        float sum[R] = {};
        if (column < outputs) {
            const T* w = a.weight + column;
#pragma unroll 8
            for (u32 k = warp; k < inputs; k += WARPS) {
                float weight = load(w + (u64)k * outputs);
#pragma unroll
                for (u32 r = 0; r < R; r++) sum[r] += weight * x[r * inputs + k];
            }
        }
#pragma unroll
        for (u32 r = 0; r < R; r++) partial[warp][r][lane] = sum[r];
    }
    __syncthreads();
    u32 column = blockIdx.x * 32 + lane;
    for (u32 r = warp; r < R; r += WARPS) {
        float y = 0.0f;
        for (u32 w = 0; w < WARPS; w++) y += partial[w][r][lane];
        if (column < outputs && first + r < a.epilogue.rows) finish(a.epilogue, first + r, column, y);
    }
}

template <typename T>
void product1(const Product<T>& a) { product<1>(a); }
template <typename T>
void product4(const Product<T>& a) { product<4>(a); }
template <typename T>
void product8(const Product<T>& a) { product<8>(a); }

KERNELS(product1, Product)
KERNELS(product4, Product)
KERNELS(product8, Product)

// A block of a product of many rows: TILE rows by TILE columns, DEPTH inputs at a time, which come through a ring of copies in shared memory, LAG parts ahead.
const u32 TILE = 64, DEPTH = 32, RING = 4, LAG = 2, TILE_THREADS = 128;

// Where a part of `x` [TILE, DEPTH] and of the weight [DEPTH, TILE] lie. Rows are a piece longer than they need, so that no two of eight share a bank.
template <typename T>
struct Part {
    static constexpr u32 X = DEPTH + PIECE<T>, W = TILE + PIECE<T>, SIZE = TILE * X + DEPTH * W;
    T* data;
    T* x(u32 row, u32 k) const { return data + row * X + k; }
    T* w(u32 k, u32 column) const { return data + TILE * X + k * W + column; }
};

inline void load_matrices(u32 (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}
inline void load_matrices_turned(u32 (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

#define MULTIPLY(type)                                                                                                              \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
inline void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, const bf16*) { MULTIPLY("bf16"); }
inline void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, const f16*) { MULTIPLY("f16"); }

// Adds the product of a part on the tensor cores: a warp has 16 rows, a lane of each 8 columns two of two rows.
template <typename T>
inline void add_part(const Part<T>& part, float (&sum)[8][4]) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, a[DEPTH / 16][4], b[DEPTH / 16][4][4];
    // All loads before the first product, which would wait for its own.
#pragma unroll
    for (u32 k = 0; k < DEPTH / 16; k++) {
        load_matrices(a[k], part.x(16 * warp + lane % 16, 16 * k + lane / 16 * 8));
#pragma unroll
        for (u32 n = 0; n < 4; n++) load_matrices_turned(b[k][n], part.w(16 * k + lane % 16, 16 * n + lane / 16 * 8));
    }
#pragma unroll
    for (u32 k = 0; k < DEPTH / 16; k++) {
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
            multiply(sum[2 * n], a[k], b[k][n][0], b[k][n][1], (const T*)nullptr);
            multiply(sum[2 * n + 1], a[k], b[k][n][2], b[k][n][3], (const T*)nullptr);
        }
    }
}
// In f32: a thread has four columns of every eighth row.
inline void add_part(const Part<float>& part, float (&sum)[8][4]) {
    u32 side = threadIdx.x % 16 * 4, line = threadIdx.x / 16;
#pragma unroll 2
    for (u32 k = 0; k < DEPTH; k += 4) {
        float4 w[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) w[i] = *(const float4*)part.w(k + i, side);
#pragma unroll
        for (u32 r = 0; r < 8; r++) {
            float4 x = *(const float4*)part.x(line + 8 * r, k);
            const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                sum[r][0] += values[i] * w[i].x;
                sum[r][1] += values[i] * w[i].y;
                sum[r][2] += values[i] * w[i].z;
                sum[r][3] += values[i] * w[i].w;
            }
        }
    }
}
// The row and the column of a sum of this thread in the tile.
template <typename T>
inline u32 tile_row(u32 i, u32 j, const T*) {
    return 16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4 + j / 2 * 8;
}
template <typename T>
inline u32 tile_column(u32 i, u32 j, const T*) {
    return 8 * i + threadIdx.x % 4 * 2 + j % 2;
}
inline u32 tile_row(u32 i, u32 j, const float*) { return threadIdx.x / 16 + 8 * i; }
inline u32 tile_column(u32 i, u32 j, const float*) { return threadIdx.x % 16 * 4 + j; }

// Brings a part. What is no whole piece of 16 bytes at a multiple of them, or has to be rounded, goes through registers.
template <typename T>
inline void bring_part(const Product<T>& a, const Part<T>& part, u32 first_row, u32 first_column, u32 begin, bool x_pieces, bool w_pieces) {
    constexpr u32 ACROSS = DEPTH / PIECE<T>, SIDE = TILE / PIECE<T>;
    u32 inputs = a.x.width, outputs = a.epilogue.out.width, wide = a.epilogue.wide & X_WIDE;
#pragma unroll 2
    for (u32 begun = 0; begun < TILE * ACROSS; begun += TILE_THREADS) {
        u32 i = begun + threadIdx.x;
        u32 r = i / ACROSS, row = first_row + r, k = begin + i % ACROSS * PIECE<T>;
        u32 count = row < a.epilogue.rows && k < inputs ? min(PIECE<T>, inputs - k) : 0;
        u64 at = count ? (u64)row * a.x.stride + k : 0;
        T* to = part.x(r, k - begin);
        if (x_pieces) {
            copy16(to, (const T*)a.x.data + at, count * sizeof(T));
        } else {
            float values[PIECE<T>];
#pragma unroll
            for (u32 j = 0; j < PIECE<T>; j++) values[j] = j < count ? load_as<T>(a.x.data, at + j, wide) : 0.0f;
            *(uint4*)to = pack(values, to);
        }
    }
#pragma unroll 2
    for (u32 begun = 0; begun < DEPTH * SIDE; begun += TILE_THREADS) {
        u32 i = begun + threadIdx.x;
        u32 k = i / SIDE, c = i % SIDE * PIECE<T>, column = first_column + c;
        u32 count = begin + k < inputs && column < outputs ? min(PIECE<T>, outputs - column) : 0;
        const T* from = a.weight + (count ? (u64)(begin + k) * outputs + column : 0);
        T* to = part.w(k, c);
        if (w_pieces) {
            copy16(to, from, count * sizeof(T));
        } else {
            float values[PIECE<T>];
#pragma unroll
            for (u32 j = 0; j < PIECE<T>; j++) values[j] = j < count ? load(from + j) : 0.0f;
            *(uint4*)to = pack(values, to);
        }
    }
}

template <typename T>
void product_tiles(const Product<T>& a) {
    extern __shared__ __align__(16) u8 memory[];
    u32 inputs = a.x.width, outputs = a.epilogue.out.width, first_row = blockIdx.x * TILE, first_column = blockIdx.y * TILE;
    bool x_pieces = !(a.epilogue.wide & X_WIDE) && in_pieces((const T*)a.x.data, a.x.stride);
    bool w_pieces = in_pieces(a.weight, outputs);
    auto part = [&](u32 number) { return Part<T>{(T*)memory + number % RING * Part<T>::SIZE}; };
    constexpr u32 SIDE = TILE / PIECE<T>;
    // The residual of the tile, behind the ring: it comes with the first part, so that nobody waits for it in the end.
    T* residual = a.residual_at ? (T*)(memory + a.residual_at) : nullptr;
    if (residual) {
#pragma unroll 2
        for (u32 i = threadIdx.x; i < TILE * SIDE; i += TILE_THREADS) {
            u32 r = i / SIDE, c = i % SIDE * PIECE<T>, row = first_row + r, column = first_column + c;
            bool there = row < a.epilogue.rows && column < outputs;
            const T* from = (const T*)a.epilogue.residual.data + (there ? (u64)row * a.epilogue.residual.stride + column : 0);
            copy16(residual + i * PIECE<T>, from, there ? min(PIECE<T>, outputs - column) * sizeof(T) : 0);
        }
    }
    float sum[8][4] = {};
#pragma unroll 1
    for (u32 number = 0; number < (inputs + DEPTH - 1) / DEPTH + LAG; number++) {
        // Into the place of the part that has been used two steps before: all threads have met since.
        if (number * DEPTH < inputs) bring_part(a, part(number), first_row, first_column, number * DEPTH, x_pieces, w_pieces);
        end_copies();
        if (number < LAG) continue;
        await_copies<LAG>();
        __syncthreads();
        add_part(part(number - LAG), sum);
    }
    __syncthreads();
    // Through shared memory, so that a warp writes what lies side by side.
    float* tile = (float*)memory;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) tile[tile_row(i, j, a.weight) * (TILE + 4) + tile_column(i, j, a.weight)] = sum[i][j];
    }
    __syncthreads();
#pragma unroll 1
    for (u32 i = 0; i < TILE * SIDE; i += TILE_THREADS) {
        u32 r = (i + threadIdx.x) / SIDE, c = (i + threadIdx.x) % SIDE * PIECE<T>, row = first_row + r, column = first_column + c;
        if (row >= a.epilogue.rows || column >= outputs) continue;
        float y[PIECE<T>];
#pragma unroll
        for (u32 j = 0; j < PIECE<T>; j += 4) *(float4*)(y + j) = *(const float4*)(tile + r * (TILE + 4) + c + j);
        const T* brought = residual ? residual + (i + threadIdx.x) * PIECE<T> : nullptr;
        finish_piece(a.epilogue, row, column, y, min(PIECE<T>, outputs - column), brought);
    }
}
KERNELS(product_tiles, Product)

// The epilogue over values that are there already: a product in f32, or anything else.
template <typename T>
struct Finish {
    Epilogue<T> epilogue;
    Rows<const void> x;
};

// The row and the column of a number in a matrix of that width. Divided in 32 bits where those do.
inline void place(u64 i, u64 size, u32 width, u64& row, u32& column) {
    if (size <= 0xffffffff) {
        row = (u32)i / width, column = (u32)i % width;
    } else {
        row = i / width, column = i % width;
    }
}

// A thread has a piece of a row.
template <typename T>
void finish_rows(const Finish<T>& a) {
    u32 width = a.epilogue.out.width, pieces = (width + PIECE<T> - 1) / PIECE<T>, wide = a.epilogue.wide & X_WIDE;
    u64 i = thread_number(), size = (u64)a.epilogue.rows * pieces, row;
    if (i >= size) return;
    u32 piece;
    place(i, size, pieces, row, piece);
    u32 column = piece * PIECE<T>, count = min(PIECE<T>, width - column);
    u64 at = row * a.x.stride + column;
    float y[PIECE<T>];
#pragma unroll
    for (u32 j = 0; j < PIECE<T>; j++) y[j] = j < count ? load_as<T>(a.x.data, at + j, wide) : 0.0f;
    finish_piece(a.epilogue, row, column, y, count);
}

KERNELS(finish_rows, Finish)

// Values from one place to another, T or f32 on either side.
template <typename T>
struct Copy {
    Rows<const void> from;
    Rows<void> to;
    u32 rows;
    u32 wide;
};

// A block has AT_ONCE values for every thread, a block's width apart.
template <typename T>
void copy_rows(const Copy<T>& a) {
    u64 size = (u64)a.rows * a.to.width, first = (u64)blockIdx.x * AT_ONCE * blockDim.x + threadIdx.x, row[AT_ONCE];
    u32 column[AT_ONCE];
    float x[AT_ONCE];
#pragma unroll
    for (u32 k = 0; k < AT_ONCE; k++) {
        place(first + k * blockDim.x, size, a.to.width, row[k], column[k]);
        if (first + k * blockDim.x < size) x[k] = load_as<T>(a.from.data, row[k] * a.from.stride + column[k], a.wide & X_WIDE);
    }
#pragma unroll
    for (u32 k = 0; k < AT_ONCE; k++) {
        if (first + k * blockDim.x >= size) continue;
        u64 at = row[k] * a.to.stride + column[k];
        if (a.wide & OUT_WIDE) {
            ((float*)a.to.data)[at] = x[k];
        } else {
            store((T*)a.to.data + at, x[k]);
        }
    }
}

KERNELS(copy_rows, Copy)
