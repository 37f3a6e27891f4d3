#include "gf_doors.h"

#include "gf_device.h"
#include "gf_memory.h"

enum { LR_AT = 0, LOSS_AT = GF_ALIGNMENT, TAKEN_AT = 2 * GF_ALIGNMENT };

static int is_sample(const gf_value *value) { return !strcmp(value->role, "input"); }

const gf_value *gf_doors_next(gf_takes what, int *position) {
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

int gf_doors_open(gf_doors *doors) {
  doors->lr = doors->host_lr;
  doors->loss = doors->host_loss;
  if (gf_device_is_host) return 0;
  /* One program runs at a time, so their arrays share the block. */
  size_t features = sum_bytes(&gf_feature_values), inputs = sum_bytes(&gf_input_values);
  size_t gives = largest(features, sum_bytes(&gf_output_values), sum_bytes(&gf_gradient_values));
  size_t most_taken = (size_t)(gf_input_values.count + gf_feature_values.count);
  size_t most_given = (size_t)(gf_output_values.count + gf_gradient_values.count + gf_feature_values.count);
  doors->given_at = TAKEN_AT + inputs + features;
  doors->block = gf_device_allocate(doors->given_at + gives, "inputs and outputs");
  doors->taken = doors->block ? gf_allocate(most_taken * sizeof *doors->taken, "table of inputs") : NULL;
  doors->given = doors->taken ? gf_allocate(most_given * sizeof *doors->given, "table of outputs") : NULL;
  if (!doors->given) return -1;
  doors->lr = (float *)(doors->block + LR_AT);
  doors->loss = (float *)(doors->block + LOSS_AT);
  return 0;
}

void gf_doors_close(gf_doors *doors) {
  gf_device_free(doors->block);
  free(doors->taken);
  free(doors->given);
}

const void *const *gf_doors_take(gf_doors *doors, gf_takes what, const void *const *inputs) {
  doors->host_loss[0] = 0; /* should this run fail, it leaves no loss of the one before */
  if (gf_device_is_host) return inputs;
  char *at = doors->block + TAKEN_AT;
  const gf_value *value;
  for (int position = 0, i = 0; (value = gf_doors_next(what, &position)); ++i) {
    doors->taken[i] = at;
    if (gf_device_upload(at, inputs[i], value->bytes)) return NULL;
    at += gf_align_up(value->bytes);
  }
  return (const void *const *)doors->taken;
}

int gf_doors_set_lr(gf_doors *doors, float lr) {
  doors->host_lr[0] = lr;
  return gf_device_is_host ? 0 : gf_device_upload(doors->lr, doors->host_lr, sizeof lr);
}

void *const *gf_doors_give(gf_doors *doors, const gf_values *values, void *const *out) {
  if (gf_device_is_host) return out;
  char *at = doors->block + doors->given_at;
  for (int i = 0; i < values->count; at += gf_align_up(values->values[i++].bytes)) doors->given[i] = at;
  return doors->given;
}

int gf_doors_deliver(gf_doors *doors, const gf_values *values, void *const *out) {
  if (gf_device_is_host) return 0;
  for (int i = 0; i < values->count; ++i)
    if (gf_device_download(out[i], doors->given[i], values->values[i].bytes)) return -1;
  return 0;
}

int gf_doors_get_loss(gf_doors *doors) {
  return gf_device_is_host ? 0 : gf_device_download(doors->host_loss, doors->loss, sizeof(float));
}
