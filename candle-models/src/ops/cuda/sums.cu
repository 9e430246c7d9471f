// Sums over rows in a fixed order, in f32.

// Row p of `out` is the sum of the rows [p per, (p + 1) per) of `x`, value by value times `by`.
template <typename T>
struct SumRows {
    Rows<const T> x;
    Rows<const T> by;  // null for 1
    Rows<float> out;
    u32 rows;
    u32 per;
};

// A block: 32 columns by 8 rows at a time.
template <typename T>
void sum_rows(const SumRows<T>& a) {
    __shared__ float partial[8][32];
    u32 lane = threadIdx.x % 32, line = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    u32 end = min(a.rows, (blockIdx.y + 1) * a.per);
    float sum = 0.0f;
    if (column < a.x.width) {
#pragma unroll 8
        for (u32 r = blockIdx.y * a.per + line; r < end; r += 8) sum += load(a.x.row(r) + column) * (a.by.data ? load(a.by.row(r) + column) : 1.0f);
    }
    partial[line][lane] = sum;
    __syncthreads();
    if (line == 0 && column < a.x.width) {
        for (u32 i = 1; i < 8; i++) sum += partial[i][lane];
        a.out.row(blockIdx.y)[column] = sum;
    }
}
KERNELS(sum_rows, SumRows)

// out = the sum of `count` matrices of that shape, one behind the other.
template <typename T>
struct SumParts {
    const float* parts;
    Rows<T> out;
    u32 count;
    u32 rows;
};

template <typename T>
void sum_parts(const SumParts<T>& a) {
    u64 size = (u64)a.rows * a.out.width, i = thread_number();
    if (i >= size) return;
    float sum = 0.0f;
#pragma unroll 4
    for (u32 part = 0; part < a.count; part++) sum += a.parts[part * size + i];
    store(a.out.row(i / a.out.width) + i % a.out.width, sum);
}
KERNELS(sum_parts, SumParts)

// Row s of `out` is the sum of the pieces of `x` that `pieces[starts[s] .. starts[s + 1]]` name, or the pieces of these numbers where
// `pieces` is null. Piece i is the part of `out.width` values that begins at value `i % columns * step` of row `i / columns`.
template <typename T>
struct SumPieces {
    Rows<const T> x;
    Rows<float> out;
    const u32* pieces;
    const u32* starts;
    u32 columns;
    u32 step;
};

template <typename T>
void sum_pieces(const SumPieces<T>& a) {
    u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= a.out.width) return;
    u32 end = a.starts[blockIdx.x + 1];
    float sum = 0.0f;
#pragma unroll 4
    for (u32 k = a.starts[blockIdx.x]; k < end; k++) {
        u32 i = a.pieces ? a.pieces[k] : k;
        sum += load(a.x.row(i / a.columns) + i % a.columns * a.step + column);
    }
    a.out.row(blockIdx.x)[column] = sum;
}
KERNELS(sum_pieces, SumPieces)
