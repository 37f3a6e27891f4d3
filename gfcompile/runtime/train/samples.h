/* Samples and targets of a data set, brought to the form that the step takes. */
#ifndef SAMPLES_H
#define SAMPLES_H

#include "arrays.h"
#include "gf_step.h"

enum { MAX_CHANNELS = 64 };

typedef struct { /* value = (number * scale - mean[channel]) / std[channel] */
  double scale, mean[MAX_CHANNELS], std[MAX_CHANNELS];
  int means, stds;
  int has_scale;
} normalisation;

typedef struct {
  array images, targets;
  int64_t count;
  const gf_value *input, *target; /* of the step */
  int direct;                     /* samples have the shape that the step takes */
  int64_t channels, high, wide;   /* of an image in the file, where not */
  int channels_last;
  double factor[MAX_CHANNELS], offset[MAX_CHANNELS];
} dataset;

/* Check both files against the step, all labels included, and say on stdout what will be done with them. */
dataset open_dataset(const char *what, const char *images, const char *targets, const normalisation *how);
/* Write sample `index` to place `slot` of a batch. */
void put_sample(const dataset *data, int64_t index, void *batch, int slot);
void put_target(const dataset *data, int64_t index, void *batch, int slot);

#endif
