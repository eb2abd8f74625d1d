/*
 * Generalised processor sharing, the measure of fairness for programs that pause: at any instant
 * the GPU is divided by weight among those that have work (Parekh and Gallager, 1993). Each runs
 * bursts of work with gaps between them, and a gap begins when its burst has ended. Gaps vary as
 * those of the model's programs do (thread.c): without that, the gaps of two programs would lock
 * into each other's bursts.
 */
#include "model.h"

/* The next moment at which a burst begins or ends. */
static double
next_event(const struct gps_load *loads, uint32_t count, double rates)
{
    double next = 1e18;

    for (uint32_t i = 0; i < count; i++) {
        double left = loads[i].work_left > 0 ? loads[i].work_left * rates / loads[i].weight
                                             : loads[i].gap_left;

        next = left < next ? left : next;
    }
    return next;
}

/* From half of GAP to one and a half. */
static double
vary(double gap, uint64_t *chance)
{
    *chance = *chance * UINT64_C(6364136223846793005) + 1;
    return gap * (0.5 + (double)(*chance >> 33) / (double)(UINT64_C(1) << 31));
}

static void
pass(struct gps_load *load, double ns, double rates, uint64_t *chance)
{
    if (load->work_left > 0) {
        double had = ns * load->weight / rates;

        load->had += had;
        load->work_left -= had;
        if (load->work_left < 1 && load->gap > 0) {
            load->work_left = 0;
            load->gap_left = vary(load->gap, chance);
        } else if (load->work_left < 1) {
            load->work_left = load->work;
        }
    } else {
        load->gap_left -= ns;
        load->work_left = load->gap_left < 1 ? load->work : 0;
    }
}

void
gps_share(struct gps_load *loads, uint32_t count, double length)
{
    uint64_t chance = 1;

    for (uint32_t i = 0; i < count; i++) {
        loads[i].work_left = loads[i].work;
        loads[i].had = 0;
    }
    for (double now = 0; now < length;) {
        double rates = 0, ns;

        for (uint32_t i = 0; i < count; i++) {
            rates += loads[i].work_left > 0 ? loads[i].weight : 0;
        }
        ns = next_event(loads, count, rates);
        for (uint32_t i = 0; i < count; i++) {
            pass(&loads[i], ns, rates, &chance);
        }
        now += ns;
    }
}
