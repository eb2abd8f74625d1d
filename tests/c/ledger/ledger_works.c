/*
 * MEM-1: what processes do on GPUs, and what they share, is in one table. No entry is ever
 * another's.
 */
#define _GNU_SOURCE 1

#include "ledger/work.h"

#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "check.h"
#include "ledger/attachment.h"

enum { ROUNDS = 200000, NUMBER = CGPU_LEDGER_SHARINGS + 3 };

struct claims {
    struct cgpu_ledger *ledger;
    uint32_t done;
};

static void *
claim_and_free(void *argument)
{
    struct claims *claims = argument;
    struct cgpu_ledger_work *work;

    for (int i = 0; i < ROUNDS; i++) {
        CHECK(cgpu_work_claim(claims->ledger, NUMBER, &work) == CGPU_OK);
        cgpu_work_free(claims->ledger->file, claims->ledger->slot);
    }
    __atomic_store_n(&claims->done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* For a moment it would be the process's work on GPU 0, which another thread may look for. */
TEST(an_entry_has_its_owner_and_its_number_at_once)
{
    struct claims claims = {.ledger = check_attach(check_ledger())};
    const struct cgpu_ledger_work *first = claims.ledger->file->works;
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, claim_and_free, &claims) == 0);
    while (__atomic_load_n(&claims.done, __ATOMIC_SEQ_CST) == 0) {
        struct cgpu_work_key key = cgpu_work_key_of(first);

        CHECK(key.owner == 0 ? key.gpu == 0 : key.gpu == NUMBER);
        CHECK(cgpu_work_find(claims.ledger, 0) == NULL);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    cgpu_ledger_detach(claims.ledger);
}
