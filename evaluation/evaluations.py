"""Evaluations during training: a process of its own plays the newest checkpoint at an interval of environment frames.

The curve of training shows the returns of the actors, which may explore; that of the evaluations shows the policy that
is the result. An evaluation plays as --mode=test does, with the same code, and fewer episodes. It does not delay
training: it has the lowest priority, and if one takes longer than the interval, the next one plays the checkpoint that
is then the newest. Its process (evaluation_process.py) holds the checkpoint in memory, so it may be deleted meanwhile.
That process writes nothing. The training process adds its result to evaluations.jsonl.
"""

import collections
from collections.abc import Callable, Mapping
import dataclasses
import json
import time
from typing import Any

from scalable_agents.environments import dmlab
from scalable_agents.environments import registry
from scalable_agents.evaluation import evaluation
from scalable_agents.processes import background_process
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.training import definition

_ENVIRONMENTS = 4  # The largest number that plays at a time.
_CHECK_SECONDS = 0.2


def request(job: definition.Job) -> dict[str, Any]:
  """Returns a dict that describes the evaluations of a run, for evaluation_process.py. JSON can hold it.

  Raises:
    errors.UserError: the agent does not support --test_policy.
  """
  evaluation.selection_of(job.agent, job.run)
  episodes = job.run.evaluation_episodes
  levels = [registry.test_level(level) for level in job.levels]
  # The process of the evaluations leaves the GPU to the learner.
  played = dataclasses.replace(
      job.run, test_num_episodes=episodes, inference_device='cpu', num_inference_threads=1,
      num_environment_workers=settings.AUTO if set(levels) & set(dmlab.LEVELS) else 1,  # A Lab has its own process.
      num_environments=min(episodes, _ENVIRONMENTS))
  return {'agent': job.reference, 'config': dataclasses.asdict(job.config), 'levels': levels,
          'protocol': job.protocol.environments(job.levels, training=False), 'run': dataclasses.asdict(played)}


class Evaluations:
  """The evaluations of a run, one at a time. Only one thread calls the methods."""

  def __init__(self, what: Mapping[str, Any], interval_frames: int, directory: run_directory.Run, last_frames: int,
               say: Callable[[str], None]):
    """Starts nothing yet.

    Args:
      what: from `request`.
      interval_frames: environment frames between two evaluations.
      directory: the run directory, which the caller has opened.
      last_frames: environment frames of the run's last evaluation; 0 if there is none.
      say: shows the user a line. It is called from another thread.
    """
    self._text = json.dumps({**what, 'directory': directory.path, 'logdir': directory.logdir})
    self._interval_frames = interval_frames
    self._begun_frames = last_frames
    self._say = say
    self._results = collections.deque()
    self._process = background_process.BackgroundProcess(
        'scalable_agents.evaluation.evaluation_process', self._ended)

  def begin_if_due(self, saved_frames: int):
    """Begins an evaluation and returns at once, if none is running and one is due.

    It is due if an interval has ended since the last evaluation began, and a checkpoint was made after that end.

    Args:
      saved_frames: environment frames of the newest checkpoint that is complete.
    """
    is_due = saved_frames // self._interval_frames > self._begun_frames // self._interval_frames
    if is_due and not self._process.is_running:
      self._begin(saved_frames)

  def results(self) -> list[dict[str, Any]]:
    """Returns the rows for evaluations.jsonl of the evaluations that have ended since the last call."""
    return [self._results.popleft() for _ in range(len(self._results))]

  def finish(self, saved_frames: int, is_interrupted: Callable[[], bool]):
    """Waits for the last evaluation, which plays the run's last checkpoint. `close` must be called afterwards.

    Args:
      saved_frames: environment frames of the last checkpoint, which is complete.
      is_interrupted: whether not to wait any longer.
    """
    if self._process.is_running or self._begun_frames < saved_frames:
      self._say('evaluating the last checkpoint; Ctrl-C ends this')
    while not is_interrupted() and (self._process.is_running or self._begun_frames < saved_frames):
      if not self._process.is_running:
        self._begin(saved_frames)
      time.sleep(_CHECK_SECONDS)

  def close(self):
    """Ends the evaluation that is running. Its result is lost. Idempotent."""
    self._process.finish()

  def _begin(self, saved_frames):
    self._begun_frames = saved_frames
    self._process.begin(text=self._text)

  def _ended(self, output, reason):
    """Takes the result of an evaluation. Called from another thread."""
    if not reason:
      row = json.loads(output)
      self._begun_frames = row['environment_frames']  # The process may have found a newer checkpoint.
      self._results.append(row)
      return
    self._say(f'no evaluation after {self._begun_frames:,} frames: {reason}')
