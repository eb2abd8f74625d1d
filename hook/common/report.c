#include "report.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_SIZE 4096

/* Write TEXT as the inside of a JSON string. The log's text format quotes in the same way. */
static void
put_escaped(FILE *file, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            fprintf(file, "\\%c", c);
        } else if (c < 0x20) {
            fprintf(file, "\\u%04x", c);
        } else {
            fputc(c, file);
        }
    }
}

static void
append_to_log(const struct cgpu_report *report, const char *message)
{
    char when[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    const char *path = strncmp(report->log, "file:", 5) == 0 ? report->log + 5 : report->log;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "a");
    if (file == NULL) {
        return;
    }
    fputs(report->json ? "{\"level\":\"error\",\"msg\":\"" : "time=\"", file);
    if (!report->json) {
        fprintf(file, "%s\" level=error msg=\"", when);
    }
    put_escaped(file, message);
    if (report->json) {
        fprintf(file, "\",\"time\":\"%s\"}\n", when);
    } else {
        fputs("\"\n", file);
    }
    fclose(file);
}

/* Make TEXT one line, whatever an id or a path in it contains. */
static void
keep_on_one_line(char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f) {
            *text = ' ';
        }
    }
}

void
cgpu_report_error(const struct cgpu_report *report, const char *format, ...)
{
    char message[MESSAGE_SIZE] = "cgpu: ";
    size_t start = strlen(message);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message + start, sizeof message - start, format, arguments);
    va_end(arguments);
    keep_on_one_line(message);
    dprintf(STDERR_FILENO, "%s\n", message);
    if (report->log != NULL) {
        append_to_log(report, message);
    }
}
