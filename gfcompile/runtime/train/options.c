#define _DEFAULT_SOURCE
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help[] =
    "usage: gf-train --data DATA [--labels FILE] [options]\n"
    "       gf-train --selftest\n"
    "\n"
    "Train the compiled step of this folder; no Python is needed.\n"
    "\n"
    "data:\n"
    "  --data FOLDER        with train-images-idx3-ubyte and train-labels-idx1-ubyte and, to evaluate,\n"
    "                       t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte; unpack .gz files first\n"
    "  --data FILE          .npy or idx, the first axis counting the samples: N x channels x height x width,\n"
    "                       N x height x width, N x height x width x channels, or exactly what the step takes\n"
    "  --labels FILE        targets of --data FILE: class numbers, or float32 values for losses like mse\n"
    "  --eval-data FILE     samples to evaluate on after each epoch and at the end, with --eval-labels FILE\n"
    "  --scale X            multiply values by this; default: 1/255 for bytes, 1 for others\n"
    "  --mean A[,B,C]       subtract, one number or one per channel; after --scale\n"
    "  --std A[,B,C]        divide by, after --mean\n"
    "  Images of another size are resized to the nearest pixel; a single channel is repeated.\n"
    "\n"
    "training:\n"
    "  --epochs N           how often to go through the data, those before a resume included; default: 1\n"
    "  --steps N            stop after this many steps, those before a resume included\n"
    "  --lr X               learning rate; default: the checkpoint's, else the one it was compiled with\n"
    "  --seed N             of the shuffling, and of the channels that a sparse step draws; default: 0\n"
    "  --threads N          default: all cores\n"
    "\n"
    "keeping:\n"
    "  --checkpoint FILE    continue from it if it exists; write it after each epoch, every 30 seconds, at the\n"
    "                       end, and when interrupted (SIGINT, SIGTERM, SIGHUP, a closed output);\n"
    "                       FILE.previous is the one before; a training that diverged ends and writes nothing\n"
    "  --checkpoint-every N write it every N steps, not every 30 seconds\n"
    "\n"
    "other:\n"
    "  --progress SECONDS   between two lines of progress; 0: one line per step; default: 5\n"
    "  --selftest           compare loss and gradients of a bundled batch with what PyTorch computed\n"
    "  --version, --help\n"
    "\n"
    "Trained weights go back into the model with: gfcompile export FILE --state-dict OUT.safetensors\n";

static double read_number(const char *option, const char *text) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value) || value < 0)
    die(2, "--%s '%s': must be a finite number, 0 or more", option, text);
  return value;
}

static double read_rate(const char *option, const char *text) {
  double value = read_number(option, text);
  if (!isfinite((float)value)) die(2, "--%s '%s': is more than a float32 holds; give 3.4e38 or less", option, text);
  return value;
}

static int64_t read_whole(const char *option, const char *text, int64_t least) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  if (end == text || *end || errno || value < least)
    die(2, "--%s '%s': must be a whole number, %lld or more", option, text, (long long)least);
  return value;
}

static int read_threads(const char *option, const char *text) {
  int64_t threads = read_whole(option, text, 1);
  return threads < INT_MAX ? (int)threads : INT_MAX; /* the runtime takes as many as it can use */
}

static int read_list(const char *option, const char *text, double *values) {
  int count = 0;
  for (const char *at = text;; ++at) {
    char *end;
    if (count == MAX_CHANNELS) die(2, "--%s '%s': more than %d numbers", option, text, MAX_CHANNELS);
    values[count++] = strtod(at, &end);
    if (end == at || (*end && *end != ',') || !isfinite(values[count - 1]))
      die(2, "--%s '%s': must be numbers separated by commas", option, text);
    at = end;
    if (!*at) return count;
  }
}

static char *beside(const char *folder, const char *name) {
  char *path = malloc(strlen(folder) + strlen(name) + 2);
  if (!path) die(1, "no memory for a path");
  sprintf(path, "%s/%s", folder, name);
  return path;
}

static char *idx_file(const char *folder, const char *name, int required) {
  char *path = beside(folder, name);
  if (exists(path)) return path;
  char *packed = beside(folder, name);
  packed = realloc(packed, strlen(packed) + 4);
  if (packed && exists(strcat(packed, ".gz")))
    die(1, "'%s': is compressed; unpack it with: gunzip -k '%s'", packed, packed);
  if (required)
    die(1, "'%s': has no %s; give a folder of idx files, or --data FILE with --labels FILE", folder, name);
  free(packed);
  free(path);
  return NULL;
}

/* A folder stands for the files in it that have the usual names. */
static void find_files(options *o) {
  struct stat about;
  if (stat(o->data, &about)) die(1, "--data '%s': %s; check the path", o->data, strerror(errno));
  if (S_ISDIR(about.st_mode)) {
    const char *folder = o->data;
    if (o->labels) die(2, "--labels: goes with --data FILE; '%s' is a folder of idx files", folder);
    o->data = idx_file(folder, "train-images-idx3-ubyte", 1);
    o->labels = idx_file(folder, "train-labels-idx1-ubyte", 1);
    if (!o->eval_data && (o->eval_data = idx_file(folder, "t10k-images-idx3-ubyte", 0)))
      o->eval_labels = idx_file(folder, "t10k-labels-idx1-ubyte", 1);
  }
  if (!o->labels) die(2, "--labels: is missing; --data FILE needs the targets of its samples");
  if (!o->eval_data != !o->eval_labels) die(2, "--eval-data and --eval-labels: give both, or none");
}

options read_options(int count, char **words) {
  enum { DATA = 256, LABELS, EVAL_DATA, EVAL_LABELS, SCALE, MEAN, STD, EPOCHS, STEPS, LR, SEED, THREADS, CHECKPOINT,
         EVERY, PROGRESS, SELFTEST, VERSION, HELP };
  static const struct option known[] = {
      {"data", 1, 0, DATA}, {"labels", 1, 0, LABELS}, {"eval-data", 1, 0, EVAL_DATA},
      {"eval-labels", 1, 0, EVAL_LABELS}, {"scale", 1, 0, SCALE}, {"mean", 1, 0, MEAN}, {"std", 1, 0, STD},
      {"epochs", 1, 0, EPOCHS}, {"steps", 1, 0, STEPS}, {"lr", 1, 0, LR}, {"seed", 1, 0, SEED},
      {"threads", 1, 0, THREADS}, {"checkpoint", 1, 0, CHECKPOINT}, {"checkpoint-every", 1, 0, EVERY},
      {"progress", 1, 0, PROGRESS}, {"selftest", 0, 0, SELFTEST}, {"version", 0, 0, VERSION}, {"help", 0, 0, HELP},
      {0, 0, 0, 0}};
  options o = {.progress = 5};
  int option, which;
  opterr = 0;
  while ((option = getopt_long(count, words, "", known, &which)) != -1) {
    const char *name = option >= DATA ? known[which].name : "";
    switch (option) {
      case DATA: o.data = optarg; break;
      case LABELS: o.labels = optarg; break;
      case EVAL_DATA: o.eval_data = optarg; break;
      case EVAL_LABELS: o.eval_labels = optarg; break;
      case SCALE: o.how.scale = read_number(name, optarg), o.how.has_scale = 1; break;
      case MEAN: o.how.means = read_list(name, optarg, o.how.mean); break;
      case STD: o.how.stds = read_list(name, optarg, o.how.std); break;
      case EPOCHS: o.epochs = read_whole(name, optarg, 1); break;
      case STEPS: o.steps = read_whole(name, optarg, 1); break;
      case LR: o.lr = read_rate(name, optarg), o.has_lr = 1; break;
      case SEED: o.seed = (uint64_t)read_whole(name, optarg, 0), o.has_seed = 1; break;
      case THREADS: o.threads = read_threads(name, optarg); break;
      case CHECKPOINT:
        if (!*optarg) die(2, "--checkpoint: is empty; give the name of a file");
        o.checkpoint = optarg;
        break;
      case EVERY: o.checkpoint_every = read_whole(name, optarg, 1); break;
      case PROGRESS: o.progress = read_number(name, optarg); break;
      case SELFTEST: o.selftest = 1; break;
      case VERSION:
        printf("gf-train of %s, compiled by gfcompile %s for %s, build %.12s\n", gf_step_about()->name,
               gf_step_about()->version, gf_step_about()->target, gf_build_id());
        exit(0);
      case HELP: fputs(help, stdout); exit(0);
      default: die(2, "'%s' is not an option, or lacks its value; see gf-train --help", words[optind - 1]);
    }
  }
  if (optind < count) die(2, "'%s' is not an option; see gf-train --help", words[optind]);
  for (int i = 0; i < o.how.stds; ++i)
    if (o.how.std[i] <= 0) die(2, "--std: must be more than 0");
  if (o.selftest) return o;
  if (!o.data) die(2, "--data: is missing; see gf-train --help");
  if (o.checkpoint_every && !o.checkpoint) die(2, "--checkpoint-every: goes with --checkpoint FILE");
  find_files(&o);
  return o;
}
