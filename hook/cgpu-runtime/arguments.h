/* The parts of an OCI runtime's command line that cgpu needs. Our own options are removed. */
#ifndef CGPU_ARGUMENTS_H
#define CGPU_ARGUMENTS_H

#include <stdbool.h>

struct cgpu_arguments {
    char **forwarded;       /* for the low-level runtime; [0] is to be filled in; ends with NULL */
    const char *subcommand; /* NULL: none */
    const char *root;       /* global options; NULL: not given */
    const char *log;
    const char *log_format;
    const char *bundle; /* options of create, run and restore; NULL: not given */
    const char *config;
    const char *id;
    int positionals;          /* how many there are after the subcommand */
    bool is_informational;    /* it asks for help or a version: no container is created */
    bool has_unknown_options; /* its value may look like the subcommand */
    const char *runtime;      /* our own options */
    const char *state_dir;
    const char *driver_dir;
};

/* Read the command line. Returns NULL, or what is wrong with it. */
const char *cgpu_arguments_parse(int argc, char **argv, struct cgpu_arguments *out);

#endif
