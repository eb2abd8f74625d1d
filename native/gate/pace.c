/* Pace: see pace.h. */
#include "gate/pace.h"

#include <stddef.h>

#include "gate/pace_time.h"

#define LONGEST_NS (UINT64_C(1) << 50) /* 13 days: sums of a few thousand do not overflow */

enum { FALL = 2, RISE = 8, BESIDE_FALL = 32, LAG_RISE = 32, LAG_PART = 4, LEAN_PART = 16 };

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
    __atomic_store_n(&entry->ns, larger(ns, 1), __ATOMIC_RELAXED);
    __atomic_store_n(&entry->key, key, __ATOMIC_RELAXED);
}

/* What ran beside others may have begun before its span: many such spans show more than one. */
static uint64_t
lower_beside(uint64_t ns, uint64_t sample)
{
    return ns - (ns - sample) / BESIDE_FALL;
}

/* Spans are often too long, and so may the estimate be: lower it fast if the gap is large. */
static uint64_t
lower(uint64_t ns, uint64_t sample)
{
    uint64_t step = sample < ns - ns / 4 ? FALL : RISE;

    return ns - (ns - sample + step - 1) / step;
}

/* A thread that had no processor, or whose work ran behind others', sees far too long a span. */
static uint64_t
higher(uint64_t ns, uint64_t sample)
{
    return ns + (lesser(sample, 2 * ns) - ns + RISE - 1) / RISE;
}

/*
 * A kernel that is mostly alone in its turn may have begun behind others' work, and its end may
 * have been seen late: no span of it is exact. A span that is longer by no more than that shows
 * nothing.
 */
static uint64_t
less_edges(uint64_t sample)
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
        /* seen late, it is too long by less than a batch, which is better than to wait once more */
        if (lesson->seen == CGPU_SEEN_AT_ONCE || sample <= CGPU_PACE_BATCH_NS) {
            learn(entry_of(pace, lesson->key), lesson->key, sample);
            cgpu_guess_judge(&pace->guess, sample, 1);
        }
    } else if (lesson->launches == 1 && sample < ns / 2 && sample + lesson->blur_ns >= ns) {
        return; /* the batch before ended earlier than it was seen to: this one had begun by then */
    } else if (sample < ns && lesson->beside) {
        learn(entry_of(pace, lesson->key), lesson->key, lower_beside(ns, sample));
    } else if (sample < ns && !lesson->cut) {
        learn(entry_of(pace, lesson->key), lesson->key, lower(ns, sample));
    } else if (may_rise) {
        sample = lesson->exact ? sample : less_edges(sample);
        if (sample > ns) {
            learn(entry_of(pace, lesson->key), lesson->key, higher(ns, sample));
        }
    }
}

/*
 * Batches that follow one another without a gap: however late each was seen to end, together they
 * took the time between the first check and the last.
 */
static void
end_chain(struct cgpu_pace *pace, uint64_t key)
{
    uint64_t ns = cgpu_pace_estimate(pace, pace->chain_key);
    uint64_t sample = pace->chain_launches > 0 ? pace->chain_ns / pace->chain_launches : ns;

    if (sample > ns && pace->chain_ns >= CGPU_PACE_CHAIN_NS) {
        learn(entry_of(pace, pace->chain_key), pace->chain_key, higher(ns, sample));
    } else if (sample < ns && pace->chain_ns >= CGPU_PACE_SHORT_CHAIN_NS) {
        learn(entry_of(pace, pace->chain_key), pace->chain_key, ns / 2 + sample / 2);
    }
    pace->chain_key = key;
    pace->chain_launches = 0;
    pace->chain_ns = 0;
}

static void
chain(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson)
{
    if (lesson->key == 0 || lesson->key != pace->chain_key || !lesson->exact ||
        cgpu_pace_estimate(pace, lesson->key) == 0) {
        end_chain(pace, lesson->key);
        return;
    }
    pace->chain_launches += lesson->launches;
    pace->chain_ns += lesson->span_ns;
    if (pace->chain_ns >= CGPU_PACE_CHAIN_NS) {
        end_chain(pace, lesson->key);
    }
}

static void
finish_lesson(struct cgpu_pace *pace)
{
    struct cgpu_pace_lesson *lesson = &pace->lesson;

    if (lesson->there && lesson->span_ns > 0 && lesson->key != 0 && lesson->launches > 0) {
        teach_kernel(pace, lesson);
    }
    lesson->there = false;
}

/* Batches that are found passed in one check have one span between them. */
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

/*
 * New kernels are learnt at once, because the next launch asks for them; the rest when the check is
 * over.
 */
static void
take_lesson(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson)
{
    if (pace->lesson.there && pace->lesson.at_ns == lesson->at_ns) {
        add_to_lesson(&pace->lesson, lesson);
        return;
    }
    finish_lesson(pace);
    pace->lesson = *lesson;
    if (lesson->key != 0 && cgpu_pace_estimate(pace, lesson->key) == 0) {
        finish_lesson(pace);
    }
}

void
cgpu_pace_mark(struct cgpu_pace *pace, struct cgpu_pace_batch *batch, uint64_t now)
{
    finish_lesson(pace);
    batch->queued = pace->in_flight > 0;
    batch->begun = batch->start_ns < pace->passed_ns && batch->stream != pace->stream;
    batch->expected_ns = lesser(batch->work_ns, LONGEST_NS);
    batch->marked_ns = now;
    if (pace->in_flight == 0) {
        uint64_t begun = batch->start_ns != 0 ? lesser(batch->start_ns, now) : now;

        pace->since_ns = larger(begun, pace->passed_ns);
    }
    if (batch->launches == 0) {
        pace->probed_ns = now;
    }
    pace->in_flight += 1;
    pace->uncertain += !batch->certain;
    pace->guessed += batch->guessed > 0;
    pace->left_ns = lesser(later(pace->left_ns, batch->expected_ns), LONGEST_NS);
    pace->longest_ns = larger(pace->longest_ns, batch->expected_ns);
    pace->end_ns = later(larger(pace->end_ns, now), batch->expected_ns);
}

/* A launch reaches the GPU late: until then nothing of BATCH runs, whatever has ended before. */
static uint64_t
arrives(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch)
{
    return later(batch->start_ns, pace->lag_ns);
}

/*
 * How long BATCH took at most; 0: not known. The lag is not fully subtracted from a short span: too
 * short an estimate would pile up work.
 */
static uint64_t
span_of(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now)
{
    uint64_t least = larger(batch->start_ns, pace->passed_ns);
    uint64_t begin = larger(arrives(pace, batch), pace->passed_ns);

    if (least == 0 || (batch->start_ns == 0 && !batch->queued)) {
        return 0;
    }
    uint64_t whole = lesser(since(now, least), LONGEST_NS);
    return clip(since(now, begin), whole / LAG_PART, whole);
}

/*
 * GPU time of BATCH, which ended at END (0: nobody knows when, or when it began). If it took much
 * longer than expected, others had the GPU meanwhile.
 */
static uint64_t
used_by(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t end)
{
    uint64_t took = since(end, larger(batch->start_ns, pace->passed_ns));
    uint64_t expected = later(batch->expected_ns, pace->lag_ns);
    uint64_t most = later(expected, lesser(expected / 2, CGPU_PACE_EDGES_NS));

    return end != 0 && (took <= most || !batch->certain) ? took : expected;
}

/*
 * When BATCH ended: between the last check and this one, at about the time expected. Rather too
 * early: then the next check comes before the end, not after it, and only a check before the end
 * shows when it comes. Otherwise an estimate that is too long would confirm itself.
 */
static uint64_t
end_of(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now)
{
    uint64_t lean = lesser(CGPU_PACE_LEAN_NS, batch->expected_ns / LEAN_PART);
    uint64_t expected_end = later(pace->since_ns, batch->expected_ns - lean);

    return lesser(larger(expected_end, pace->looked_ns), now);
}

static void
take_off(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t end, bool known)
{
    pace->in_flight -= pace->in_flight > 0;
    pace->probed_ns = batch->launches == 0 ? 0 : pace->probed_ns;
    pace->uncertain -= !batch->certain && pace->uncertain > 0;
    pace->guessed -= batch->guessed > 0 && pace->guessed > 0;
    pace->left_ns = pace->in_flight > 0 ? since(pace->left_ns, batch->expected_ns) : 0;
    pace->longest_ns = lesser(pace->longest_ns, pace->left_ns);
    pace->passed_ns = larger(pace->passed_ns, end);
    pace->sharp = known;
    pace->blur_ns = lesser(since(end, pace->looked_ns), CGPU_PACE_USUAL_LAG_NS);
    pace->stream = batch->stream;
    pace->marked_ns = batch->marked_ns;
    pace->since_ns = pace->passed_ns;
    pace->end_ns = later(pace->passed_ns, pace->left_ns);
}

/* A sample is never too short, but too long if a thread had no processor or others the GPU. */
static void
learn_lag(struct cgpu_pace *pace, uint64_t now)
{
    uint64_t looked = larger(pace->looked_ns, pace->probed_ns);
    uint64_t lag = since(since(now, pace->probed_ns), CGPU_PACE_USUAL_LAG_NS);

    if (pace->probed_ns == 0 || since(now, looked) > CGPU_PACE_SOON_NS) {
        return;
    }
    lag = clip(lag, 1, CGPU_PACE_LAG_NS);
    if (pace->lag_ns == 0 || lag < pace->lag_ns) {
        pace->lag_ns = lag;
    } else {
        pace->lag_ns += (lag - pace->lag_ns) / LAG_RISE;
    }
}

void
cgpu_pace_pass(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now,
               enum cgpu_pace_seen seen)
{
    bool known = seen != CGPU_SEEN_LATE;
    uint64_t end = known || !batch->certain ? now : end_of(pace, batch, now);
    uint64_t span = span_of(pace, batch, end);
    bool beside =
        batch->begun != 0 || (batch->stream != pace->stream && batch->start_ns < pace->marked_ns);
    struct cgpu_pace_lesson lesson = {
        .key = batch->key,
        .launches = lesser(batch->launches, LONGEST_NS),
        .span_ns = span,
        .blur_ns = arrives(pace, batch) < pace->passed_ns ? pace->blur_ns : 0,
        .at_ns = now,
        .there = true,
        .exact = batch->queued != 0 && arrives(pace, batch) <= pace->passed_ns,
        .seen = seen,
        .beside = beside,
        .cut = beside || (arrives(pace, batch) < pace->passed_ns && pace->sharp == 0),
    };

    if (batch->launches == 0) {
        learn_lag(pace, now);
    }
    if (pace->spans) {
        pace->busy_ns += known ? span : lesser(span, batch->expected_ns);
    } else if (batch->counted == 0) {
        pace->busy_ns += used_by(pace, batch, span > 0 && (known || batch->certain) ? end : 0);
    }
    if (!beside || pace->chain_launches > 0) { /* else it ran before the chain began */
        chain(pace, &lesson);
    }
    if (batch->guessed > 0 && span > 0) {
        uint64_t known_ns = batch->work_ns - lesser(batch->guess_ns, batch->work_ns);

        cgpu_guess_judge(&pace->guess, since(span, known_ns) / batch->guessed, batch->guessed);
    }
    take_off(pace, batch, end, known);
    take_lesson(pace, &lesson);
}

void
cgpu_pace_leave(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now)
{
    finish_lesson(pace);
    pace->busy_ns += pace->spans || batch->counted != 0 ? 0 : batch->expected_ns;
    take_off(pace, batch, now, false);
    pace->chain_key = 0;
    pace->chain_launches = 0;
    pace->chain_ns = 0;
}

void
cgpu_pace_return(struct cgpu_pace *pace, struct cgpu_pace_batch *batch, uint64_t now)
{
    cgpu_pace_mark(pace, batch, now);
    batch->start_ns = 0;
    batch->queued = 0;
    batch->counted = 1;
    pace->probed_ns = batch->launches == 0 ? 0 : pace->probed_ns;
}

void
cgpu_pace_look(struct cgpu_pace *pace, uint64_t now)
{
    pace->looked_ns = now;
}
