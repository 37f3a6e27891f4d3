#define _DEFAULT_SOURCE
#include "training.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "health.h"

enum { SAVE_SECONDS = 30, ALIGNMENT = 64 };

typedef struct {
  gf_step *step;
  const options *wanted;
  dataset data, eval;
  int has_eval, batch;
  void **inputs, **outputs, **gradients; /* the step's, a block each */
  int64_t *order;            /* of the samples in this epoch */
  int64_t epoch, at, batches; /* epochs done; batches done of this one, and in all of it */
  gf_progress progress;
  double saved_at, said_at; /* seconds */
  double losses;            /* since the last line */
  double epoch_losses;      /* of this epoch, as far as this process trained it */
  int64_t epoch_steps;
  beginning began;
  int is_doubted; /* the state, when it was last asked whether to keep it */
  int64_t saved_step, said_step, scored_step, trained_step; /* -1: none of this process; saved_step: or a resumed one */
} training;

static volatile sig_atomic_t interrupted;
static void interrupt(int signal) { interrupted = signal; }

/* A lost connection is the usual end on a board: a terminal that closes sends SIGHUP, which nohup has ignored; without
 * a terminal, the next line of progress gets SIGPIPE. */
static void catch_signals(void) {
  struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESTART}, before;
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGPIPE, &action, NULL);
  if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *block(size_t bytes) {
  void *memory = aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
  if (!memory) die(1, "no memory for a batch; free some");
  return memory;
}

static int is_drawn(const gf_value *value) { return strcmp(value->role, "channels") == 0; }

/* A block each, but for channels: left out, they are drawn. */
static void **blocks(gf_kind kind) {
  void **found = calloc((size_t)gf_step_count(kind) + 1, sizeof *found);
  if (!found) die(1, "no memory for a batch; free some");
  for (int i = 0; i < gf_step_count(kind); ++i)
    if (!is_drawn(gf_step_value(kind, i))) found[i] = block(gf_step_value(kind, i)->bytes);
  return found;
}

/* splitmix64: a state of one number, so that an epoch's order is a function of the seed and the epoch alone. */
static uint64_t draw(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static void shuffle(training *t) {
  uint64_t state = t->wanted->seed;
  state = draw(&state) + (uint64_t)t->epoch;
  for (int64_t i = 0; i < t->data.count; ++i) t->order[i] = i;
  for (int64_t i = t->data.count - 1; i > 0; --i) {
    uint64_t range = (uint64_t)i + 1, limit = UINT64_MAX - UINT64_MAX % range, number;
    do number = draw(&state);
    while (number >= limit);
    int64_t other = (int64_t)(number % range), kept = t->order[i];
    t->order[i] = t->order[other];
    t->order[other] = kept;
  }
}

/* A batch from `first` on, places past the last sample padded with its first one at a weight of 0. */
static int64_t stage(training *t, const dataset *data, const int64_t *order, int64_t first) {
  int64_t count = data->count - first < t->batch ? data->count - first : t->batch;
  for (int i = 0; i < gf_step_count(GF_KIND_INPUT); ++i) {
    const char *role = gf_step_value(GF_KIND_INPUT, i)->role;
    if (strcmp(role, "seed") == 0) *(int64_t *)t->inputs[i] = t->progress.steps & 0xFFFFFFFF;
    for (int slot = 0; slot < t->batch; ++slot) {
      int64_t place = first + (slot < count ? slot : 0), index = order ? order[place] : place;
      if (strcmp(role, "input") == 0) put_sample(data, index, t->inputs[i], slot);
      else if (strcmp(role, "target") == 0) put_target(data, index, t->inputs[i], slot);
      else if (strcmp(role, "sample_weight") == 0) ((float *)t->inputs[i])[slot] = slot < count;
    }
  }
  return count;
}

/* Which output the targets speak of: classes along axis 1, or values like the targets. -1: none. */
static int scored_output(const gf_value *target) {
  int classes = gf_step_about()->classes, skip = classes > 0;
  for (int i = 0; i < gf_step_count(GF_KIND_OUTPUT); ++i) {
    const gf_value *value = gf_step_value(GF_KIND_OUTPUT, i);
    int fits = value->rank == target->rank + skip && value->dtype == GF_FLOAT32;
    if (fits && skip) fits = value->shape[1] == classes;
    for (int axis = 1; fits && axis < target->rank; ++axis) fits = value->shape[axis + skip] == target->shape[axis];
    if (fits && (skip || target->dtype == GF_FLOAT32)) return i;
  }
  return -1;
}

typedef struct {
  double right, squares, counted;
} score;

static void score_sample(const training *t, int output, int slot, score *found) {
  const gf_about *about = gf_step_about();
  const gf_value *target = t->eval.target;
  size_t places = target->bytes / (size_t)t->batch / (target->dtype == GF_INT64 ? 8 : 4);
  int which = gf_step_find(GF_KIND_INPUT, "target", target->name);
  size_t classes = about->classes ? (size_t)about->classes : 1;
  const float *values = (const float *)t->outputs[output] + (size_t)slot * places * classes;
  for (size_t at = 0; at < places; ++at) {
    if (!about->classes) {
      double distance = values[at] - ((const float *)t->inputs[which])[(size_t)slot * places + at];
      found->squares += distance * distance;
    } else {
      int64_t label = ((const int64_t *)t->inputs[which])[(size_t)slot * places + at];
      if (about->has_ignored && label == about->ignored) continue;
      size_t best = 0;
      for (size_t c = 1; c < classes; ++c)
        if (values[c * places + at] > values[best * places + at]) best = c;
      found->right += (int64_t)best == label;
    }
    ++found->counted;
  }
}

static void evaluate(training *t) {
  score found = {0};
  int output = t->has_eval ? scored_output(t->eval.target) : -1;
  double began = now();
  char when[64];
  if (output < 0 || t->scored_step == t->progress.steps) return;
  for (int64_t first = 0; first < t->eval.count && !interrupted; first += t->batch) {
    int64_t count = stage(t, &t->eval, NULL, first);
    if (gf_step_predict(t->step, (const void *const *)t->inputs, t->outputs)) die(1, "%s", gf_error());
    for (int slot = 0; slot < count; ++slot) score_sample(t, output, slot, &found);
  }
  t->said_at += now() - began; /* the next line's samples/s are of training alone */
  if (interrupted || !found.counted) return;
  t->scored_step = t->progress.steps;
  if (t->at || !t->epoch) snprintf(when, sizeof when, "step %" PRId64, t->progress.steps);
  else snprintf(when, sizeof when, "epoch %" PRId64, t->epoch);
  if (gf_step_about()->classes)
    printf("%s: accuracy %.4f on %" PRId64 " samples\n", when, found.right / found.counted, t->eval.count);
  else
    printf("%s: mean squared error %.6g on %" PRId64 " samples\n", when, found.squares / found.counted, t->eval.count);
}

_Noreturn static void end_diverged(const training *t, int64_t step, double loss, const char *more) {
  char kept[80] = "no checkpoint was written";
  if (t->saved_step >= 0) snprintf(kept, sizeof kept, "the checkpoint of step %" PRId64 " is as it was", t->saved_step);
  die(1, "training diverged at step %" PRId64 " with lr %g: the loss was %g at first and is %g now%s; %s; try a smaller"
      " --lr", step, t->progress.lr, t->began.loss, loss, more, kept);
}

/* Weights can have exploded and still be finite; a training that continued from them would not be. Judged on the batch
 * that would come next: the last one they were just fitted to. */
static int is_worth_keeping(training *t, int is_last) {
  float loss;
  const char *words;
  if (t->trained_step != t->progress.steps) return 1; /* as it was loaded */
  stage(t, &t->data, t->order, t->at * t->batch);
  verdict found = judge_state(&t->began, t->step, t->inputs, t->gradients, &loss, &words);
  if (found == HEALTHY) return t->is_doubted = 0, 1;
  if (found == DIVERGED || is_last) end_diverged(t, t->progress.steps, loss, words);
  if (!t->is_doubted)
    printf("warning: step %" PRId64 ": the loss was %g at first and is %g now; no checkpoint is written while it is so\n",
           t->progress.steps, t->began.loss, loss);
  t->is_doubted = 1;
  t->saved_at = now(); /* asked again as late as for a checkpoint */
  return 0;
}

static void save(training *t, int is_last) {
  gf_progress *p = &t->progress;
  if (!t->wanted->checkpoint || t->saved_step == p->steps) return;
  check_files();
  if (!is_worth_keeping(t, is_last)) return;
  snprintf(p->note, sizeof p->note,
           "gf-train seed %" PRIu64 " samples %" PRId64 " size %d epoch %" PRId64 " batch %" PRId64 " loss %.9g",
           t->wanted->seed, t->data.count, t->batch, t->epoch, t->at, t->began.loss);
  if (gf_step_save(t->step, t->wanted->checkpoint, p)) die(1, "%s", gf_error());
  t->saved_step = p->steps;
  t->saved_at = now();
  printf("checkpoint %s: step %" PRId64 "\n", t->wanted->checkpoint, p->steps);
}

/* In place of `before`: a checkpoint's own seed stays. */
static void draw_from_seed(training *t, uint64_t before, uint64_t seed) {
  gf_draw_state state;
  int drawn = 0;
  for (int i = 0; i < gf_step_count(GF_KIND_INPUT); ++i) drawn = drawn || is_drawn(gf_step_value(GF_KIND_INPUT, i));
  if (drawn && seed > UINT32_MAX)
    die(2, "seed %" PRIu64 ": channels are drawn from seeds up to %" PRIu32
        "; give a smaller --seed, or begin another checkpoint", seed, UINT32_MAX);
  if (gf_step_get_draws(t->step, &state)) die(1, "%s", gf_error());
  if (state.seed != before) return;
  state.seed = (uint32_t)seed;
  if (gf_step_set_draws(t->step, &state)) die(1, "%s", gf_error());
}

static void resume(training *t, options *o) {
  gf_progress *p = &t->progress;
  uint64_t seed;
  int64_t samples, epoch, at;
  double first_loss = NAN; /* older versions did not write it */
  int size;
  char previous[4096];
  snprintf(previous, sizeof previous, "%s.previous", o->checkpoint);
  if (!exists(o->checkpoint) && !exists(previous)) return;
  if (gf_step_load(t->step, o->checkpoint, p)) die(1, "%s", gf_error());
  if (p->fault[0]) printf("warning: %s\n", p->fault);
  t->saved_step = p->steps;
  if (sscanf(p->note, "gf-train seed %" SCNu64 " samples %" SCNd64 " size %d epoch %" SCNd64 " batch %" SCNd64
             " loss %lf", &seed, &samples, &size, &epoch, &at, &first_loss) < 5 || epoch < 0 || at < 0) {
    printf("continuing from %s: step %" PRId64 ", not written by gf-train: it begins with epoch 1\n", o->checkpoint,
           p->steps);
    return;
  }
  if (o->has_seed && o->seed != seed)
    die(2, "--seed %" PRIu64 ": '%s' was made with --seed %" PRIu64 "; leave --seed out, or begin another checkpoint",
        o->seed, o->checkpoint, seed);
  draw_from_seed(t, o->seed, seed); /* a file of a dense step has no draws */
  o->seed = seed;
  if (samples != t->data.count)
    die(1,
        "'%s': was made with %" PRId64 " samples, '%s' has %" PRId64
        "; give the same data, or begin another checkpoint",
        o->checkpoint, samples, t->data.images.path, t->data.count);
  t->began.loss = first_loss;
  t->epoch = epoch;
  t->at = size == t->batch ? at : 0;
  if (t->epoch >= o->epochs)
    printf("%s: step %" PRId64 ", all of --epochs %" PRId64 " are done; a larger number goes on\n", o->checkpoint, p->steps,
           (int64_t)o->epochs);
  else
    printf("continuing from %s: step %" PRId64 ", epoch %" PRId64 ", batch %" PRId64 "\n", o->checkpoint, p->steps,
           t->epoch + 1, t->at);
}

static void say_progress(training *t, float loss) {
  double seconds = now() - t->said_at;
  int64_t steps = t->progress.steps - t->said_step;
  t->losses += loss;
  t->epoch_losses += loss;
  ++t->epoch_steps;
  if (seconds < t->wanted->progress) return;
  if (t->wanted->progress == 0)
    printf("step %" PRId64 " loss %.9g\n", t->progress.steps, loss);
  else
    printf("epoch %" PRId64 "  batch %" PRId64 "/%" PRId64 "  step %" PRId64 "  loss %.5f  %.1f samples/s\n",
           t->epoch + 1, t->at, t->batches, t->progress.steps, t->losses / (double)steps,
           (double)(steps * t->batch) / seconds);
  t->losses = 0;
  t->said_at = now();
  t->said_step = t->progress.steps;
}

static int is_due(const training *t) {
  int64_t every = t->wanted->checkpoint_every;
  return every ? t->progress.steps % every == 0 : now() - t->saved_at >= SAVE_SECONDS;
}

static void draw_for_epoch(training *t) {
  gf_draw_state state;
  if (gf_step_get_draws(t->step, &state)) die(1, "%s", gf_error());
  state.epoch = t->epoch;
  if (gf_step_set_draws(t->step, &state)) die(1, "%s", gf_error());
}

/* 0 when the epoch is over, 1 when all is done or interrupted. */
static int run_epoch(training *t) {
  shuffle(t);
  draw_for_epoch(t);
  while (t->at < t->batches) {
    float loss;
    if (interrupted || (t->wanted->steps && t->progress.steps >= t->wanted->steps)) return 1;
    stage(t, &t->data, t->order, t->at * t->batch);
    if (gf_step_train(t->step, (const void *const *)t->inputs, (float)t->progress.lr, &loss)) die(1, "%s", gf_error());
    if (is_beyond_hope(&t->began, t->inputs, loss)) end_diverged(t, t->progress.steps + 1, loss, "");
    t->trained_step = ++t->progress.steps;
    ++t->at;
    say_progress(t, loss);
    if (t->at == t->batches) break;
    if (is_due(t)) save(t, 0);
  }
  ++t->epoch;
  t->at = 0;
  printf("epoch %" PRId64 ": mean loss %.6g", t->epoch, t->epoch_losses / (double)t->epoch_steps);
  if (t->epoch_steps < t->batches) printf(" of its last %" PRId64 " batches", t->epoch_steps);
  printf("\n");
  t->epoch_losses = 0;
  t->epoch_steps = 0;
  return 0;
}

static void release(void **some, gf_kind kind) {
  for (int i = 0; i < gf_step_count(kind); ++i) free(some[i]);
  free(some);
}

int train(gf_step *step, const char *folder, const options *given) {
  const gf_about *about = gf_step_about();
  options o = *given;
  training t = {.step = step, .wanted = &o, .batch = about->batch, .began = begin_training(step, folder),
                .saved_step = -1, .scored_step = -1, .trained_step = -1};
  t.data = open_dataset("training data", o.data, o.labels, &o.how);
  t.has_eval = o.eval_data != NULL;
  if (t.has_eval) t.eval = open_dataset("evaluation data", o.eval_data, o.eval_labels, &o.how);
  t.batches = about->pads ? (t.data.count + t.batch - 1) / t.batch : t.data.count / t.batch;
  if (!t.batches)
    die(1,
        "%" PRId64 " samples do not fill a batch of %d, and this step cannot pad one; recompile with a smaller"
        " --batch", t.data.count, t.batch);
  if (!about->pads && t.data.count % t.batch)
    printf("an epoch leaves out its last %" PRId64 " samples: this step cannot pad a batch\n", t.data.count % t.batch);
  if (!o.epochs) o.epochs = o.steps ? INT64_MAX : 1;
  t.progress.lr = about->lr;
  draw_from_seed(&t, 0, o.seed);
  if (o.checkpoint) {
    if (gf_step_hold(step, o.checkpoint)) die(1, "--checkpoint %s", gf_error()); /* before hours are trained for it */
    resume(&t, &o);
  } else printf("no --checkpoint: what is trained is lost at the end\n");
  if (o.has_lr) t.progress.lr = o.lr;
  t.inputs = blocks(GF_KIND_INPUT);
  t.outputs = blocks(GF_KIND_OUTPUT);
  if (o.checkpoint) t.gradients = blocks(GF_KIND_GRADIENT);
  if (!(t.order = malloc((size_t)t.data.count * sizeof *t.order))) die(1, "no memory for the order of the samples");
  printf("batches of %d, %" PRId64 " an epoch, lr %g, seed %" PRIu64 ", %d threads\n", t.batch, t.batches,
         t.progress.lr, o.seed, gf_step_threads(step));
  catch_signals();
  t.saved_at = t.said_at = now();
  t.said_step = t.progress.steps;
  while (t.epoch < o.epochs && !run_epoch(&t)) {
    save(&t, 0);
    evaluate(&t);
  }
  save(&t, 1);
  if (!interrupted) evaluate(&t); /* --steps ended within an epoch, or all was trained before */
  printf("%s after %" PRId64 " steps\n", interrupted ? "interrupted" : "done", t.progress.steps);
  free(t.order);
  release(t.inputs, GF_KIND_INPUT);
  release(t.outputs, GF_KIND_OUTPUT);
  if (t.gradients) release(t.gradients, GF_KIND_GRADIENT);
  return interrupted ? 128 + interrupted : 0;
}
