// Choosing classes from logits as `draw.rs` does, and all heads of an action one after the other in one block a row.

// In place of a class: "choose one".
#define SAMPLE 0xffffffffu

template <typename T>
struct Choose {
    Rows<const T> logits;       // a column's lie side by side
    Rows<const float> uniform;  // negative: the most likely class
    Rows<const u32> wanted;
    Rows<u32> out;
    u32 rows;
    u32 columns;
    u32 classes;  // 2: one logit, that of class 1
};

// The first class at which the weights so far exceed the share `uniform` of all: `random::categorical`.
template <typename F>
u32 categorical(float uniform, u32 classes, F weight) {
    double sum = 0.0, so_far = 0.0;
    for (u32 i = 0; i < classes; i++) sum += (double)weight(i);
    double target = (double)uniform * sum;
    u32 last = 0;
    for (u32 i = 0; i < classes; i++) {
        float w = weight(i);
        if (!(w > 0.0f)) continue;
        last = i;
        so_far += (double)w;
        if (so_far > target) break;
    }
    return last;
}

template <typename T>
u32 pick(const T* logits, u32 classes, float uniform) {
    if (classes == 2) {
        float z = load(logits), up = sigmoid(z);
        if (uniform < 0.0f) return z > 0.0f;
        return categorical(uniform, 2, [&](u32 i) { return i ? up : 1.0f - up; });
    }
    float most = -__uint_as_float(0x7f800000);
    u32 best = 0;
    for (u32 i = 0; i < classes; i++) {
        float z = load(logits + i);
        if (z > most) {
            most = z;
            best = i;
        }
    }
    if (uniform < 0.0f) return best;
    return categorical(uniform, classes, [&](u32 i) { return expf(load(logits + i) - most); });
}

template <typename T>
void choose(const Choose<T>& a) {
    u64 thread = thread_number(), row = thread / a.columns;
    if (row >= a.rows) return;
    u32 column = thread % a.columns, wanted = a.wanted.row(row)[column];
    u32 width = a.classes == 2 ? 1 : a.classes;
    bool open = wanted == SAMPLE;
    a.out.row(row)[column] = open ? pick(a.logits.row(row) + column * width, a.classes, a.uniform.row(row)[column]) : wanted;
}
KERNELS(choose, Choose)

// The same by all lanes of a warp, with the same answer in each of them.
template <typename F>
u32 categorical_of_warp(float uniform, u32 classes, F weight) {
    u32 lane = threadIdx.x % 32, last = 0;
    double sum = 0.0, before = 0.0;
    for (u32 i = lane; i < classes; i += 32) sum += (double)weight(i);
    double target = (double)uniform * warp_sum(sum);
    for (u32 first = 0; first < classes; first += 32) {
        float w = first + lane < classes ? weight(first + lane) : 0.0f;
        double so_far = (double)w;
        for (u32 step = 1; step < 32; step *= 2) {
            double other = __shfl_up_sync(0xffffffff, so_far, step);
            if (lane >= step) so_far += other;
        }
        u32 real = __ballot_sync(0xffffffff, w > 0.0f), reached = __ballot_sync(0xffffffff, w > 0.0f && before + so_far > target);
        if (reached) return first + __ffs(reached) - 1;
        if (real) last = first + 31 - __clz(real);
        before += __shfl_sync(0xffffffff, so_far, 31);
    }
    return last;
}

inline u32 pick_by_warp(const float* logits, u32 classes, float uniform) {
    if (classes == 2) return pick(logits, 2, uniform);
    u32 lane = threadIdx.x % 32;
    float most = -INFINITY;
    for (u32 i = lane; i < classes; i += 32) most = fmaxf(most, logits[i]);
    most = warp_max(most);
    if (uniform >= 0.0f) return categorical_of_warp(uniform, classes, [&](u32 i) { return expf(logits[i] - most); });
    // The first of the most likely.
    for (u32 first = 0; first < classes; first += 32) {
        u32 found = __ballot_sync(0xffffffff, first + lane < classes && logits[first + lane] == most);
        if (found) return first + __ffs(found) - 1;
    }
    return 0;
}

// Columns of its frame that a prior can know.
#define GIVEN 2

// A component: `HeadGroup` in cuda.rs.
template <typename T>
struct Group {
    const T* previous;  // [columns * classes, width]
    const T* out;       // [width, logits]
    const float* out_bias;
    const float* chosen;  // [columns * classes, (components behind) * width]; null behind the last
    const T* prior;       // [columns * contexts, logits]; null for none
    u32 column;
    u32 columns;
    u32 classes;
    u32 logits;
    u32 contexts;
    u32 given_count;
    u32 given[GIVEN][2];  // columns of this frame and their numbers of classes
};

template <typename T>
struct Heads {
    Rows<const float> inner;  // [rows, count * width]: what the stream gives the inner layers before anything is chosen
    Rows<float> logits;
    Rows<u32> out;
    Rows<const u32> previous;
    Rows<const u32> wanted;
    Rows<const u32> before;  // the frame before that of `previous`
    Rows<const float> uniform;
    const Group<T>* groups;
    u32 width;
    u32 count;
    u32 rows;
    u32 chunk;  // bytes, a multiple of 16
};

#define HEAD_THREADS 512u
// Chunks of weights that are on their way or in use.
#define STAGES 4u
// Outputs of a product that a thread can have.
#define OUTPUTS 2u

// Weights of the last layers come in chunks, in the order of their use, into a ring in shared memory, several layers ahead: they do not depend on what has been
// chosen.
template <typename T>
struct Feed {
    u8* ring;
    const Group<T>* groups;
    u32 width, count, chunk;
    u32 group, row, issued;  // the next chunk

    // Rows of a chunk: whole pieces of 16 bytes.
    u32 per(u32 outputs) const {
        const u32 piece = 16 / sizeof(T);
        return max(chunk / (outputs * (u32)sizeof(T)) / piece, 1u) * piece;
    }

    // Starts the next chunk, if there is one; a group of copies in any case, so that they can be counted.
    void issue() {
        if (group < count) {
            const u32 outputs = groups[group].logits, rows = min(per(outputs), width - row), bytes = rows * outputs * (u32)sizeof(T);
            const u8* from = (const u8*)(groups[group].out + (u64)row * outputs);
            u8* to = ring + issued % STAGES * chunk;
            for (u32 at = threadIdx.x * 16; at < bytes; at += HEAD_THREADS * 16) copy16(to + at, from + at, min(16u, bytes - at));
            row += rows;
            issued++;
            if (row == width) {
                row = 0;
                group++;
            }
        }
        end_copies();
    }
};

// The components of R rows, one behind the other, in a block. A component's inner layer is a sum over what the trunk and the frame before say and over what has
// been chosen so far. All of it but the last is there at the start; what a class adds has been multiplied with the layers of the components behind it before, so
// that a choice adds rows of a table to all of them at once.
template <u32 R, typename T>
void heads(const Heads<T>& a) {
    extern __shared__ __align__(16) u8 memory[];
    const u32 width = a.width, thread = threadIdx.x, row0 = blockIdx.x * R, columns = a.out.width, all = a.logits.width, inners = a.count * width;
    u8* at = memory + STAGES * a.chunk;
    auto room = [&](u32 values) {
        float* place = (float*)at;
        at += 4 * values;
        return place;
    };
    Group<T>* groups = (Group<T>*)at;
    at += a.count * sizeof(Group<T>);
    float *partial = room(R * OUTPUTS * HEAD_THREADS), *inner = room(R * inners), *logits = room(R * all), *uniform = room(R * a.uniform.width);
    u32 *classes = (u32*)room(R * columns), *previous = (u32*)room(R * a.previous.width), *wanted = (u32*)room(R * a.wanted.width);
    u32* before = (u32*)room(a.before.data ? R * a.before.width : 0);
    auto row_of = [&](u32 r) { return (u64)min(row0 + r, a.rows - 1); };

    auto bring = [&](auto& from, auto* to) {
        for (u32 i = thread; i < R * from.width; i += HEAD_THREADS) to[i] = from.row(row_of(i / from.width))[i % from.width];
    };
    for (u32 i = thread; i < a.count * (u32)(sizeof(Group<T>) / 4); i += HEAD_THREADS) ((u32*)groups)[i] = ((const u32*)a.groups)[i];
    bring(a.uniform, uniform);
    bring(a.previous, previous);
    bring(a.wanted, wanted);
    if (a.before.data) bring(a.before, before);
    __syncthreads();
    Feed<T> feed = {memory, groups, width, a.count, a.chunk, 0, 0, 0};
    for (u32 i = 0; i + 1 < STAGES; i++) feed.issue();
    // Sums begin with their biases.
    for (u32 g = 0, first = 0; g < a.count; first += groups[g++].logits)
        for (u32 i = thread; i < R * groups[g].logits; i += HEAD_THREADS)
            logits[i / groups[g].logits * all + first + i % groups[g].logits] = groups[g].out_bias[i % groups[g].logits];
    for (u32 i = thread; i < R * inners; i += HEAD_THREADS) {
        u32 r = i / inners, g = i / width % a.count, j = i % width;
        const Group<T>& group = groups[g];
        float sum = a.inner.row(row_of(r))[i % inners];
#pragma unroll 4
        for (u32 c = 0; c < group.columns; c++) {
            u64 entry = c * group.classes + previous[r * a.previous.width + group.column + c];
            sum += load(group.previous + entry * width + j);
        }
        inner[i] = sum;
    }

    u32 used = 0, done = 0, chosen = 0;
    for (u32 g = 0; g < a.count; g++) {
        const Group<T>& group = groups[g];
        const u32 outputs = group.logits, per = feed.per(outputs);
        // Lanes have outputs, warps shares of the inputs.
        const u32 side = min((outputs + 31) / 32 * 32, HEAD_THREADS), parts = HEAD_THREADS / side, part = thread / side, column = thread % side;
        float sum[R][OUTPUTS] = {};
        for (u32 begin = 0; begin < width; begin += per) {
            u32 count = min(per, width - begin);
            await_copies<STAGES - 2>();
            __syncthreads();  // This chunk has come for all, and the one before has been used by all: the next comes into its place.
            feed.issue();
            const T* w = (const T*)(memory + used++ % STAGES * a.chunk);
            if (part >= parts || column >= outputs) continue;
#pragma unroll 4
            for (u32 k = part; k < count; k += parts) {
                float weight[OUTPUTS];
#pragma unroll
                for (u32 o = 0; o < OUTPUTS; o++) {
                    u32 output = column + o * HEAD_THREADS;
                    weight[o] = o == 0 || output < outputs ? load(w + k * outputs + output) : 0.0f;
                }
#pragma unroll
                for (u32 r = 0; r < R; r++) {
                    float x = fmaxf(inner[r * inners + g * width + begin + k], 0.0f);
#pragma unroll
                    for (u32 o = 0; o < OUTPUTS; o++) sum[r][o] += x * weight[o];
                }
            }
        }
#pragma unroll
        for (u32 r = 0; r < R; r++) {
#pragma unroll
            for (u32 o = 0; o < OUTPUTS; o++) partial[(r * OUTPUTS + o) * HEAD_THREADS + thread] = sum[r][o];
        }
        __syncthreads();
        for (u32 i = thread; i < R * outputs; i += HEAD_THREADS) {
            u32 r = i / outputs, output = i % outputs;
            const float* shares = partial + (r * OUTPUTS + output / HEAD_THREADS) * HEAD_THREADS + output % HEAD_THREADS;
            float total = logits[r * all + done + output];
#pragma unroll 8
            for (u32 p = 0; p < parts; p++) total += shares[p * side];
            for (u32 c = 0; group.prior && c < group.columns; c++) {
                // The context of a column: its classes in the last two frames, and what components before it have chosen in this one.
                u32 column = group.column + c;
                u64 context = (u64)previous[r * a.previous.width + column] * group.classes + before[r * a.before.width + column];
                for (u32 k = 0; k < group.given_count; k++) context = context * group.given[k][1] + classes[r * columns + group.given[k][0]];
                total += load(group.prior + (c * group.contexts + context) * group.logits + output);
            }
            logits[r * all + done + output] = total;
        }
        __syncthreads();
        for (u32 task = thread / 32; task < R * group.columns; task += HEAD_THREADS / 32) {
            u32 r = task / group.columns, c = task % group.columns, column = group.column + c, per = group.logits / group.columns;
            u32 want = wanted[r * a.wanted.width + column];
            if (want == SAMPLE) want = pick_by_warp(logits + r * all + done + c * per, group.classes, uniform[r * a.uniform.width + column]);
            if (thread % 32 == 0) classes[r * columns + chosen + c] = want;
        }
        __syncthreads();
        const u32 behind = inners - (g + 1) * width;
        if (group.chosen && width % 4 == 0) {
            for (u32 i = 4 * thread; i < R * behind; i += 4 * HEAD_THREADS) {
                u32 r = i / behind, j = i % behind;
                float4* to = (float4*)(inner + r * inners + (g + 1) * width + j);
                float4 sum = *to;
#pragma unroll 4
                for (u32 c = 0; c < group.columns; c++) {
                    u64 row = c * group.classes + classes[r * columns + chosen + c];
                    float4 more = *(const float4*)(group.chosen + row * behind + j);
                    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
                }
                *to = sum;
            }
        } else if (group.chosen) {
            for (u32 i = thread; i < R * behind; i += HEAD_THREADS) {
                u32 r = i / behind, j = i % behind;
                for (u32 c = 0; c < group.columns; c++)
                    inner[r * inners + (g + 1) * width + j] += group.chosen[(u64)(c * group.classes + classes[r * columns + chosen + c]) * behind + j];
            }
        }
        // The next layer waits for all before it reads them.
        done += group.logits;
        chosen += group.columns;
    }
    for (u32 i = thread; i < R * all; i += HEAD_THREADS)
        if (row0 + i / all < a.rows) a.logits.row(row0 + i / all)[i % all] = logits[i];
    for (u32 i = thread; i < R * columns; i += HEAD_THREADS)
        if (row0 + i / columns < a.rows) a.out.row(row0 + i / columns)[i % columns] = classes[i];
}

template <typename T>
void heads1(const Heads<T>& a) { heads<1>(a); }
template <typename T>
void heads2(const Heads<T>& a) { heads<2>(a); }
template <typename T>
void heads4(const Heads<T>& a) { heads<4>(a); }
KERNELS(heads1, Heads)
KERNELS(heads2, Heads)
KERNELS(heads4, Heads)
