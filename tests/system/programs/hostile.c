/* A library that a hostile image wants the host to load: it leaves a mark where it runs. */
#include <fcntl.h>
#include <unistd.h>

__attribute__((constructor)) static void
leave_mark(void)
{
    int fd = open(CGPU_TEST_MARK, O_WRONLY | O_CREAT, 0600);

    if (fd >= 0) {
        close(fd);
    }
}
