/* Scenarios: their defaults, and as the command line spells them. */
#include <stdlib.h>
#include <string.h>

#include "model.h"

void
scenario_defaults(struct scenario *scenario, uint32_t policy, uint64_t length_ns)
{
    memset(scenario, 0, sizeof *scenario);
    scenario->rules = (struct cgpu_rules){.policy = policy, .max_inst = 25, .prio_ratio = 80};
    scenario->length_ns = length_ns;
    scenario->seed = 1;
    scenario->switch_ns = 50 * US;
    scenario->slice_ns = 1 * MS;
    scenario->wake_least = 20 * US;
    scenario->wake_most = 60 * US;
    scenario->timer_least = 5 * US;
    scenario->timer_most = 30 * US;
}

struct tenant_spec *
scenario_tenant(struct scenario *scenario, uint32_t weight, uint64_t ns)
{
    struct tenant_spec *tenant = &scenario->tenants[scenario->tenant_count];

    *tenant = (struct tenant_spec){.weight = weight, .processes = 1, .gpus = 1};
    tenant->load.lengths[0] = ns;
    tenant->load.length_count = 1;
    tenant->load.launch_ns = LAUNCH_NS;
    tenant->load.streams = 1;
    scenario->tenant_count += 1;
    return tenant;
}

/* "50us", "5ms", "2s", "700": in ns. */
static uint64_t
parse_time(const char *text, char **end)
{
    double value = strtod(text, end);

    if (strncmp(*end, "us", 2) == 0) {
        *end += 2;
        return (uint64_t)(value * (double)US);
    }
    if (strncmp(*end, "ms", 2) == 0) {
        *end += 2;
        return (uint64_t)(value * (double)MS);
    }
    if (**end == 's') {
        *end += 1;
        return (uint64_t)(value * (double)SECOND);
    }
    return (uint64_t)value;
}

static void
parse_kernels(struct load *load, const char *text, char **end)
{
    load->length_count = 0;
    do {
        load->lengths[load->length_count] = parse_time(text, end);
        load->length_count += 1;
        text = *end + 1;
    } while (**end == '+' && load->length_count < MAX_LENGTHS);
}

/* One "key:value" of a tenant. */
static bool
parse_field(struct tenant_spec *tenant, const char *text, char **end)
{
    size_t length = strcspn(text, ":");
    const char *value = text + length + (text[length] == ':');
    const struct {
        const char *name;
        uint64_t *time;
        uint32_t *number;
    } fields[] = {
        {"weight", NULL, &tenant->weight},
        {"memory", NULL, &tenant->memory_mib},
        {"processes", NULL, &tenant->processes},
        {"sync", NULL, &tenant->load.sync_every},
        {"kinds", NULL, &tenant->load.kinds},
        {"launch", &tenant->load.launch_ns, NULL},
        {"streams", NULL, &tenant->load.streams},
        {"think", &tenant->load.think_ns, NULL},
        {"syncs", NULL, &tenant->load.burst_syncs},
        {"burst", &tenant->load.burst_ns, NULL},
        {"pause", &tenant->load.pause_ns, NULL},
        {"start", &tenant->start_ns, NULL},
        {"gpus", NULL, &tenant->gpus},
        {"meet", NULL, &tenant->load.meet_every},
        {"barrier", NULL, &tenant->load.barrier},
        {"one", NULL, &tenant->load.one_thread},
        {"lag", &tenant->lag_ns, NULL},
        {"late", NULL, &tenant->late},
    };

    if (strncmp(text, "kernel", length) == 0) {
        parse_kernels(&tenant->load, value, end);
        return true;
    }
    if (strncmp(text, "high", length) == 0) {
        tenant->high = strtoul(value, end, 10) != 0;
        return true;
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strncmp(text, fields[i].name, length) == 0) {
            if (fields[i].time != NULL) {
                *fields[i].time = parse_time(value, end);
            } else {
                *fields[i].number = (uint32_t)strtoul(value, end, 10);
            }
            return true;
        }
    }
    return false;
}

static bool
parse_tenant(struct scenario *scenario, const char *text)
{
    struct tenant_spec *tenant;
    char *end = NULL;

    if (scenario->tenant_count == MAX_TENANTS) {
        return false;
    }
    tenant = scenario_tenant(scenario, 1, 50 * US);
    while (*text != '\0') {
        if (!parse_field(tenant, text, &end) || (*end != ',' && *end != '\0')) {
            return false;
        }
        text = end + (*end == ',');
    }
    return (tenant->weight > 0 || tenant->memory_mib > 0) && tenant->load.lengths[0] > 0 &&
           tenant->processes > 0 && tenant->gpus > 0 && tenant->gpus < 1U << MAX_GPUS &&
           tenant->load.streams > 0 && tenant->load.streams <= MAX_STREAMS;
}

bool
scenario_parse(struct scenario *scenario, const char *argument)
{
    size_t length = strcspn(argument, "=");
    const char *value = argument + length + (argument[length] == '=');
    char *end;
    const struct {
        const char *name;
        uint64_t *time;
        uint32_t *number;
    } fields[] = {
        {"policy", NULL, &scenario->rules.policy},
        {"max_inst", NULL, &scenario->rules.max_inst},
        {"prio_ratio", NULL, &scenario->rules.prio_ratio},
        {"jitter", NULL, &scenario->jitter},
        {"apart", NULL, &scenario->apart},
        {"in_order", NULL, &scenario->in_order},
        {"length", &scenario->length_ns, NULL},
        {"from", &scenario->from_ns, NULL},
        {"series", &scenario->series_ns, NULL},
        {"seed", &scenario->seed, NULL},
        {"switch", &scenario->switch_ns, NULL},
        {"slice", &scenario->slice_ns, NULL},
        {"late", &scenario->timer_most, NULL},
        {"wake", &scenario->wake_most, NULL},
        {"dispatch", &scenario->dispatch_ns, NULL},
        {"completion", &scenario->completion_ns, NULL},
    };

    if (strncmp(argument, "tenant", length) == 0) {
        return parse_tenant(scenario, value);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strncmp(argument, fields[i].name, length) == 0) {
            uint64_t parsed = parse_time(value, &end);

            if (fields[i].time != NULL) {
                *fields[i].time = parsed;
            } else {
                *fields[i].number = (uint32_t)parsed;
            }
            return *end == '\0' && end != value;
        }
    }
    return false;
}
