/* Is what was trained worth keeping? */
#ifndef HEALTH_H
#define HEALTH_H

#include "gf_step.h"

/* What a training began with, by which it is judged later, restarts included. */
typedef struct {
  const char *folder; /* of the artifact: its weights are those before any training */
  double weight;      /* the largest of these by its absolute value */
  double loss;        /* of the first batch, or of a worse one with the artifact's weights; NAN before the first */
} beginning;

beginning begin_training(gf_step *step, const char *folder);

/* A loss from which no later step recovers, whatever it is then: weights and momentum have seen its gradients. */
int is_beyond_hope(beginning *began, void *const *inputs, double loss);

typedef enum { HEALTHY, DOUBTFUL, DIVERGED } verdict;
/* By loss and gradients of the state as it is now, on these inputs; the state stays as it is. Healthy: a training could
 * go on from here, and it is worth keeping. Doubtful: it may recover, and is not. `words` continue a sentence about the
 * loss, and may be none. */
verdict judge_state(beginning *began, gf_step *step, void *const *inputs, void *const *gradients, float *loss,
                    const char **words);

#endif
