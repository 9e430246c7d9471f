// The loss of choices and its gradient: a thread per row and group of choices, whose losses are added.

#define GROUPS 16

// `LossGroup` in cross_entropy.rs.
struct Group {
    u32 logit;
    u32 column;
    u32 columns;
    u32 classes;  // 2: one logit, that of class 1
    u32 width() const { return classes == 2 ? 1 : classes; }
};

struct Loss {
    Rows<const float> logits;
    const u32* classes;
    float* losses;      // forward: [rows, groups]
    const float* grad;  // backward: the same
    float* dlogits;     // backward: the logits' shape, one row behind the other
    u32 rows;
    u32 columns;  // classes of a row
    u32 count;    // groups
    float smoothing;
    Group groups[GROUPS];
};

// The maximum of a softmax and the sum of e^(z - maximum).
struct Scale {
    float most, sum;
};

inline Scale scale_of(const float* z, u32 width) {
    float most = z[0], sum = 0.0f;
    for (u32 i = 1; i < width; i++) most = fmaxf(most, z[i]);
    for (u32 i = 0; i < width; i++) sum += expf(z[i] - most);
    return {most, sum};
}

extern "C" __global__ void loss(const __grid_constant__ Loss a) {
    u64 thread = thread_number(), row = thread / a.count;
    if (row >= a.rows) return;
    const Group g = a.groups[thread % a.count];
    const float* z = a.logits.row(row) + g.logit;
    const u32* classes = a.classes + row * a.columns + g.column;
    float total = 0.0f;
    for (u32 c = 0; c < g.columns; c++, z += g.width()) {
        u32 wanted = classes[c];
        if (g.classes == 2) {
            total += softplus(wanted == 1 ? -z[0] : z[0]);
            continue;
        }
        Scale s = scale_of(z, g.classes);
        float mean = 0.0f;
        for (u32 i = 0; i < g.classes; i++) mean += z[i] - s.most;
        mean /= (float)g.classes;
        total += logf(s.sum) - ((1.0f - a.smoothing) * (z[wanted] - s.most) + a.smoothing * mean);
    }
    a.losses[thread] = total;
}

// Probability minus target. Logits of no group are left alone.
extern "C" __global__ void loss_backward(const __grid_constant__ Loss a) {
    u64 thread = thread_number(), row = thread / a.count;
    if (row >= a.rows) return;
    const Group g = a.groups[thread % a.count];
    const float* z = a.logits.row(row) + g.logit;
    float* dz = a.dlogits + row * a.logits.width + g.logit;
    const u32* classes = a.classes + row * a.columns + g.column;
    float grad = a.grad[thread];
    for (u32 c = 0; c < g.columns; c++, z += g.width(), dz += g.width()) {
        u32 wanted = classes[c];
        if (g.classes == 2) {
            dz[0] = grad * (sigmoid(z[0]) - (float)wanted);
            continue;
        }
        Scale s = scale_of(z, g.classes);
        float scale = grad / s.sum, floor = grad * a.smoothing / (float)g.classes;
        for (u32 i = 0; i < g.classes; i++) {
            float d = expf(z[i] - s.most) * scale - floor;
            dz[i] = i == wanted ? d - grad * (1.0f - a.smoothing) : d;
        }
    }
}
