/* trial TURNS BLOCK_SECONDS: one trial, its JSON on stdout. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "gf_trial.h"

int main(int count, char **arguments) {
  static char json[1 << 16];
  if (count != 3) {
    fprintf(stderr, "usage: %s TURNS BLOCK_SECONDS\n", arguments[0]);
    return 2;
  }
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none); /* candidates may crash, and nobody reads the core */
  if (gf_trial_run(atoi(arguments[1]), atof(arguments[2]), json, sizeof json)) {
    fprintf(stderr, "%s: the result does not fit into %zu bytes; ask for fewer turns\n", arguments[0], sizeof json);
    return 1;
  }
  puts(json);
  return fflush(stdout) ? 1 : 0;
}
