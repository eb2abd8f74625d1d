#include "mapped_limits.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"
#include "status.h"

static const struct cgpu_limits *
map(const char *path)
{
    struct stat file;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    void *page = MAP_FAILED;
    if (fstat(fd, &file) == 0 && file.st_size >= (off_t)sizeof(struct cgpu_limits)) {
        page = mmap(NULL, sizeof(struct cgpu_limits), PROT_READ, MAP_SHARED, fd, 0);
    }
    close(fd);
    return page != MAP_FAILED ? page : NULL;
}

const struct cgpu_limits *
cgpu_mapped_limits_open(void)
{
    char path[CGPU_BASE_PATH_SIZE];
    if (cgpu_base_path(path, sizeof path, "limits") != CGPU_OK) {
        return NULL;
    }
    const struct cgpu_limits *limits = map(path);
    if (limits == NULL) {
        return NULL;
    }
    if (limits->magic != CGPU_LIMITS_MAGIC || limits->version != CGPU_LIMITS_VERSION ||
        limits->size != sizeof *limits || limits->gpu_count > CGPU_MAX_GPUS) {
        munmap((void *)(uintptr_t)limits, sizeof *limits);
        return NULL;
    }
    return limits;
}

int
cgpu_mapped_limits_find(const struct cgpu_limits *limits, const uint8_t uuid[16])
{
    for (uint32_t i = 0; i < limits->gpu_count && i < CGPU_MAX_GPUS; i++) {
        if (memcmp(limits->gpus[i].uuid, uuid, sizeof limits->gpus[i].uuid) == 0) {
            return (int)i;
        }
    }
    return CGPU_ENOTFOUND;
}
