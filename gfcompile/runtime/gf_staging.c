#include "gf_staging.h"

#include "gf_device.h"
#include "gf_memory.h"

enum { LR_AT = 0, LOSS_AT = GF_ALIGNMENT, TAKEN_AT = 2 * GF_ALIGNMENT };

static int is_sample(const gf_value *value) { return !strcmp(value->role, "input"); }

const gf_value *gf_staging_next(gf_takes what, int *position) {
  int features = what == GF_TAKES_FEATURES ? gf_feature_values.count : 0;
  for (;;) {
    int at = (*position)++;
    if (at < features) return &gf_feature_values.values[at];
    if (at - features >= gf_input_values.count) return NULL;
    const gf_value *value = &gf_input_values.values[at - features];
    if (what == GF_TAKES_INPUTS || is_sample(value) == (what == GF_TAKES_SAMPLES)) return value;
  }
}

static size_t sum_bytes(const gf_values *values) {
  size_t bytes = 0;
  for (int i = 0; i < values->count; ++i) bytes += gf_align_up(values->values[i].bytes);
  return bytes;
}

static size_t largest(size_t a, size_t b, size_t c) {
  size_t most = a > b ? a : b;
  return most > c ? most : c;
}

int gf_staging_open(gf_staging *staging) {
  staging->lr = staging->host_lr;
  staging->loss = staging->host_loss;
  if (gf_device_is_host) return 0;
  /* One program runs at a time, so their arrays share the block. */
  size_t features = sum_bytes(&gf_feature_values), inputs = sum_bytes(&gf_input_values);
  size_t gives = largest(features, sum_bytes(&gf_output_values), sum_bytes(&gf_gradient_values));
  size_t most_taken = (size_t)(gf_input_values.count + gf_feature_values.count);
  size_t most_given = (size_t)(gf_output_values.count + gf_gradient_values.count + gf_feature_values.count);
  staging->given_at = TAKEN_AT + inputs + features;
  staging->block = gf_device_allocate(staging->given_at + gives, "inputs and outputs");
  staging->taken = staging->block ? gf_allocate(most_taken * sizeof *staging->taken, "table of inputs") : NULL;
  staging->given = staging->taken ? gf_allocate(most_given * sizeof *staging->given, "table of outputs") : NULL;
  if (!staging->given) return -1;
  staging->lr = (float *)(staging->block + LR_AT);
  staging->loss = (float *)(staging->block + LOSS_AT);
  return 0;
}

void gf_staging_close(gf_staging *staging) {
  gf_device_free(staging->block);
  free(staging->taken);
  free(staging->given);
}

const void *const *gf_staging_take(gf_staging *staging, gf_takes what, const void *const *inputs) {
  staging->host_loss[0] = 0; /* should this run fail, it leaves no loss of the one before */
  if (gf_device_is_host) return inputs;
  char *at = staging->block + TAKEN_AT;
  const gf_value *value;
  for (int position = 0, i = 0; (value = gf_staging_next(what, &position)); ++i) {
    staging->taken[i] = at;
    if (gf_device_upload(at, inputs[i], value->bytes)) return NULL;
    at += gf_align_up(value->bytes);
  }
  return (const void *const *)staging->taken;
}

int gf_staging_set_lr(gf_staging *staging, float lr) {
  staging->host_lr[0] = lr;
  return gf_device_is_host ? 0 : gf_device_upload(staging->lr, staging->host_lr, sizeof lr);
}

void *const *gf_staging_give(gf_staging *staging, const gf_values *values, void *const *out) {
  if (gf_device_is_host) return out;
  char *at = staging->block + staging->given_at;
  for (int i = 0; i < values->count; at += gf_align_up(values->values[i++].bytes)) staging->given[i] = at;
  return staging->given;
}

int gf_staging_deliver(gf_staging *staging, const gf_values *values, void *const *out) {
  if (gf_device_is_host) return 0;
  for (int i = 0; i < values->count; ++i)
    if (gf_device_download(out[i], staging->given[i], values->values[i].bytes)) return -1;
  return 0;
}

int gf_staging_get_loss(gf_staging *staging) {
  return gf_device_is_host ? 0 : gf_device_download(staging->host_loss, staging->loss, sizeof(float));
}
