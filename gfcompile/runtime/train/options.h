/* The command line of gf-train. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "samples.h"

typedef struct {
  const char *data, *labels, *eval_data, *eval_labels; /* files */
  const char *checkpoint;
  int64_t epochs, steps, checkpoint_every; /* 0: not said */
  double lr, progress;
  uint64_t seed;
  int has_lr, has_seed, threads, selftest;
  normalisation how;
} options;

options read_options(int count, char **words);

#endif
