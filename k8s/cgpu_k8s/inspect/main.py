"""``kubectl-inspect-cgpu``, which kubectl starts as ``kubectl inspect cgpu``."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from cgpu_env import program
from cgpu_env.errors import CgpuError, printable

if TYPE_CHECKING:
    from cgpu_env.commandline import Parser
    from cgpu_k8s.apiserver.cluster import Cluster
    from cgpu_k8s.inspect.claims import ClaimsView
    from cgpu_k8s.inspect.cluster import NodeView
    from cgpu_k8s.inspect.coscheduling import GroupView, PolicyView

NAME = "kubectl-inspect-cgpu"
_FAILED = 1  # as kubectl
_TABLES = ("core", "groups", "units")  # beside the published one
_EPILOG = """\
exit status: 0 shown; 1 the cluster cannot be asked, or has no such node or pod; 2 an option is
wrong.

A pod that is bound to a node and has no part of its GPUs is PENDING. Options follow the name of
the plug-in: kubectl inspect cgpu --context lab.
"""


def build_parser() -> Parser:
    """The command line."""
    from cgpu_env.commandline import Parser  # noqa: PLC0415 (``main`` answers interrupts first)

    parser = Parser(
        prog="kubectl inspect cgpu",
        description="Show which pods have what of the GPUs that nodes share.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_version(NAME)
    parser.add_argument("node", metavar="NODE", nargs="?", default="", help="this node alone")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-d", "--details", action="store_true", help="each pod on its GPUs")
    what.add_argument("-o", "--output", choices=("json", "yaml"), help="for programs")
    what.add_argument(
        "--why",
        metavar="POD",
        help="why a pod waits or failed, or why job/NAME or the like has none, in one sentence",
    )
    parser.add_argument("--core", action="store_true", help="show compute percentages too")
    parser.add_argument("--groups", action="store_true", help="show groups of pods too")
    parser.add_argument(
        "--units", action="store_true", help="show the units of ResourcePolicies too"
    )
    parser.add_argument("-n", "--namespace", metavar="NAME", help="of what --why names")
    parser.add_argument("--kubeconfig", metavar="FILE", help="in place of KUBECONFIG")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig, not the current one")
    return parser


def main() -> NoReturn:
    """Show what is asked for, and exit."""
    gc.disable()  # takes 0.9 of 2.2 s for 1,000 nodes and 10,000 pods, and finds nothing
    program.run(NAME, _run_command)


def _run_command() -> int:
    from cgpu_k8s.apiserver.resources import MAKERS  # noqa: PLC0415 (``main`` answers interrupts first)

    parser = build_parser()
    given = parser.parse_args()
    more = next((f"--{each}" for each in _TABLES if getattr(given, each)), "")
    if given.why and (given.node or more):
        parser.error(f"--why POD: expected without {more or 'NODE'}")
    if given.node and (given.groups or given.units):
        parser.error("NODE: expected without --groups and --units, which are of all nodes")
    kind = _parse_kind(given.why or "")
    nameless = given.why is not None and not _parse_name(given.why)
    if nameless or (kind and kind not in MAKERS):
        known = ", ".join(sorted({each.plural[:-1] for each in MAKERS.values()}))
        parser.error(
            f"--why {printable(given.why)}: expected a POD, or KIND/NAME with one of {known}"
        )
    if given.namespace and not given.why:
        parser.error("--namespace: expected with --why POD; nodes are shown with all their pods")
    if given.output and more:
        parser.error(f"{more}: not with -o {given.output}, which has that always")
    from cgpu_k8s.apiserver import extra  # noqa: PLC0415 (``--help`` does not wait for it)

    try:
        with extra.report_missing():
            sys.stdout.write(_make_answer(given))
    except CgpuError as error:
        error.exit_code = _FAILED
        raise
    return 0


def _make_answer(given: argparse.Namespace) -> str:
    """Return the text to print.

    Raises:
        CgpuError: the cluster cannot be asked, or has no such node or pod.
    """
    from cgpu_k8s.apiserver.configuration import load_cluster  # noqa: PLC0415 (after the command line)
    from cgpu_k8s.apiserver.tasks import run_coroutine  # noqa: PLC0415 (likewise)
    from cgpu_k8s.inspect.cluster import make_views  # noqa: PLC0415 (likewise)
    from cgpu_k8s.inspect.coscheduling import make_group_views  # noqa: PLC0415 (likewise)
    from cgpu_k8s.inspect.fetch import fetch_maker, fetch_nodes, fetch_pod  # noqa: PLC0415 (likewise)

    cluster = load_cluster(given.kubeconfig, given.context)
    if given.why:
        from cgpu_k8s.inspect.why import explain_maker, explain_pod  # noqa: PLC0415 (likewise)

        namespace, kind = given.namespace or cluster.namespace, _parse_kind(given.why)
        name = _parse_name(given.why)
        if kind:
            made = run_coroutine(fetch_maker(cluster, kind, name, namespace))
            return explain_maker(kind, *made) + "\n"
        pod, found = run_coroutine(fetch_pod(cluster, name, namespace))
        machines, pods, facts = found
        return explain_pod(pod.raw, pod.gpu_pod, machines, pods, pod.events, claims=facts) + "\n"
    has_groups = not given.node and bool(given.groups or given.output)
    found = run_coroutine(fetch_nodes(cluster, given.node, waiting=has_groups))
    nodes = make_views(found.machines, found.gpu_pods)
    claims = None
    if found.claims:
        from cgpu_k8s.inspect.claim_reasons import make_claims_view  # noqa: PLC0415 (likewise)

        claims = make_claims_view(found.machines, found.claims, given.node)
    if given.node and not nodes and not claims:
        [machine] = found.machines
        raise CgpuError(
            f"node {given.node} publishes no memory of GPUs: {machine.offer.withheld or 'not yet'}"
        )
    groups = make_group_views(found.gpu_pods, time.time()) if has_groups else None
    return _format_answer(given, nodes, groups, _find_policies(given, cluster), claims)


def _find_policies(given: argparse.Namespace, cluster: Cluster) -> list[PolicyView] | None:
    """Return the policies; None if they are not asked for, or with -o if the user may not see them.

    Raises:
        CgpuError: the cluster cannot be asked.
    """
    from cgpu_k8s.apiserver.errors import ForbiddenError  # noqa: PLC0415 (as above)
    from cgpu_k8s.apiserver.tasks import run_coroutine  # noqa: PLC0415 (likewise)
    from cgpu_k8s.inspect.fetch import fetch_policies  # noqa: PLC0415 (likewise)

    if given.node or not (given.units or given.output):
        return None
    try:
        return run_coroutine(fetch_policies(cluster))
    except ForbiddenError:
        if given.units:
            raise
        return None


def _parse_kind(word: str) -> str:
    """Return the kind of the object that makes pods if --why names one; "" if it names a pod."""
    kind = word.rpartition("/")[0]
    return "" if kind in {"pod", "pods", "po"} else kind


def _parse_name(word: str) -> str:
    return word.rpartition("/")[2]


def _format_answer(
    given: argparse.Namespace,
    nodes: list[NodeView],
    groups: list[GroupView] | None,
    policies: list[PolicyView] | None,
    claims: ClaimsView | None,
) -> str:
    if given.output:
        from cgpu_k8s.inspect.document import FORMATS, make_document  # noqa: PLC0415 (as above)

        return FORMATS[given.output](make_document(nodes, groups, policies, claims))
    from cgpu_k8s.inspect import text  # noqa: PLC0415 (as above)

    show = text.format_details if given.details else text.format_summary
    tables: list[str] = []
    if nodes or not claims:
        tables += [show(nodes, text.MEMORY), *([show(nodes, text.CORES)] if given.core else [])]
    if claims:
        from cgpu_k8s.inspect.claim_text import format_claims  # noqa: PLC0415 (as above)

        tables += format_claims(claims, show, cores=given.core)
    tables += [] if groups is None else [text.format_groups(groups)]
    tables += [] if policies is None else [text.format_units(policies)]
    return "\n".join(tables)


if __name__ == "__main__":
    main()
