/* Is what was trained worth keeping? */
#ifndef HEALTH_H
#define HEALTH_H

#include "gf_step.h"

/* A loss from which no later step recovers, whatever it is then: weights and momentum have seen its gradients. `first`
 * is the training's first one. */
int is_beyond_hope(double first, double loss);

/* Loss and gradients of the state as it is now, on these inputs; the state stays as it is. NULL if a training could go
 * on from here, else what is wrong beside the loss: words that continue a sentence, perhaps none. */
const char *judge_state(gf_step *step, void *const *inputs, void *const *gradients, double first, float *loss);

#endif
