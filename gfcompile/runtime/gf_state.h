/* State tensors copied in the model's layout. Internal: never exported. */
#ifndef GF_STATE_H
#define GF_STATE_H

#include "gf_step.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* Room for the largest state tensor, for free(); NULL with an error text. */
void *gf_state_scratch(void);
int gf_state_read(gf_step *step, int index, void *logical, void *scratch);
int gf_state_write(gf_step *step, int index, const void *logical, void *scratch);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
