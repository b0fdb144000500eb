"""Tells the user of updates that were skipped because a number was not finite, and ends a run after ten in a row.

It also tells of rewards that are finite and so large that PopArt cannot normalise their targets.
"""

from collections.abc import Callable, Mapping, Sequence
import time
from typing import Any

import numpy as np

from scalable_agents.learner import learner_step
from scalable_agents.learner import popart
from scalable_agents.records import errors

MAXIMUM_IN_A_ROW = 10
_SECONDS_BETWEEN_MESSAGES = 60.
_MOST_ACTORS_NAMED = 3
_HUGE_REWARD = 1e15  # Sums of squares of such rewards may be larger than all numbers of float32.


class SkippedUpdates:
  """Checks each update of a run. Tells the user about the first one that is skipped, and then at most once a minute."""

  def __init__(self, levels: Sequence[str], actor_name: Callable[[int], str], say: Callable[[str], None],
               have_peers: bool = False, is_member: bool = False):
    """Begins with a count of 0.

    Args:
      levels: names of the run's levels; a level's id is its index.
      actor_name: returns an actor's name for its id.
      say: shows the user a line.
      have_peers: whether there are learners in other processes, which learn from other unrolls.
      is_member: whether this is a member of a population. If its own parameters or settings are at fault, it may copy
        those of another member later, and the run goes on.
    """
    self._levels = levels
    self._actor_name = actor_name
    self._say = say
    self._have_peers = have_peers
    self._is_member = is_member
    self._in_a_row = self._since_message = 0
    self._said_at = -np.inf
    # Actor id -> level id and largest reward, since the last message and in the present row of skipped updates.
    self._at_fault, self._at_fault_in_a_row = {}, {}
    self._has_said_limit = False

  def add(self, learner: learner_step.Learner, number: int, metrics: Mapping[str, Any],
          batches: Sequence[learner_step.Batch]):
    """Counts an update, and may tell the user if it was skipped, or that a level's sigma is at PopArt's limit.

    Args:
      learner: has made the update.
      number: the number of the update in the run, skipped ones included. The learner may have begun the next one.
      metrics: the update's metrics, from `learner.read`.
      batches: the update's learner_step.Batch of each learner of this process.
    Raises:
      errors.UserError: MAXIMUM_IN_A_ROW updates in a row were skipped, and the run is no member of a population or an
        environment is at fault.
    """
    self._check_limit(metrics.get('popart/scale', ()))
    if not metrics['update_skipped']:
      self._in_a_row, self._at_fault_in_a_row = 0, {}
      return
    self._in_a_row += 1
    self._since_message += 1
    for unroll in (batch.unroll for batch in batches):
      rewards = np.abs(unroll.environment_output.reward.numpy())  # [T+1, B].
      # With a replay, actor and level are those of each row.
      actors, levels = (np.broadcast_to(ids, rewards.shape) for ids in (unroll.actor_id, unroll.level_id))
      levels = np.concatenate([levels[:1], levels[:-1]])  # A reward is of the level that was observed a row earlier.
      for place in zip(*np.nonzero(~(rewards < _HUGE_REWARD)), strict=True):  # Also where it is NaN.
        for at_fault in (self._at_fault, self._at_fault_in_a_row):
          _, largest = at_fault.get(int(actors[place]), (0, 0.))
          at_fault[int(actors[place])] = int(levels[place]), float(np.maximum(rewards[place], largest))
    culprit = learner.culprit(metrics)
    if self._in_a_row >= MAXIMUM_IN_A_ROW and (self._at_fault_in_a_row or not self._is_member):
      raise errors.UserError(
          f'update {number:,}: {culprit} was not finite, for the {self._in_a_row}th time in a row; the run stops '
          f'before it does harm. {self._advice(learner.config, self._at_fault_in_a_row)}')
    if time.monotonic() - self._said_at >= _SECONDS_BETWEEN_MESSAGES:
      count = 'an update was' if self._since_message == 1 else f'{self._since_message:,} updates were'
      self._say(f'{count} skipped: {culprit} was not finite. {self._advice(learner.config, self._at_fault)}')
      self._said_at = time.monotonic()
      self._since_message = 0
      self._at_fault = {}

  def _check_limit(self, scales):
    """Says once which levels are at the limit. `scales`: sigma of each level; empty without PopArt."""
    if self._has_said_limit:
      return
    if at_limit := [level for level, scale in zip(self._levels, scales, strict=False) if scale >= popart.MAX_SCALE]:
      self._has_said_limit = True
      self._say(f"PopArt's standard deviation is at its limit of {popart.MAX_SCALE:g}, so that these levels may spoil "
                f"the policy: {', '.join(at_limit)}. Correct their rewards, or begin another run (--logdir) with "
                '--reward_transform=abs_one')

  def _advice(self, config, at_fault):
    if not at_fault and self._is_member:
      return 'The member goes on: it can still copy another member'
    if not at_fault:
      peers = '; first see whether another learner names a faulty environment' if self._have_peers else ''
      how = ', for example with --reward_transform=abs_one' if (
          getattr(config, 'reward_transform', 'abs_one') != 'abs_one') else ''
      return f'Begin another run (--logdir) with a lower --learning_rate, or with smaller rewards{how}{peers}'
    names = [f'{self._levels[level]} ({self._actor_name(actor)})'
             for actor, (level, _) in sorted(at_fault.items())]
    others = len(names) - _MOST_ACTORS_NAMED
    largest = max(reward if np.isfinite(reward) else np.inf for _, reward in at_fault.values())
    what = f'of up to {largest:.2g} (absolute)' if largest < np.inf else 'that are not finite numbers'
    return (f'An environment gave rewards {what}; correct the environment: ' + ', '.join(names[:_MOST_ACTORS_NAMED]) +
            (f' and {others} more' if others > 0 else ''))
