#include "arguments.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/*
 * The options that have a value, of runc 1.0 to 1.4 and crun 1.x together; all other options are
 * switches. For an option without a target the value does not matter. It is listed so that its
 * value is not mistaken for another word.
 */
struct option {
    const char *name;
    size_t target; /* offset in struct cgpu_arguments, or NOWHERE */
};

#define NOWHERE       ((size_t)-1)
#define EXACT         ((size_t)-2) /* NOWHERE, but only of runc, which accepts no abbreviations */
#define OFFSET(field) offsetof(struct cgpu_arguments, field)

static const struct option global_options[] = {
    {"cgpu-runtime", OFFSET(runtime)},
    {"cgpu-state-dir", OFFSET(state_dir)},
    {"cgpu-driver-dir", OFFSET(driver_dir)},
    {"root", OFFSET(root)},
    {"log", OFFSET(log)},
    {"log-format", OFFSET(log_format)},
    {"log-level", NOWHERE},
    {"cgroup-manager", NOWHERE},
    {"criu", EXACT},
    {"rootless", NOWHERE},
    {"program-name", NOWHERE}, /* hidden: every program with argp has it */
    {NULL, NOWHERE},
};

/* Switches of runc and crun. With one of `informational`, the runtime creates no container. */
static const char *const global_switches[] = {"debug", "systemd-cgroup", NULL};
static const char *const informational[] = {"help", "h", "version", "v", "V", NULL};

static const struct option create_options[] = {
    {"bundle", OFFSET(bundle)},
    {"b", OFFSET(bundle)},
    {"config", OFFSET(config)},
    {"f", OFFSET(config)},
    {"console-socket", NOWHERE},
    {"pid-file", NOWHERE},
    {"pidfd-socket", EXACT},
    {"preserve-fds", NOWHERE},
    {"program-name", NOWHERE}, /* as above */
    {"image-path", NOWHERE},   /* from here on, of restore alone */
    {"work-path", NOWHERE},
    {"manage-cgroups-mode", NOWHERE},
    {"empty-ns", EXACT},
    {"lsm-profile", NOWHERE},
    {"lsm-mount-context", NOWHERE},
    {NULL, NOWHERE},
};

static const struct option *
find_option(const struct option *table, const char *name, size_t length)
{
    for (; table->name != NULL; table++) {
        if (strlen(table->name) == length && strncmp(table->name, name, length) == 0) {
            return table;
        }
    }
    return NULL;
}

static bool
is_own_option(const char *argument)
{
    return strncmp(argument + strspn(argument, "-"), "cgpu-", 5) == 0;
}

/* Whether crun accepts every abbreviation of the option's name. */
static bool
is_abbreviated(const struct option *option)
{
    bool is_letter = option->name[1] == '\0';
    return !is_letter && option->target != EXACT && !is_own_option(option->name);
}

/*
 * Find the option whose name begins with the LENGTH letters at NAME: crun accepts abbreviations. If
 * several names begin like that, crun refuses the word or knows only one of them. Then it is only
 * certain that a value follows.
 */
static const struct option *
find_abbreviated(const struct option *table, const char *name, size_t length)
{
    static const struct option unclear = {"", NOWHERE};
    const struct option *found = NULL;
    for (; length > 0 && table->name != NULL; table++) {
        if (strncmp(table->name, name, length) == 0 && is_abbreviated(table)) {
            found = found == NULL ? table : &unclear;
        }
    }
    return found;
}

/*
 * Find the option that ARGUMENT names. *VALUE: where its value begins; NULL: in the next argument.
 * Go accepts one dash in place of two. crun accepts abbreviations, -bVALUE, and -d in front of
 * that.
 */
static const struct option *
match_option(const struct option *table, const char *argument, const char **value)
{
    bool is_long = argument[1] == '-';
    const char *name = argument + (is_long ? 2 : 1);
    size_t length = strcspn(name, "=");
    const struct option *option = is_long && length == 1 ? NULL : find_option(table, name, length);
    *value = name[length] == '=' ? name + length + 1 : NULL;
    if (option == NULL && is_long) {
        option = find_abbreviated(table, name, length);
    } else if (option == NULL && length > 1) {
        name += strspn(name, "d");
        option = find_option(table, name, name[0] != '\0');
        *value = option != NULL && name[1] != '\0' ? name + 1 : NULL;
    }
    return option;
}

/* Whether ARGUMENT is exactly one of the switches NAMES, with one dash or two. */
static bool
is_switch(const char *const *names, const char *argument)
{
    const char *name = argument + 1 + (argument[1] == '-');
    for (; *names != NULL; names++) {
        if (strcmp(name, *names) == 0) {
            return true;
        }
    }
    return false;
}

/*
 * Record whether the global switch ARGUMENT asks for help or a version. If the switch is unknown,
 * record that the next word may be its value.
 */
static void
note_switch(struct cgpu_arguments *out, const char *argument)
{
    if (is_switch(informational, argument)) {
        out->is_informational = out->is_informational || !out->has_unknown_options;
    } else if (strchr(argument, '=') == NULL && !is_switch(global_switches, argument)) {
        out->has_unknown_options = true;
    }
}

static void
store_value(struct cgpu_arguments *out, size_t target, const char *value)
{
    if (target != NOWHERE && target != EXACT) {
        *(const char **)((char *)out + target) = value;
    }
}

static void
take_positional(struct cgpu_arguments *out, const char *argument)
{
    if (out->subcommand == NULL) {
        out->subcommand = argument;
    } else if (out->positionals++ == 0) {
        out->id = argument;
    }
}

const char *
cgpu_arguments_parse(int argc, char **argv, struct cgpu_arguments *out)
{
    memset(out, 0, sizeof *out);
    out->forwarded = calloc((size_t)argc + 2, sizeof *out->forwarded);
    if (out->forwarded == NULL) {
        return "out of memory";
    }
    int count = 1;
    bool options_end = false, helps = false;
    for (int i = 1; i < argc; i++) {
        char *argument = argv[i];
        bool global = out->subcommand == NULL;
        const char *value = NULL;
        if (options_end || argument[0] != '-' || argument[1] == '\0') {
            take_positional(out, argument);
            out->forwarded[count++] = argument;
            continue;
        }
        options_end = strcmp(argument, "--") == 0;
        const struct option *option =
            match_option(global ? global_options : create_options, argument, &value);
        if (option == NULL && global && !options_end) {
            note_switch(out, argument);
        }
        helps = helps || (option == NULL && !global && is_switch(informational, argument));
        bool ours = global && option != NULL && is_own_option(argument);
        if (!ours) {
            out->forwarded[count++] = argument;
        }
        if (option == NULL || (value == NULL && i + 1 == argc)) {
            continue;
        }
        if (value == NULL) {
            value = argv[++i];
            if (!ours) {
                out->forwarded[count++] = argv[i];
            }
        }
        store_value(out, option->target, value);
    }
    out->is_informational = out->is_informational || (helps && out->positionals == 0);
    return NULL;
}
