/* The loop: shuffled batches, checkpoints, progress, evaluation. */
#ifndef TRAINING_H
#define TRAINING_H

#include "options.h"

/* Train the step of an artifact's folder until done or interrupted; the exit code of the program. */
int train(gf_step *step, const char *folder, const options *wanted);

#endif
