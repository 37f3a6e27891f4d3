/* gf-train's data: images and targets in any bytes become batches or one line of refusal.
 *
 * An input is a byte that says which step takes the data and how it is scaled, the length of the first file in two
 * bytes, and the two files. */
#include <math.h>

#include "fuzz.h"
#include "samples.h"

enum { BATCH = 2, CLASSES = 5, KINDS = 4 };

/* The interface of a step, as far as samples.c asks it. */
#define SHAPE(...) (const int64_t[]){__VA_ARGS__}
static const gf_value inputs[KINDS] = {
    {"x", "input", GF_FLOAT32, 4, SHAPE(BATCH, 3, 4, 4), 0, 0, 0, BATCH * 3 * 4 * 4 * 4},
    {"x", "input", GF_FLOAT32, 4, SHAPE(BATCH, 1, 3, 5), 0, 0, 0, BATCH * 3 * 5 * 4},
    {"x", "input", GF_FLOAT32, 2, SHAPE(BATCH, 6), 0, 0, 0, BATCH * 6 * 4},
    {"x", "input", GF_FLOAT32, 1, SHAPE(BATCH), 0, 0, 0, BATCH * 4},
};
static const gf_value targets[KINDS] = {
    {"y", "target", GF_INT64, 1, SHAPE(BATCH), 0, 0, 0, BATCH * 8},
    {"y", "target", GF_INT64, 3, SHAPE(BATCH, 3, 5), 0, 0, 0, BATCH * 15 * 8},
    {"y", "target", GF_FLOAT32, 2, SHAPE(BATCH, 3), 0, 0, 0, BATCH * 3 * 4},
    {"y", "target", GF_INT64, 1, SHAPE(BATCH), 0, 0, 0, BATCH * 8},
};
static const gf_about abouts[KINDS] = {
    {.name = "a", .loss = "cross_entropy", .batch = BATCH, .classes = CLASSES},
    {.name = "b", .loss = "cross_entropy", .batch = BATCH, .classes = CLASSES, .has_ignored = 1, .ignored = 255},
    {.name = "c", .loss = "mse", .batch = BATCH},
    {.name = "d", .loss = "other", .batch = BATCH}, /* class numbers without a known count */
};
static int kind;

int gf_step_count(gf_kind of) { return of == GF_KIND_INPUT ? 2 : 0; }
const gf_value *gf_step_value(gf_kind of, int index) { return (void)of, index ? &targets[kind] : &inputs[kind]; }
const gf_about *gf_step_about(void) { return &abouts[kind]; }

static const normalisation ways[] = {
    {0},
    {.has_scale = 1, .scale = 1e300},
    {.means = 1, .mean = {0.5}, .stds = 1, .std = {0.25}},
    {.means = 3, .mean = {1, 2, 3}, .stds = 3, .std = {1, 2, 1e-300}},
};

static void read_data(void *way) {
  dataset data = open_dataset("training", "images", "targets", way);
  void *x = fuzz_malloc(data.input->bytes), *y = fuzz_malloc(data.target->bytes);
  for (int64_t i = 0; i < data.count && i < 8; ++i) {
    put_target(&data, i, y, (int)(i % BATCH));
    if (data.target->dtype == GF_INT64 && data.target->rank == 1) {
      int64_t label = ((int64_t *)y)[i % BATCH];
      fuzz_require(!abouts[kind].classes || (label >= 0 && label < CLASSES), "a class is one of the model's");
    }
    for (size_t each = 0; data.target->dtype == GF_FLOAT32 && each < sample_size(&data.targets); ++each)
      fuzz_require(isfinite(((float *)y)[(size_t)(i % BATCH) * sample_size(&data.targets) + each]), "targets are finite");
    put_sample(&data, i, x, (int)(i % BATCH));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 3) return 0;
  size_t first = (size_t)data[1] | (size_t)data[2] << 8;
  kind = data[0] % KINDS;
  if (first > size - 3) first = size - 3;
  fuzz_write("images", data + 3, first);
  fuzz_write("targets", data + 3 + first, size - 3 - first);
  fuzz_run(read_data, (void *)&ways[data[0] / KINDS % (sizeof ways / sizeof *ways)]);
  return 0;
}
