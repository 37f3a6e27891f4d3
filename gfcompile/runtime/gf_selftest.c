/* The step against what PyTorch computed of one batch when it was compiled: see gfcompile/artifact/selftest.py. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gf_files.h"
#include "gf_pool.h"
#include "gf_program.h"

static const char name_of_file[] = "selftest.safetensors";

typedef struct {
  gf_tensorfile file;
  void **inputs, **gradients; /* as the step takes them */
  void (*line)(void *context, const char *text);
  void *context;
  double tolerance, largest; /* of all expected gradient norms */
  int checks, failures;
} test;

static void *aligned(size_t bytes) { return aligned_alloc(GF_ALIGNMENT, (bytes / GF_ALIGNMENT + 1) * GF_ALIGNMENT); }

static const gf_tensor *find(const test *t, const char *kind, const char *name) {
  char *key = gf_join(kind, name);
  const gf_tensor *found = key ? gf_tensorfile_find(&t->file, key) : NULL;
  free(key);
  return found;
}

static int lacks(const char *kind, const char *name) {
  return gf_fail(GF_ERROR_FORMAT, "'%s': has no fitting '%s/%.100s'; recompile, or copy the artifact again",
                 name_of_file, kind, name);
}

static void **allocate(const gf_values *values) {
  void **blocks = calloc((size_t)values->count + 1, sizeof *blocks);
  for (int i = 0; blocks && i < values->count; ++i)
    if (!(blocks[i] = aligned(values->values[i].bytes))) return blocks;
  return blocks;
}

static void release(void **blocks, const gf_values *values) {
  for (int i = 0; blocks && i < values->count; ++i) free(blocks[i]);
  free(blocks);
}

static int is_whole(void **blocks, const gf_values *values) {
  return blocks && (!values->count || blocks[values->count - 1]);
}

static void check(test *t, const char *what, double error) {
  char text[256];
  int passed = error <= t->tolerance; /* a NaN fails */
  ++t->checks;
  t->failures += !passed;
  snprintf(text, sizeof text, "%-4s %-60.60s %.1e  allowed %.0e", passed ? "ok" : "FAIL", what, error, t->tolerance);
  if (t->line) t->line(t->context, text);
}

static double as_double(const void *values, size_t index) {
  float value;
  memcpy(&value, (const char *)values + 4 * index, 4);
  return value;
}

static double norm(const void *values, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += as_double(values, i) * as_double(values, i);
  return sqrt(sum);
}

/* Its norm, and values evenly spread over it, both relative to the norm of what is expected; gradients that are next
 * to nothing beside the largest (a bias before a batch norm has none at all) are measured by that one. */
static int compare(test *t, const gf_value *value, const void *physical) {
  const gf_tensor *expected = find(t, "norm", value->name), *sample = find(t, "values", value->name);
  size_t count = value->bytes / 4, taken = sample ? sample->bytes / 4 : 0;
  if (!expected || expected->bytes != 4 || !sample || !taken || taken > count || value->dtype != GF_FLOAT32)
    return lacks("values", value->name);
  void *logical = malloc(value->bytes);
  if (!logical) return gf_fail(GF_ERROR_MEMORY, "no memory for a gradient; free some");
  gf_to_logical(value, physical, logical);
  double length = as_double(expected->data, 0), difference = 0;
  double scale = fmax(length, 1e-3 * t->largest), wanted = 0;
  for (size_t i = 0; i < taken; ++i) {
    double there = as_double(sample->data, i), distance = as_double(logical, i * count / taken) - there;
    difference += distance * distance;
    wanted += there * there;
  }
  double share = fmax(sqrt(wanted), scale * sqrt((double)taken / (double)count));
  double error = fmax(fabs(norm(logical, count) - length) / scale, sqrt(difference) / share);
  if (isnan(difference)) error = NAN;
  check(t, value->name, error);
  free(logical);
  return GF_OK;
}

static int run(test *t, gf_step *step) {
  float loss = NAN;
  const gf_tensor *expected = gf_tensorfile_find(&t->file, "loss");
  const gf_tensor *tolerance = gf_tensorfile_find(&t->file, "tolerance");
  if (!expected || expected->bytes != 4) return lacks("", "loss");
  if (!tolerance || tolerance->bytes != 4) return lacks("", "tolerance");
  t->tolerance = as_double(tolerance->data, 0);
  for (int i = 0; i < gf_input_values.count; ++i) {
    const gf_value *value = &gf_input_values.values[i];
    const gf_tensor *tensor = find(t, value->role, value->name);
    if (!tensor || !gf_tensor_fits(tensor, value)) return lacks(value->role, value->name);
    memcpy(t->inputs[i], tensor->data, tensor->bytes);
  }
  for (int i = 0; i < gf_gradient_values.count; ++i) {
    const gf_tensor *length = find(t, "norm", gf_gradient_values.values[i].name);
    if (length && length->bytes == 4) t->largest = fmax(t->largest, as_double(length->data, 0));
  }
  int code = gf_step_gradients(step, (const void *const *)t->inputs, &loss, t->gradients);
  if (code) return code;
  double there = as_double(expected->data, 0);
  check(t, "loss", fabs((double)loss - there) / fmax(fabs(there), 1e-3));
  for (int i = 0; i < gf_gradient_values.count && !code; ++i)
    code = compare(t, &gf_gradient_values.values[i], t->gradients[i]);
  return code;
}

int gf_step_selftest(gf_step *step, const char *folder, void (*line)(void *context, const char *text), void *context) {
  gf_json *manifest;
  gf_set_error("%s", "");
  if (!step || !folder) return gf_fail(GF_ERROR_ARGUMENT, "gf_step_selftest: the step or the folder is NULL");
  int code = gf_read_manifest(folder, &manifest);
  if (code) return code;
  test t = {.line = line, .context = context};
  code = gf_open_checked(folder, manifest, name_of_file, &t.file);
  free(manifest);
  if (code) return code;
  t.inputs = allocate(&gf_input_values);
  t.gradients = allocate(&gf_gradient_values);
  if (is_whole(t.inputs, &gf_input_values) && is_whole(t.gradients, &gf_gradient_values)) code = run(&t, step);
  else code = gf_fail(GF_ERROR_MEMORY, "gf_step_selftest: no memory for its batch; free some");
  release(t.inputs, &gf_input_values);
  release(t.gradients, &gf_gradient_values);
  gf_tensorfile_close(&t.file);
  if (code || !t.failures) return code;
  return gf_fail(GF_ERROR_KERNEL, "gf_step_selftest: %d of %d values are not what PyTorch computed; do not train here",
                 t.failures, t.checks);
}
