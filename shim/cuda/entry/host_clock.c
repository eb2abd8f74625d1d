/* The host's clock in a time namespace: see host_clock.h. */
#include "entry/host_clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINES_SIZE = 256, LINK_SIZE = 64 };

/*
 * Whether the file shows the offsets of the process's own namespace. It shows those of the
 * namespace for children, which is the same unless the process has created or joined another one.
 */
static bool
is_own(void)
{
    char own[LINK_SIZE], children[LINK_SIZE];
    ssize_t length = readlink("/proc/self/ns/time", own, sizeof(own));

    return length > 0 && length < LINK_SIZE &&
           readlink("/proc/self/ns/time_for_children", children, sizeof(children)) == length &&
           memcmp(own, children, (size_t)length) == 0;
}

static bool
read_offsets(char *text)
{
    int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
    ssize_t length;

    if (fd < 0) {
        return false;
    }
    length = read(fd, text, LINES_SIZE - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

int64_t
cgpu_host_clock_ahead(void)
{
    static const char name[] = "monotonic";
    char text[LINES_SIZE];
    int saved = errno;
    int64_t ahead = 0;

    if (is_own() && read_offsets(text) && strncmp(text, name, sizeof(name) - 1) == 0) {
        char *rest;
        int64_t seconds = strtoll(text + sizeof(name) - 1, &rest, 10);

        ahead = seconds * INT64_C(1000000000) + strtoll(rest, NULL, 10);
    }
    errno = saved;
    return ahead;
}
