/* The command line of the model: see docs/model.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

static int
run(int count, char **arguments)
{
    struct scenario scenario;
    struct world *world;

    scenario_defaults(&scenario, CGPU_POLICY_WEIGHTED_FAIR, 10 * SECOND);
    for (int i = 0; i < count; i++) {
        if (!scenario_parse(&scenario, arguments[i])) {
            fprintf(stderr, "model: not understood: %s\n", arguments[i]);
            return 2;
        }
    }
    world = world_run(&scenario);
    print_world(world);
    world_free(world);
    return 0;
}

int
main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "run") == 0) {
        return run(argc - 2, argv + 2);
    }
    if (argc >= 2 && strcmp(argv[1], "cases") == 0) {
        world_run_every(argc > 3 ? (uint32_t)atoi(argv[3]) : 1);
        return cases_run(argc > 2 ? argv[2] : "") > 0;
    }
    fprintf(stderr, "usage: model run [KEY=VALUE ...] | cases [GROUP [EVERY]]\n");
    return 2;
}
