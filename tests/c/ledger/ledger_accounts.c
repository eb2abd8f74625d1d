/* Charges and releases of one process, and what is refused. */
#define _GNU_SOURCE 1

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

TEST(a_charge_fits_wholly_or_changes_nothing)
{
    struct cgpu_ledger *ledger = check_attach(check_ledger());
    uint64_t charged = 7;

    CHECK(cgpu_ledger_charge(ledger, 0, 1000, 600, &charged) == CGPU_OK && charged == 600);
    charged = 7;
    CHECK(cgpu_ledger_charge(ledger, 0, 1000, 401, &charged) == CGPU_EOVERCAP);
    CHECK(charged == 7);
    CHECK(cgpu_ledger_used(ledger, 0) == 600 && cgpu_ledger_own(ledger, 0) == 600);
    CHECK(cgpu_ledger_refused(ledger, 0) == 1);
    CHECK(cgpu_ledger_charge(ledger, 0, 1000, 400, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_used(ledger, 0) == 1000);
    cgpu_ledger_detach(ledger);
}

TEST(sums_beyond_64_bits_are_refused)
{
    struct cgpu_ledger *ledger = check_attach(check_ledger());
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, UINT64_MAX, 10, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_charge(ledger, 0, UINT64_MAX, UINT64_MAX, &charged) == CGPU_EOVERCAP);
    CHECK(cgpu_ledger_charge(ledger, 0, UINT64_MAX, UINT64_MAX - 10, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_used(ledger, 0) == UINT64_MAX);
    cgpu_ledger_detach(ledger);
}

TEST(each_gpu_has_its_own_account)
{
    struct cgpu_ledger *ledger = check_attach(check_ledger());
    uint64_t charged;

    for (uint32_t gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        CHECK(cgpu_ledger_charge(ledger, gpu, 100, gpu + 1, &charged) == CGPU_OK);
    }
    for (uint32_t gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        CHECK(cgpu_ledger_used(ledger, gpu) == gpu + 1 && cgpu_ledger_own(ledger, gpu) == gpu + 1);
    }
    CHECK(cgpu_ledger_charge(ledger, CGPU_MAX_GPUS, 100, 1, &charged) == CGPU_EINVAL);
    CHECK(cgpu_ledger_release(ledger, CGPU_MAX_GPUS, 1) == CGPU_EINVAL);
    CHECK(cgpu_ledger_used(ledger, CGPU_MAX_GPUS) == 0);
    cgpu_ledger_detach(ledger);
}

TEST(more_than_was_charged_cannot_be_released)
{
    const char *path = check_ledger();
    struct cgpu_ledger *ledger = check_attach(path);
    struct cgpu_ledger *other = check_attach(path);
    uint64_t charged;

    CHECK(cgpu_ledger_charge(other, 0, 1000, 500, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_charge(ledger, 0, 1000, 100, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_release(ledger, 0, 101) == CGPU_EINVAL);
    CHECK(cgpu_ledger_used(ledger, 0) == 600);
    CHECK(cgpu_ledger_release(ledger, 0, 100) == CGPU_OK);
    CHECK(cgpu_ledger_used(ledger, 0) == 500 && cgpu_ledger_own(ledger, 0) == 0);
    cgpu_ledger_detach(other);
    CHECK(cgpu_ledger_used(ledger, 0) == 0);
    cgpu_ledger_detach(ledger);
}

/* MEM-8 */
TEST(a_cap_lowered_below_use_refuses_and_frees_nothing)
{
    struct cgpu_ledger *ledger = check_attach(check_ledger());
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, 1000, 800, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_charge(ledger, 0, 500, 0, &charged) == CGPU_EOVERCAP);
    CHECK(cgpu_ledger_charge(ledger, 0, 500, 1, &charged) == CGPU_EOVERCAP);
    CHECK(cgpu_ledger_used(ledger, 0) == 800);
    CHECK(cgpu_ledger_charge(ledger, 0, 1000, 200, &charged) == CGPU_OK);
    cgpu_ledger_detach(ledger);
}

TEST(an_observer_sees_everything_and_cannot_charge)
{
    const char *path = check_ledger();
    struct cgpu_ledger *ledger = check_attach(path);
    struct cgpu_ledger *observer;
    struct cgpu_process processes[2];
    uint64_t charged;
    size_t count;

    CHECK(cgpu_ledger_charge(ledger, 3, 100, 60, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_charge(ledger, 3, 100, 60, &charged) == CGPU_EOVERCAP);
    CHECK(cgpu_ledger_observe(path, &observer) == CGPU_OK);
    CHECK(cgpu_ledger_used(observer, 3) == 60 && cgpu_ledger_refused(observer, 3) == 1);
    CHECK(cgpu_ledger_total(observer, 3) == 60 && cgpu_ledger_total(observer, 2) == 0);
    CHECK(cgpu_ledger_own(observer, 3) == 0);
    CHECK(cgpu_ledger_charge(observer, 3, 100, 1, &charged) == CGPU_EINVAL);
    CHECK(cgpu_ledger_release(observer, 3, 1) == CGPU_EINVAL);
    CHECK(cgpu_ledger_processes(observer, 3, processes, 2, &count) == CGPU_OK && count == 1);
    CHECK(processes[0].pid == (uint32_t)getpid() && processes[0].used_bytes == 60);
    CHECK(cgpu_ledger_processes(observer, 2, processes, 2, &count) == CGPU_OK && count == 0);
    CHECK(cgpu_ledger_processes(ledger, CGPU_MAX_GPUS, NULL, 0, &count) == CGPU_OK && count == 1);
    cgpu_ledger_detach(ledger);
    CHECK(cgpu_ledger_used(observer, 3) == 0);
    cgpu_ledger_detach(observer);
}

TEST(the_file_has_its_exact_size_and_mode_whatever_the_umask)
{
    const char *path;
    struct stat found;

    umask(077);
    path = check_ledger();
    CHECK(stat(path, &found) == 0);
    CHECK((found.st_mode & 07777) == 0666 && found.st_size == sizeof(struct cgpu_ledger_file));
    CHECK(cgpu_ledger_create(AT_FDCWD, path) == CGPU_EIO); /* never over another's */
    CHECK(stat(path, &found) == 0);
}

TEST(detached_and_missing_ledgers_are_refused)
{
    struct cgpu_ledger *ledger = (struct cgpu_ledger *)&ledger;
    uint64_t charged;
    size_t count;

    CHECK(cgpu_ledger_attach("/nonexistent/ledger", 1, &ledger) == CGPU_EIO && ledger == NULL);
    CHECK(cgpu_ledger_observe("/nonexistent/ledger", &ledger) == CGPU_EIO && ledger == NULL);
    CHECK(cgpu_ledger_attach(NULL, 1, &ledger) == CGPU_EINVAL);
    CHECK(cgpu_ledger_charge(NULL, 0, 1, 1, &charged) == CGPU_EINVAL);
    CHECK(cgpu_ledger_release(NULL, 0, 1) == CGPU_EINVAL);
    CHECK(cgpu_ledger_processes(NULL, 0, NULL, 0, &count) == CGPU_EINVAL);
    CHECK(cgpu_ledger_used(NULL, 0) == 0 && cgpu_ledger_refused(NULL, 0) == 0);
    cgpu_ledger_detach(NULL);
}

static int
lowest_free_descriptor(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

TEST(one_descriptor_stays_open_until_the_ledger_is_left)
{
    const char *path = check_ledger();
    int before = lowest_free_descriptor();
    struct cgpu_ledger *ledger = check_attach(path);

    CHECK(fcntl(before, F_GETFD) == FD_CLOEXEC);
    CHECK(lowest_free_descriptor() == before + 1);
    CHECK(cgpu_ledger_used(ledger, 0) == 0);
    CHECK(lowest_free_descriptor() == before + 1);
    cgpu_ledger_detach(ledger);
    CHECK(lowest_free_descriptor() == before);
}

TEST(closed_standard_descriptors_are_not_taken_for_the_ledger)
{
    const char *path = check_ledger();
    struct cgpu_ledger *ledger;

    close(0);
    CHECK(cgpu_ledger_observe(path, &ledger) == CGPU_OK);
    CHECK(fcntl(0, F_GETFD) == -1); /* what the program reads there would come from the ledger */
    CHECK(cgpu_ledger_used(ledger, 0) == 0);
    cgpu_ledger_detach(ledger);
}
