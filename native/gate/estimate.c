/* How long kernels take: see estimate.h. */
#include "gate/estimate.h"

#include <stddef.h>

#include "clock.h"

enum { FALL = 2, RISE = 8, BESIDE_FALL = 32 };
enum { ENOUGH_TIMES = 8, MEASURED_PART = 64, FAR_TIMES = 4, GUESS_FALL = 12, GUESS_RISE = 5 };

/* The entry of KEY. If there is none, KEY gets an entry now. */
static struct cgpu_pace_estimate *
find_entry(struct cgpu_pace *pace, uint64_t key)
{
    struct cgpu_pace_estimate *set = pace->estimates[key >> 55];
    struct cgpu_pace_estimate *own = NULL, *free = NULL;

    for (int way = CGPU_PACE_WAYS - 1; way >= 0; way--) {
        own = set[way].key == key ? &set[way] : own;
        free = set[way].key == 0 ? &set[way] : free;
    }
    if (own == NULL) {
        own = free != NULL ? free : &set[pace->victim++ % CGPU_PACE_WAYS];
    }
    return own;
}

/* Set ENTRY to KEY and NS. relaxed: see cgpu_pace_estimate */
static void
store_estimate(struct cgpu_pace_estimate *entry, uint64_t key, uint64_t ns)
{
    __atomic_store_n(&entry->ns, cgpu_larger(ns, 1), __ATOMIC_RELAXED);
    __atomic_store_n(&entry->key, key, __ATOMIC_RELAXED);
}

/*
 * Lower NS a little towards SAMPLE. A batch beside others may have begun before its span, so one
 * short span shows little.
 */
static uint64_t
lower_overlapped(uint64_t ns, uint64_t sample)
{
    return ns - (ns - sample) / BESIDE_FALL;
}

/*
 * Lower NS towards SAMPLE, and fast if they differ much: spans are often too long, so the estimate
 * may be too long as well.
 */
static uint64_t
lower_estimate(uint64_t ns, uint64_t sample)
{
    uint64_t step = sample < ns - ns / 4 ? FALL : RISE;

    return ns - (ns - sample + step - 1) / step;
}

/*
 * Raise NS towards SAMPLE, but slowly. A span is far too long if the thread had no processor, or if
 * the work ran behind others'.
 */
static uint64_t
raise_estimate(uint64_t ns, uint64_t sample)
{
    return ns + (cgpu_lesser(sample, 2 * ns) - ns + RISE - 1) / RISE;
}

/*
 * SAMPLE without the time that may not be the kernel's own. A kernel that is mostly alone in its
 * turn never has an exact span: it may have begun behind others' work, and its end may have been
 * seen late.
 */
static uint64_t
subtract_edges(uint64_t sample)
{
    return sample < CGPU_PACE_LONE_NS ? sample : sample - CGPU_PACE_EDGES_NS;
}

static void
teach_kernel(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson)
{
    uint64_t ns = cgpu_pace_estimate(pace, lesson->key);
    uint64_t sample = lesson->span_ns / lesson->launches;
    bool late = lesson->seen == CGPU_SEEN_LATE;
    bool may_rise = !late && (lesson->exact || lesson->launches == 1);

    if (ns == 0) {
        /*
         * if seen late, it is too long by less than a batch; waiting for a better sample would cost
         * more
         */
        if (lesson->seen == CGPU_SEEN_AT_ONCE || sample <= CGPU_PACE_BATCH_NS) {
            store_estimate(find_entry(pace, lesson->key), lesson->key, sample);
            cgpu_guess_learn(&pace->guess, sample, 1);
        }
    } else if (lesson->launches == 1 && sample < ns / 2 && sample + lesson->blur_ns >= ns) {
        ; /* the batch before ended before it was seen to end, so this one began before its span */
    } else if (sample < ns && lesson->beside) {
        store_estimate(find_entry(pace, lesson->key), lesson->key, lower_overlapped(ns, sample));
    } else if (sample < ns && !lesson->cut) {
        store_estimate(find_entry(pace, lesson->key), lesson->key, lower_estimate(ns, sample));
    } else if (may_rise) {
        sample = lesson->exact ? sample : subtract_edges(sample);
        if (sample > ns) {
            store_estimate(find_entry(pace, lesson->key), lesson->key, raise_estimate(ns, sample));
        }
    }
}

/*
 * Learn from the chain, and begin a new one of KEY. The batches of a chain follow one another
 * without a gap. However late each end was seen, together they took the time from the first check
 * to the last.
 */
static void
end_chain(struct cgpu_pace *pace, uint64_t key)
{
    uint64_t ns = cgpu_pace_estimate(pace, pace->chain_key);
    uint64_t sample = pace->chain_launches > 0 ? pace->chain_ns / pace->chain_launches : ns;

    if (sample > ns && pace->chain_ns >= CGPU_PACE_CHAIN_NS) {
        store_estimate(find_entry(pace, pace->chain_key), pace->chain_key,
                       raise_estimate(ns, sample));
    } else if (sample < ns && pace->chain_ns >= CGPU_PACE_SHORT_CHAIN_NS) {
        store_estimate(find_entry(pace, pace->chain_key), pace->chain_key, ns / 2 + sample / 2);
    }
    pace->chain_key = key;
    pace->chain_launches = 0;
    pace->chain_ns = 0;
}

void
cgpu_estimate_chain(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson)
{
    if (lesson->key == 0 || lesson->key != pace->chain_key || !lesson->exact ||
        cgpu_pace_estimate(pace, lesson->key) == 0) {
        end_chain(pace, lesson->key);
    } else {
        pace->chain_launches += lesson->launches;
        pace->chain_ns += lesson->span_ns;
        if (pace->chain_ns >= CGPU_PACE_CHAIN_NS) {
            end_chain(pace, lesson->key);
        }
    }
}

void
cgpu_estimate_finish(struct cgpu_pace *pace)
{
    struct cgpu_pace_lesson *lesson = &pace->lesson;

    if (lesson->there && lesson->span_ns > 0 && lesson->key != 0 && lesson->launches > 0) {
        teach_kernel(pace, lesson);
    }
    lesson->there = false;
}

/* Add MORE to LESSON. If one check sees several batches end, they count as one lesson. */
static void
add_to_lesson(struct cgpu_pace_lesson *lesson, const struct cgpu_pace_lesson *more)
{
    if (lesson->key != more->key) {
        lesson->key = 0;
    }
    lesson->launches += more->launches;
    lesson->span_ns += more->span_ns;
    lesson->exact = lesson->exact && more->exact;
    lesson->seen = lesson->seen < more->seen ? lesson->seen : more->seen;
}

void
cgpu_estimate_take(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson)
{
    if (pace->lesson.there && pace->lesson.at_ns == lesson->at_ns) {
        add_to_lesson(&pace->lesson, lesson);
    } else {
        cgpu_estimate_finish(pace);
        pace->lesson = *lesson;
        if (lesson->key != 0 && cgpu_pace_estimate(pace, lesson->key) == 0) {
            cgpu_estimate_finish(pace);
        }
    }
}

/* ---- kernels that were never measured ---- */

uint64_t
cgpu_guess_next(struct cgpu_guess *guess)
{
    bool enough = guess->fitted >= ENOUGH_TIMES;

    guess->turn += enough;
    return enough && guess->turn % MEASURED_PART != 0 ? guess->ns : 0;
}

/*
 * Whether the guess was so wrong for COUNT launches, which took NS each, that others wait or the
 * GPU is idle.
 */
static bool
is_far(const struct cgpu_guess *guess, uint64_t ns, uint64_t count)
{
    uint64_t less = cgpu_lesser(ns, guess->ns), more = cgpu_larger(ns, guess->ns);

    return more > FAR_TIMES * less && (more - less) * count > CGPU_PACE_FLIGHT_NS;
}

void
cgpu_guess_learn(struct cgpu_guess *guess, uint64_t ns, uint64_t count)
{
    bool far = guess->ns != 0 && is_far(guess, ns, count);

    if (guess->ns == 0) {
        guess->ns = cgpu_larger(ns, 1);
    }
    guess->fitted = far ? 0 : (uint32_t)cgpu_lesser(guess->fitted + 1, ENOUGH_TIMES);
    if (ns <= guess->ns) {
        guess->ns = cgpu_larger(guess->ns - (guess->ns - ns) / GUESS_FALL, 1);
    } else if (!far) {
        guess->ns +=
            (cgpu_lesser(ns, FAR_TIMES * guess->ns) - guess->ns + GUESS_RISE - 1) / GUESS_RISE;
    }
}
