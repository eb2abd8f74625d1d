/* Pace: see pace.h. */
#include "pace.h"

#include <string.h>

#define FIRST_GUESS_NS  UINT64_C(10000)
#define LOOK_SOONEST_NS UINT64_C(20000)
#define LOOK_LATEST_NS  UINT64_C(1000000)
#define SAME_LOOK_NS    UINT64_C(2000)      /* markers seen passed so close together: in one look */
#define LEAN_NS         UINT64_C(25000)     /* see end_of */
#define LONGEST_NS      (UINT64_C(1) << 50) /* 13 days: sums of a few thousand do not overflow */

#define CHAIN_NS UINT64_C(8000000) /* 100 us sooner or later do not matter in it */

enum { SCALE_ONE = 16, SCALE_LEAST = 4, SCALE_MOST = 256 };
enum { FALL = 2, RISE = 8, SCALE_STEP = 4, LATE_PART = 4, LEAN_PART = 16 };

static uint64_t
lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t
since(uint64_t now, uint64_t then)
{
    return now > then ? now - then : 0;
}

static uint64_t
clip(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : lesser(value, most);
}

static uint64_t
later(uint64_t now, uint64_t by)
{
    return now > UINT64_MAX - by ? UINT64_MAX : now + by;
}

void
cgpu_pace_init(struct cgpu_pace *pace)
{
    memset(pace, 0, sizeof *pace);
    pace->scale_16 = SCALE_ONE;
}

/* The entry of KEY; the one that it shall have from now on, if it has none. */
static struct cgpu_pace_estimate *
entry_of(struct cgpu_pace *pace, uint64_t key)
{
    struct cgpu_pace_estimate *set = pace->estimates[key >> 55];
    struct cgpu_pace_estimate *free = NULL;

    for (int way = CGPU_PACE_WAYS - 1; way >= 0; way--) {
        if (set[way].key == key) {
            return &set[way];
        }
        if (set[way].key == 0) {
            free = &set[way];
        }
    }
    return free != NULL ? free : &set[pace->victim++ % CGPU_PACE_WAYS];
}

/* relaxed: see cgpu_pace_estimate */
static void
learn(struct cgpu_pace_estimate *entry, uint64_t key, uint64_t ns)
{
    __atomic_store_n(&entry->ns, ns > 0 ? ns : 1, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->key, key, __ATOMIC_RELAXED);
}

/* A span may be too long for many reasons: down quickly where the difference is large. */
static uint64_t
lower(uint64_t ns, uint64_t sample)
{
    uint64_t step = sample < ns - ns / 4 ? FALL : RISE;

    return ns - (ns - sample + step - 1) / step;
}

static void
teach_kernel(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson)
{
    uint64_t ns = cgpu_pace_estimate(pace, lesson->key);
    uint64_t sample = lesson->span_ns / lesson->launches;
    bool may_rise = lesson->known && (lesson->exact || lesson->launches == 1);

    if (ns == 0) {
        /* seen late, and yet short: no harm in believing it */
        if (lesson->known || sample <= CGPU_PACE_BATCH_NS) {
            learn(entry_of(pace, lesson->key), lesson->key, sample);
        }
    } else if (sample < ns && !lesson->cut) {
        learn(entry_of(pace, lesson->key), lesson->key, lower(ns, sample));
    } else if (sample > ns && may_rise) {
        learn(entry_of(pace, lesson->key), lesson->key, ns + (sample - ns + RISE - 1) / RISE);
    }
}

static void
teach_scale(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson)
{
    uint32_t ratio;

    if (!lesson->known || lesson->cut || !lesson->exact || !lesson->certain ||
        lesson->work_ns == 0) {
        return;
    }
    ratio = (uint32_t)clip(lesson->span_ns * SCALE_ONE / lesson->work_ns, SCALE_LEAST, SCALE_MOST);
    if (ratio < pace->scale_16) {
        pace->scale_16 -= (pace->scale_16 - ratio + SCALE_STEP - 1) / SCALE_STEP;
    } else {
        pace->scale_16 += (ratio - pace->scale_16 + SCALE_STEP - 1) / SCALE_STEP;
    }
}

/*
 * Batches that follow one another without a gap: however late each was seen to end, together they
 * took what passed between the first look and the last.
 */
static void
chain(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson)
{
    uint64_t ns = cgpu_pace_estimate(pace, lesson->key);

    if (lesson->key == 0 || lesson->key != pace->chain_key || !lesson->exact || ns == 0) {
        pace->chain_key = lesson->key;
        pace->chain_launches = 0;
        pace->chain_ns = 0;
        return;
    }
    pace->chain_launches += lesson->launches;
    pace->chain_ns += lesson->span_ns;
    if (pace->chain_ns >= CHAIN_NS && pace->chain_launches > 0) {
        uint64_t sample = pace->chain_ns / pace->chain_launches;

        learn(entry_of(pace, lesson->key), lesson->key, ns / 2 + sample / 2);
        pace->chain_launches = 0;
        pace->chain_ns = 0;
    }
}

static void
finish_lesson(struct cgpu_pace *pace)
{
    struct cgpu_pace_lesson *lesson = &pace->lesson;

    if (lesson->there && lesson->span_ns > 0) {
        if (lesson->key != 0 && lesson->launches > 0) {
            teach_kernel(pace, lesson);
        } else {
            teach_scale(pace, lesson);
        }
    }
    lesson->there = false;
}

/* Batches that are seen passed in one look have one span between them. */
static void
add_to_lesson(struct cgpu_pace_lesson *lesson, const struct cgpu_pace_lesson *more)
{
    if (lesson->key != more->key) {
        lesson->key = 0;
    }
    lesson->launches += more->launches;
    lesson->work_ns += more->work_ns;
    lesson->span_ns += more->span_ns;
    lesson->certain = lesson->certain && more->certain;
    lesson->exact = lesson->exact && more->exact;
    lesson->known = lesson->known && more->known;
}

/* What is new is learnt at once, the next launch asks for it; the rest when the look is over. */
static void
take_lesson(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson)
{
    if (pace->lesson.there && since(lesson->at_ns, pace->lesson.at_ns) <= SAME_LOOK_NS) {
        add_to_lesson(&pace->lesson, lesson);
        return;
    }
    finish_lesson(pace);
    pace->lesson = *lesson;
    if (lesson->key != 0 && cgpu_pace_estimate(pace, lesson->key) == 0) {
        finish_lesson(pace);
    }
}

static uint64_t
expected(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch)
{
    uint64_t work = lesser(batch->work_ns, LONGEST_NS);

    if (batch->key == 0) {
        work = work * pace->scale_16 / SCALE_ONE;
    }
    return batch->certain ? work : work + FIRST_GUESS_NS;
}

void
cgpu_pace_mark(struct cgpu_pace *pace, struct cgpu_pace_batch *batch, uint64_t now)
{
    finish_lesson(pace);
    batch->queued = pace->in_flight > 0;
    batch->expected_ns = expected(pace, batch);
    if (pace->in_flight == 0) {
        pace->since_ns = batch->start_ns != 0 ? lesser(batch->start_ns, now) : now;
        if (pace->since_ns < pace->passed_ns) {
            pace->since_ns = pace->passed_ns;
        }
    }
    pace->in_flight += 1;
    pace->uncertain += !batch->certain;
    pace->left_ns = lesser(later(pace->left_ns, batch->expected_ns), LONGEST_NS);
    if (pace->longest_ns < batch->expected_ns) {
        pace->longest_ns = batch->expected_ns;
    }
    pace->end_ns = later(pace->end_ns > now ? pace->end_ns : now, batch->expected_ns);
}

/* How long BATCH took at most, 0: nobody knows. */
static uint64_t
span_of(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now)
{
    uint64_t begin = batch->start_ns > pace->passed_ns ? batch->start_ns : pace->passed_ns;

    if (begin == 0 || (batch->start_ns == 0 && !batch->queued)) {
        return 0;
    }
    return lesser(since(now, begin), LONGEST_NS);
}

/*
 * When BATCH ended: between the last look and this one, at about the time expected. Rather too
 * early: the next look then comes before the end, not after it, and only who looks before the end
 * sees when it comes. The other way round an estimate that is too long would confirm itself.
 */
static uint64_t
end_of(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now)
{
    uint64_t lean = lesser(LEAN_NS, batch->expected_ns / LEAN_PART);
    uint64_t expected_end = later(pace->since_ns, batch->expected_ns - lean);

    return expected_end < pace->looked_ns ? lesser(pace->looked_ns, now)
                                          : lesser(expected_end, now);
}

static void
take_off(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t end, bool known)
{
    pace->in_flight -= pace->in_flight > 0;
    pace->uncertain -= !batch->certain && pace->uncertain > 0;
    pace->left_ns = pace->in_flight > 0 ? since(pace->left_ns, batch->expected_ns) : 0;
    pace->longest_ns = lesser(pace->longest_ns, pace->left_ns);
    pace->passed_ns = end > pace->passed_ns ? end : pace->passed_ns;
    pace->sharp = known;
    pace->since_ns = pace->passed_ns;
    pace->end_ns = later(pace->passed_ns, pace->left_ns);
}

void
cgpu_pace_pass(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now,
               bool known)
{
    uint64_t end = known || !batch->certain ? now : end_of(pace, batch, now);
    uint64_t span = span_of(pace, batch, end);
    struct cgpu_pace_lesson lesson = {
        .key = batch->key,
        .launches = lesser(batch->launches, LONGEST_NS),
        .work_ns = lesser(batch->work_ns, LONGEST_NS),
        .span_ns = span,
        .at_ns = now,
        .there = true,
        .certain = batch->certain != 0,
        .exact = batch->queued != 0 && batch->start_ns <= pace->passed_ns,
        .known = known,
        .cut = batch->start_ns < pace->passed_ns && pace->sharp == 0,
    };

    /* seen late, it may have ended long ago */
    pace->busy_ns += known ? span : lesser(span, batch->expected_ns);
    chain(pace, &lesson);
    take_off(pace, batch, end, known);
    take_lesson(pace, &lesson);
}

void
cgpu_pace_look(struct cgpu_pace *pace, uint64_t now)
{
    pace->looked_ns = now;
}

void
cgpu_pace_drain(struct cgpu_pace *pace, uint64_t now)
{
    finish_lesson(pace);
    if (pace->in_flight > 0) {
        pace->busy_ns += lesser(since(now, pace->since_ns), pace->left_ns);
        pace->passed_ns = now > pace->passed_ns ? now : pace->passed_ns;
    }
    pace->in_flight = 0;
    pace->uncertain = 0;
    pace->left_ns = 0;
    pace->longest_ns = 0;
    pace->since_ns = pace->passed_ns;
    pace->end_ns = pace->passed_ns;
}

/* How long to leave the markers alone, ELAPSED after the last was passed. */
static uint64_t
wait_ns(const struct cgpu_pace *pace, uint64_t elapsed, uint64_t left)
{
    if (pace->uncertain > 0) {
        return elapsed / LATE_PART; /* nobody knows how long: look rarer as it takes longer */
    }
    if (elapsed >= pace->longest_ns) { /* overdue: soon, to see the end when it comes */
        return lesser(elapsed - pace->longest_ns, elapsed / LATE_PART);
    }
    if (left <= CGPU_PACE_FLIGHT_NS) {
        return pace->longest_ns - elapsed;
    }
    /* not beyond the end of the batch that runs, whatever the others take */
    return lesser(pace->longest_ns - elapsed, left - CGPU_PACE_FLIGHT_NS);
}

uint64_t
cgpu_pace_room(const struct cgpu_pace *pace, uint64_t now)
{
    uint64_t elapsed = since(now, pace->since_ns);
    uint64_t left = since(pace->left_ns, lesser(elapsed, pace->longest_ns));
    bool full = pace->in_flight >= CGPU_PACE_BATCHES;

    if (pace->in_flight == 0 || (left <= CGPU_PACE_FLIGHT_NS && pace->uncertain == 0 && !full)) {
        return 0;
    }
    return later(now, clip(wait_ns(pace, elapsed, left), LOOK_SOONEST_NS, LOOK_LATEST_NS));
}
