/* The guard zones of a debug build (gfcompile --debug). Included by its generated driver only.
 *
 * Around every arena slot lies a zone that belongs to nobody. The driver paints it before the call that brings the slot
 * to life, and looks at the zones of all living slots after every call, so that damage is seen after the kernel that
 * did it and is never painted over. Zones, and slots that no kernel has written yet, are NaN to a float32 reader:
 * a kernel that reads what it should not shows in the results. */
#ifndef GF_GUARD_H
#define GF_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "gf_pool.h"

#define GF_GUARD_WORD 0x7FE7A55Eu /* a NaN that no kernel computes */
enum { GF_UNWRITTEN = 0xFF };

typedef struct {
  const char *name;     /* the buffer's */
  size_t offset, bytes; /* in the arena */
  int first, last;      /* the calls that bring it to life and read it last */
  bool fresh;           /* false: the slot is taken over from an input, whose values the call still reads */
} gf_slot;

typedef struct {
  const gf_slot *slots;
  int count;
  size_t bytes; /* of a zone, on either side; the padding after the slot is guarded as well */
} gf_guards;

static inline unsigned char gf_guard_byte(size_t place) { return (unsigned char)(GF_GUARD_WORD >> 8 * (place % 4)); }

static inline void gf_guard_fill(char *arena, size_t place, size_t stop) {
  for (; place < stop; ++place) arena[place] = (char)gf_guard_byte(place);
}

static inline size_t gf_guard_stop(const gf_guards *guards, const gf_slot *slot) {
  size_t end = slot->offset + slot->bytes;
  return (end + GF_ALIGNMENT - 1) / GF_ALIGNMENT * GF_ALIGNMENT + guards->bytes;
}

/* Before call number `call`. */
static inline void gf_guard_paint(const gf_guards *guards, char *arena, int call) {
  for (const gf_slot *slot = guards->slots; slot < guards->slots + guards->count; ++slot) {
    if (slot->first != call || !slot->fresh) continue;
    gf_guard_fill(arena, slot->offset - guards->bytes, slot->offset);
    memset(arena + slot->offset, GF_UNWRITTEN, slot->bytes);
    gf_guard_fill(arena, slot->offset + slot->bytes, gf_guard_stop(guards, slot));
  }
}

static inline bool gf_guard_broken(const char *arena, size_t place) {
  return (unsigned char)arena[place] != gf_guard_byte(place);
}

/* How far a zone was written to: past the end if positive, before the start if negative. */
static inline long gf_guard_damage(const gf_guards *guards, const char *arena, const gf_slot *slot) {
  size_t end = slot->offset + slot->bytes, past = gf_guard_stop(guards, slot), low = slot->offset - guards->bytes;
  while (past > end && !gf_guard_broken(arena, past - 1)) --past;
  if (past > end) return (long)(past - end);
  while (low < slot->offset && !gf_guard_broken(arena, low)) ++low;
  return -(long)(slot->offset - low);
}

/* After call number `call`: its own outputs first, for a neighbour may share the zone that they overran. */
static inline int gf_guard_check(const gf_guards *guards, const char *arena, int call, const char *kernel) {
  for (int others = 0; others < 2; ++others)
    for (const gf_slot *slot = guards->slots; slot < guards->slots + guards->count; ++slot) {
      if (slot->first > call || slot->last < call || (slot->first < call) != others) continue;
      long damage = gf_guard_damage(guards, arena, slot);
      if (!damage) continue;
      gf_set_error("kernel '%.80s' (call %d) wrote up to %ld bytes %s of '%.40s' (%zu bytes, made by call %d);"
                   " report this plan as a bug",
                   kernel, call, labs(damage), damage > 0 ? "past the end" : "before the start", slot->name,
                   slot->bytes, slot->first);
      return -1;
    }
  return 0;
}

#endif
