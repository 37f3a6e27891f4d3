/* The step's library, which is looked at before it is loaded: the system's loader trusts every byte of a file, and ends
 * the program where one is damaged. */
#ifndef LIBRARY_H
#define LIBRARY_H

/* Compare this program and the library beside it with the manifest there, and load the library. The functions of
 * gf_step.h can be called from then on. Returns the folder; a program that holds the step itself loads nothing. */
const char *load_library(const char *program);

#endif
