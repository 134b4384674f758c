"""Stopped nodes of EMQX's cluster, and their sessions that shared subscriptions still give messages to.

A killed core node (SIGKILL, power) leaves its sessions in the table of shared subscriptions, which every node has
whole. EMQX goes on choosing them. Their share of new messages is lost, and publishers get PUBACK 0, until the node is
back or was forced to leave. No counter of EMQX's grows. The sign is a table with more members than the running nodes
have subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.base.problem import Problem

if TYPE_CHECKING:
    from gateway.health.emqx.api import EmqxApi


@dataclass(frozen=True, slots=True)
class ClusterView:
    """``stopped``: nodes that do not run. ``members``: members of all shared subscriptions in the cluster's table.
    ``dead``: those of stopped nodes; None when there are too many to count. Members are counted only while a node is
    stopped."""

    stopped: tuple[str, ...] = ()
    members: int = 0
    dead: int | None = 0


async def look_at_cluster(api: EmqxApi) -> ClusterView:
    """The stopped nodes, and their dead members of shared subscriptions. Raises EmqxApiError."""
    stopped = tuple(sorted(node.name for node in await api.nodes() if node.status != "running"))
    if not stopped:
        return ClusterView()
    views = []
    for _ in range(2):  # sessions come and go between the two counts, so the smaller difference counts
        members = await api.shared_members()
        alive = await api.shared_subscriptions()
        if alive is None:
            return ClusterView(stopped, members, None)  # too many to count, so the dead are unknown
        views.append(ClusterView(stopped, members, max(0, members - alive)))
        if not views[-1].dead:
            break
    return min(views, key=lambda view: view.dead or 0)


def cluster_problem(view: ClusterView) -> Problem | None:
    """The problem of stopped nodes; None when all run."""
    if not view.stopped:
        return None
    nodes = " and ".join(view.stopped)
    is_stopped = "Node {} of EMQX's cluster is" if len(view.stopped) == 1 else "Nodes {} of EMQX's cluster are"
    away = is_stopped.format(nodes)
    if not view.dead:
        counted = "" if view.dead is not None else (
            f" Whether its sessions still get messages is unknown: there are too many subscriptions to count "
            f"({view.members} shared)."
        )  # fmt: skip
        return Problem(
            "emqx-node-stopped",
            "warning",
            f"{away} stopped.{counted}",
            "emqx ctl cluster status; start it, or remove it from the cluster if it is gone for good.",
        )
    leave = "; ".join(f"emqx ctl cluster force-leave {node}" for node in view.stopped)
    return Problem(
        "emqx-members-dead",
        "critical",
        f"New messages are being lost: {away} stopped, and {view.dead} of the {view.members} members of shared "
        "subscriptions died with it. EMQX still sends them their share, and acknowledges it to the publishers.",
        f"start the node; or, if it is gone for good and not only disconnected, on a running node: {leave}. It takes "
        "about 15 s.",
    )
