/* Code of a program before it is loaded: cubins, fat binaries, PTX (MEM-1, MEM-3). */
#include "driver.h"
#include "shim/cuda/memory/code/image.c" /* for scan_any, which is given where the image ends */

void
fuzz_begin(void)
{
}

void
fuzz_one(const unsigned char *data, size_t size)
{
    struct cgpu_image image = {.bytes = 0};

    scan_any(data, size, &image);
    FUZZ_CHECK(image.bytes <= CGPU_IMAGE_MOST && image.variables <= CGPU_IMAGE_MOST);
}
