/*
 * cgpu-hook: the OCI hooks. It may be started with an image's environment, in an image's directory.
 * So it first leaves both, and reads nothing from either.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "report.h"
#include "stages.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} stages[] = {
    {"poststop", cgpu_stage_poststop},   {"prestart", cgpu_stage_prestart},
    {"precreate", cgpu_stage_precreate}, {"claim", cgpu_stage_claim},
    {"mount", cgpu_stage_mount},
};

int
main(int argc, char **argv)
{
    const struct cgpu_report report = {NULL, false};
    syscall(SYS_close_range, 3U, ~0U, 0U);
    if (clearenv() != 0 || chdir("/") != 0) {
        return 1;
    }
    for (size_t i = 0; argc > 1 && i < sizeof stages / sizeof *stages; i++) {
        if (strcmp(argv[1], stages[i].name) == 0) {
            return stages[i].run(argc, argv);
        }
    }
    cgpu_report_error(&report, "expected cgpu-hook poststop, prestart or precreate");
    return 1;
}
