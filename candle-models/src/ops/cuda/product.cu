// y = act(x W + b + table rows) + residual for a few rows, and the part behind the product alone for many.
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
    const T* table;             // [entries, outputs]: row `ids[row][column] + base` is added for each gather
    Rows<const u32> ids;
    const u32* gathers;  // pairs of column and base
    u32 gather_count;
    u32 act;
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
    if (e.residual.data) y += load_as<T>(e.residual.data, row * e.residual.stride + column, e.wide & RESIDUAL_WIDE);
    u64 at = row * e.out.stride + column;
    if (e.wide & OUT_WIDE) {
        ((float*)e.out.data)[at] = y;
    } else {
        store((T*)e.out.data + at, y);
    }
}

template <typename T>
struct Product {
    Epilogue<T> epilogue;
    Rows<const void> x;
    const T* weight;
};

const u32 WARPS = 8;

// A block: 32 columns of R rows; its warps share the inputs, each lane has a column. x lies in shared memory as f32.
template <u32 R, typename T>
inline void product(const Product<T>& a) {
    extern __shared__ float x[];  // [R, inputs]
    __shared__ float partial[WARPS][R][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, inputs = a.x.width, outputs = a.epilogue.out.width;
    u32 first = blockIdx.y * R, column = blockIdx.x * 32 + lane;
    for (u32 i = threadIdx.x; i < R * inputs; i += blockDim.x) {
        u32 row = first + i / inputs;
        x[i] = row < a.epilogue.rows ? load_as<T>(a.x.data, (u64)row * a.x.stride + i % inputs, a.epilogue.wide & X_WIDE) : 0.0f;
    }
    __syncthreads();
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
    __syncthreads();
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

// The epilogue over values that are there already: a product in f32, or anything else.
template <typename T>
struct Finish {
    Epilogue<T> epilogue;
    Rows<const void> x;
};

template <typename T>
void finish_rows(const Finish<T>& a) {
    u32 width = a.epilogue.out.width;
    u64 i = thread_number();
    if (i >= (u64)a.epilogue.rows * width) return;
    u64 row = i / width;
    u32 column = i % width;
    finish(a.epilogue, row, column, load_as<T>(a.x.data, row * a.x.stride + column, a.epilogue.wide & X_WIDE));
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

template <typename T>
void copy_rows(const Copy<T>& a) {
    u64 i = thread_number();
    if (i >= (u64)a.rows * a.to.width) return;
    u64 row = i / a.to.width, column = i % a.to.width;
    float x = load_as<T>(a.from.data, row * a.from.stride + column, a.wide & X_WIDE);
    if (a.wide & OUT_WIDE) {
        ((float*)a.to.data)[row * a.to.stride + column] = x;
    } else {
        store((T*)a.to.data + row * a.to.stride + column, x);
    }
}

KERNELS(copy_rows, Copy)
