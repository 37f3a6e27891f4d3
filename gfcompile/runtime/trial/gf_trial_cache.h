/* The processor's caches, as a kernel finds them in a step. */
#ifndef GF_TRIAL_CACHE_H
#define GF_TRIAL_CACHE_H

#include <stddef.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* How much must be read until nothing else is left in the caches. */
size_t gf_trial_cache_bytes(void);
/* Weights and outputs are long out of the caches, only the first operand, which the kernel before has written, is near.
 * All threads read, and so are awake when the kernel begins, as in a step too. 0, or not 0 with a text. */
int gf_trial_make_cold(const char *other, size_t bytes, const char *input, size_t input_bytes, int threads);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
