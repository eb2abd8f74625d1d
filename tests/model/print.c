/* Figures, as JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "model.h"

double
print_share(const struct world *world, uint32_t tenant)
{
    return world->busy_ns == 0
               ? 0
               : 100 * (double)world->tenants[tenant].used_ns / (double)world->busy_ns;
}

double
print_part(const struct world *world, uint32_t tenant)
{
    const struct scenario *s = world->scenario;

    return 100 * (double)world->tenants[tenant].used_ns / (double)(s->length_ns - s->from_ns);
}

double
print_busy(const struct world *world)
{
    return world->wanted_ns == 0 ? 100 : 100 * (double)world->busy_ns / (double)world->wanted_ns;
}

double
print_charge_error(const struct world *world, uint32_t tenant)
{
    double worst = 0;

    for (int g = 0; g < world->gpu_count; g++) {
        double charged = 0, used = 0, charged_all = 0, used_all = 0;

        for (uint32_t t = 0; t < world->scenario->tenant_count; t++) {
            struct cgpu_tenant_report report = {0};

            if (world->tenants[t].indices[g] >= 0) {
                cgpu_arbiter_report(world->gpus[g].arbiter, world->tenants[t].indices[g], &report);
            }
            charged += t == tenant ? (double)report.charged_ns : 0;
            used += t == tenant ? (double)world->tenants[t].used_on[g] : 0;
            charged_all += (double)report.charged_ns;
            used_all += (double)world->tenants[t].used_on[g];
        }
        if (charged_all > 0 && used_all > 0) {
            worst = fmax(worst, 100 * fabs(charged / charged_all - used / used_all));
        }
    }
    return worst;
}

static double
in_ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

static void
print_tenant(struct world *world, uint32_t t)
{
    struct tenant *tenant = &world->tenants[t];
    struct cgpu_tenant_report report = {0};
    uint64_t charged_ns = 0;

    for (int g = 0; g < world->gpu_count; g++) {
        if (tenant->indices[g] >= 0) {
            cgpu_arbiter_report(world->gpus[g].arbiter, tenant->indices[g], &report);
            charged_ns += report.charged_ns;
        }
    }
    printf("{\"share\": %.4f, \"part\": %.4f, \"charged_ms\": %.3f, \"measured_ppm\": %u, "
           "\"longest_wait_ms\": %.3f",
           print_share(world, t), print_part(world, t), in_ms(charged_ns), report.measured_ppm,
           in_ms(tenant->longest_wait));
    if (tenant->steps > 0) {
        printf(", \"steps\": %" PRIu64 ", \"longest_step_ms\": %.3f, \"charge_error\": %.3f",
               tenant->steps, in_ms(tenant->longest_step), print_charge_error(world, t));
    }
    if (tenant->latency.count > 0) {
        printf(", \"requests\": %u, \"added_ms\": {\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}",
               tenant->latency.count, in_ms(world_percentile(&tenant->latency, 0.5)),
               in_ms(world_percentile(&tenant->latency, 0.99)),
               in_ms(world_percentile(&tenant->latency, 1)));
    }
    printf("}");
}

void
print_world(struct world *world)
{
    printf("{\"busy\": %.3f, \"steps_per_s\": %.0f, \"tenants\": [", print_busy(world),
           (double)world->steps * 1e9 / (double)world->scenario->length_ns);
    for (uint32_t t = 0; t < world->scenario->tenant_count; t++) {
        printf("%s", t > 0 ? ", " : "");
        print_tenant(world, t);
    }
    printf("]}\n");
}

/* What each had of the span that ends now. */
void
print_series(struct world *world)
{
    printf("{\"at_ms\": %.3f, \"parts\": [", in_ms(world->now));
    for (uint32_t t = 0; t < world->scenario->tenant_count; t++) {
        printf("%s%.3f", t > 0 ? ", " : "",
               100 * (double)world->tenants[t].series_used / (double)world->scenario->series_ns);
        world->tenants[t].series_used = 0;
    }
    printf("]}\n");
}
