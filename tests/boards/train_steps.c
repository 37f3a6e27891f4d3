/* Trains a compiled step on one batch, the way any C program would: losses on stdout, the state into files.
 *
 *     train_steps LIBRARY FOLDER STEPS RATE
 *
 * FOLDER is as in step_harness.h; FOLDER/trained0, trained1, ... are written. */
#include "../runtime/step_harness.h"

int main(int count, char **words) {
  if (count != 5) fail("usage: train_steps LIBRARY FOLDER STEPS RATE");
  open_library(words[1]);
  arrays state = read_arrays(words[2], "state"), inputs = read_arrays(words[2], "input");
  gf_step *step = gf.gf_step_create(2);
  if (!step) fail(gf.gf_error());
  load_state(step, &state);
  for (int i = 0; i < atoi(words[3]); ++i) {
    float loss;
    if (gf.gf_step_train(step, inputs_of(&inputs), (float)atof(words[4]), &loss)) fail(gf.gf_error());
    printf("%.9g\n", loss);
  }
  for (int i = 0; i < state.count; ++i) {
    char path[4096];
    snprintf(path, sizeof path, "%s/trained%d", words[2], i);
    FILE *file = fopen(path, "wb");
    expect(file && fwrite(gf.gf_step_tensor(step, i), 1, state.bytes[i], file) == state.bytes[i], path);
    expect(fclose(file) == 0, path);
  }
  gf.gf_step_destroy(step);
  free_arrays(&state);
  free_arrays(&inputs);
  return 0;
}
