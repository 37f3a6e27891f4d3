/* Which cores the threads of a step should run on. Internal: never exported. */
#ifndef GF_CORES_H
#define GF_CORES_H

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* Those this process may use. */
int gf_online_cores(void);

/* A thread for each of them; on a board with big and little cores, for each big one. */
int gf_default_threads(void);

/* The calling thread keeps to the big cores until it comes back; `lane` is its place among the step's threads, of which
 * those beyond the number of big cores stay free. Where all cores are alike, or somebody chose the thread's cores
 * (taskset), nothing changes. */
void gf_stay_on_big_cores(int lane);
void gf_come_back_from_big_cores(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
