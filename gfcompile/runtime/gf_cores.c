#define _GNU_SOURCE /* sched_getaffinity */
#include "gf_cores.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "gf_pool.h"

/* A little core of a board takes several times as long as a big one, and every kernel would end with waiting for it. A
 * PC's small cores are half as fast and many: there all cores are used. */
#if defined(__aarch64__) && !defined(GF_CPU_FOLDER)
#define GF_CPU_FOLDER "/sys/devices/system/cpu"
#endif

/* Cores this near to the fastest (in percent) are big too: clocks differ a little within a cluster, and some chips have
 * one core that is faster than the other big ones. */
enum { NEARLY_AS_FAST = 80 };

int gf_online_cores(void) {
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef CPU_COUNT
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) cores = CPU_COUNT(&allowed);
#endif
  return cores < 1 ? 1 : cores > GF_MAX_THREADS ? GF_MAX_THREADS : (int)cores;
}

#if defined(CPU_COUNT) && defined(GF_CPU_FOLDER)

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static cpu_set_t all, big;
static int big_count; /* 0: cores are alike, or nothing is known of them */

static _Thread_local bool is_kept; /* this thread was sent to the big cores */

static long read_number(int core, const char *name) {
  char path[512];
  long number = 0;
  snprintf(path, sizeof path, "%s/cpu%d/%s", GF_CPU_FOLDER, core, name);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fscanf(file, "%ld", &number) != 1) number = 0;
  fclose(file);
  return number;
}

/* `speeds` of all cores from the same file; false if one of them does not tell. */
static bool read_speeds(const char *name, long *speeds) {
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all) && (speeds[core] = read_number(core, name)) <= 0) return false;
  return true;
}

static void look(void) {
  static long speeds[CPU_SETSIZE];
  if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < sysconf(_SC_NPROCESSORS_ONLN)) return; /* chosen */
  if (!read_speeds("cpu_capacity", speeds) && !read_speeds("cpufreq/cpuinfo_max_freq", speeds)) return;
  long most = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all) && speeds[core] > most) most = speeds[core];
  CPU_ZERO(&big);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all) && speeds[core] >= most / 100 * NEARLY_AS_FAST) CPU_SET(core, &big);
  if (CPU_COUNT(&big) < CPU_COUNT(&all)) big_count = CPU_COUNT(&big);
}

int gf_default_threads(void) {
  pthread_once(&looked, look);
  int online = gf_online_cores();
  return big_count > 0 && big_count < online ? big_count : online;
}

void gf_stay_on_big_cores(int lane) {
  pthread_once(&looked, look);
  cpu_set_t now;
  if (lane >= big_count || sched_getaffinity(0, sizeof now, &now) || !CPU_EQUAL(&now, &all)) return;
  is_kept = sched_setaffinity(0, sizeof big, &big) == 0;
}

void gf_come_back_from_big_cores(void) {
  if (is_kept) sched_setaffinity(0, sizeof all, &all);
  is_kept = false;
}

#else

int gf_default_threads(void) { return gf_online_cores(); }
void gf_stay_on_big_cores(int lane) { (void)lane; }
void gf_come_back_from_big_cores(void) {}

#endif
