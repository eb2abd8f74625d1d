#include "stages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "report.h"
#include "state.h"

/* All files that a container's directory can hold (FILES of record.py). Nothing else is removed. */
static const char *const known[] = {"limits", "ledger", "record.json", "notes", "pod", "guest"};

#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/*
 * Whether ID can be a container's id, as in registry.py: letters, digits, _ . and -, no dot at the
 * beginning.
 */
static bool
is_id(const char *id)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    size_t length = strlen(id);
    return length > 0 && length <= 64 && id[0] != '.' && strspn(id, allowed) == length;
}

static int
remove_container(int containers, const char *id)
{
    int directory = openat(containers, id, DIRECTORY);
    if (directory < 0) {
        return errno == ENOENT ? 0 : -1;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        unlinkat(directory, known[i], 0); /* what could not go is reported by the next call */
    }
    close(directory);
    /* the server and the next admission remove it too */
    return unlinkat(containers, id, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -1;
}

/*
 * Connect to the server, so that it refreshes (see node/cgpu_node/server.py). Otherwise it notices
 * the end later.
 */
static void
wake_server(int state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int end = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/cgpud.sock", state);
    if (end >= 0) {
        (void)connect(end, (const struct sockaddr *)&address, sizeof address);
        close(end);
    }
}

/*
 * The id of the container: GIVEN as an argument. A hook that serves all containers reads it from
 * the state on stdin.
 */
static const char *
read_id(const char *given, char *out, size_t size)
{
    struct cgpu_document state;
    if (given != NULL) {
        cgpu_state_read(STDIN_FILENO, &state); /* crun fails when nobody reads what it writes */
        return is_id(given) ? given : NULL;
    }
    bool known_id =
        cgpu_state_read(STDIN_FILENO, &state) && cgpu_state_string(&state, "id", out, size);
    return known_id && is_id(out) ? out : NULL;
}

int
cgpu_stage_poststop(int argc, char **argv)
{
    const struct cgpu_report report = {NULL, false};
    char buffer[128];
    bool named = argc >= 4 && strcmp(argv[2], "--state-dir") == 0;
    const char *state_dir = named ? argv[3] : CGPU_STATE_DIR;
    const char *given = argv[named ? 4 : 2]; /* argv ends with NULL */
    const char *id = read_id(given, buffer, sizeof buffer);
    if (id == NULL) {
        cgpu_report_error(&report, "poststop: no id of a container");
        return 1;
    }
    int state = open(state_dir, DIRECTORY);
    int containers = state < 0 ? -1 : openat(state, "containers", DIRECTORY);
    if (containers < 0) {
        return errno == ENOENT ? 0 : 1;
    }
    if (remove_container(containers, id) != 0) {
        cgpu_report_error(&report, "%s/containers/%s: %s", state_dir, id, strerror(errno));
        return 1;
    }
    wake_server(state);
    return 0;
}
