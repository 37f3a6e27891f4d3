/* The step's tensors by name, and in the model's own layout. */
#include <stdlib.h>
#include <string.h>

#include "gf_pool.h"
#include "gf_program.h"
#include "gf_state.h"
#include "gf_tensorfile.h"

static const gf_values *table(gf_kind kind) {
  static const gf_values *const tables[] = {[GF_KIND_STATE] = &gf_state_values,
                                            [GF_KIND_INPUT] = &gf_input_values,
                                            [GF_KIND_OUTPUT] = &gf_output_values,
                                            [GF_KIND_GRADIENT] = &gf_gradient_values,
                                            [GF_KIND_FEATURE] = &gf_feature_values};
  return (unsigned)kind < sizeof tables / sizeof *tables ? tables[kind] : NULL;
}

const gf_about *gf_step_about(void) { return &gf_program_about; }

int gf_step_count(gf_kind kind) { return table(kind) ? table(kind)->count : 0; }

const gf_value *gf_step_value(gf_kind kind, int index) {
  return index < 0 || index >= gf_step_count(kind) ? NULL : &table(kind)->values[index];
}

int gf_step_find(gf_kind kind, const char *role, const char *name) {
  for (int i = 0; name && i < gf_step_count(kind); ++i) {
    const gf_value *value = gf_step_value(kind, i);
    if (strcmp(value->name, name) == 0 && (!role || strcmp(value->role, role) == 0)) return i;
  }
  return -1;
}

/* Walk the physical order; `stride` leads through the logical one. */
static void reorder(const gf_value *value, const char *from, char *to, int to_physical) {
  int64_t size[GF_MAX_RANK], stride[GF_MAX_RANK], at[GF_MAX_RANK] = {0};
  size_t width = gf_dtype_bytes(value->dtype), count = value->bytes / width;
  int rank = value->split_rank;
  for (int i = 0; i < rank; ++i) {
    size[i] = value->split[value->permute[i]];
    stride[i] = 1;
    for (int axis = value->permute[i] + 1; axis < rank; ++axis) stride[i] *= value->split[axis];
  }
  int64_t logical = 0;
  for (size_t physical = 0; physical < count; ++physical) {
    size_t source = to_physical ? (size_t)logical : physical, target = to_physical ? physical : (size_t)logical;
    memcpy(to + target * width, from + source * width, width);
    for (int i = rank - 1; i >= 0; --i) {
      logical += stride[i];
      if (++at[i] < size[i]) break;
      logical -= stride[i] * size[i];
      at[i] = 0;
    }
  }
}

void gf_to_logical(const gf_value *value, const void *physical, void *logical) {
  if (value->split_rank) reorder(value, physical, logical, 0);
  else memcpy(logical, physical, value->bytes);
}

void gf_to_physical(const gf_value *value, const void *logical, void *physical) {
  if (value->split_rank) reorder(value, logical, physical, 1);
  else memcpy(physical, logical, value->bytes);
}

void *gf_state_scratch(void) {
  size_t most = 1;
  for (int i = 0; i < gf_state_values.count; ++i)
    if (gf_state_values.values[i].bytes > most) most = gf_state_values.values[i].bytes;
  void *scratch = malloc(most);
  if (!scratch) gf_fail(GF_ERROR_MEMORY, "cannot allocate %zu bytes to copy the state; free memory", most);
  return scratch;
}

int gf_state_read(gf_step *step, int index, void *logical, void *scratch) {
  int code = gf_step_get(step, index, scratch);
  if (!code) gf_to_logical(&gf_state_values.values[index], scratch, logical);
  return code;
}

int gf_state_write(gf_step *step, int index, const void *logical, void *scratch) {
  gf_to_physical(&gf_state_values.values[index], logical, scratch);
  return gf_step_set(step, index, scratch);
}

static int find_parameter(gf_step *step, const char *name, const void *memory, size_t bytes, const char *call) {
  gf_set_error("%s", "");
  int index = gf_step_find(GF_KIND_STATE, "parameter", name);
  if (index < 0) index = gf_step_find(GF_KIND_STATE, "buffer", name);
  if (!step || !memory || !name) gf_fail(GF_ERROR_ARGUMENT, "%s: the step, the name or the memory is NULL", call);
  else if (index < 0) gf_fail(GF_ERROR_ARGUMENT, "%s: '%.200s' is not trained by this step", call, name);
  else if (bytes != gf_state_values.values[index].bytes)
    gf_fail(GF_ERROR_ARGUMENT, "%s: '%.200s' has %zu bytes, %zu were given", call, name,
            gf_state_values.values[index].bytes, bytes);
  else return index;
  return -1;
}

int gf_step_get_parameter(gf_step *step, const char *name, void *logical, size_t bytes) {
  int index = find_parameter(step, name, logical, bytes, "gf_step_get_parameter");
  void *scratch = index < 0 ? NULL : gf_state_scratch();
  int code = scratch ? gf_state_read(step, index, logical, scratch) : gf_failure();
  free(scratch);
  return code;
}

int gf_step_set_parameter(gf_step *step, const char *name, const void *logical, size_t bytes) {
  int index = find_parameter(step, name, logical, bytes, "gf_step_set_parameter");
  void *scratch = index < 0 ? NULL : gf_state_scratch();
  int code = scratch ? gf_state_write(step, index, logical, scratch) : gf_failure();
  free(scratch);
  return code;
}
