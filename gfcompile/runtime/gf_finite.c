/* Has training diverged? */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gf_pool.h"
#include "gf_program.h"
#include "gf_state.h"
#include "gf_tensorfile.h"

#define INSTEAD "nothing was written; load the last checkpoint and train with a smaller lr"

static int is_finite(gf_dtype dtype, const char *at) {
  uint16_t half;
  float single;
  double whole;
  switch (dtype) {
    case GF_FLOAT16: memcpy(&half, at, sizeof half); return (half & 0x7c00) != 0x7c00;
    case GF_FLOAT32: memcpy(&single, at, sizeof single); return isfinite(single);
    case GF_FLOAT64: memcpy(&whole, at, sizeof whole); return isfinite(whole);
    default: return 1;
  }
}

int gf_all_finite(const gf_value *value, const void *data) {
  const char *values = data;
  size_t width = gf_dtype_bytes(value->dtype);
  for (size_t at = 0; at < value->bytes; at += width)
    if (!is_finite(value->dtype, values + at)) return 0;
  return 1;
}

int gf_is_kept(const gf_value *value) { return strcmp(value->role, "constant") != 0; }

int gf_check_finite(gf_step *step, int64_t steps) {
  char *scratch = gf_state_scratch();
  int code = scratch ? GF_OK : GF_ERROR_MEMORY;
  for (int i = 0; i < gf_state_values.count && !code; ++i) {
    const gf_value *value = &gf_state_values.values[i];
    if (!gf_is_kept(value)) continue;
    code = gf_step_get(step, i, scratch);
    if (!code && !gf_all_finite(value, scratch))
      code = gf_fail(GF_ERROR_DIVERGED,
                     "gf_step_save: training diverged: %s '%.100s' is not finite after step %" PRId64 "; " INSTEAD,
                     strcmp(value->role, "optimizer") ? value->role : "optimizer state", value->name, steps);
  }
  free(scratch);
  if (!code && gf_step_keeping(step)->loss_is_bad)
    code = gf_fail(GF_ERROR_DIVERGED,
                   "gf_step_save: training diverged: the loss of step %" PRId64 " is not finite; " INSTEAD, steps);
  return code;
}
