/* Train a compiled step from C, without Python: the whole of gf_step.h in one program.
 *
 *     gfcompile model.pt --layers 4 --out model_step
 *     cc -std=c11 -Wall -Wextra -I model_step examples/c/train.c -L model_step -l:libstep.so \
 *        -Wl,-rpath,'$ORIGIN/model_step' -o train
 *     ./train model_step run.ckpt 100
 *
 * The images are made up, a brightness a class under noise, so that it runs with every classifier. Put your camera where
 * make_batch is. Started again, it continues from the checkpoint. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gf_step.h"

static void fail(const char *what) {
  fprintf(stderr, "%s: %s (code %d)\n", what, gf_error(), gf_error_code());
  exit(1);
}

static const gf_value *find(const char *role) {
  for (int i = 0; i < gf_step_count(GF_KIND_INPUT); ++i)
    if (strcmp(gf_step_value(GF_KIND_INPUT, i)->role, role) == 0) return gf_step_value(GF_KIND_INPUT, i);
  fprintf(stderr, "this step takes no %s\n", role);
  exit(1);
}

/* The kernels load whole vectors: every array that the step reads or writes starts at a multiple of 64 bytes. */
static void *allocate(size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!memory) exit(1);
  return memset(memory, 0, bytes);
}

static uint32_t noise(uint32_t *state) { return (*state = *state * 1664525u + 1013904223u) >> 8; }

/* The higher the class, the brighter the image. */
static void make_batch(const gf_value *input, int classes, uint32_t seed, float *x, int64_t *y) {
  size_t samples = (size_t)input->shape[0], size = input->bytes / sizeof *x / samples;
  for (size_t n = 0; n < samples; ++n) {
    y[n] = noise(&seed) % (uint32_t)classes;
    float brightness = 4 * (float)y[n] / (float)classes - 2;
    for (size_t i = 0; i < size; ++i) x[n * size + i] = brightness + (float)noise(&seed) / (1 << 24) - 0.5f;
  }
}

int main(int count, char **words) {
  if (count != 4 || atoi(words[3]) < 1) return fprintf(stderr, "usage: train ARTIFACT CHECKPOINT STEPS\n"), 2;
  gf_step *step = gf_step_open(words[1], 0);
  if (!step) fail(words[1]);
  const gf_about *about = gf_step_about();
  const gf_value *input = find("input"), *target = find("target");
  if (!about->classes || target->rank != 1) return fprintf(stderr, "this example is for classifiers\n"), 1;
  printf("%s: batches of %d, %d classes, %d threads\n", about->name, about->batch, about->classes,
         gf_step_threads(step));

  /* In the step's own order: input, target and, for built-in losses, a weight a sample. Channels that a sparse step
   * draws itself stay NULL. */
  void **arrays = calloc((size_t)gf_step_count(GF_KIND_INPUT), sizeof *arrays);
  const void *const *inputs = (const void *const *)arrays;
  if (!arrays) exit(1);
  for (int i = 0; i < gf_step_count(GF_KIND_INPUT); ++i) {
    const gf_value *value = gf_step_value(GF_KIND_INPUT, i);
    if (strcmp(value->role, "channels") == 0) continue;
    arrays[i] = allocate(value->bytes);
    if (strcmp(value->role, "sample_weight") == 0)
      for (int n = 0; n < about->batch; ++n) ((float *)arrays[i])[n] = 1;
  }
  float *x = arrays[gf_step_find(GF_KIND_INPUT, "input", input->name)];
  int64_t *y = arrays[gf_step_find(GF_KIND_INPUT, "target", target->name)];

  gf_progress progress = {.lr = about->lr};
  FILE *there = fopen(words[2], "rb");
  if (there) {
    fclose(there);
    if (gf_step_load(step, words[2], &progress)) fail(words[2]);
    printf("continuing at step %lld\n", (long long)progress.steps);
  }
  float loss = 0;
  for (int64_t last = progress.steps + atoi(words[3]); progress.steps < last; ++progress.steps) {
    make_batch(input, about->classes, (uint32_t)progress.steps, x, y);
    if (gf_step_train(step, inputs, (float)progress.lr, &loss)) fail("train");
    if (progress.steps % 20 == 0) printf("step %lld: loss %.4f\n", (long long)progress.steps, loss);
  }
  if (gf_step_save(step, words[2], &progress)) fail(words[2]);
  printf("loss %.4f after %lld steps\n", loss, (long long)progress.steps);

  const gf_value *gradient = gf_step_value(GF_KIND_GRADIENT, gf_step_count(GF_KIND_GRADIENT) - 1);
  float *weight = malloc(gradient->bytes); /* under the model's own name, in the model's own layout */
  if (!weight || gf_step_get_parameter(step, gradient->name, weight, gradient->bytes)) fail(gradient->name);
  printf("%s[0] is %g\n", gradient->name, weight[0]);
  free(weight);
  for (int i = 0; i < gf_step_count(GF_KIND_INPUT); ++i) free(arrays[i]);
  free(arrays);
  gf_step_destroy(step);
  return 0;
}
