/* A trial as a network peer calls it, and what it makes of what its child answers.
 *
 * An input is the seed of the operands and the length of a buffer, a byte each, then the arguments of the call as TVM
 * passes them (16 bytes each), then what the trial writes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "gf_json.h"
#include "gf_trial_json.h"
#include "gf_trial_values.h"

enum { ARGUMENT = 16, ARGUMENTS = 3, FLOAT = 3 };

typedef struct { /* TVMFFIAny */
  int32_t type_index;
  uint32_t zero;
  union {
    double real;
    uint64_t bits;
    void *object;
  } value;
} any;

typedef struct { /* the string that is given back */
  uint64_t references;
  int32_t type_index;
  uint32_t zero;
  void (*deleter)(void *, int);
  const char *data;
  size_t size;
} string;

int __tvm_ffi_gf_trial(void *self, const any *args, int32_t count, any *result);

static char *answer; /* what the candidate's side writes */

int gf_trial_run(int repeats, double block_seconds, char *json, size_t bytes) {
  double times[] = {block_seconds, -block_seconds, 0};
  json[0] = '\0';
  if (repeats & 1) return gf_trial_write_failure(json, bytes, answer);
  return gf_trial_write_result(json, bytes, block_seconds, times, times, 3);
}

static void write_into(size_t bytes, const char *text) {
  char *json = malloc(bytes + 1);
  json[0] = '\0';
  if (bytes && !gf_trial_write_failure(json, bytes, text)) {
    gf_json *tree = gf_json_parse(json, strlen(json));
    fuzz_require(tree && gf_json_string(tree, "failure"), "a failure is JSON, whatever its text");
    free(tree);
  }
  free(json);
}

static void compare_values(int seed, const uint8_t *data, size_t size) {
  static const int widths[] = {1, 2, 4, 8};
  gf_trial_operand operand = {.type = (gf_trial_type)(seed & 3), .element_bytes = widths[seed >> 2 & 3]};
  if (operand.type == GF_TRIAL_FLOAT && operand.element_bytes < 4) operand.element_bytes = 4; /* all there are */
  if (operand.type == GF_TRIAL_BOOL) operand.element_bytes = 1;
  operand.count = size / (size_t)operand.element_bytes;
  size_t bytes = gf_trial_bytes(&operand);
  char *drawn = malloc(bytes + 1), *given = malloc(bytes + 1);
  memcpy(given, data, bytes);
  gf_trial_fill(&operand, seed, drawn);
  double error = gf_trial_error(&operand, given, drawn);
  fuzz_require(error >= 0 || error == -1, "an error is a distance");
  fuzz_require(gf_trial_error(&operand, drawn, drawn) == 0, "equal values have none");
  free(drawn);
  free(given);
}

static void call(const uint8_t *data, size_t count) {
  any args[ARGUMENTS] = {0}, result;
  for (size_t i = 0; i < count; ++i) memcpy(&args[i], data + ARGUMENT * i, ARGUMENT);
  if (count == ARGUMENTS && args[2].type_index == FLOAT && args[2].value.real > 1) args[2].value.real = 1;
  fuzz_require(!__tvm_ffi_gf_trial(NULL, args, (int32_t)count, &result), "a call is answered");
  string *text = result.value.object;
  fuzz_require(text && text->size == strlen(text->data) && strchr(text->data, '\n'), "an answer has two lines");
  text->deleter(text, 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2) return 0;
  size_t count = (size - 2) / ARGUMENT < ARGUMENTS ? (size - 2) / ARGUMENT : ARGUMENTS;
  const uint8_t *rest = data + 2 + ARGUMENT * count;
  size_t bytes = size - 2 - ARGUMENT * count;
  answer = malloc(bytes + 1);
  memcpy(answer, rest, bytes);
  answer[bytes] = '\0';
  write_into(data[1], answer);
  write_into(1 << 12, answer);
  compare_values(data[0], rest, bytes);
  call(data + 2, count);
  free(answer);
  return 0;
}
