// Classes from logits, as `exec::pick`: a thread per row and column of a component.

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
