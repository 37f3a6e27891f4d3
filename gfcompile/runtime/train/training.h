/* The loop: shuffled batches, checkpoints, progress, evaluation. */
#ifndef TRAINING_H
#define TRAINING_H

#include "options.h"

/* Train until done or interrupted; the exit code of the program. */
int train(gf_step *step, const options *wanted);

#endif
