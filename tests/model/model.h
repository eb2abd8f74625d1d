/*
 * The model: the real policies, arbiter and gate against a modelled GPU, in virtual time.
 *
 * A discrete-event simulation. Actors say when they want to be called next; whoever is first is
 * called, and nothing happens in between but the GPU's work. All chance comes from one generator,
 * so that a scenario gives the same figures everywhere.
 *
 *   gpu.c      round robin between processes that have work, cost of a switch
 *   thread.c   a program's thread: launches, waits for gate, room, end of work
 *   process.c  what native/gate needs of the driver and of threads; the helper thread
 *   server.c   the thread that runs the arbiter
 *   world.c    events in their order, figures; apply.c: changes while it runs
 *   window.c   the worst of any window of time; gps.c: what processor sharing would give
 *   cases.c    the scenarios with bars; print.c: JSON; main.c: the command line
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "arbiter/arbiter.h"
#include "arbiter/budget.h"
#include "arbiter/group/group.h"
#include "gate/state.h"

#define US           UINT64_C(1000)
#define MS           UINT64_C(1000000)
#define SECOND       UINT64_C(1000000000)
#define NEVER        UINT64_MAX
#define LAUNCH_NS    (2 * US)  /* of the processor's time, unless a scenario says otherwise */
#define CHUNK_NS     (50 * US) /* short kernels are launched together, so many at a time */
#define UNMETERED_NS (5 * MS)  /* work in the driver's queue when nobody limits it */
#define SPAN_NS      (50 * MS) /* windows begin and end with one */

enum {
    MAX_TENANTS = CGPU_MAX_TENANTS,
    MAX_GPUS = 4,
    MAX_PROCESSES = 64,
    MAX_QUEUE = 1024,
    MAX_STREAMS = 512, /* of a process */
    MAX_MARKERS = 8,   /* of a stream */
    MAX_LENGTHS = 6,
    MAX_CHANGES = 64
};

/* What each process of a tenant does. */
struct load {
    uint64_t lengths[MAX_LENGTHS]; /* of kernels, in turn */
    uint32_t length_count;
    uint32_t kinds;       /* so many different kernels of each length, in turn; 0: one */
    uint32_t sync_every;  /* synchronise after so many kernels; 0: never */
    uint32_t burst_syncs; /* think only after so many synchronisations; 0: after each */
    uint64_t think_ns;    /* processor's time after it, on average */
    uint64_t burst_ns;    /* busy for so long ... */
    uint64_t pause_ns;    /* ... then nothing for so long; 0: always busy */
    uint32_t meet_every;  /* every n-th kernel runs until its mates' kernels run too; 0: none */
    uint32_t barrier;     /* after each synchronisation, wait until the mates have synchronised */
    uint32_t one_thread;  /* launches for all mates, then waits for all of them */
    uint64_t launch_ns;   /* of the processor's time, for each kernel */
    uint32_t streams;     /* kernels go into these in turn */
};

struct tenant_spec {
    uint32_t weight;     /* 0: it shares what is left, by its memory */
    uint32_t memory_mib; /* its cap */
    bool high;
    uint32_t processes; /* on each of its GPUs; those of the same number are mates */
    uint32_t gpus;      /* bits */
    uint64_t start_ns;
    uint64_t lag_ns; /* what it says of the lag; 0: the truth */
    uint32_t late;   /* says that its work began when it is asked, and ended when its gate closed */
    struct load load;
};

enum change_kind {
    CHANGE_RULES,  /* policy, max_inst, prio_ratio */
    CHANGE_WEIGHT, /* of tenant: value */
    CHANGE_HIGH,   /* of tenant: value */
    CHANGE_STOP,   /* SIGSTOP for all processes of tenant */
    CHANGE_GO,     /* SIGCONT */
    CHANGE_KILL,   /* SIGKILL */
    CHANGE_REMOVE  /* the container is deleted while it runs */
};

struct change {
    uint64_t at_ns;
    enum change_kind kind;
    int tenant;
    uint32_t value;
    struct cgpu_rules rules;
};

struct scenario {
    const char *name;
    struct cgpu_rules rules;
    uint64_t length_ns;
    uint64_t from_ns; /* figures count from here on */
    uint64_t seed;
    uint64_t switch_ns;               /* between processes, lost to all */
    uint64_t slice_ns;                /* of the GPU's round robin */
    uint64_t dispatch_ns;             /* from a launch to its earliest start on the GPU */
    uint64_t completion_ns;           /* from an end on the GPU until it is visible */
    uint64_t wake_least, wake_most;   /* futex wake-up to running */
    uint64_t timer_least, timer_most; /* end of a sleep to running */
    uint64_t series_ns;               /* print shares by spans of so long; 0: not */
    uint32_t jitter;                  /* kernels vary by so many percent */
    uint32_t apart;                   /* each GPU takes turns by itself */
    uint32_t in_order;                /* the GPU runs kernels as they came, and never interrupts */
    uint32_t tenant_count;
    struct tenant_spec tenants[MAX_TENANTS];
    uint32_t change_count;
    struct change changes[MAX_CHANGES];
};

struct work_item {
    uint64_t ready_ns; /* its earliest start */
    uint64_t left_ns;
    uint64_t seq;
    uint64_t meeting; /* the meeting's number; 0: it meets nobody */
    uint64_t order;   /* among those of all processes */
};

struct marker {
    uint64_t seq; /* of the item before it */
    uint64_t marked_ns;
    uint64_t visible_ns; /* NEVER: not known yet */
};

enum thread_state { THREAD_RUNS, THREAD_AT_GATE, THREAD_WAITS_ROOM, THREAD_SYNCS, THREAD_RESTS };

struct process {
    int tenant;
    int gpu;
    uint32_t team, mates; /* the first of its mates, and how many there are with it */
    bool alive;
    bool stopped;
    struct load load;
    uint64_t at_thread, at_monitor; /* when to call them */
    enum thread_state state;
    uint32_t word;       /* gate word under which the thread was let in; 0: none */
    uint32_t kernel;     /* next of load.lengths */
    uint64_t since_sync; /* kernels */
    uint64_t burst_end;
    uint64_t asked_ns;  /* when the request began: for its latency */
    uint64_t synced_ns; /* since when it synchronises */
    uint64_t gate_ns;   /* since when it waits at the gate */
    uint64_t queued_at; /* since when it waits for a permit; NEVER: it does not */
    uint64_t idle_from; /* all that it has launched has been seen to end by then */
    uint64_t ready_ns;  /* of the work since the last synchronisation, alone on the GPU */
    uint64_t launched;  /* kernels */
    uint64_t rounds;    /* up to a synchronisation, launched */
    uint64_t synced;    /* synchronisations since it last thought */
    uint64_t met;       /* the last meeting that its kernel came to */
    uint64_t stepped_ns;

    struct work_item queue[MAX_QUEUE];
    uint32_t queue_head, queue_count;
    uint64_t queued_ns;
    uint64_t submitted, finished; /* sequence numbers of items */
    uint64_t last[MAX_STREAMS];   /* of each stream's last item */

    struct world *world;
    struct cgpu_gate_gpu gate;
    struct cgpu_stream streams[MAX_STREAMS];
    uint32_t current; /* the next kernel's stream */
    struct cgpu_ledger_work work;
    struct marker markers[MAX_STREAMS][MAX_MARKERS]; /* by their sequence numbers */
    bool probes;                                     /* a marker that is placed now is a probe */
    uint32_t hot_word;    /* gate word under which the thread needs no look; 0: none */
    uint64_t hot_ns;      /* what it has launched without one */
    uint64_t estimate_ns; /* of its next kernel */
    bool guessed;

    uint64_t gpu_ns; /* really used */
};

struct samples {
    uint64_t *values;
    uint32_t count, room;
};

struct tenant {
    int indices[MAX_GPUS]; /* in the arbiters; -1: not there */
    uint32_t words[MAX_GPUS];
    struct cgpu_ledger_gpu sums[MAX_GPUS];
    struct cgpu_limits_gpu limits[MAX_GPUS]; /* only quiet_gate and metered */
    uint64_t used_ns;                        /* in the time that counts */
    uint64_t used_on[MAX_GPUS];              /* the same, all the time */
    uint64_t steps; /* in the time that counts: synchronisations, or meetings */
    uint64_t longest_step;
    uint64_t series_used;
    uint64_t span_used;
    struct samples spans;   /* used in each SPAN_NS */
    uint64_t longest_wait;  /* at the gate */
    struct samples latency; /* beyond the request's own work */
};

struct gpu {
    struct cgpu_arbiter *arbiter;
    int running, last; /* process; -1: none */
    uint64_t slice_end, switch_end;
    uint64_t came; /* items, ever */
};

struct world {
    const struct scenario *scenario;
    uint64_t now;
    uint64_t chance;
    struct gpu gpus[MAX_GPUS];
    int gpu_count;
    struct cgpu_group group;
    uint64_t at_server;
    struct cgpu_budget budget;
    uint64_t allowed_ns; /* the server does not look before */
    uint32_t next_change;
    struct tenant tenants[MAX_TENANTS];
    struct process processes[MAX_PROCESSES];
    uint32_t process_count;

    uint64_t busy_ns, wanted_ns, steps;
    uint64_t next_series, next_span;
    bool skipped; /* see world_run_every */
};

/* world.c */
struct world *world_run(const struct scenario *scenario);
void world_free(struct world *world);
/* From now on only every EVERY-th world is run; the figures of the others are not printed. */
void world_run_every(uint32_t every);
uint64_t world_random(struct world *world, uint64_t least, uint64_t most);
uint64_t world_wake(struct world *world);               /* when somebody woken now runs */
uint64_t world_timer(struct world *world, uint64_t at); /* when a sleep until AT ends */
void world_sample(struct samples *samples, uint64_t value);
uint64_t world_percentile(struct samples *samples, double part);
uint32_t world_gate(const struct world *world, const struct process *process);
/* One more step of PROCESS has ended, at NOW. */
void world_step(struct world *world, struct process *process, uint64_t now);

/* apply.c */
void apply_change(struct world *world, const struct change *change);

/* gpu.c */
void gpu_submit(struct world *world, struct process *process, uint64_t ns, uint64_t meeting);
uint64_t gpu_next(const struct world *world, int gpu);
void gpu_advance(struct world *world, int gpu, uint64_t to);
void gpu_meet(struct world *world, int gpu, uint64_t to);
void gpu_forget(struct world *world, struct process *process);

/* thread.c */
void thread_run(struct world *world, struct process *process);
/* The GPU has finished one more of its items, at NOW. */
void thread_finished(struct world *world, struct process *process, uint64_t now);

/* process.c */
void process_init(struct world *world, struct process *process);
/* Markers that the GPU has reached at NOW can be seen. */
void process_pass_markers(struct process *process, uint64_t now);
/* Its helper thread runs. */
void process_monitor(struct world *world, struct process *process);

/* server.c */
void server_run(struct world *world);
void server_ring(struct world *world);

/*
 * window.c: by how many points TENANT is off PERCENT in the worst window of LENGTH_NS after the
 * first; of what was delivered in it, or OF_TIME.
 */
double window_worst(const struct world *world, uint32_t tenant, uint64_t length_ns, double percent,
                    bool of_time);

/* gps.c: what each of COUNT programs gets in LENGTH ns, if the GPU can be divided at will. */
struct gps_load {
    double weight;
    double work, gap; /* ns of each burst, and between two; gap 0: always busy */
    double had;       /* ns: the result */
    double work_left, gap_left;
};
void gps_share(struct gps_load *loads, uint32_t count, double length);

/* scenario.c */
void scenario_defaults(struct scenario *scenario, uint32_t policy, uint64_t length_ns);
/* A backlogged tenant with one process and kernels of NS. */
struct tenant_spec *scenario_tenant(struct scenario *scenario, uint32_t weight, uint64_t ns);
/* One "key=value" of the command line; false: not understood. */
bool scenario_parse(struct scenario *scenario, const char *argument);

/* cases.c: run those whose group begins with NAME; how many missed their bar. */
int cases_run(const char *name);

/* print.c */
void print_world(struct world *world);
void print_series(struct world *world);
double print_share(const struct world *world, uint32_t tenant); /* of what was delivered, percent */
double print_part(const struct world *world, uint32_t tenant);  /* of the time that counts */
double print_busy(const struct world *world); /* of the time in which somebody had work */
/* The largest difference, in points, between TENANT's charge on a GPU and its use there. */
double print_charge_error(const struct world *world, uint32_t tenant);

#endif
