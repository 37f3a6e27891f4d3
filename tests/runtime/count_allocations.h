/* What count_allocations.c offers to a program that runs under it. */
#ifndef COUNT_ALLOCATIONS_H
#define COUNT_ALLOCATIONS_H

#include <stddef.h>

typedef struct {
  const char *call;
  size_t bytes;
} request;

void watch_begin(void);
int watch_end(const request **found); /* how many, the first at *found */

#endif
