#include "gf_draws.h"

#include "gf_memory.h"

enum { ROUNDS = 10 };
static const uint32_t multiplier = 0xD256D193u, weyl = 0x9E3779B9u;

/* Philox-2x32, as ops/random.py has it for dropouts: a number as a function of a counter and a key. */
static uint32_t philox(uint32_t low, uint32_t high, uint32_t key) {
  for (int round = 0; round < ROUNDS; ++round, key += weyl) {
    uint64_t product = (uint64_t)low * multiplier;
    low = (uint32_t)(product >> 32) ^ key ^ high;
    high = (uint32_t)product;
  }
  return low;
}

/* The seed and the time make the key, so a draw is a function of both, of the layer and of nothing else. */
static uint32_t key_of(const gf_draw_state *now) {
  uint64_t time = 0;
  if (gf_program_draws.when == GF_DRAWN_EACH_STEP) time = (uint64_t)now->steps;
  if (gf_program_draws.when == GF_DRAWN_EACH_EPOCH) time = (uint64_t)now->epoch;
  return philox((uint32_t)time, (uint32_t)(time >> 32), now->seed);
}

/* Each candidate in turn is taken with the chance that wanted/left have (Knuth's algorithm S): every choice is equally
 * likely, and comes out in order. A product's high word stands for a number below `left`, off by left/2^32 at most. */
void gf_draws_make(const gf_draw_state *now, int number, int32_t *channels) {
  const gf_draw *draw = &gf_program_draws.draws[number];
  if (draw->always) {
    memcpy(channels, draw->always, (size_t)(draw->sets * draw->chosen * draw->width) * sizeof *channels);
    return;
  }
  uint32_t key = key_of(now), candidate = 0;
  for (int set = 0; set < draw->sets; ++set) {
    uint32_t wanted = (uint32_t)draw->chosen;
    for (uint32_t left = (uint32_t)draw->candidates; left; --left, ++candidate) {
      uint32_t word = wanted ? philox(candidate, (uint32_t)number, key) : 0;
      if (!wanted || (uint64_t)word * left >> 32 >= wanted) continue;
      --wanted;
      for (int i = 0; i < draw->width; ++i) *channels++ = (int32_t)candidate * draw->width + i;
    }
  }
}

static int is_drawn(const gf_value *value) { return strcmp(value->role, "channels") == 0; }

/* Each place of a set holds a later candidate than the one before, whole. */
static int check(const gf_value *value, const gf_draw *draw, const int32_t *channels) {
  for (int set = 0, at = 0; set < draw->sets; ++set) {
    int64_t least = (int64_t)set * draw->candidates, behind = least + draw->candidates;
    for (int i = 0; i < draw->chosen; ++i) {
      int64_t candidate = channels[at] < 0 ? -1 : channels[at] / draw->width;
      int fits = candidate >= least && candidate < behind;
      for (int j = 0; j < draw->width; ++j) fits = fits && channels[at + j] == candidate * draw->width + j;
      if (!fits && draw->sets == 1 && draw->width == 1)
        return gf_fail(GF_ERROR_ARGUMENT, "channels of '%.100s': %d does not fit at place %d; give %d of 0 to %d, ascending",
                       value->name, channels[at], at, draw->chosen, draw->candidates - 1);
      if (!fits && draw->width == 1)
        return gf_fail(GF_ERROR_ARGUMENT,
                       "channels of '%.100s': %d does not fit at place %d; give %d of each group of %d, ascending",
                       value->name, channels[at], at, draw->chosen, draw->candidates);
      if (!fits)
        return gf_fail(GF_ERROR_ARGUMENT,
                       "channels of '%.100s': %d does not fit at place %d; give all channels of %d groups of %d, ascending",
                       value->name, channels[at], at, draw->chosen, draw->width);
      least = candidate + 1;
      at += draw->width;
    }
  }
  return 0;
}

int gf_draws_open(gf_draws *draws) {
  if (!gf_program_draws.count) return 0;
  size_t bytes = 0, inputs = (size_t)(gf_input_values.count + gf_feature_values.count);
  for (int i = 0; i < gf_input_values.count; ++i)
    if (is_drawn(&gf_input_values.values[i])) bytes += gf_align_up(gf_input_values.values[i].bytes);
  draws->block = gf_allocate(bytes, "drawn channels");
  draws->inputs = draws->block ? gf_allocate(inputs * sizeof *draws->inputs, "table of inputs") : NULL;
  return draws->inputs ? 0 : -1;
}

void gf_draws_close(gf_draws *draws) {
  free(draws->block);
  free(draws->inputs);
}

const void *const *gf_draws_fill(gf_draws *draws, gf_takes what, const void *const *inputs) {
  if (!gf_program_draws.count || what == GF_TAKES_SAMPLES) return inputs;
  char *place = draws->block;
  int number = 0, position = 0;
  const gf_value *value;
  for (int i = 0; (value = gf_staging_next(what, &position)); ++i) {
    draws->inputs[i] = inputs[i];
    if (!is_drawn(value)) continue;
    if (inputs[i]) {
      if (check(value, &gf_program_draws.draws[number], inputs[i])) return NULL;
    } else {
      gf_draws_make(&draws->now, number, (int32_t *)place);
      draws->inputs[i] = place;
    }
    place += gf_align_up(value->bytes);
    ++number;
  }
  return draws->inputs;
}
