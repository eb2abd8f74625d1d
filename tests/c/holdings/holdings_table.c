/* The table of holdings: against a plain model, with threads, and as a context takes its entries
 * along. */
#define _GNU_SOURCE 1

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "holdings/holdings.h"
#include "mutex.h"

enum { HANDLES = 3000, STEPS = 200000, THREADS = 4 };

static struct cgpu_holding
make(uint32_t kind, uint64_t handle)
{
    return (struct cgpu_holding){.handle = handle,
                                 .owner = handle % 7,
                                 .bytes = handle * 3,
                                 .extra = ~handle,
                                 .kind = kind,
                                 .gpu = (uint32_t)handle % 32};
}

static struct cgpu_holdings *
create(void)
{
    struct cgpu_holdings *holdings;

    CHECK(cgpu_holdings_create(&holdings) == CGPU_OK);
    return holdings;
}

static bool
equal(const struct cgpu_holding *a, const struct cgpu_holding *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

TEST(entries_of_a_kind_are_listed_as_far_as_there_is_room)
{
    struct cgpu_holdings *holdings = create();
    struct cgpu_holding out[4];
    uint64_t sum = 0;

    for (uint64_t handle = 1; handle <= HANDLES; handle++) {
        struct cgpu_holding entry = make(handle % 1000 == 0 ? 7 : 8, handle);

        CHECK(cgpu_holdings_insert(holdings, &entry) == CGPU_OK);
    }
    CHECK(cgpu_holdings_list(holdings, 7, out, 4) == 3);
    for (int i = 0; i < 3; i++) {
        CHECK(out[i].kind == 7 && out[i].bytes == out[i].handle * 3);
        sum += out[i].handle;
    }
    CHECK(sum == 6000);
    CHECK(cgpu_holdings_list(holdings, 7, out, 1) == 3);
    CHECK(cgpu_holdings_list(holdings, 8, out, 4) == HANDLES - 3);
    CHECK(cgpu_holdings_list(holdings, 9, out, 4) == 0);
    cgpu_holdings_destroy(holdings);
}

TEST(an_entry_is_found_updated_and_taken_once)
{
    struct cgpu_holdings *holdings = create();
    struct cgpu_holding entry = make(1, 0x7f0000000000);
    struct cgpu_holding out;

    CHECK(cgpu_holdings_find(holdings, 1, entry.handle, &out) == CGPU_ENOTFOUND);
    CHECK(cgpu_holdings_take(holdings, 1, entry.handle, &out) == CGPU_ENOTFOUND);
    CHECK(cgpu_holdings_update(holdings, &entry) == CGPU_ENOTFOUND);
    CHECK(cgpu_holdings_insert(holdings, &entry) == CGPU_OK);
    CHECK(cgpu_holdings_insert(holdings, &entry) == CGPU_EINVAL);
    CHECK(cgpu_holdings_find(holdings, 1, entry.handle, &out) == CGPU_OK && equal(&out, &entry));
    CHECK(cgpu_holdings_find(holdings, 2, entry.handle, &out) == CGPU_ENOTFOUND);
    entry.bytes = 99;
    entry.extra = 98;
    CHECK(cgpu_holdings_update(holdings, &entry) == CGPU_OK);
    CHECK(cgpu_holdings_count(holdings) == 1);
    CHECK(cgpu_holdings_take(holdings, 1, entry.handle, &out) == CGPU_OK && equal(&out, &entry));
    CHECK(cgpu_holdings_take(holdings, 1, entry.handle, &out) == CGPU_ENOTFOUND);
    CHECK(cgpu_holdings_count(holdings) == 0);
    cgpu_holdings_destroy(holdings);
}

TEST(handle_zero_and_the_smallest_and_largest_kinds_are_keys_too)
{
    struct cgpu_holdings *holdings = create();
    struct cgpu_holding entries[] = {make(0, 0), make(UINT32_MAX - 1, 0), make(0, UINT64_MAX)};
    struct cgpu_holding reserved = make(UINT32_MAX, 1);
    struct cgpu_holding out;

    for (int i = 0; i < 3; i++) {
        CHECK(cgpu_holdings_insert(holdings, &entries[i]) == CGPU_OK);
    }
    CHECK(cgpu_holdings_insert(holdings, &reserved) == CGPU_EINVAL);
    CHECK(cgpu_holdings_find(holdings, UINT32_MAX, 1, &out) == CGPU_ENOTFOUND);
    for (int i = 0; i < 3; i++) {
        CHECK(cgpu_holdings_take(holdings, entries[i].kind, entries[i].handle, &out) == CGPU_OK);
        CHECK(equal(&out, &entries[i]));
    }
    cgpu_holdings_destroy(holdings);
}

TEST(random_steps_agree_with_a_plain_model)
{
    static bool present[HANDLES];
    struct cgpu_holdings *holdings = create();
    size_t count = 0;

    srandom(3);
    for (int step = 0; step < STEPS; step++) {
        uint64_t handle = (uint64_t)random() % HANDLES;
        struct cgpu_holding entry = make(5, handle * 512);
        struct cgpu_holding out;
        int there = present[handle] ? CGPU_OK : CGPU_ENOTFOUND;

        if (random() % 2 == 0) {
            CHECK(cgpu_holdings_insert(holdings, &entry) ==
                  (present[handle] ? CGPU_EINVAL : CGPU_OK));
            count += !present[handle];
            present[handle] = true;
        } else {
            CHECK(cgpu_holdings_take(holdings, 5, entry.handle, &out) == there);
            CHECK(there != CGPU_OK || equal(&out, &entry));
            count -= present[handle];
            present[handle] = false;
        }
    }
    CHECK(cgpu_holdings_count(holdings) == count);
    for (uint64_t handle = 0; handle < HANDLES; handle++) {
        struct cgpu_holding out;

        CHECK(cgpu_holdings_find(holdings, 5, handle * 512, &out) ==
              (present[handle] ? CGPU_OK : CGPU_ENOTFOUND));
    }
    cgpu_holdings_destroy(holdings);
}

TEST(a_context_takes_its_own_entries_along_and_no_others)
{
    struct cgpu_holdings *holdings = create();
    struct cgpu_holding out;
    size_t taken = 0;

    for (uint64_t handle = 0; handle < 7000; handle++) {
        struct cgpu_holding entry = make(1, handle);

        CHECK(cgpu_holdings_insert(holdings, &entry) == CGPU_OK);
    }
    CHECK(cgpu_holdings_take_owned(holdings, 0, &out) == CGPU_ENOTFOUND); /* 0: owned by none */
    while (cgpu_holdings_take_owned(holdings, 3, &out) == CGPU_OK) {
        CHECK(out.owner == 3 && out.handle % 7 == 3 && out.kind == 1);
        taken++;
    }
    CHECK(taken == 1000 && cgpu_holdings_count(holdings) == 6000);
    cgpu_holdings_destroy(holdings);
}

struct team {
    struct cgpu_holdings *holdings;
    uint64_t *taken;
    uint64_t first;
};

static void *
work(void *argument)
{
    struct team *team = argument;
    struct cgpu_holding out;

    for (uint64_t i = 0; i < 20000; i++) {
        struct cgpu_holding entry = make(2, team->first + i % 500);

        CHECK(cgpu_holdings_insert(team->holdings, &entry) == CGPU_OK);
        CHECK(cgpu_holdings_find(team->holdings, 2, entry.handle, &out) == CGPU_OK);
        CHECK(cgpu_holdings_update(team->holdings, &entry) == CGPU_OK);
        CHECK(cgpu_holdings_take(team->holdings, 2, entry.handle, &out) == CGPU_OK);
        CHECK(equal(&out, &entry));
    }
    return NULL;
}

static void *
grab(void *argument)
{
    struct team *team = argument;
    struct cgpu_holding out;

    for (uint64_t handle = 0; handle < 20000; handle++) {
        if (cgpu_holdings_take(team->holdings, 3, handle, &out) == CGPU_OK) {
            __atomic_add_fetch(team->taken, 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

static void
run(struct team *team, void *(*body)(void *))
{
    pthread_t threads[THREADS];
    struct team own[THREADS];

    for (int i = 0; i < THREADS; i++) {
        own[i] = *team;
        own[i].first = (uint64_t)i * 1000;
        CHECK(pthread_create(&threads[i], NULL, body, &own[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

TEST(threads_do_not_disturb_one_another)
{
    struct team team = {.holdings = create()};

    run(&team, work);
    CHECK(cgpu_holdings_count(team.holdings) == 0);
    cgpu_holdings_destroy(team.holdings);
}

TEST(exactly_one_of_racing_threads_takes_an_entry)
{
    uint64_t taken = 0;
    struct team team = {.holdings = create(), .taken = &taken};

    for (uint64_t handle = 0; handle < 20000; handle++) {
        struct cgpu_holding entry = make(3, handle);

        CHECK(cgpu_holdings_insert(team.holdings, &entry) == CGPU_OK);
    }
    run(&team, grab);
    CHECK(taken == 20000);
    cgpu_holdings_destroy(team.holdings);
}

struct seen {
    uint64_t count, bytes;
};

static void
see(const struct cgpu_holding *holding, void *argument)
{
    struct seen *seen = argument;

    CHECK(holding->owner == 3);
    seen->count += 1;
    seen->bytes += holding->bytes;
}

static uint64_t locks;

void __real_cgpu_mutex_lock(struct cgpu_mutex *mutex);
void __wrap_cgpu_mutex_lock(struct cgpu_mutex *mutex);

void
__wrap_cgpu_mutex_lock(struct cgpu_mutex *mutex)
{
    __atomic_add_fetch(&locks, 1, __ATOMIC_RELAXED);
    __real_cgpu_mutex_lock(mutex);
}

TEST(all_of_an_owner_go_in_one_pass_however_many_they_are)
{
    struct cgpu_holdings *holdings = create();
    struct cgpu_holding entry = {.kind = 1, .bytes = 5};
    struct seen seen = {0, 0};

    for (uint64_t i = 0; i < 200000; i++) {
        entry.handle = i * 512;
        entry.owner = 3 + i % 2;
        CHECK(cgpu_holdings_insert(holdings, &entry) == CGPU_OK);
    }
    locks = 0;
    cgpu_holdings_drop_owned(holdings, 3, see, &seen);
    CHECK(seen.count == 100000 && seen.bytes == 500000);
    CHECK(locks <= 16);
    CHECK(cgpu_holdings_count(holdings) == 100000);
    for (uint64_t i = 0; i < 200000; i++) {
        CHECK((cgpu_holdings_take(holdings, 1, i * 512, &entry) == CGPU_OK) == (i % 2 == 1));
    }
    cgpu_holdings_drop_owned(holdings, 0, see, &seen); /* 0: owned by none */
    cgpu_holdings_destroy(holdings);
}
