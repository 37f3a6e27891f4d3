/* What a trial answers. Each: 0, or -1 where `bytes` do not hold the text. */
#ifndef GF_TRIAL_JSON_H
#define GF_TRIAL_JSON_H

#include <stddef.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

int gf_trial_write_failure(char *json, size_t bytes, const char *text);
/* The seconds per run of both kernels, `turns` numbers each. */
int gf_trial_write_result(char *json, size_t bytes, double error, const double *candidate, const double *reference,
                          int turns);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
