// Rows of tables in f32, added to a matrix or joined to its columns: a block has some columns of one row.

// The table rows that belong to row r: column `map[2 j]` of its ids plus `map[2 j + 1]`, or id j where `map` is null.
struct Lookup {
    const u32* ids;
    const u32* map;
    u32 stride;   // ids from one row to the next
    u32 columns;  // table rows that each row takes
    u32 of(u64 r, u32 j) const { return map ? ids[r * stride + map[2 * j]] + map[2 * j + 1] : ids[r * stride + j]; }
};

// out = act(x + the table rows)
template <typename T>
struct AddRows {
    Rows<const T> x;
    Rows<T> out;
    Rows<const float> table;
    Lookup lookup;
    u32 act;
};

template <typename T>
float with_rows(Rows<const T> x, Rows<const float> table, const Lookup& lookup, u32 column) {
    float y = load(x.row(blockIdx.x) + column);
    for (u32 j = 0; j < lookup.columns; j++) y += table.row(lookup.of(blockIdx.x, j))[column];
    return y;
}

template <typename T>
void add_rows(const AddRows<T>& a) {
    u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= a.x.width) return;
    store(a.out.row(blockIdx.x) + column, activate(a.act, with_rows(a.x, a.table, a.lookup, column)));
}
KERNELS(add_rows, AddRows)

// dx = grad act'(x + the table rows)
template <typename T>
struct AddRowsBackward {
    Rows<const T> x;
    Rows<const T> grad;
    Rows<T> dx;
    Rows<const float> table;
    Lookup lookup;
    u32 act;
};

template <typename T>
void add_rows_backward(const AddRowsBackward<T>& a) {
    u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= a.x.width) return;
    float slope = activate_slope(a.act, with_rows(a.x, a.table, a.lookup, column));
    store(a.dx.row(blockIdx.x) + column, load(a.grad.row(blockIdx.x) + column) * slope);
}
KERNELS(add_rows_backward, AddRowsBackward)

// out = x and, next to it, the table rows
template <typename T>
struct JoinRows {
    Rows<const T> x;
    Rows<T> out;
    Rows<const float> table;
    Lookup lookup;
};

template <typename T>
void join_rows(const JoinRows<T>& a) {
    u32 column = blockIdx.y * blockDim.x + threadIdx.x, own = a.x.width;
    if (column >= a.out.width) return;
    float y;
    if (column < own) {
        y = load(a.x.row(blockIdx.x) + column);
    } else {
        u32 j = (column - own) / a.table.width;
        y = a.table.row(a.lookup.of(blockIdx.x, j))[(column - own) % a.table.width];
    }
    store(a.out.row(blockIdx.x) + column, y);
}
KERNELS(join_rows, JoinRows)
