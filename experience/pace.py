"""Keeps agents with a shared replay at equal speed: an agent that is too far ahead of the slowest one waits.

Schmitt et al. 2020 (LASER), section 5.1: the agents of a sweep "run concurrently at identical speed". So they have
equal shares of the replay, and each agent's score can be compared with the others' at the same number of steps.
"""

import threading
from typing import NamedTuple


class _Member(NamedTuple):
  """An agent that is present."""
  offset: int   # Its position is this plus its agent steps.
  steps: int    # Agent steps that it has reported.
  heard: float  # The time of its last report, in seconds.


class Pace:
  """Knows the positions of the agents that are present. Any number of threads may call all methods at once.

  An agent that joins, or comes back, gets the position of the slowest agent. So the others need not wait until it has
  caught up with them.
  """

  def __init__(self, forgotten_seconds: float):
    """Begins without agents.

    Args:
      forgotten_seconds: an agent without a report for this long counts as gone, and the others do not wait for it.
    """
    self._forgotten_seconds = forgotten_seconds
    self._members: dict[str, _Member] = {}
    self._left: set[str] = set()
    self._lock = threading.Lock()  # It guards both.

  def report(self, agent: str, steps: int, now: float):
    """Notes the agent steps that an agent has made since its process began. `now` is a time in seconds.

    Several threads of an agent report, so a report may come late: the agent's largest number of steps counts.
    """
    with self._lock:
      self._forget(now)
      if agent in self._left:
        return
      if member := self._members.get(agent):
        self._members[agent] = _Member(member.offset, max(member.steps, steps), now)
      else:
        self._members[agent] = _Member(self._slowest() - steps, steps, now)

  def leave(self, agent: str):
    """Notes that an agent has ended. It does not come back: its successor has another name."""
    with self._lock:
      self._members.pop(agent, None)
      self._left.add(agent)

  def even(self, now: float) -> dict[str, int]:
    """Returns, for each present agent, the agent steps at which it would be level with the slowest agent."""
    with self._lock:
      self._forget(now)
      slowest = self._slowest()
      return {agent: slowest - member.offset for agent, member in self._members.items()}

  def _forget(self, now):
    self._members = {agent: member for agent, member in self._members.items()
                     if now - member.heard <= self._forgotten_seconds}

  def _slowest(self):
    return min((member.offset + member.steps for member in self._members.values()), default=0)
