/*
 * One agent in C, frame by frame: its inputs are written in place, its state stays in the session.
 *
 *   cargo build --release -p candle-models-c
 *   cc -std=c99 candle-c/examples/agent.c -Icandle-c/include -Ltarget/release -lcandle_models_c -Wl,-rpath,$PWD/target/release -o agent
 *   ./agent weights/policy-mlp
 *
 * It prints an action a frame. The features are numbers that change from frame to frame; in their place a game has what it shows.
 */
#include "candle_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAMES 60

struct agent {
    candle_session *session;
    float *features;
    uint32_t *ids, *previous;
    const uint32_t *action;
    size_t feature_count, id_count, previous_count, action_count;
};

/* Ends the program where a call failed. */
static void check(candle_status status) {
    if (status != CANDLE_STATUS_OK) {
        fprintf(stderr, "status %d: %s\n", (int)status, candle_last_error());
        exit(1);
    }
}

static void print_inputs(const candle_model *model) {
    const candle_signature *signature;
    check(candle_model_signature(model, &signature));
    for (size_t i = 0; i < signature->input_count; i++) {
        const candle_tensor *input = signature->inputs[i];
        const char *kind = input->dtype == CANDLE_DTYPE_F32 ? "floats" : "indices";
        printf("%s: %zu %s%s\n", input->name, input->count, kind, input->required ? ", to be set" : "");
    }
}

/* The pointers stay the same as long as the session lives, so they are asked for once. */
static struct agent open_agent(const candle_engine *engine) {
    struct agent agent;
    check(candle_session_open(engine, &agent.session));
    check(candle_session_input_f32(agent.session, "features", &agent.features, &agent.feature_count));
    check(candle_session_input_u32(agent.session, "ids", &agent.ids, &agent.id_count));
    check(candle_session_input_u32(agent.session, "previous_action", &agent.previous, &agent.previous_count));
    check(candle_session_output_u32(agent.session, "action", &agent.action, &agent.action_count));
    return agent;
}

/* One frame: the game's numbers in, the action out, which the next frame gets as the previous one. */
static void play(struct agent *agent, size_t frame) {
    for (size_t i = 0; i < agent->feature_count; i++) {
        agent->features[i] = (float)((frame * 31 + i * 7) % 21) / 20.0f;
    }
    for (size_t i = 0; i < agent->id_count; i++) {
        agent->ids[i] = (uint32_t)(frame % 14);
    }
    check(candle_session_step(agent->session));
    printf("%zu:", frame);
    for (size_t i = 0; i < agent->action_count; i++) {
        printf(" %lu", (unsigned long)agent->action[i]);
    }
    printf("\n");
    memcpy(agent->previous, agent->action, agent->previous_count * sizeof *agent->previous);
}

/* Plays a frame twice from the same state. Inputs are no part of it: the previous action is put back beside it. */
static void play_twice(struct agent *agent, size_t frame) {
    size_t size, previous_size = agent->previous_count * sizeof *agent->previous;
    check(candle_session_save(agent->session, NULL, 0, &size));
    void *state = malloc(size), *previous = malloc(previous_size);
    if (state == NULL || previous == NULL) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    check(candle_session_save(agent->session, state, size, &size));
    memcpy(previous, agent->previous, previous_size);
    play(agent, frame);
    check(candle_session_restore(agent->session, state, size));
    memcpy(agent->previous, previous, previous_size);
    play(agent, frame);
    free(state);
    free(previous);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: agent BUNDLE\n");
        return 2;
    }
    candle_model *model;
    check(candle_model_load(argv[1], &model));
    print_inputs(model);
    candle_options options;
    check(candle_options_init(&options, sizeof options));
    options.sessions = 1;
    candle_engine *engine;
    check(candle_engine_start(model, &options, &engine));
    struct agent agent = open_agent(engine);
    for (size_t frame = 0; frame < FRAMES; frame++) {
        play(&agent, frame);
    }
    play_twice(&agent, FRAMES);
    if (candle_session_input_f32(agent.session, "feature", &agent.features, &agent.feature_count) != CANDLE_STATUS_OK) {
        printf("%s\n", candle_last_error());
    }
    candle_session_free(agent.session);
    candle_engine_free(engine);
    candle_model_free(model);
    return 0;
}
