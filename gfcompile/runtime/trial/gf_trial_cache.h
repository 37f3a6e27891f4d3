/* How much must be read until nothing else is left in the caches. */
#ifndef GF_TRIAL_CACHE_H
#define GF_TRIAL_CACHE_H

#include <stddef.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

size_t gf_trial_cache_bytes(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
