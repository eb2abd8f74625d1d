/*
 * Tries inputs on a target, and keeps those that reach code which none before has reached.
 *
 *     PROGRAM FILE                                    one input
 *     PROGRAM CORPUS FOUND FAILED COUNT SECONDS SEED  COUNT changed inputs; 0: for SECONDS
 *
 * First come those of the folder CORPUS with each of their bits altered, then changed ones. Where
 * FOUND is not "", it is a folder of more, and what is kept goes there too. A child tries them; if
 * one of them ends it, that input is written to FAILED. The same seed makes the same inputs.
 */
#include "driver.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_BYTES = 1 << 14,
    PAIRS = 1 << 15, /* pairs of blocks that ran one after the other, by a hash */
    MOST_KEPT = 8192,
    MOST_SECONDS = 10, /* of processor time for one input */
    MOST_CHANGES = 6,
    MOST_ADDED = 32
};

struct input {
    unsigned char *bytes;
    size_t size;
};

/* What the parent knows when the child has died. */
struct shared {
    uint64_t runs;
    size_t kept, size;
    unsigned char bytes[MOST_BYTES];
};

void __sanitizer_cov_trace_pc(void);

static struct shared *shared;
static struct input kept[MOST_KEPT];
static size_t count;
static unsigned char hits[PAIRS], seen[PAIRS];
static uintptr_t before;
static uint64_t state;
static const char *found;

/* Called by the target at the begin of each block of its code. */
void
__sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&fuzz_one;
    unsigned char *hit = &hits[((here ^ before) * UINT32_C(2654435761) >> 8) % PAIRS];

    *hit = (unsigned char)(*hit + (*hit < UINT8_MAX));
    before = here >> 1;
}

static _Noreturn void
give_up(const char *what)
{
    perror(what);
    exit(2);
}

_Noreturn void
fuzz_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    _exit(1); /* leaks are not what went wrong */
}

/* xorshift64* */
static uint64_t
draw(uint64_t below)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (state * UINT64_C(2685821657736338717) >> 16) % below;
}

/* How often counts by powers of two: 1, 2, 3..4, 5..8, ... */
static unsigned char
weight(unsigned char hit)
{
    unsigned char bit = 1;

    for (unsigned least = 2; least <= hit && bit < 128; least *= 2) {
        bit = (unsigned char)(bit << 1);
    }
    return bit;
}

static bool
take_news(void)
{
    bool is_new = false;
    uint64_t eight;

    for (size_t i = 0; i < PAIRS; i++) {
        memcpy(&eight, &hits[i / 8 * 8], sizeof eight);
        if (eight == 0) {
            i += 7;
        } else if (hits[i] != 0 && (seen[i] & weight(hits[i])) == 0) {
            seen[i] |= weight(hits[i]);
            is_new = true;
        }
    }
    return is_new;
}

static void
write_file(const char *path, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size || close(fd) != 0) {
        give_up(path);
    }
}

static void
keep(const unsigned char *bytes, size_t size, bool is_found)
{
    char path[4096];

    if (count == MOST_KEPT) {
        return;
    }
    kept[count].bytes = malloc(size + 1);
    memcpy(kept[count].bytes, bytes, size);
    kept[count++].size = size;
    shared->kept = count;
    if (is_found && found[0] != '\0') {
        uint64_t name = UINT64_C(14695981039346656037); /* FNV-1a */

        for (size_t i = 0; i < size; i++) {
            name = (name ^ bytes[i]) * UINT64_C(1099511628211);
        }
        snprintf(path, sizeof path, "%s/%016llx", found, (unsigned long long)name);
        write_file(path, bytes, size);
    }
}

static void
run(const unsigned char *bytes, size_t size)
{
    unsigned char *exact = malloc(size + (size == 0)); /* so that a byte too far is noticed */

    memcpy(exact, bytes, size);
    memset(hits, 0, sizeof hits);
    before = 0;
    fuzz_one(exact, size);
    free(exact);
}

/* Try what is in the shared memory. */
static void
try_one(bool is_found)
{
    static const struct itimerval patience = {.it_value = {.tv_sec = MOST_SECONDS}};

    setitimer(ITIMER_PROF, &patience, NULL);
    shared->runs += 1;
    run(shared->bytes, shared->size);
    if (take_news() || !is_found) {
        keep(shared->bytes, shared->size, is_found);
    }
}

static void
read_input(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, shared->bytes, MOST_BYTES);

    if (size < 0) {
        give_up(path);
    }
    close(fd);
    shared->size = (size_t)size;
}

static int
is_name(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void
try_folder(const char *folder)
{
    struct dirent **names;
    int many = scandir(folder, &names, is_name, alphasort);
    char path[4096];

    if (many < 0) {
        give_up(folder);
    }
    for (int i = 0; i < many; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        read_input(path);
        try_one(false);
        free(names[i]);
    }
    free(names);
}

/* Put SIZE bytes in at AT; what is behind the longest input falls off. */
static void
insert(size_t at, const unsigned char *bytes, size_t size)
{
    size_t room = MOST_BYTES - at;
    size_t put = size < room ? size : room;
    size_t tail = shared->size - at < room - put ? shared->size - at : room - put;

    memmove(shared->bytes + at + put, shared->bytes + at, tail);
    memcpy(shared->bytes + at, bytes, put);
    shared->size = at + put + tail;
}

static void delete(size_t at)
{
    size_t most = shared->size - at;
    size_t gone = 1 + draw(most < MOST_ADDED || draw(8) == 0 ? most : MOST_ADDED);

    memmove(shared->bytes + at, shared->bytes + at + gone, most - gone);
    shared->size -= gone;
}

/* A number at the edge of something, in 1, 2, 4 or 8 bytes; or what is there, a little changed. */
static void
put_number(size_t at)
{
    size_t width = (size_t)1 << draw(4);
    uint64_t old = 0, number;

    if (width > shared->size - at) {
        return;
    }
    memcpy(&old, shared->bytes + at, width);
    switch (draw(4)) {
    case 0:
        number = old + draw(33) - 16;
        break;
    case 1:
        number = (UINT64_C(1) << draw(64)) - draw(3);
        break;
    case 2:
        number = UINT64_MAX - draw(65);
        break;
    default:
        number = draw(shared->size + 1);
    }
    memcpy(shared->bytes + at, &number, width);
}

/* Some bytes of an input that was kept. */
static void
take_part(size_t at, bool over)
{
    const struct input *other = &kept[draw(count)];
    size_t from = draw(other->size + 1);
    size_t rest = other->size - from;
    size_t size = rest == 0 ? 0 : 1 + draw(rest < MOST_ADDED || draw(8) == 0 ? rest : MOST_ADDED);

    if (over) {
        size = size < shared->size - at ? size : shared->size - at;
        memcpy(shared->bytes + at, other->bytes + from, size);
    } else {
        insert(at, other->bytes + from, size);
    }
}

static void
change(void)
{
    unsigned char byte = (unsigned char)draw(256);
    size_t at = draw(shared->size + 1);

    switch (at == shared->size ? 6 + draw(2) : draw(8)) { /* at the end there is nothing to alter */
    case 0:
        shared->bytes[at] ^= (unsigned char)(1 << draw(8));
        break;
    case 1:
        shared->bytes[at] = byte;
        break;
    case 2:
        delete (at);
        break;
    case 3:
    case 4:
        put_number(at);
        break;
    case 5:
        take_part(at, true);
        break;
    case 6:
        take_part(at, false);
        break;
    default:
        insert(at, &byte, 1);
    }
}

static void
take(const struct input *input)
{
    memcpy(shared->bytes, input->bytes, input->size);
    shared->size = input->size;
}

/* What is there so far with each of its bits altered: a size that is a little too large. */
static void
try_bits(void)
{
    for (size_t i = 0, most = count; i < most; i++) {
        for (size_t bit = 0; bit < 8 * kept[i].size; bit++) {
            take(&kept[i]);
            shared->bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
            try_one(true);
        }
    }
}

static void
try_changed(void)
{
    take(&kept[draw(count)]);
    for (uint64_t left = 1 + draw(MOST_CHANGES); left > 0; left--) {
        change();
    }
    try_one(true);
}

static void
try_all(const char *corpus, uint64_t most, time_t seconds)
{
    time_t end = time(NULL) + seconds;

    fuzz_begin();
    try_folder(corpus);
    try_bits();
    if (found[0] != '\0') {
        try_folder(found);
    }
    for (uint64_t i = 0; most != 0 ? i < most : time(NULL) < end; i++) {
        try_changed();
    }
}

/* FILE itself, in this process. */
static int
repeat(const char *file)
{
    read_input(file);
    fuzz_begin();
    run(shared->bytes, shared->size);
    return 0;
}

int
main(int argc, char **argv)
{
    int status = 0;
    pid_t child;

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || (argc != 2 && argc != 7)) {
        give_up("usage: PROGRAM FILE, or PROGRAM CORPUS FOUND FAILED COUNT SECONDS SEED");
    }
    if (argc == 2) {
        return repeat(argv[1]);
    }
    found = argv[2];
    state = strtoull(argv[6], NULL, 10) + 1;
    child = fork();
    if (child == 0) {
        try_all(argv[1], strtoull(argv[4], NULL, 10), atol(argv[5]));
        exit(0); /* and is asked for leaks */
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        give_up("fork");
    }
    printf("%llu inputs tried, %zu kept\n", (unsigned long long)shared->runs, shared->kept);
    if (status != 0) {
        write_file(argv[3], shared->bytes, shared->size);
    }
    return status != 0;
}
