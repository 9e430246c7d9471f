/* Steps a bundle of any shipped family with every input that must be set at 0: new_user BUNDLE FRAMES. Prints the last action. */
#include "candle_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(candle_status status) {
    if (status != CANDLE_STATUS_OK) {
        fprintf(stderr, "status %d: %s\n", (int)status, candle_last_error());
        exit(1);
    }
}

int main(int count, char **arguments) {
    candle_model *model;
    candle_engine *engine;
    candle_session *session;
    candle_options options;
    const candle_signature *signature;
    const uint32_t *action;
    size_t columns;
    if (count != 3) {
        fprintf(stderr, "new_user BUNDLE FRAMES\n");
        return 2;
    }
    check(candle_model_load(arguments[1], &model));
    check(candle_options_init(&options, sizeof options));
    check(candle_engine_start(model, &options, &engine));
    check(candle_session_open(engine, &session));
    check(candle_model_signature(model, &signature));
    for (size_t i = 0; i < signature->input_count; i++) {
        const candle_tensor *input = signature->inputs[i];
        if (input->required && input->dtype == CANDLE_DTYPE_F32) {
            float *values;
            check(candle_session_input_f32(session, input->name, &values, &columns));
            memset(values, 0, columns * sizeof *values);
        } else if (input->required) {
            uint32_t *values;
            check(candle_session_input_u32(session, input->name, &values, &columns));
            memset(values, 0, columns * sizeof *values);
        }
    }
    for (long frame = 0; frame < atol(arguments[2]); frame++) {
        check(candle_session_step(session));
    }
    check(candle_session_output_u32(session, "action", &action, &columns));
    for (size_t i = 0; i < columns; i++) {
        printf("%u%c", (unsigned)action[i], i + 1 < columns ? ' ' : '\n');
    }
    candle_session_free(session);
    candle_engine_free(engine);
    candle_model_free(model);
    return 0;
}
