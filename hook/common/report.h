/*
 * How a refusal reaches the user: one line on stderr, and for an engine one in the runtime's log.
 */
#ifndef CGPU_REPORT_H
#define CGPU_REPORT_H

#include <stdbool.h>

struct cgpu_report {
    const char *log; /* the runtime's --log file, or NULL */
    bool json;       /* --log-format json */
};

/* Report "cgpu: " and the message. There is no error: nobody could do anything about it. */
__attribute__((format(printf, 2, 3))) void cgpu_report_error(const struct cgpu_report *report,
                                                             const char *format, ...);

#endif
