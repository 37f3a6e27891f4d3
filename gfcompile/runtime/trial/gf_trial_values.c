#include "gf_trial_values.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

size_t gf_trial_bytes(const gf_trial_operand *operand) { return operand->count * (size_t)operand->element_bytes; }

/* Splitmix64: the same numbers everywhere. */
static uint64_t draw(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* Nearly normal, of mean 0 and variance 1: the sum of four uniform numbers. */
static double draw_normal(uint64_t *state) {
  uint64_t bits = draw(state);
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += (double)(bits >> 16 * i & 0xffff) / 65535 - 0.5;
  return sum * 1.7320508075688772;
}

/* Wide integers may be indices: zero is valid wherever anything is. Bytes are masks, counts and taps of a window. */
void gf_trial_fill(const gf_trial_operand *operand, int seed, char *place) {
  uint64_t state = (uint64_t)seed;
  memset(place, 0, gf_trial_bytes(operand));
  for (size_t i = 0; i < operand->count; ++i) {
    if (operand->type == GF_TRIAL_FLOAT && operand->element_bytes == 4) {
      ((float *)place)[i] = (float)draw_normal(&state);
    } else if (operand->type == GF_TRIAL_FLOAT) {
      ((double *)place)[i] = draw_normal(&state);
    } else if (operand->element_bytes == 1) {
      place[i] = (char)(draw(&state) & 1);
    }
  }
}

static double element(const gf_trial_operand *operand, const void *place, size_t i) {
  switch (operand->element_bytes * 4 + (int)operand->type) {
    case 4 * 4 + GF_TRIAL_FLOAT: return ((const float *)place)[i];
    case 8 * 4 + GF_TRIAL_FLOAT: return ((const double *)place)[i];
    case 1 * 4 + GF_TRIAL_SIGNED: return ((const int8_t *)place)[i];
    case 2 * 4 + GF_TRIAL_SIGNED: return ((const int16_t *)place)[i];
    case 4 * 4 + GF_TRIAL_SIGNED: return ((const int32_t *)place)[i];
    case 8 * 4 + GF_TRIAL_SIGNED: return (double)((const int64_t *)place)[i];
    case 2 * 4 + GF_TRIAL_UNSIGNED: return ((const uint16_t *)place)[i];
    case 4 * 4 + GF_TRIAL_UNSIGNED: return ((const uint32_t *)place)[i];
    case 8 * 4 + GF_TRIAL_UNSIGNED: return (double)((const uint64_t *)place)[i];
    default: return ((const uint8_t *)place)[i];
  }
}

double gf_trial_error(const gf_trial_operand *operand, const void *candidate, const void *reference) {
  double difference = 0, largest = 0;
  size_t compared = 0;
  for (size_t i = 0; i < operand->count; ++i) {
    double want = element(operand, reference, i), got = element(operand, candidate, i);
    if (!isfinite(want)) continue;
    ++compared;
    if (!isfinite(got)) return INFINITY;
    if (fabs(got - want) > difference) difference = fabs(got - want);
    if (fabs(want) > largest) largest = fabs(want);
  }
  if (!compared && operand->count) return -1;
  if (difference == 0) return 0;
  return largest > 0 ? difference / largest : INFINITY;
}
