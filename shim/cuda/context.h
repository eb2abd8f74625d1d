/* Contexts. */
#ifndef CGPU_CUDA_CONTEXT_H
#define CGPU_CUDA_CONTEXT_H

#include "entry/shim.h"

/* CONTEXT is gone: give back all that it owned. */
void cgpu_context_gone(CUcontext context);

#endif
