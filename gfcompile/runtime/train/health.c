#include "health.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"

/* Of 1 + the loss at the beginning. What is kept may be a thousandfold worse: a batch differs from another, and rates
 * that were a little too large can be mended by smaller ones. Between the two a training goes on and keeps nothing: what
 * was kept on one batch must not be condemned on the next. */
static const double worst_kept = 1e3, hopeless = 1e6;
/* Of 1 + the largest weight at the beginning, for each unit of loss there: weights can explode while the loss of the
 * batch that they were just fitted to stays small. Targets of a large scale, which want large weights, begin with a
 * large loss. */
static const double largest_kept = 1e4;

static double largest_weight(gf_step *step) {
  double largest = 0;
  for (int i = 0; i < gf_step_count(GF_KIND_STATE); ++i) {
    const gf_value *value = gf_step_value(GF_KIND_STATE, i);
    if (value->dtype != GF_FLOAT32 || strcmp(value->role, "parameter") != 0) continue;
    float *values = malloc(value->bytes);
    if (!values && value->bytes) die(1, "no memory to look at '%.100s'; free some", value->name);
    if (gf_step_get(step, i, values)) die(1, "%s", gf_error());
    for (size_t at = 0; at < value->bytes / sizeof *values; ++at)
      if (fabs(values[at]) > largest) largest = fabs(values[at]);
    free(values);
  }
  return largest;
}

beginning begin_training(gf_step *step, const char *folder) {
  return (beginning){.folder = folder, .weight = largest_weight(step), .loss = NAN};
}

/* What the artifact's own weights make of these inputs; NAN where that cannot be found out. */
static double loss_untrained(const char *folder, void *const *inputs) {
  float loss;
  gf_step *step = gf_step_open(folder, 1);
  int code = step ? gf_step_train(step, (const void *const *)inputs, 0, &loss) : 1;
  gf_step_destroy(step);
  return code ? NAN : loss;
}

/* A batch can be much worse than the first was, and no weight be the reason: such a batch becomes the measure. */
static int is_within(beginning *began, void *const *inputs, double loss, double factor) {
  if (!isfinite(loss)) return 0;
  if (fabs(loss) <= factor * (1 + fabs(began->loss))) return 1;
  double untrained = loss_untrained(began->folder, inputs);
  if (!(fabs(loss) <= factor * (1 + fabs(untrained)))) return 0;
  if (fabs(untrained) > fabs(began->loss)) began->loss = untrained;
  return 1;
}

int is_beyond_hope(beginning *began, void *const *inputs, double loss) {
  if (isnan(began->loss)) began->loss = loss;
  return !is_within(began, inputs, loss, hopeless);
}

static int all_finite(const gf_value *value, const float *values) {
  for (size_t i = 0; i < value->bytes / sizeof *values; ++i)
    if (!isfinite(values[i])) return 0;
  return 1;
}

verdict judge_state(beginning *began, gf_step *step, void *const *inputs, void *const *gradients, float *loss,
                    const char **words) {
  static char text[200];
  *words = "";
  if (gf_step_gradients(step, (const void *const *)inputs, loss, gradients)) die(1, "%s", gf_error());
  if (!is_within(began, inputs, *loss, hopeless)) return DIVERGED;
  *words = text;
  for (int i = 0; i < gf_step_count(GF_KIND_GRADIENT); ++i) {
    const gf_value *value = gf_step_value(GF_KIND_GRADIENT, i);
    if (value->dtype != GF_FLOAT32 || all_finite(value, gradients[i])) continue;
    snprintf(text, sizeof text, ", the gradient of '%.100s' is not finite", value->name);
    return DIVERGED;
  }
  double largest = largest_weight(step);
  if (!(largest <= largest_kept * (1 + began->weight) * (1 + fabs(began->loss)))) {
    snprintf(text, sizeof text, ", the largest weight was %g and is %g", began->weight, largest);
    return DIVERGED;
  }
  *words = "";
  return is_within(began, inputs, *loss, worst_kept) ? HEALTHY : DOUBTFUL;
}
