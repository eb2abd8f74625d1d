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
 * In a round, each container that competes has a turn. The length of a round of two containers;
 * what each further one adds; the shortest turn.
 */
#define CGPU_ROUND_NS           (16 * CGPU_MS)
#define CGPU_ROUND_PER_EXTRA_NS (4 * CGPU_MS)
#define CGPU_TURN_MIN_NS        (2 * CGPU_MS)
/*
 * If a container comes back from a rest, its turn and the other's turn meanwhile take at least this
 * together.
 */
#define CGPU_PAIR_NS (3 * CGPU_MS)
/* A round takes at least this many lags (demand.lag_ns), because the lag blurs turns. */
#ifndef CGPU_ROUND_LAGS /* a test shows what shorter ones do */
#define CGPU_ROUND_LAGS 60
#endif
/* The lag that a container reports counts as at most this. */
#define CGPU_LAG_NS CGPU_MS
/* One in this many turns of a container begins only after all others' work was seen to end. */
enum { CGPU_QUIET_TURNS = 64 };
/* The beginning of a turn, charged to nobody: a thread wakes up, and the GPU switches. */
#define CGPU_START_NS UINT64_C(60000)

/*
 * For this part of all time, a container with a ceiling may leave the GPU unused without being
 * charged (idle_credit.c). What it does not use of that is saved, up to a limit.
 */
enum { CGPU_IDLE_CREDIT_PART = 200 };
#define CGPU_IDLE_CREDIT_NS (5 * CGPU_MS)

/*
 * Work in flight continues for about this long after a gate closes, so the gate closes this much
 * before the end of the turn.
 */
#define CGPU_FLIGHT_NS UINT64_C(450000)

/* A container with a ceiling below the whole runs and rests within about this time. */
#define CGPU_CYCLE_NS (32 * CGPU_MS)
/*
 * A run takes at least this long, and at least this many lags, because each run is charged the lag.
 */
#define CGPU_RUN_NS (6 * CGPU_MS)
enum { CGPU_RUN_LAGS = 32 };
/*
 * The most that a waiting container may save up. Others' long kernels must not cost it its share.
 */
#ifndef CGPU_DEPTH_NS /* a test shows what a shallow one does */
#define CGPU_DEPTH_NS (600 * CGPU_MS)
#endif
/* The most GPU time that a container may owe, so that an endless kernel is not repaid for ever. */
#ifndef CGPU_DEBT_NS /* and what forgetting does */
#define CGPU_DEBT_NS (2000 * CGPU_MS)
#endif

/* After a short pause, a container is still owed what it was owed before, up to this. */
#define CGPU_OWED_NS (200 * CGPU_MS)
/* After a short pause, it is still as far ahead of the others as before, up to this. */
#define CGPU_LEAD_NS (40 * CGPU_MS)

/* The next gate opens this long before the old holder's work ends: a thread needs it to wake up. */
#define CGPU_EARLY_NS UINT64_C(120000)
/* If work lasts this long after its gate closed, a container that returns from a rest joins it. */
#define CGPU_OVERLAP_AFTER_NS CGPU_MS
/* This long after its gate closed, a process has reported what it still has in flight. */
#define CGPU_ANSWER_NS UINT64_C(120000)
/* A draining container that gives no sign for this long after its expected end is EXPIRED. */
#define CGPU_SILENCE_NS (200 * CGPU_MS)
/* A FOLLOWED container is EXPIRED this long after its expected end, and from then on pays too. */
#define CGPU_OVERLAP_NS UINT64_C(200000)
/* How often to check for an end that others wait for: a process that dies rings no bell. */
#define CGPU_DEATH_NS (20 * CGPU_MS)
/* Others wait for the end of work for at most this long after its gate closed. */
#define CGPU_LONGEST_NS (2000 * CGPU_MS)
/* If work certainly should have ended this long ago, it does not run: its process is stopped. */
#define CGPU_STOPPED_NS (1000 * CGPU_MS)

/*
 * If a container is let in and does not launch for this long, others go first for a while, each
 * time for twice as long.
 */
#define CGPU_ABSENT_NS (5 * CGPU_MS)
enum { CGPU_ABSENCES = 5 };

/* If it reports that it missed its turn, it may try again this long after that turn. */
#define CGPU_AGAIN_NS (50 * CGPU_MS)

/*
 * Containers that were idle for less than RECENT_NS are expected back soon. After ALONE_NS they are
 * not expected at all.
 */
#define CGPU_RECENT_NS (100 * CGPU_MS)
#define CGPU_ALONE_NS  (10000 * CGPU_MS)

/* Virtual time is GPU time in sixteenths of a ns, divided by the weight. */
enum { CGPU_VIRTUAL_UNIT = 16 * CGPU_WEIGHT_PARTS };

/* Where a container is in its turns. Only cgpu_state_change changes that. */
enum cgpu_tenant_state {
    CGPU_STATE_NONE,       /* nobody has this entry */
    CGPU_STATE_AWAY,       /* gate closed, nothing in flight */
    CGPU_STATE_RUNNING,    /* gate open */
    CGPU_STATE_DRAINING,   /* gate closed, its last work has not been seen to end */
    CGPU_STATE_FOLLOWED,   /* the same, but the next was let in, because the end was near */
    CGPU_STATE_OVERLAPPED, /* the same, but the end was not near */
    CGPU_STATE_EXPIRED     /* the same, and nobody waits for it any more */
};

/* The bucket of a ceiling. It fills with time, and empties by what is charged. */
struct cgpu_bucket {
    uint32_t rate_ppm; /* 0: no limit */
    int64_t credit_ns;
    uint64_t lag_ns;         /* of its owner; 0 if it has several */
    uint64_t idle_credit_ns; /* time that its owner may leave unused without being charged */
    bool dry;                /* too little credit for a run that is worth it */
};

struct cgpu_tenant {
    enum cgpu_tenant_state state;
    bool high;
    bool shown;       /* was seen at work in this turn, or the last one */
    bool asked;       /* its demand was read after its gate had closed */
    bool quiet;       /* nothing of others was in flight when this turn began */
    bool unscheduled; /* its work came through a gate without turns, and has not ended */
    enum cgpu_gate gate;
    struct cgpu_claim claim;
    struct cgpu_demand demand;
    struct cgpu_bucket bucket;
    uint64_t virtual_ns;  /* charged, times CGPU_VIRTUAL_UNIT, by claim.competes */
    bool competes;        /* at the last step: cgpu_tenant_competes */
    uint64_t competed_ns; /* when it last competed */
    uint64_t owed_ns;     /* how far it lagged behind the others when it last stopped competing */
    uint64_t turn_ns;     /* of this turn */
    bool yielded;         /* it left its last turn because it had nothing to do */
    uint32_t apart_turns; /* overlap.c: so many turns wait for the ends of others' kernels */
    uint32_t failures;    /* attempts in a row to run beside a kernel that were not worth it */
    bool in_overlap;      /* this turn began beside a kernel */
    bool evaluated;       /* its first burst of this turn has ended */
    uint64_t alone_ns;    /* when that kernel ended; 0: not yet */
    uint64_t usual_ns;    /* how long it usually has the GPU alone until it rests; 0: unknown */
    struct cgpu_rest rest;
    uint64_t lead_ns;  /* virtual: how far it was ahead when it last stopped competing */
    uint64_t start_ns; /* what is left of the beginning of its turn, which is not charged */
    uint64_t opened_ns;
    uint64_t begun_ns; /* when it first launched in this turn, once that was seen */
    uint64_t turns;
    uint64_t closed_ns;
    uint64_t drain_ns;  /* how long its work lasts after its gate has closed: the longest lately */
    uint64_t active_ns; /* when it last had or wanted work */
    uint64_t absent_until;
    uint32_t absences;
    uint64_t unseen_ns;  /* length of the turns that ended since it was last seen at work */
    bool ahead;          /* soft: closed until the others have caught up */
    uint64_t rate_ns;    /* soft: its recent GPU time */
    uint64_t used_at_ns; /* soft: when some of its work was last seen to end */
    uint64_t charged_ns;
    uint64_t throttled_ns;
    uint64_t waits;
    struct cgpu_used used;

    /* stall.c: its figures as of the time when its work last began to stall */
    bool stall_begins;
    uint64_t stalled_since_ns; /* since when its work stalls; 0: it does not */
    uint64_t stall_floor_ns;
    uint64_t stall_own_ns;
    uint64_t stall_others_ns;

    struct cgpu_corunner corunner;

    /* group/ */
    uint64_t container;   /* the same on each of its GPUs; 0: it has this one only */
    bool several;         /* it takes turns on several GPUs together */
    uint32_t times;       /* its turn was extended because its work could not end */
    uint64_t idle_ns;     /* since when it has no work here, but works on another GPU */
    uint64_t meets_until; /* until then its processes count as waiting for each other */
    uint64_t until_ns;    /* until when its turn is extended */
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
    uint64_t paid_ns;         /* by all since the start */
    int64_t anticipation_ns;  /* how long rests within turns may still leave the GPU idle */
    uint64_t unused_ns;       /* recent time that is shown for nobody: not charged, or not used */
    uint64_t part;            /* of used.recent_ns, counted since the epoch */
    uint64_t part_from_ns[CGPU_RECENT_PARTS]; /* when the time that was charged in each begins */
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

/* Whether TENANT's gate is closed and others wait for the end of its work. */
static inline bool
cgpu_tenant_is_draining(const struct cgpu_tenant *tenant)
{
    return tenant->state == CGPU_STATE_DRAINING || tenant->state == CGPU_STATE_FOLLOWED;
}

/* Whether TENANT's gate is closed, and stays closed until its work has ended. */
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

/* Whether high priority is limited to prio_ratio, because ordinary containers have or want work. */
static inline bool
cgpu_arbiter_is_contended(const struct cgpu_arbiter *arbiter)
{
    return arbiter->high.rate_ppm != 0;
}

/* Whether TENANT has work in flight, by its own report. */
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

/* Whether TENANT works beside others, or is EXPIRED and perhaps still works. */
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
/* Disciplines adopt DEMANDS by one of these. The second function also charges for turns. */
void cgpu_charge_nobody(struct cgpu_arbiter *arbiter, uint64_t now,
                        const struct cgpu_demand *demands);
void cgpu_charge_turns(struct cgpu_arbiter *arbiter, uint64_t now,
                       const struct cgpu_demand *demands);

/* transition.c */
/* Change the state of TENANT, with all that belongs to it. */
void cgpu_state_change(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                       enum cgpu_tenant_state to, uint64_t now);
/*
 * Whether TENANT competes for turns, and so earns time. A stopped container, which does not use its
 * turns, does neither.
 */
bool cgpu_tenant_competes(const struct cgpu_tenant *tenant, uint64_t now);

/* stall.c */
/* Before SAYS is adopted: charge TENANT for work that stalled and has ended. */
void cgpu_stall_charge(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                       const struct cgpu_demand *says, uint64_t now);
/* After everything is charged: record TENANT's figures if its work begins to stall. */
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
/* Whether a container is OVERLAPPED: its work goes on, and another one was let in beside it. */
bool cgpu_overlap_any(const struct cgpu_arbiter *arbiter);
/* Record when the holder began to have the GPU for itself. */
void cgpu_overlap_observe(struct cgpu_arbiter *arbiter, uint64_t now);
/* Note that the holder's turn, or its first burst in it, has ended. LEFT: it has nothing to do. */
void cgpu_overlap_end(struct cgpu_arbiter *arbiter, bool left, uint64_t now);

/* idle_credit.c */
/* How much of the time from FROM to TENANT's first launch is not charged to it. */
uint64_t cgpu_idle_before(struct cgpu_tenant *tenant, uint64_t from, uint64_t now);
/* How much of the time after the end of TENANT's work is not charged to it; its gate is closed. */
uint64_t cgpu_idle_after(struct cgpu_tenant *tenant, uint64_t from, uint64_t now);

/* bucket.c */
void cgpu_bucket_refill(struct cgpu_bucket *bucket, uint64_t ns, bool wanted);
void cgpu_bucket_forget(struct cgpu_bucket *bucket);
void cgpu_bucket_take(struct cgpu_bucket *bucket, uint64_t ns);
/*
 * Set the rate from now on, and whether the bucket is dry. The caller has charged all time before.
 */
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
/* Parts of cgpu_turn, for group.h. */
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
