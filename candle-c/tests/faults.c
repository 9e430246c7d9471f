/*
 * Everything that a program can do wrong, and what it can do besides: faults BUNDLE OTHER, two policies, the first with memory. It prints
 * the signature and a line for every fault, which `c.rs` compares with what the Rust library says, and ends with 1 where anything else is
 * not as it should be.
 */
#include "candle_models.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition) require((condition) != 0, #condition, __LINE__)

static void require(int holds, const char *condition, int line) {
    if (!holds) {
        fprintf(stderr, "line %d: %s; the last error is: %s\n", line, condition, candle_last_error());
        exit(1);
    }
}

#define DONE(call) REQUIRE((call) == CANDLE_STATUS_OK)

static void fault(candle_status status) {
    printf("%d %s\n", (int)status, candle_last_error());
}

static void print_tensors(const char *kind, const candle_tensor *const *tensors, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const candle_tensor *t = tensors[i];
        printf("%s %s: dtype %d, %zu values [", kind, t->name, (int)t->dtype, t->count);
        for (size_t d = 0; d < t->rank; d++) {
            printf("%s%zu", d > 0 ? ", " : "", t->dims[d]);
        }
        printf("], required %d, can sample %d, below [", t->required, t->can_sample);
        for (size_t c = 0; t->below != NULL && c < t->count; c++) {
            printf("%s%lu", c > 0 ? ", " : "", (unsigned long)t->below[c]);
        }
        printf("], %s\n", t->meaning);
    }
}

/* What C alone can get wrong: the pointers. */
static void arguments(const candle_model *model) {
    candle_model *none = NULL;
    candle_engine *engine = NULL;
    candle_session *session = NULL;
    uint64_t frames;
    fault(candle_model_load(NULL, &none));
    fault(candle_model_load("nowhere", NULL));
    fault(candle_model_load("\xff", &none));
    fault(candle_model_signature(NULL, NULL));
    fault(candle_model_signature(model, NULL));
    fault(candle_engine_start(NULL, NULL, &engine));
    fault(candle_engine_start(model, NULL, NULL));
    fault(candle_engine_close(NULL));
    fault(candle_session_open(NULL, &session));
    fault(candle_session_step(NULL));
    fault(candle_session_frames(NULL, &frames));
    fault(candle_runner_step(NULL, NULL, 0));
    fault(candle_options_init(NULL, sizeof(candle_options)));
    REQUIRE(none == NULL && engine == NULL && session == NULL);
    candle_model_free(NULL);
    candle_engine_free(NULL);
    candle_session_free(NULL);
    candle_runner_free(NULL);
}

static void options_out_of_range(const candle_model *model) {
    candle_engine *engine = NULL;
    candle_options options;
    fault(candle_options_init(&options, sizeof options + 8));
    options.size = 0;
    fault(candle_engine_start(model, &options, &engine));
    DONE(candle_options_init(&options, sizeof options));
    REQUIRE(options.size == sizeof options && options.threads == 1 && options.sessions == 256 && options.queue == 256);
    REQUIRE(options.max_batch == 32 && options.max_wait_ns == 0 && strcmp(options.device, "cpu") == 0 && options.dtype == NULL);
    options.threads = 0;
    fault(candle_engine_start(model, &options, &engine));
    /* A program of an earlier version, whose structure ended before the threads. */
    options.size = offsetof(candle_options, threads);
    DONE(candle_engine_start(model, &options, &engine));
    candle_engine_free(engine);
    engine = NULL;
    DONE(candle_options_init(&options, sizeof options));
    options.max_wait_ns = 2000000000;
    fault(candle_engine_start(model, &options, &engine));
    options.max_wait_ns = 0;
    options.device = "tpu";
    fault(candle_engine_start(model, &options, &engine));
    options.device = NULL;
    fault(candle_engine_start(model, &options, &engine));
    options.device = "cpu";
    options.dtype = "f64";
    fault(candle_engine_start(model, &options, &engine));
    REQUIRE(engine == NULL);
}

static void fill(candle_session *session) {
    float *features;
    uint32_t *ids;
    size_t count;
    DONE(candle_session_input_f32(session, "features", &features, &count));
    for (size_t i = 0; i < count; i++) {
        features[i] = 0.1f;
    }
    DONE(candle_session_input_u32(session, "ids", &ids, &count));
    for (size_t i = 0; i < count; i++) {
        ids[i] = 14;
    }
}

static const float *value_of(candle_session *session) {
    const float *value;
    size_t count;
    DONE(candle_session_output_f32(session, "value", &value, &count));
    REQUIRE(count == 1);
    return value;
}

/* A row of a batch is the row alone but for rounding, and other frames are further away. */
static int near(float a, float b) {
    return fabsf(a - b) < 1e-4f;
}

static uint64_t frames_of(candle_session *session) {
    uint64_t frames;
    DONE(candle_session_frames(session, &frames));
    return frames;
}

static void inputs(candle_session *session) {
    float *features = NULL;
    uint32_t *ids = NULL;
    size_t count = 0;
    fault(candle_session_step(session));
    fault(candle_session_input_f32(session, "feature", &features, &count));
    fault(candle_session_input_f32(session, "ids", &features, &count));
    fault(candle_session_input_u32(session, NULL, &ids, &count));
    fault(candle_session_input_u32(session, "ids", NULL, &count));
    fault(candle_session_input_u32(session, "ids", &ids, NULL));
    REQUIRE(features == NULL && ids == NULL && count == 0);
    DONE(candle_session_input_f32(session, "features", &features, &count));
    DONE(candle_session_input_u32(session, "ids", &ids, &count));
    fill(session);
    features[3] = NAN;
    fault(candle_session_step(session));
    features[3] = 0.1f;
    ids[0] = CANDLE_SAMPLE;
    fault(candle_session_step(session));
    ids[0] = 14;
    fault(candle_session_step_within(session, 0));
    REQUIRE(frames_of(session) == 0);
    DONE(candle_session_step_within(session, UINT64_MAX));
    REQUIRE(frames_of(session) == 1 && isfinite(*value_of(session)));
}

/* The state of the first of two sessions, whose answers tell apart which state it has. */
static void states(candle_session *session, candle_session *other) {
    size_t size = 0, other_size, needed;
    DONE(candle_session_save(session, NULL, 0, &size));
    char *state = malloc(size), *short_state = malloc(size - 1), *others;
    REQUIRE(size > 0 && state != NULL && short_state != NULL);
    fault(candle_session_save(session, state, size, NULL));
    fault(candle_session_save(session, NULL, size, &needed));
    fault(candle_session_save(session, short_state, size - 1, &needed));
    REQUIRE(needed == size);
    DONE(candle_session_save(session, state, size, &size));
    DONE(candle_session_step(session));
    float second = *value_of(session);
    DONE(candle_session_restore(session, state, size));
    REQUIRE(frames_of(session) == 0);
    DONE(candle_session_step(session));
    REQUIRE(near(*value_of(session), second));
    DONE(candle_session_reset(session));
    DONE(candle_session_step(session));
    REQUIRE(!near(*value_of(session), second));

    DONE(candle_session_save(other, NULL, 0, &other_size));
    others = malloc(other_size);
    REQUIRE(others != NULL);
    DONE(candle_session_save(other, others, other_size, &other_size));
    fault(candle_session_restore(session, others, other_size));
    fault(candle_session_restore(session, NULL, size));
    fault(candle_session_restore(session, state, 0));
    fault(candle_session_restore(session, state, size - 1));
    memset(state + size - 4, 0xff, 4);
    fault(candle_session_restore(session, state, size));
    REQUIRE(frames_of(session) == 1);
    DONE(candle_session_step(session));
    REQUIRE(near(*value_of(session), second));
    free(state);
    free(short_state);
    free(others);
}

static void *step_on_thread(void *session) {
    REQUIRE(strcmp(candle_last_error(), "") == 0);
    REQUIRE(candle_session_step(NULL) == CANDLE_STATUS_INVALID_ARGUMENT);
    for (int i = 0; i < 20; i++) {
        DONE(candle_session_step(session));
    }
    return NULL;
}

/* A session on two threads one after the other, and two sessions on two threads at once. */
static void threads(candle_session *session) {
    pthread_t thread;
    candle_session *fork = NULL;
    DONE(candle_session_reset(session));
    DONE(candle_session_step(session));
    REQUIRE(candle_session_restore(session, "", 0) != CANDLE_STATUS_OK);
    char *error = strcpy(malloc(strlen(candle_last_error()) + 1), candle_last_error());
    REQUIRE(pthread_create(&thread, NULL, step_on_thread, session) == 0 && pthread_join(thread, NULL) == 0);
    REQUIRE(strcmp(candle_last_error(), error) == 0);
    free(error);
    REQUIRE(frames_of(session) == 21);
    DONE(candle_session_fork(session, &fork));
    REQUIRE(frames_of(fork) == 21 && pthread_create(&thread, NULL, step_on_thread, fork) == 0);
    for (int i = 0; i < 20; i++) {
        DONE(candle_session_step(session));
    }
    REQUIRE(pthread_join(thread, NULL) == 0 && frames_of(fork) == 41 && near(*value_of(fork), *value_of(session)));
    fault(candle_session_fork(session, NULL));
    fault(candle_session_fork(session, &fork));
    candle_session_free(fork);
}

/* Rows of a runner answer as the session does: one of them is put back before the second frame. */
static void runner(const candle_model *model, candle_session *session) {
    candle_runner *runner = NULL;
    float *features;
    const float *values[3];
    uint32_t *ids;
    const uint32_t *action;
    uint8_t resets[3] = {0, 1, 0};
    size_t count, ids_count;
    fault(candle_runner_open(model, 0, NULL, &runner));
    fault(candle_runner_open(model, 3, NULL, NULL));
    DONE(candle_runner_open(model, 3, NULL, &runner));
    fault(candle_runner_step(runner, NULL, 0));
    fault(candle_runner_input_f32(runner, "features", 3, &features, &count));
    fault(candle_runner_output_u32(runner, "value", 0, &action, &count));
    fault(candle_runner_step(runner, resets, 2));
    fault(candle_runner_step(runner, NULL, 3));
    for (size_t row = 0; row < 3; row++) {
        DONE(candle_runner_input_f32(runner, "features", row, &features, &count));
        DONE(candle_runner_input_u32(runner, "ids", row, &ids, &ids_count));
        for (size_t i = 0; i < count; i++) {
            features[i] = 0.1f;
        }
        for (size_t i = 0; i < ids_count; i++) {
            ids[i] = 14;
        }
        DONE(candle_runner_output_f32(runner, "value", row, &values[row], &count));
        DONE(candle_runner_output_u32(runner, "action", row, &action, &count));
    }
    DONE(candle_session_reset(session));
    DONE(candle_session_step(session));
    float first = *value_of(session);
    DONE(candle_session_step(session));
    DONE(candle_runner_step(runner, NULL, 0));
    REQUIRE(near(*values[2], first));
    DONE(candle_runner_step(runner, resets, 3));
    REQUIRE(near(*values[0], *value_of(session)) && near(*values[1], first) && near(*values[2], *values[0]));
    REQUIRE(!near(*values[0], *values[1]));
    candle_runner_free(runner);
}

int main(int argc, char **argv) {
    candle_model *model, *other_model, *none = NULL;
    candle_engine *engine, *other_engine;
    candle_session *session, *other, *third = NULL;
    candle_options options;
    const candle_signature *signature;
    REQUIRE(argc == 3 && candle_version() == CANDLE_VERSION && strcmp(candle_last_error(), "") == 0);
    fault(candle_model_load("nowhere", &none));
    DONE(candle_model_load(argv[1], &model));
    DONE(candle_model_load(argv[2], &other_model));
    DONE(candle_model_signature(model, &signature));
    print_tensors("input", signature->inputs, signature->input_count);
    print_tensors("output", signature->outputs, signature->output_count);
    print_tensors("state", signature->states, signature->state_count);
    arguments(model);
    options_out_of_range(model);
    DONE(candle_options_init(&options, sizeof options));
    options.sessions = 2;
    DONE(candle_engine_start(model, &options, &engine));
    DONE(candle_engine_start(other_model, NULL, &other_engine));
    DONE(candle_session_open(engine, &session));
    DONE(candle_session_open(other_engine, &other));
    inputs(session);
    states(session, other);
    threads(session);
    runner(model, session);
    DONE(candle_session_open(engine, &third));
    fault(candle_session_open(engine, &third));
    candle_session_free(third);

    /* A session outlives its engine's handle and its model's. */
    candle_model_free(model);
    candle_engine_free(engine);
    DONE(candle_session_step(session));
    candle_session_free(session);
    fill(other);
    DONE(candle_session_step(other));
    DONE(candle_engine_close(other_engine));
    fault(candle_session_step(other));
    fault(candle_session_open(other_engine, &third));
    candle_engine_free(other_engine);
    candle_session_free(other);
    candle_model_free(other_model);
    return 0;
}
