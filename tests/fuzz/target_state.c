/* The container's state that a runtime writes to a hook (REL-4). */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hook/common/state.h"

void
fuzz_begin(void)
{
}

void
fuzz_one(const unsigned char *data, size_t size)
{
    static const char *const keys[] = {"id", "bundle"};
    struct cgpu_document state = {.bytes = (char *)(size_t)data, .size = size};

    FUZZ_CHECK(cgpu_state_number(&state, "pid") >= 0);
    for (size_t i = 0; i < 2; i++) {
        for (size_t room = 1; room <= 256; room *= 16) {
            char *out = malloc(room);
            bool is_there = cgpu_state_string(&state, keys[i], out, room);

            FUZZ_CHECK(!is_there || memchr(out, '\0', room) != NULL);
            free(out);
        }
    }
}
