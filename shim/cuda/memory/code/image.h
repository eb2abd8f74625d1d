/* The most that an image can need, by its own headers. */
#ifndef CGPU_CUDA_IMAGE_H
#define CGPU_CUDA_IMAGE_H

#include "entry/shim.h"

/* The limit of sums: more than any GPU has. */
#define CGPU_IMAGE_MOST (UINT64_C(1) << 43)

/* The bound that is assumed for an image that cannot be read. */
enum { CGPU_CODE_PLAUSIBLE = 64 << 20 };

struct cgpu_image {
    uint64_t bytes;     /* the most that loading may take */
    uint64_t variables; /* in global memory, as far as the image states their sizes */
    bool hidden;        /* some parts cannot be read, and may hold more variables */
    bool read;          /* of a fat binary: some member could be read */
    bool managed;       /* a managed variable is declared */
    bool calls;         /* it may call what needs the driver's library: printf, assert, malloc */
    bool heap;          /* it calls malloc */
};

/* A x B, at most CGPU_IMAGE_MOST. */
static inline uint64_t
cgpu_image_product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) || result > CGPU_IMAGE_MOST ? CGPU_IMAGE_MOST
                                                                             : result;
}

static inline void
cgpu_image_add(struct cgpu_image *image, uint64_t bytes)
{
    bytes = bytes < CGPU_IMAGE_MOST ? bytes : CGPU_IMAGE_MOST;
    image->bytes = image->bytes < CGPU_IMAGE_MOST - bytes ? image->bytes + bytes : CGPU_IMAGE_MOST;
}

static inline void
cgpu_image_add_variables(struct cgpu_image *image, uint64_t bytes)
{
    struct cgpu_image sum = {.bytes = image->variables};
    cgpu_image_add(&sum, bytes);
    image->variables = sum.bytes;
}

/* Scan the code at DATA. Only its own headers show where it ends. */
void cgpu_image_scan(const void *data, struct cgpu_image *image);

/* Scan the code in the file at PATH. */
void cgpu_image_scan_file(const char *path, struct cgpu_image *image);

#endif
