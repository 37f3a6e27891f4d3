/* The input channels that a sparse step updates: drawn anew, or the caller's. Internal: never exported. */
#ifndef GF_DRAWS_H
#define GF_DRAWS_H

#include "gf_staging.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

typedef struct {
  gf_draw_state now;
  char *block;         /* a draw each, at multiples of a cache line; NULL where nothing is drawn */
  const void **inputs; /* the caller's with the draws among them */
} gf_draws;

int gf_draws_open(gf_draws *draws);
void gf_draws_close(gf_draws *draws);

/* The inputs with a draw wherever one of role "channels" is NULL; NULL with a text where the caller's own do not fit. */
const void *const *gf_draws_fill(gf_draws *draws, gf_takes what, const void *const *inputs);
/* What is drawn now for the `number`-th input of role "channels". */
void gf_draws_make(const gf_draw_state *now, int number, int32_t *channels);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
