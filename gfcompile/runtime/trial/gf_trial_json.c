#include "gf_trial_json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "gf_pool.h"

enum { MOST_WORDS = 1024 };

static int append(char *json, size_t bytes, const char *format, ...) GF_PRINTF(3, 4);
static int append(char *json, size_t bytes, const char *format, ...) {
  size_t used = strlen(json);
  va_list arguments;
  va_start(arguments, format);
  int more = vsnprintf(json + used, bytes - used, format, arguments);
  va_end(arguments);
  return more >= 0 && (size_t)more < bytes - used ? 0 : -1;
}

int gf_trial_write_failure(char *json, size_t bytes, const char *text) {
  char plain[MOST_WORDS];
  size_t i = 0;
  for (; text[i] && i + 1 < sizeof plain; ++i) {
    plain[i] = text[i] == '"' || text[i] == '\\' ? '\'' : text[i];
    if ((unsigned char)plain[i] < ' ') plain[i] = ' ';
  }
  plain[i] = '\0';
  return append(json, bytes, "{\"failure\": \"%s\"}", plain);
}

static int write_seconds(char *json, size_t bytes, const char *name, const double *seconds, int turns) {
  if (append(json, bytes, ", \"%s\": [", name)) return -1;
  for (int i = 0; i < turns; ++i)
    if (append(json, bytes, "%s%.9g", i ? ", " : "", seconds[i])) return -1;
  return append(json, bytes, "]");
}

int gf_trial_write_result(char *json, size_t bytes, double error, const double *candidate, const double *reference,
                          int turns) {
  char number[32] = "Infinity"; /* printf would say inf, which is no word of JSON's readers */
  if (!isinf(error)) snprintf(number, sizeof number, "%.9g", error);
  if (append(json, bytes, "{\"error\": %s", number) || write_seconds(json, bytes, "candidate", candidate, turns) ||
      write_seconds(json, bytes, "reference", reference, turns))
    return -1;
  return append(json, bytes, "}");
}
