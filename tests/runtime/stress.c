/* Two steps, three threads, changing thread counts: run under a sanitizer by test_step_threads.py. */
#include <pthread.h>
#include <stdio.h>

#include "gf_step.h"

enum { ROUNDS = 300 };
static gf_step *steps[2];
static _Alignas(64) const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[12] = {1, 1, 1}, weight[4] = {1, 1, 1, 1};
static const void *const inputs[] = {x, y, weight};

static void *train(void *argument) {
  long id = (long)argument;
  _Alignas(64) float out[12];
  void *const outputs[] = {out};
  for (int i = 0; i < ROUNDS; ++i) {
    float loss;
    if (gf_step_train(steps[id % 2], inputs, 0.0f, &loss) || gf_step_predict(steps[i % 2], inputs, outputs))
      return (void *)gf_error();
    if (i % 50 == 0 && gf_step_set_threads(steps[id % 2], 1 + (i / 50 + (int)id) % 4)) return (void *)gf_error();
  }
  return NULL;
}

int main(void) {
  for (int round = 0; round < 2; ++round) {
    pthread_t threads[3];
    for (int i = 0; i < 2; ++i)
      if (!(steps[i] = gf_step_create(i + 2))) return 1;
    for (long i = 0; i < 3; ++i) pthread_create(&threads[i], NULL, train, (void *)i);
    for (int i = 0; i < 3; ++i) {
      void *failure;
      pthread_join(threads[i], &failure);
      if (failure) return 2;
    }
    for (int i = 0; i < 2; ++i) gf_step_destroy(steps[i]);
  }
  puts("ok");
  return 0;
}
