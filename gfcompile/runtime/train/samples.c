#include "samples.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define OTHERWISE "train it through the C API: gf_step.h"

static const gf_value *only(const char *role) {
  const gf_value *found = NULL;
  for (int i = 0; i < gf_step_count(GF_KIND_INPUT); ++i) {
    const gf_value *value = gf_step_value(GF_KIND_INPUT, i);
    if (strcmp(value->role, role) != 0) continue;
    if (found) die(1, "this step takes several tensors of role '%s', gf-train gives one; " OTHERWISE, role);
    found = value;
  }
  if (!found) die(1, "this step takes no tensor of role '%s'; " OTHERWISE, role);
  return found;
}

static int same_axes(const array *values, const gf_value *value) {
  if (values->rank != value->rank) return 0;
  for (int i = 1; i < value->rank; ++i)
    if (values->shape[i] != value->shape[i]) return 0;
  return 1;
}

static const char *without_batch(const int64_t *shape, int rank) {
  return rank > 1 ? shape_text(shape + 1, rank - 1) : "one number";
}

/* Images of another size or with one channel; the words say what becomes of them. */
static void fit_images(dataset *data, char *words, size_t bytes) {
  const array *images = &data->images;
  const gf_value *input = data->input;
  const int64_t *shape = images->shape, *wanted = input->shape;
  data->direct = same_axes(images, input);
  if (data->direct) return;
  int are_images = input->rank == 4 && (images->rank == 3 || images->rank == 4);
  data->channels_last = are_images && images->rank == 4 && shape[1] != wanted[1] && shape[1] != 1 &&
                        (shape[3] == wanted[1] || shape[3] == 1);
  int first = images->rank == 3 || data->channels_last ? 1 : 2;
  data->channels = images->rank == 3 ? 1 : shape[data->channels_last ? 3 : 1];
  if (!are_images || (data->channels != wanted[1] && data->channels != 1))
    die(1, "'%s': samples of %s, but the step takes %s; give samples of that shape, or images", images->path,
        without_batch(shape, images->rank), without_batch(wanted, input->rank));
  data->high = shape[first], data->wide = shape[first + 1];
  if (!data->high || !data->wide) die(1, "'%s': its images are empty", images->path);
  int length = 0;
  if (data->high != wanted[2] || data->wide != wanted[3])
    length = snprintf(words, bytes, ", resized (nearest pixel) to %lldx%lld", (long long)wanted[2],
                      (long long)wanted[3]);
  if (data->channels != wanted[1])
    snprintf(words + length, bytes - (size_t)length, ", the one channel repeated to %lld", (long long)wanted[1]);
}

static void prepare_numbers(dataset *data, const normalisation *how) {
  int64_t channels = data->input->rank > 1 ? data->input->shape[1] : 1;
  if ((how->means > 1 && how->means != channels) || (how->stds > 1 && how->stds != channels))
    die(2, "--mean or --std: %d values, but the step takes %lld channels; give one, or one per channel",
        how->means > 1 ? how->means : how->stds, (long long)channels);
  double scale = how->has_scale ? how->scale : data->images.type == UINT8 ? 1.0 / 255 : 1;
  for (int c = 0; c < MAX_CHANNELS; ++c) {
    double mean = how->means ? how->mean[how->means > 1 ? c : 0] : 0;
    double std = how->stds ? how->std[how->stds > 1 ? c : 0] : 1;
    data->factor[c] = scale / (std == 0 ? 1 : std);
    data->offset[c] = -mean / (std == 0 ? 1 : std);
  }
}

/* Asked again at every use: a label that somebody wrote there since then would be an index into nowhere. */
static double target_at(const dataset *data, size_t i) {
  const gf_about *about = gf_step_about();
  double value = number_at(&data->targets, i);
  if (!isfinite(value))
    die(1, "'%s': target %zu is not finite; repair it or leave the sample out", data->targets.path, i);
  if (!about->classes || (about->has_ignored && value == (double)about->ignored)) return value;
  if (value < 0 || value >= about->classes)
    die(1, "'%s': label %.0f at index %zu is outside 0 to %d; the model has %d classes, so renumber the labels",
        data->targets.path, value, i, about->classes - 1, about->classes);
  return value;
}

static void check_targets(const dataset *data) {
  const array *targets = &data->targets;
  if (targets->shape[0] != data->count)
    die(1, "'%s' has %lld targets and '%s' %lld samples; give files that belong together", targets->path,
        (long long)targets->shape[0], data->images.path, (long long)data->count);
  if (!same_axes(targets, data->target))
    die(1, "'%s': targets of %s, but the step takes %s for each sample; give targets of that shape", targets->path,
        without_batch(targets->shape, targets->rank), without_batch(data->target->shape, data->target->rank));
  if (data->target->dtype == GF_INT64 && !is_integer(targets))
    die(1, "'%s': holds fractions, but loss '%s' takes class numbers; save it as int64", targets->path,
        gf_step_about()->loss);
  size_t count = sample_size(targets) * (size_t)data->count;
  for (size_t i = 0; i < count; ++i) target_at(data, i);
}

/* A target must still be that number in a batch. */
static void check_range(const dataset *data) {
  const array *targets = &data->targets;
  double largest = data->target->dtype == GF_INT64 ? 9007199254740992. : FLT_MAX; /* 2^53: a double holds them all */
  for (size_t i = 0, count = sample_size(targets) * (size_t)data->count; i < count; ++i)
    if (fabs(number_at(targets, i)) > largest)
      die(1, "'%s': target %zu is %g, the largest that can be taken is %g; repair it or leave the sample out",
          targets->path, i, number_at(targets, i), largest);
}

dataset open_dataset(const char *what, const char *images, const char *targets, const normalisation *how) {
  char words[160] = "";
  dataset data = {.images = open_array(images), .targets = open_array(targets)};
  data.input = only("input");
  data.target = only("target");
  data.count = data.images.shape[0];
  if (data.input->dtype != GF_FLOAT32) die(1, "this step takes indices as its input; " OTHERWISE);
  if (data.target->dtype != GF_FLOAT32 && data.target->dtype != GF_INT64)
    die(1, "loss '%s' takes neither class numbers nor float32 targets; " OTHERWISE, gf_step_about()->loss);
  fit_images(&data, words, sizeof words);
  prepare_numbers(&data, how);
  check_targets(&data);
  check_range(&data);
  printf("%s: %lld samples of %s%s\n", what, (long long)data.count,
         without_batch(data.images.shape, data.images.rank), words);
  return data;
}

static float convert(const dataset *data, size_t index, int64_t channel) {
  int64_t known = channel < MAX_CHANNELS ? channel : MAX_CHANNELS - 1;
  float value = (float)(number_at(&data->images, index) * data->factor[known] + data->offset[known]);
  if (!isfinite(value))
    die(1, "'%s': sample %zu holds NaN or Inf; repair the sample or leave it out", data->images.path,
        index / sample_size(&data->images));
  return value;
}

void put_sample(const dataset *data, int64_t index, void *batch, int slot) {
  size_t size = data->input->bytes / 4 / (size_t)data->input->shape[0];
  size_t start = (size_t)index * sample_size(&data->images);
  float *out = (float *)batch + (size_t)slot * size;
  if (data->direct) {
    int64_t channels = data->input->rank > 1 ? data->input->shape[1] : 1;
    size_t plane = size / (size_t)channels;
    for (size_t i = 0; i < size; ++i) out[i] = convert(data, start + i, (int64_t)(i / plane));
    return;
  }
  int64_t channels = data->input->shape[1], high = data->input->shape[2], wide = data->input->shape[3];
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t y = 0; y < high; ++y)
      for (int64_t x = 0; x < wide; ++x) {
        int64_t from = data->channels == 1 ? 0 : c, row = y * data->high / high, column = x * data->wide / wide;
        int64_t at = data->channels_last ? (row * data->wide + column) * data->channels + from
                                         : (from * data->high + row) * data->wide + column;
        *out++ = convert(data, start + (size_t)at, c);
      }
}

void put_target(const dataset *data, int64_t index, void *batch, int slot) {
  size_t size = sample_size(&data->targets), start = (size_t)index * size;
  for (size_t i = 0; i < size; ++i) {
    size_t at = (size_t)slot * size + i;
    double value = target_at(data, start + i);
    if (data->target->dtype == GF_INT64) ((int64_t *)batch)[at] = (int64_t)value;
    else ((float *)batch)[at] = (float)value;
  }
}
