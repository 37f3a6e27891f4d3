/* gf_guard.h for test_guards.py. Call 0 makes `a`, call 1 makes `b` over it, call 2 makes `c` after their guard. */
#include "gf_guard.h"

#include "gf_step.h"

static const gf_slot slots[] = {
    {"a", 128, 100, 0, 1, true},
    {"b", 128, 100, 1, 2, false},
    {"c", 384, 64, 2, 3, true},
};
static const gf_guards guards = {slots, 3, 128};

GF_API void paint(char *arena, int call) { gf_guard_paint(&guards, arena, call); }
GF_API int check(const char *arena, int call, const char *kernel) {
  return gf_guard_check(&guards, arena, call, kernel);
}
GF_API const char *text(void) { return gf_error_text(); }
