/* What a trial's operands hold before its kernels run, and how far apart they are afterwards. */
#ifndef GF_TRIAL_VALUES_H
#define GF_TRIAL_VALUES_H

#include "gf_trial.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

size_t gf_trial_bytes(const gf_trial_operand *operand);
/* An input's values: the same on every machine. */
void gf_trial_fill(const gf_trial_operand *operand, int seed, char *place);
/* Of one output: max |candidate - reference| / max |reference|. What the reference has no finite value for is not
 * compared; -1 if that is everything. INFINITY where the candidate alone has none. */
double gf_trial_error(const gf_trial_operand *operand, const void *candidate, const void *reference);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
