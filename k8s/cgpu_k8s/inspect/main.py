"""``kubectl-inspect-cgpu``, which kubectl starts as ``kubectl inspect cgpu``."""

from __future__ import annotations

import argparse
import gc
import sys
from typing import TYPE_CHECKING, NoReturn

from cgpu_env import program
from cgpu_env.errors import CgpuError, shown

if TYPE_CHECKING:
    from cgpu_env.commandline import Parser
    from cgpu_k8s.inspect.cluster import NodeView

NAME = "kubectl-inspect-cgpu"
_FAILED = 1  # as kubectl
_EPILOG = """\
exit status: 0 shown; 1 the cluster cannot be asked, or has no such node or pod; 2 an option is
wrong.

A pod that is bound to a node and has no part of its GPUs is PENDING. Options follow the name of
the plug-in: kubectl inspect cgpu --context lab.
"""


def arguments() -> Parser:
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
    parser.add_argument("-n", "--namespace", metavar="NAME", help="of what --why names")
    parser.add_argument("--kubeconfig", metavar="FILE", help="in place of KUBECONFIG")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig, not the current one")
    return parser


def main() -> NoReturn:
    """Show what is asked for, and exit."""
    gc.disable()  # 0.9 of 2.2 s for 1,000 nodes and 10,000 pods, and it finds nothing
    program.run(NAME, _work)


def _work() -> int:
    from cgpu_k8s.api.resources import MAKERS  # noqa: PLC0415 (``main`` answers interrupts first)

    parser = arguments()
    given = parser.parse_args()
    if given.why and (given.node or given.core):
        parser.error("--why POD: expected without NODE and --core")
    kind = _kind(given.why or "")
    nameless = given.why is not None and not _name(given.why)
    if nameless or (kind and kind not in MAKERS):
        known = ", ".join(sorted({each.plural[:-1] for each in MAKERS.values()}))
        parser.error(f"--why {shown(given.why)}: expected a POD, or KIND/NAME with one of {known}")
    if given.namespace and not given.why:
        parser.error("--namespace: expected with --why POD; nodes are shown with all their pods")
    if given.output and given.core:
        parser.error(f"--core: not with -o {given.output}, which has the percentages always")
    from cgpu_k8s.api import extra  # noqa: PLC0415 (``--help`` does not wait for it)

    try:
        with extra.needed():
            sys.stdout.write(_answer(given))
    except CgpuError as error:
        error.exit_code = _FAILED
        raise
    return 0


def _answer(given: argparse.Namespace) -> str:
    """Return the text to print.

    Raises:
        CgpuError: the cluster cannot be asked, or has no such node or pod.
    """
    from cgpu_k8s.api.configuration import load  # noqa: PLC0415 (after the command line)
    from cgpu_k8s.api.tasks import result_of  # noqa: PLC0415 (likewise)
    from cgpu_k8s.inspect.cluster import view  # noqa: PLC0415 (likewise)
    from cgpu_k8s.inspect.fetch import fetch, fetch_maker, fetch_pod  # noqa: PLC0415 (likewise)

    cluster = load(given.kubeconfig, given.context)
    if given.why:
        from cgpu_k8s.inspect.why import why, why_none  # noqa: PLC0415 (likewise)

        namespace, kind = given.namespace or cluster.namespace, _kind(given.why)
        name = _name(given.why)
        if kind:
            made = result_of(fetch_maker(cluster, kind, name, namespace))
            return why_none(kind, *made) + "\n"
        pod, found = result_of(fetch_pod(cluster, name, namespace))
        return why(pod.raw, pod.claim, *found, pod.events) + "\n"
    found = result_of(fetch(cluster, given.node))
    nodes = view(*found)
    if given.node and not nodes:
        [machine] = found.machines
        raise CgpuError(
            f"node {given.node} publishes no memory of GPUs: {machine.offer.withheld or 'not yet'}"
        )
    return _shown(given, nodes)


def _kind(why: str) -> str:
    """Return the kind of the object that makes pods if --why names one; "" if it names a pod."""
    kind = why.rpartition("/")[0]
    return "" if kind in {"pod", "pods", "po"} else kind


def _name(why: str) -> str:
    return why.rpartition("/")[2]


def _shown(given: argparse.Namespace, nodes: list[NodeView]) -> str:
    if given.output:
        from cgpu_k8s.inspect.document import FORMATS, document  # noqa: PLC0415 (as above)

        return FORMATS[given.output](document(nodes))
    from cgpu_k8s.inspect.text import CORES, MEMORY, details, summary  # noqa: PLC0415 (as above)

    show = details if given.details else summary
    tables = [show(nodes, MEMORY), *([show(nodes, CORES)] if given.core else [])]
    return "\n".join(tables)


if __name__ == "__main__":
    main()
