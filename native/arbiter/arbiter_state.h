/*
 * Internals of the arbiter; README.md has the parts.
 * Design: docs/design/arbiter.md.
 */
#ifndef CGPU_ARBITER_STATE_H
#define CGPU_ARBITER_STATE_H

#include "arbiter/anticipation.h"
#include "arbiter/arbiter.h"
#include "arbiter/corun.h"
#include "arbiter/turn_rules.h"
#include "arbiter/used.h"
#include "clock.h"

/*
 * A round, in which each container that competes has a turn: its length for two containers, and
 * what each further one adds. Then the shortest turn.
 */
#define CGPU_ROUND_NS           (16 * CGPU_MS)
#define CGPU_ROUND_PER_EXTRA_NS (4 * CGPU_MS)
#define CGPU_TURN_MIN_NS        (2 * CGPU_MS)
/* The least of the turn of a container that rested, together with the other's turn meanwhile. */
#define CGPU_PAIR_NS (3 * CGPU_MS)
/* But a round takes at least this many times the lag (demand.lag_ns), which blurs turns. */
#ifndef CGPU_ROUND_LAGS /* a test shows what shorter ones do */
#define CGPU_ROUND_LAGS 60
#endif
/* The longest lag that is believed of a container. */
#define CGPU_LAG_NS CGPU_MS
/* One in this many turns of a container begins only when all others have been seen to end. */
enum { CGPU_QUIET_TURNS = 64 };
/* The first part of each turn is charged to nobody: a thread wakes up, the GPU switches. */
#define CGPU_START_NS UINT64_C(60000)

/*
 * A container with a ceiling may leave the GPU unused without being charged (idle_credit.c) for
 * this part of all time. What it does not need is saved, up to this limit.
 */
enum { CGPU_IDLE_CREDIT_PART = 200 };
#define CGPU_IDLE_CREDIT_NS (5 * CGPU_MS)

/*
 * Work in flight goes on for about this long after a gate closes, so the gate closes earlier by
 * this.
 */
#define CGPU_FLIGHT_NS UINT64_C(450000)

/* A container with a ceiling below the whole runs and rests within about this time. */
#define CGPU_CYCLE_NS (32 * CGPU_MS)
/*
 * It runs for at least this long, and this many times the lag, because each run is charged the lag.
 */
#define CGPU_RUN_NS (6 * CGPU_MS)
enum { CGPU_RUN_LAGS = 32 };
/* How much a waiting container may save up: others' long kernels must not cost it its share. */
#ifndef CGPU_DEPTH_NS /* a test shows what a shallow one does */
#define CGPU_DEPTH_NS (600 * CGPU_MS)
#endif
/* The most that a container may owe, in GPU time: an endless kernel is not repaid for ever. */
#ifndef CGPU_DEBT_NS /* and what forgetting does */
#define CGPU_DEBT_NS (2000 * CGPU_MS)
#endif

/* What a container is owed outlasts a short pause, up to this. */
#define CGPU_OWED_NS (200 * CGPU_MS)
/* The lead that it had over the others outlasts the pause too, up to this. */
#define CGPU_LEAD_NS (40 * CGPU_MS)

/* The next gate opens when this little of the old holder's work is left: a thread's wake-up. */
#define CGPU_EARLY_NS UINT64_C(120000)
/* If work goes on for this long after its gate closed, a returning container does not wait. */
#define CGPU_OVERLAP_AFTER_NS CGPU_MS
/* By then a process whose gate has closed has reported how much it still has in flight. */
#define CGPU_ANSWER_NS UINT64_C(120000)
/* A container that gives no sign for this long past its expected end loses its turn. */
#define CGPU_SILENCE_NS (200 * CGPU_MS)
/* The same if the next one has already been let in: after that the two share the charge. */
#define CGPU_OVERLAP_NS UINT64_C(200000)
/* How often to check while others wait for an end: a process that dies does not ring. */
#define CGPU_DEATH_NS (20 * CGPU_MS)
/* An end further away than this is not waited for. */
#define CGPU_LONGEST_NS (2000 * CGPU_MS)
/* A process whose work must have ended this long ago is stopped: the work does not run. */
#define CGPU_STOPPED_NS (1000 * CGPU_MS)

/*
 * A container that was let in and does not launch for this long is passed over for a while, twice
 * as long each time.
 */
#define CGPU_ABSENT_NS (5 * CGPU_MS)
enum { CGPU_ABSENCES = 5 };

/* But if it reports that it missed its turn, it may try again this long after that. */
#define CGPU_AGAIN_NS (50 * CGPU_MS)

/* Others are expected back soon until they have been idle for RECENT_NS; after ALONE_NS, never. */
#define CGPU_RECENT_NS (100 * CGPU_MS)
#define CGPU_ALONE_NS  (10000 * CGPU_MS)

enum { CGPU_VIRTUAL_UNIT = 16 };

/* Where a container is in its turns. Only cgpu_state_change changes that. */
enum cgpu_tenant_state {
    CGPU_STATE_NONE,       /* nobody has this entry */
    CGPU_STATE_AWAY,       /* gate closed, nothing in flight */
    CGPU_STATE_RUNNING,    /* gate open */
    CGPU_STATE_DRAINING,   /* gate closed, its last work has not been seen to end */
    CGPU_STATE_FOLLOWED,   /* the same, and another has been let in since: its end was near */
    CGPU_STATE_OVERLAPPED, /* the same, but its end was not near */
    CGPU_STATE_EXPIRED     /* the same, and nobody waits for it any more */
};

/* The bucket of a ceiling. It fills with time, and empties by what is charged. */
struct cgpu_bucket {
    uint32_t rate_ppm; /* 0: no limit */
    int64_t credit_ns;
    uint64_t lag_ns;         /* of its owner; of more than one: 0 */
    uint64_t idle_credit_ns; /* time that its owner may leave unused without being charged */
    bool dry;                /* until it has filled so far that running again is worth it */
};

struct cgpu_tenant {
    enum cgpu_tenant_state state;
    bool high;
    bool shown;       /* was seen at work in this turn, or the last one */
    bool asked;       /* its demand was read after its gate had closed */
    bool quiet;       /* nothing of others was in flight when this turn began */
    bool unscheduled; /* until its work has ended, which came through a gate without turns */
    enum cgpu_gate gate;
    struct cgpu_claim claim;
    struct cgpu_demand demand;
    struct cgpu_bucket bucket;
    uint64_t virtual_ns;  /* charged, in CGPU_VIRTUAL_UNIT parts, by weight */
    bool competes;        /* at the last step: cgpu_tenant_competes */
    uint64_t competed_ns; /* when it last competed */
    uint64_t owed_ns;     /* how far it lagged behind the others when it last stopped competing */
    uint64_t turn_ns;     /* of this turn */
    bool yielded;         /* it left its last turn: it had nothing to do */
    uint32_t apart_turns; /* overlap.c: how many turns still begin at the ends of others' kernels */
    uint32_t failures;    /* how often in a row it was not worth it to run beside a kernel */
    bool in_overlap;      /* this turn began beside a kernel */
    bool evaluated;       /* its first burst of this turn has ended */
    uint64_t alone_ns;    /* when that kernel ended; 0: not yet */
    uint64_t usual_ns; /* how long it holds the GPU alone until it has nothing to do; 0: unknown */
    struct cgpu_rest rest;
    uint64_t lead_ns;  /* virtual: how far it was ahead when it last stopped competing */
    uint64_t start_ns; /* of its beginning, not charged yet and not to be */
    uint64_t opened_ns;
    uint64_t begun_ns; /* when it first launched in this turn, once that was seen */
    uint64_t turns;
    uint64_t closed_ns;
    uint64_t drain_ns; /* how long its work goes on when its gate has closed: the longest of late */
    uint64_t active_ns; /* when it last had or wanted work */
    uint64_t absent_until;
    uint32_t absences;
    uint64_t unseen_ns;  /* of turns that ended since it was last seen in one */
    bool ahead;          /* soft: closed until the others have caught up */
    uint64_t rate_ns;    /* soft: GPU time of its own of late */
    uint64_t used_at_ns; /* soft: when something of it was last seen to have ended */
    uint64_t charged_ns;
    uint64_t throttled_ns;
    uint64_t waits;
    struct cgpu_used used;

    /* stall.c: the figures when its work last began to stall */
    bool stall_begins;
    uint64_t stalled_since_ns; /* since when; 0: it does not */
    uint64_t stall_floor_ns;
    uint64_t stall_own_ns;
    uint64_t stall_others_ns;

    struct cgpu_corunner corunner;

    /* group/ */
    uint64_t container;   /* the same on each of its GPUs; 0: it has this one only */
    bool several;         /* it takes turns on several GPUs together */
    uint32_t times;       /* its turn was extended, as its work could not end */
    uint64_t idle_ns;     /* since when it has no work here, while it works on another GPU */
    uint64_t meets_until; /* until then its processes count as waiting for each other */
    uint64_t until_ns;    /* until when */
};

/* How the GPU is shared: in turns (most policies), softly, or by the GPU itself (native). */
struct cgpu_discipline {
    bool metered; /* time is counted; prio_ratio and parts by weight hold */
    /* Adopt DEMANDS and charge for the time since the last step. */
    void (*charge)(struct cgpu_arbiter *arbiter, uint64_t now, const struct cgpu_demand *demands);
    /* Set states and gates. */
    void (*step)(struct cgpu_arbiter *arbiter, uint64_t now);
    /* When the next step is due if nobody rings. */
    uint64_t (*poll_at)(const struct cgpu_arbiter *arbiter, uint64_t now);
    /* The flags of limits.h for a container whose gate is not free. */
    uint32_t (*report)(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant);
    /* Called when the rules change; NULL: nothing has to be done then. */
    void (*leave)(struct cgpu_arbiter *arbiter);
};

struct cgpu_arbiter {
    struct cgpu_rules rules;
    const struct cgpu_discipline *discipline;
    uint64_t now;            /* of the last step */
    int holder;              /* -1: none */
    struct cgpu_bucket high; /* of all high-priority containers, while others want the GPU */
    struct cgpu_corun corun;
    uint64_t floor_ns[2];     /* virtual time of those that compete, by priority */
    uint64_t round_end_ns[2]; /* virtual time up to which turns go, by priority */
    uint64_t paid_ns;         /* by all, ever */
    int64_t anticipation_ns;  /* for which rests within turns may still leave the GPU idle */
    uint64_t unused_ns;       /* not shown for anybody, of late: not charged, or not used */
    uint64_t part;            /* of used.recent_ns, counted since the epoch */
    uint64_t part_from_ns[CGPU_RECENT_PARTS]; /* when each begins, or what is charged in it */
    uint64_t turns;
    uint64_t expired;
    struct cgpu_tenant tenants[CGPU_MAX_TENANTS];
};

static inline bool
cgpu_tenant_is_present(const struct cgpu_tenant *tenant)
{
    return tenant->state != CGPU_STATE_NONE;
}

/* Go through the containers of ARBITER. */
#define cgpu_each_tenant(tenant, arbiter)                                                          \
    for (__typeof__(&(arbiter)->tenants[0]) tenant = (arbiter)->tenants;                           \
         tenant < (arbiter)->tenants + CGPU_MAX_TENANTS; tenant++)                                 \
        if (cgpu_tenant_is_present(tenant))

static inline int
cgpu_tenant_index(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant)
{
    return (int)(tenant - arbiter->tenants);
}

/* Whether its gate is closed and the end of its work is waited for. */
static inline bool
cgpu_tenant_is_draining(const struct cgpu_tenant *tenant)
{
    return tenant->state == CGPU_STATE_DRAINING || tenant->state == CGPU_STATE_FOLLOWED;
}

/* Whether its gate is closed and it is not let in again before its work has ended. */
static inline bool
cgpu_tenant_goes_on(const struct cgpu_tenant *tenant)
{
    return cgpu_tenant_is_draining(tenant) || tenant->state == CGPU_STATE_OVERLAPPED;
}

static inline bool
cgpu_tenant_is_capped(const struct cgpu_tenant *tenant)
{
    return tenant->bucket.rate_ppm != 0;
}

/* Whether high priority has only its ratio, because ordinary priority has or wants work. */
static inline bool
cgpu_arbiter_is_contended(const struct cgpu_arbiter *arbiter)
{
    return arbiter->high.rate_ppm != 0;
}

/* Whether it has work in flight, by its own report. */
static inline bool
cgpu_tenant_works(const struct cgpu_tenant *tenant)
{
    return tenant->demand.active && !tenant->demand.idle;
}

static inline bool
cgpu_tenant_wants(const struct cgpu_tenant *tenant)
{
    return tenant->demand.waiting || cgpu_tenant_works(tenant);
}

/* Whether it works beside others, or was given up and perhaps still works. */
static inline bool
cgpu_tenant_overlaps(const struct cgpu_tenant *tenant, uint64_t now)
{
    const struct cgpu_demand *demand = &tenant->demand;
    bool stopped = demand->certain && cgpu_since(now, demand->end_ns) > CGPU_STOPPED_NS;

    return tenant->state == CGPU_STATE_OVERLAPPED ||
           (tenant->state == CGPU_STATE_EXPIRED && !stopped);
}

/* arbiter.c, soft.c */
extern const struct cgpu_discipline cgpu_turns, cgpu_soft;

static inline bool
cgpu_arbiter_takes_turns(const struct cgpu_arbiter *arbiter)
{
    return arbiter->discipline == &cgpu_turns;
}

/* charge.c */
void cgpu_charge_time(struct cgpu_arbiter *arbiter, uint64_t now,
                      const struct cgpu_demand *demands);
/* Adopt DEMANDS; the second function also charges for turns. For disciplines. */
void cgpu_charge_nobody(struct cgpu_arbiter *arbiter, uint64_t now,
                        const struct cgpu_demand *demands);
void cgpu_charge_turns(struct cgpu_arbiter *arbiter, uint64_t now,
                       const struct cgpu_demand *demands);

/* transition.c */
/* Change the state of TENANT, with all that belongs to it. */
void cgpu_state_change(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                       enum cgpu_tenant_state to, uint64_t now);
/*
 * Whether TENANT competes. Not if it is stopped and does not use its turns: it earns nothing then.
 */
bool cgpu_tenant_competes(const struct cgpu_tenant *tenant, uint64_t now);

/* stall.c */
/* Charge for work that stalled and has ended, before SAYS is adopted. */
void cgpu_stall_charge(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                       const struct cgpu_demand *says, uint64_t now);
/* Record the state when work begins to stall, after everything is charged. */
void cgpu_stall_record(const struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                       uint64_t now);

/* overlap.c */
/* From when on NEXT (-1: nobody) need not wait for the end of DRAINING's work. */
uint64_t cgpu_overlap_from(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *draining,
                           int next, uint64_t now);
/* Whether NEXT need not wait for the ends of others' work. */
bool cgpu_overlap_may(const struct cgpu_arbiter *arbiter, int next, uint64_t now);
/* Note that NEXT is about to be let in. */
void cgpu_overlap_begin(struct cgpu_arbiter *arbiter, int next, uint64_t now);
/* Whether work of a container runs on beside a turn, or ran on beside one. */
bool cgpu_overlap_any(const struct cgpu_arbiter *arbiter);
/* Record when the holder began to have the GPU for itself. */
void cgpu_overlap_observe(struct cgpu_arbiter *arbiter, uint64_t now);
/* Note that the holder's turn, or its first burst in it, has ended; LEFT: it has no more work. */
void cgpu_overlap_end(struct cgpu_arbiter *arbiter, bool left, uint64_t now);

/* idle_credit.c */
/* The part of the time since FROM, before its first launch, that is not charged to TENANT. */
uint64_t cgpu_idle_before(struct cgpu_tenant *tenant, uint64_t from, uint64_t now);
/* The same with its gate closed, for the time after the end of its work. */
uint64_t cgpu_idle_after(struct cgpu_tenant *tenant, uint64_t from, uint64_t now);

/* bucket.c */
void cgpu_bucket_refill(struct cgpu_bucket *bucket, uint64_t ns, bool wanted);
void cgpu_bucket_forget(struct cgpu_bucket *bucket);
void cgpu_bucket_take(struct cgpu_bucket *bucket, uint64_t ns);
/* Set the rate from now on, and whether the bucket is dry. All time up to now has been charged. */
void cgpu_bucket_update(struct cgpu_bucket *bucket, uint32_t rate_ppm);
/* How long the bucket needs until it is no longer dry. */
uint64_t cgpu_bucket_rest(const struct cgpu_bucket *bucket);
/* How long the owner may run on. */
uint64_t cgpu_bucket_lasts(const struct cgpu_bucket *bucket);

/* Why a holder's turn ends. */
enum cgpu_turn_end {
    CGPU_TURN_GOES_ON,
    CGPU_TURN_IS_LEFT, /* it has nothing to do */
    CGPU_TURN_IS_OVER, /* it has had its time, its ceiling is reached, or high priority comes */
};

/* turn.c */
void cgpu_turn(struct cgpu_arbiter *arbiter, uint64_t now);
/* Parts of it, for group.h. */
/* The first part: close unscheduled gates, and stop waiting for silent containers. */
void cgpu_turn_review(struct cgpu_arbiter *arbiter, uint64_t now);
/* Whether the holder's turn ends, now that NEXT (-1: nobody) waits. */
enum cgpu_turn_end cgpu_turn_end(struct cgpu_arbiter *arbiter, int next, uint64_t now);
void cgpu_turn_open(struct cgpu_arbiter *arbiter, int index, uint64_t now);
/* Continue a turn that was just closed. */
void cgpu_turn_reopen(struct cgpu_arbiter *arbiter, int index, uint64_t now);
/* Close the holder's turn, which ends for the reason WHY. */
void cgpu_turn_finish(struct cgpu_arbiter *arbiter, enum cgpu_turn_end why, uint64_t now);
/* The last part: set the holder's gate. */
void cgpu_turn_refresh_gate(struct cgpu_arbiter *arbiter, uint64_t now);

/* soft.c */
uint64_t cgpu_soft_poll_at(const struct cgpu_arbiter *arbiter, uint64_t now);

/* report.c */
uint32_t cgpu_report_turns(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant);

/* pay.c */
void cgpu_pay(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t ns);

/* poll.c */
uint64_t cgpu_poll_at(const struct cgpu_arbiter *arbiter, uint64_t now);

#endif
