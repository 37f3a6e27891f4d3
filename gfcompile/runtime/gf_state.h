/* State tensors copied in the model's layout. Internal: never exported. */
#ifndef GF_STATE_H
#define GF_STATE_H

#include "gf_generations.h"
#include "gf_step.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* Room for the largest state tensor, for free(); NULL with an error text. */
void *gf_state_scratch(void);
int gf_state_read(gf_step *step, int index, void *logical, void *scratch);
int gf_state_write(gf_step *step, int index, const void *logical, void *scratch);

/* What a step knows of its checkpoints. */
typedef struct {
  gf_replacement held; /* what gf_step_hold was given; its path is NULL before */
  int loss_is_bad;     /* of the last update: not finite; 0 once the state was set */
} gf_keeping;
gf_keeping *gf_step_keeping(gf_step *step);

/* GF_ERROR_DIVERGED with a text if the last loss, or anything of the state that a checkpoint keeps, is not finite. */
int gf_check_finite(gf_step *step, int64_t steps);
int gf_is_kept(const gf_value *value);
int gf_all_finite(const gf_value *value, const void *data);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
