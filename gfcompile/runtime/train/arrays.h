/* Arrays in files: .npy of numpy, and the idx files that MNIST and its relatives come in. Mapped, not read. */
#ifndef ARRAYS_H
#define ARRAYS_H

#include <stddef.h>
#include <stdint.h>

enum { MAX_AXES = 8 };
typedef enum { UINT8, INT32, INT64, FLOAT32, FLOAT64 } number_type;

typedef struct {
  const char *path;
  number_type type;
  int rank;
  int64_t shape[MAX_AXES];
  const unsigned char *data;
} array;

/* Print "gf-train: ..." and end the program with this code: 1 something failed, 2 something was asked wrongly. */
_Noreturn void die(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* From then on, if the file is truncated or its disk fails while it is in use, a sentence says so and the program ends. */
array open_array(const char *path);
/* Are all opened files as long as they were? The rest of a page that a truncation has cut reads as zeros. */
void check_files(void);
/* Is there such a file? */
int exists(const char *path);
double number_at(const array *values, size_t index);
int is_integer(const array *values);
/* Values in one sample: the product of all axes but the first. */
size_t sample_size(const array *values);
/* "60000x28x28", in one of a few static buffers. */
const char *shape_text(const int64_t *shape, int rank);

#endif
