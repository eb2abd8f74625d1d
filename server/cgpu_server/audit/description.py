"""The description of the node that the server answers with and exports as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_node.view.usage import usage_of, use_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from cgpu_node.facts.node import Node
    from cgpu_node.view.view import Usage, Use
    from cgpu_server.audit.auditor import Audit
    from cgpu_server.state.server_state import ServerState


def describe_node(
    state: ServerState,
    audit: Audit,
    node: Node | None,
    visible: Collection[str] | None = None,
    others: Collection[Use] = (),
) -> Usage:
    """Describe the containers of the node, without the host's process ids.

    Args:
        state: of the server.
        audit: what it has seen of the driver.
        node: the facts about the node; None: the driver does not answer.
        visible: the ids of the containers that are shown one by one; None: all.
        others: containers without a record.
    """
    uses = [*audit.utilisation.add_estimates(map(use_of, state.records)), *others]
    whole = usage_of(node, uses, state.rules_of, visible, audit.utilisation.read_percents())
    return whole.with_foreign(audit.last.foreign_bytes)
