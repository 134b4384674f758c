"""Nodes of EMQX's cluster that are stopped, and sessions on them that shared subscriptions still give messages to.

A core node that dies (SIGKILL, power) leaves its sessions in the table of shared subscriptions, which every node has
whole. EMQX goes on picking them: their share of new messages goes to nobody, and the publishers get PUBACK 0, until the
node is back or was forced to leave. No counter of EMQX's moves. What tells is that the table has more members than the
nodes that run have subscriptions of.
"""

from __future__ import annotations

__all__ = ["ClusterView", "cluster_problem", "look_at_cluster"]

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.base.problem import Problem

if TYPE_CHECKING:
    from gateway.health.emqx.api import EmqxApi


@dataclass(frozen=True, slots=True)
class ClusterView:
    """``stopped``: nodes that do not run. ``members`` of shared subscriptions of all groups, as the cluster has them,
    and how many of these are ``dead``; None where they are too many to be counted. Looked at while a node is stopped
    alone."""

    stopped: tuple[str, ...] = ()
    members: int = 0
    dead: int | None = 0


async def look_at_cluster(api: EmqxApi) -> ClusterView:
    """Raises EmqxApiError: then nothing is judged."""
    stopped = tuple(sorted(node.name for node in await api.nodes() if node.status != "running"))
    if not stopped:
        return ClusterView()
    views = []
    for _ in range(2):  # sessions come and go between the two counts of one look: the smaller difference is the dead's
        members = await api.shared_members()
        alive = await api.shared_subscriptions()
        if alive is None:
            return ClusterView(stopped, members, None)
        views.append(ClusterView(stopped, members, max(0, members - alive)))
        if not views[-1].dead:
            break
    return min(views, key=lambda view: view.dead or 0)


def cluster_problem(view: ClusterView) -> Problem | None:
    """What is wrong with the cluster, in a sentence."""
    if not view.stopped:
        return None
    nodes = " and ".join(view.stopped)
    is_stopped = "Node {} of EMQX's cluster is" if len(view.stopped) == 1 else "Nodes {} of EMQX's cluster are"
    away = is_stopped.format(nodes)
    if not view.dead:
        counted = "" if view.dead is not None else (
            f" Whether shared subscriptions still give messages to its sessions is not judged: there are too many "
            f"subscriptions to count ({view.members} shared)."
        )  # fmt: skip
        return Problem(
            "emqx-node-stopped",
            "warning",
            f"{away} stopped.{counted}",
            "emqx ctl cluster status; start it, or take it out of the cluster if it is gone for good.",
        )
    leave = "; ".join(f"emqx ctl cluster force-leave {node}" for node in view.stopped)
    return Problem(
        "emqx-members-dead",
        "critical",
        f"New messages are vanishing now: {away} stopped, and {view.dead} of the {view.members} members of shared "
        "subscriptions died with it. EMQX goes on giving them their share, and tells the publishers that all is well.",
        f"start the node; or, if it is gone for good and not only cut off, on a node that runs: {leave}. It takes some "
        "15 s.",
    )
