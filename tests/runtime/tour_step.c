/* Every call of gf_step.h on a real step, from several threads; run under the sanitizers.
 *
 *     tour_step LIBRARY FOLDER */
#include "step_harness.h"

#include <math.h>
#include <pthread.h>

enum { ROUNDS = 10, CALLERS = 3 };
static const char *folder;
static gf_step *steps[2];

static void expect_error(int code, const char *text) {
  expect(code != 0, "a call that must fail did not");
  if (strcmp(gf.gf_error(), text)) fail(gf.gf_error());
}

static void meet_errors(const arrays *inputs) {
  expect(gf.gf_step_create(257) == NULL, "257 threads were given");
  expect_error(-1, "257 threads asked for; the most is 256");
  expect_error(gf.gf_step_set_threads(NULL, 2), "gf_step_set_threads: the step is NULL");
  expect_error(gf.gf_step_set_threads(steps[0], 257), "257 threads asked for; the most is 256");
  expect_error(gf.gf_step_train(steps[0], inputs_of(inputs), NAN, NULL),
               "gf_step_train: the learning rate 'nan' must be finite and not negative");
  expect_error(gf.gf_step_train(NULL, inputs_of(inputs), 0, NULL), "gf_step_train: the step or its inputs are NULL");
  expect_error(gf.gf_step_gradients(steps[0], NULL, NULL, NULL),
               "gf_step_gradients: the step or its inputs are NULL");
  expect_error(gf.gf_step_predict(steps[0], NULL, NULL), "gf_step_predict: the step or its inputs are NULL");
  expect(gf.gf_step_tensor(steps[0], -1) == NULL, "there is no tensor -1");
  expect(gf.gf_step_tensor_bytes(gf.gf_step_tensor_count()) == 0, "there is no tensor after the last");
  gf.gf_step_destroy(NULL);
}

static void *call(void *argument) {
  int caller = (int)(size_t)argument;
  arrays inputs = read_arrays(folder, "input"), gradients = read_arrays(folder, "gradient");
  arrays outputs = read_arrays(folder, "output");
  for (int round = 0; round < ROUNDS; ++round) {
    gf_step *step = steps[(caller + round) % 2];
    float loss;
    if (gf.gf_step_train(step, inputs_of(&inputs), 0.01f, &loss) ||
        gf.gf_step_train(step, inputs_of(&inputs), 0.01f, NULL) ||
        gf.gf_step_gradients(step, inputs_of(&inputs), &loss, gradients.blocks) ||
        gf.gf_step_predict(step, inputs_of(&inputs), outputs.blocks) ||
        gf.gf_step_set_threads(step, 1 + (caller + round) % 4))
      fail(gf.gf_error());
    expect(isfinite(loss), "the loss is not finite");
    if (caller == 0) meet_errors(&inputs);
  }
  free_arrays(&inputs);
  free_arrays(&gradients);
  free_arrays(&outputs);
  return NULL;
}

int main(int count, char **words) {
  if (count != 3) fail("usage: tour_step LIBRARY FOLDER");
  open_library(words[1]);
  folder = words[2];
  arrays state = read_arrays(folder, "state");
  for (int life = 0; life < 2; ++life) { /* the pool ends with the last step, and starts again */
    pthread_t callers[CALLERS];
    for (int i = 0; i < 2; ++i) {
      if (!(steps[i] = gf.gf_step_create(i + 1))) fail(gf.gf_error());
      expect(gf.gf_step_threads(steps[i]) == i + 1, "another number of threads");
      load_state(steps[i], &state);
    }
    for (size_t i = 0; i < CALLERS; ++i) pthread_create(&callers[i], NULL, call, (void *)i);
    for (int i = 0; i < CALLERS; ++i) pthread_join(callers[i], NULL);
    for (int i = 0; i < 2; ++i) gf.gf_step_destroy(steps[i]);
  }
  free_arrays(&state);
  puts("ok");
  return 0;
}
