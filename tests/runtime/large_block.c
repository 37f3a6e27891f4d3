/* Prints of a block of the given size where it begins, and what Linux knows of its pages. */
#include <stdio.h>

#include "gf_memory.h"

int main(int count, char **arguments) {
  char *block = gf_allocate(count > 1 ? (size_t)atol(arguments[1]) : 0, "test");
  if (!block) return 1;
  printf("%lu\n", (unsigned long)block);
  FILE *maps = fopen("/proc/self/smaps", "r");
  char line[512];
  unsigned long from, to, inside = 0;
  while (maps && fgets(line, sizeof line, maps)) {
    if (sscanf(line, "%lx-%lx ", &from, &to) == 2) inside = from <= (unsigned long)block && (unsigned long)block < to;
    if (inside && !strncmp(line, "VmFlags:", 8)) fputs(line, stdout);
  }
  if (maps) fclose(maps);
  free(block);
  return 0;
}
