#include "health.h"

#include <math.h>
#include <stdio.h>

#include "arrays.h"

/* Of 1 + the first loss. What is kept may be a thousandfold worse: a batch differs from another, and rates that were
 * a little too large can be mended by smaller ones. */
static const double worst_kept = 1e3, hopeless = 1e6;

static int is_within(double first, double loss, double factor) {
  return isfinite(loss) && fabs(loss) <= factor * (1 + fabs(first));
}

int is_beyond_hope(double first, double loss) { return !is_within(first, loss, hopeless); }

static int all_finite(const gf_value *value, const float *values) {
  for (size_t i = 0; i < value->bytes / sizeof *values; ++i)
    if (!isfinite(values[i])) return 0;
  return 1;
}

const char *judge_state(gf_step *step, void *const *inputs, void *const *gradients, double first, float *loss) {
  static char words[200];
  if (gf_step_gradients(step, (const void *const *)inputs, loss, gradients)) die(1, "%s", gf_error());
  if (!is_within(first, *loss, worst_kept)) return "";
  for (int i = 0; i < gf_step_count(GF_KIND_GRADIENT); ++i) {
    const gf_value *value = gf_step_value(GF_KIND_GRADIENT, i);
    if (value->dtype != GF_FLOAT32 || all_finite(value, gradients[i])) continue;
    snprintf(words, sizeof words, ", the gradient of '%.100s' is not finite", value->name);
    return words;
  }
  return NULL;
}
