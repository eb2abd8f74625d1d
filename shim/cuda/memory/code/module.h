/* Modules. */
#ifndef CGPU_CUDA_MODULE_H
#define CGPU_CUDA_MODULE_H

#include "entry/shim.h"

/*
 * The driver takes memory for code and for variables in blocks of 2 MiB. So an image may begin one
 * block of each kind beyond what it needs. `make gpu-check` compares this with what a driver takes.
 */
enum { CGPU_CODE_SLACK = 4 << 20 };

/* Return NOT_SUPPORTED, with a log line. */
CUresult cgpu_module_refuse_managed(const char *name);

#endif
