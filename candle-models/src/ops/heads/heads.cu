// Choosing classes from logits as `exec::pick` does, and all heads of an action one after the other in one block a row.

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

// Columns of its frame that a prior can know.
#define GIVEN 2

// A component: `HeadGroup` in heads.rs.
template <typename T>
struct Group {
    const T* hidden;  // [width, width]
    const float* hidden_bias;
    const T* previous;  // [columns * classes, width]
    const T* out;       // [width, logits]
    const float* out_bias;
    const T* chosen;  // [columns * classes, width]; null behind the last
    const T* prior;   // [columns * contexts, logits]; null for none
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
    Rows<const T> trunk;
    Rows<float> logits;
    Rows<u32> out;
    Rows<const u32> previous;
    Rows<const u32> wanted;
    Rows<const u32> before;  // the frame before that of `previous`
    Rows<const float> uniform;
    const T* stream;  // [trunk, width]
    const float* stream_bias;
    const Group<T>* groups;
    u32 width;
    u32 count;
};

// y = x W + b over the whole block: `parts` threads share a column's inputs. `partial` holds a value per thread.
template <typename T>
inline void block_product(const float* x, u32 inputs, const T* w, const float* bias, u32 outputs, float* y, float* partial) {
    for (u32 first = 0; first < outputs; first += blockDim.x) {
        u32 width = min(outputs - first, blockDim.x), parts = blockDim.x / width, part = threadIdx.x / width;
        u32 column = first + threadIdx.x % width;
        float sum = 0.0f;
        if (part < parts) {
#pragma unroll 8
            for (u32 k = part; k < inputs; k += parts) sum += x[k] * load(w + (u64)k * outputs + column);
        }
        partial[threadIdx.x] = sum;
        __syncthreads();
        if (part == 0) {
            float total = bias[column];
            for (u32 p = 0; p < parts; p++) total += partial[p * width + threadIdx.x];
            y[column] = total;
        }
        __syncthreads();
    }
}

// The context of a component's column: its classes in the last two frames, and what components before it have chosen in this one.
template <typename T>
inline u64 context(const Heads<T>& a, const Group<T>& group, u32 row, u32 c) {
    u32 column = group.column + c;
    u64 number = (u64)a.previous.row(row)[column] * group.classes + a.before.row(row)[column];
    for (u32 k = 0; k < group.given_count; k++) number = number * group.given[k][1] + a.out.row(row)[group.given[k][0]];
    return number;
}

template <typename T>
void heads(const Heads<T>& a) {
    extern __shared__ float shared[];
    u32 row = blockIdx.x;
    float *partial = shared, *trunk = partial + blockDim.x, *stream = trunk + a.trunk.width, *hidden = stream + a.width;
    float* logits = hidden + a.width;
    u32* classes = (u32*)(logits + a.logits.width);
    for (u32 i = threadIdx.x; i < a.trunk.width; i += blockDim.x) trunk[i] = load(a.trunk.row(row) + i);
    __syncthreads();
    block_product(trunk, a.trunk.width, a.stream, a.stream_bias, a.width, stream, partial);
    u32 done = 0, chosen = 0;
    for (u32 g = 0; g < a.count; g++) {
        const Group<T> group = a.groups[g];
        block_product(stream, a.width, group.hidden, group.hidden_bias, a.width, hidden, partial);
        for (u32 i = threadIdx.x; i < a.width; i += blockDim.x) {
            float h = hidden[i];
            for (u32 c = 0; c < group.columns; c++) {
                u64 entry = c * group.classes + a.previous.row(row)[group.column + c];
                h += load(group.previous + entry * a.width + i);
            }
            hidden[i] = h > 0.0f ? h : 0.0f;
        }
        __syncthreads();
        block_product(hidden, a.width, group.out, group.out_bias, group.logits, logits + done, partial);
        if (group.prior) {
            for (u32 i = threadIdx.x; i < group.logits; i += blockDim.x) {
                float sum = logits[done + i];
                for (u32 c = 0; c < group.columns; c++) sum += load(group.prior + (c * group.contexts + context(a, group, row, c)) * group.logits + i);
                logits[done + i] = sum;
            }
            __syncthreads();
        }
        if (threadIdx.x < group.columns) {
            u32 column = group.column + threadIdx.x, per = group.logits / group.columns;
            u32 want = a.wanted.row(row)[column];
            if (want == SAMPLE) want = pick(logits + done + threadIdx.x * per, group.classes, a.uniform.row(row)[column]);
            classes[threadIdx.x] = want;
            a.out.row(row)[chosen + threadIdx.x] = want;
        }
        __syncthreads();
        if (group.chosen) {
            for (u32 i = threadIdx.x; i < a.width; i += blockDim.x) {
                float s = stream[i];
                for (u32 c = 0; c < group.columns; c++) s += load(group.chosen + (u64)(c * group.classes + classes[c]) * a.width + i);
                stream[i] = s;
            }
        }
        __syncthreads();
        done += group.logits;
        chosen += group.columns;
    }
    for (u32 i = threadIdx.x; i < a.logits.width; i += blockDim.x) a.logits.row(row)[i] = logits[i];
}

KERNELS(heads, Heads)
