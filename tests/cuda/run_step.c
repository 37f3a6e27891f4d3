/* Calls linear_step.c through gf_step.h and prints every number that comes out. Arguments are done in order:
 *
 * create destroy   a step         predict gradients train features train_features   one call each
 * state            what is in it  tensor threads   what they answer
 * thread:CALL      in a thread of its own; fork:CALL in a child, for which the parent waits */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gf_step.h"

enum { N = 8, I = 16, O = 4 };
static float x[N * I], target[N * O], w[I * O], b[O];
static gf_step *step;

/* Values that Python makes as well. */
static void fill(float *values, int count, int seed) {
  for (int i = 0; i < count; ++i) values[i] = (float)((i * 37 + seed * 11) % 23 - 11) / 16;
}

static void print(const char *name, const float *values, int count) {
  printf("%s", name);
  for (int i = 0; i < count; ++i) printf(" %.9g", values[i]);
  printf("\n");
}

static void report(const char *call, int code) {
  if (code) printf("%s failed with %d: %s\n", call, gf_error_code(), gf_error());
}

static void create(void) {
  step = gf_step_create(3);
  report("create", step == NULL);
  if (step) report("set", gf_step_set(step, 0, w) || gf_step_set(step, 1, b));
}

static void call(const char *name) {
  const void *inputs[] = {x, target};
  float loss = 0, out[N * I], dw[I * O], db[O];
  int code = 0;
  if (!strcmp(name, "create")) {
    create();
  } else if (!strcmp(name, "destroy")) {
    gf_step_destroy(step);
  } else if (!strcmp(name, "predict")) {
    report(name, code = gf_step_predict(step, inputs, (void *[]){out}));
    if (!code) print("predict", out, N * O);
  } else if (!strcmp(name, "gradients")) {
    report(name, code = gf_step_gradients(step, inputs, &loss, (void *[]){dw, db}));
    if (!code) print("loss", &loss, 1), print("dw", dw, I * O), print("db", db, O);
  } else if (!strcmp(name, "train")) {
    report(name, code = gf_step_train(step, inputs, 0.25f, &loss));
    if (!code) print("loss", &loss, 1);
  } else if (!strcmp(name, "features")) {
    report(name, code = gf_step_features(step, inputs, (void *[]){out}));
    if (!code) print("features", out, N * I);
  } else if (!strcmp(name, "train_features")) {
    report(name, code = gf_step_train_features(step, inputs, 0.25f, &loss));
    if (!code) print("loss", &loss, 1);
  } else if (!strcmp(name, "state")) {
    report(name, code = gf_step_get(step, 0, w) || gf_step_get(step, 1, b));
    if (!code) print("w", w, I * O), print("b", b, O);
  } else if (!strcmp(name, "tensor")) {
    report(name, gf_step_tensor(step, 0) == NULL);
  } else if (!strcmp(name, "threads")) {
    printf("threads %d\n", gf_step_threads(step));
  } else {
    printf("no call '%s'\n", name);
  }
}

static void *call_in_thread(void *name) {
  call(name);
  return NULL;
}

int main(int count, char **arguments) {
  fill(x, N * I, 1);
  fill(target, N * O, 2);
  fill(w, I * O, 3);
  fill(b, O, 4);
  for (int i = 1; i < count; ++i) {
    char *name = arguments[i];
    fflush(stdout);
    if (!strncmp(name, "thread:", 7)) {
      pthread_t thread;
      pthread_create(&thread, NULL, call_in_thread, name + 7);
      pthread_join(thread, NULL);
    } else if (!strncmp(name, "fork:", 5)) {
      pid_t child = fork();
      if (!child) {
        call(name + 5);
        fflush(stdout);
        _exit(0);
      }
      waitpid(child, NULL, 0);
    } else {
      call(name);
    }
  }
  return 0;
}
