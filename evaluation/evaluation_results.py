"""The results of an evaluation: the contents of evaluation.json, a report as text, and the file of finished levels."""

from collections.abc import Container, Iterable, Sequence
import contextlib
import os
import statistics
from typing import Any

import numpy as np

from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab
from scalable_agents.environments import scores
from scalable_agents.evaluation import evaluator as evaluator_lib
from scalable_agents.records import errors
from scalable_agents.records import json_text
from scalable_agents.records import metric_table
from scalable_agents.records import run_directory

_REFERENCE_SCORES = {'atari57': 'environments/data/atari57_scores.csv: random_paper, human',
                     'dmlab30': 'environments/data/dmlab30_scores.csv: random, human'}


def of_levels(evaluator: evaluator_lib.Evaluator, levels: Sequence[str],
              played: Iterable[int]) -> dict[str, dict[str, Any]]:
  """Returns the entry of evaluation.json for each level that is finished.

  Human-normalised scores are those of the mean return, in per cent. They are None if no human score is known.

  Args:
    evaluator: has counted the episodes.
    levels: names of all levels of the run; a level's id is its index.
    played: ids of the levels that are played.
  Raises:
    errors.UserError: a return is not finite.
  """
  results = {}
  for level_id in played:
    if not evaluator.is_finished(level_id):
      continue
    level = levels[level_id]
    episodes = evaluator.episodes(level_id)
    returns = [episode.episode_return for episode in episodes]
    if not np.all(np.isfinite(returns)):
      raise errors.UserError(f'{level}: an environment gave rewards that are not finite numbers; correct the '
                             'environment')
    mean = statistics.fmean(returns)
    normalised = scores.human_normalised(level, mean) if scores.has_reference(level) else None
    results[level] = {
        'mean': mean,
        'median': statistics.median(returns),
        'human_normalised': normalised,
        'human_normalised_capped': None if normalised is None else min(100., normalised),
        'episode_returns': returns,
        'episode_lengths': [episode.length for episode in episodes],
    }
  return results


def summary(policy, results: dict[str, dict[str, Any]], environments: dict[str, Any], host,
            identity: dict[str, Any]) -> dict[str, Any]:
  """Returns the contents of evaluation.json.

  Args:
    policy: evaluation.Restored.
    results: the results of each level, from `of_levels`.
    environments: the settings of the environments; see registry.make_from_json.
    host: the ActorHost that has played.
    identity: the checkpoint that was played, how actions were selected, the number of episodes and the seed.
  Returns:
    A dict. Its `suite` comes from `suite_of`.
  """
  protocol = {
      **identity,
      'rewards': 'raw',
      'frames_per_step': host.specification.frames_per_step,
      'num_actions': host.specification.num_actions,
      'num_environments': host.num_environments,
      'environment_restarts': host.pool.restarts,
      'environment_frames': policy.environment_frames,
      'learner_steps': policy.learner_steps,
      'atari': environments.get('atari') if any(level in atari57.LEVELS for level in results) else None,
      'dmlab': environments.get('dmlab') if any(level in dmlab.LEVELS for level in results) else None,
      'reference_scores': next((_REFERENCE_SCORES[name] for name, suite in scores.SUITES.items()
                                if any(level in suite.scores for level in results)), None),
  }
  return {'levels': results, 'suite': suite_of(results), 'protocol': protocol}


def suite_of(results: dict[str, dict[str, Any]]) -> dict[str, float] | None:
  """Returns the figures of a suite, from scores.suite_figures; None unless the levels are several of one suite."""
  means = {level: result['mean'] for level, result in results.items()}
  return scores.suite_figures(means) if scores.is_suite(means) else None


def report(summary: dict[str, Any]) -> str:
  """Returns a summary as a few lines of text for the screen."""
  if len(summary['levels']) > 1:
    return _report_of_several(summary)
  protocol = summary['protocol']
  (level, result), = summary['levels'].items()
  lines = [f'{level}: {protocol["num_episodes"]:,} episodes after {protocol["environment_frames"]:,} frames of '
           f'training ({protocol["learner_steps"]:,} updates)',
           f'  mean return       {result["mean"]:12,.2f}',
           f'  median return     {result["median"]:12,.2f}']
  if result['human_normalised'] is not None:
    lines.append(f'  human-normalised  {result["human_normalised"]:12,.2f} %  (of the mean; random 0 %, human 100 %)')
  lines.append(f'  mean length       {statistics.fmean(result["episode_lengths"]):12,.2f} frames')
  return '\n'.join(lines)


def _report_of_several(summary):
  """Returns a line per level, and the summaries of the suite that the papers quote."""
  protocol = summary['protocol']
  lines = [f'{protocol["num_episodes"]:,} episodes of each of {len(summary["levels"])} levels after '
           f'{protocol["environment_frames"]:,} frames of training ({protocol["learner_steps"]:,} updates)',
           f'{"level":42}{"mean":>12}{"median":>12}{"normalised":>12}']
  for level, result in summary['levels'].items():
    normalised = '' if result['human_normalised'] is None else f'{result["human_normalised"]:10,.2f} %'
    lines.append(f'{level:42}{result["mean"]:12,.2f}{result["median"]:12,.2f}{normalised:>12}'.rstrip())
  if summary['suite']:
    lines.append('human-normalised over the levels: ' + ', '.join(
        _figure(name, value) for name, value in summary['suite'].items() if name != 'suite_score'))
  return '\n'.join(lines)


def _figure(name, value):
  what = name.removeprefix('suite_score/').replace('_', ' ')
  metric = metric_table.find(name)
  return f'levels {what}: {value:,}' if metric and metric.unit == 'levels' else f'{what} {value:,.2f} %'


def _unfinished(content: Any) -> dict[str, Any]:
  """Returns the content of evaluation.unfinished.json. Raises ValueError if it is damaged."""
  for result in json_text.field(content, 'levels', dict).values():
    for name in ('mean', 'median'):
      json_text.field(result, name, float)
    for name in ('human_normalised', 'human_normalised_capped'):
      json_text.field(result, name, float, optional=True)
    for name in ('episode_returns', 'episode_lengths'):
      if not all(json_text.is_a(number, float) for number in json_text.field(result, name, list)):
        raise ValueError(f'"{name}": want numbers')
  json_text.field(content, 'of', dict)
  return content


class FinishedLevels:
  """Keeps the results of finished levels in a file, so that an interrupted evaluation can be continued.

  Attributes:
    results: the entries of evaluation.json for the finished levels, by level.
    are_others: whether the file has results of another checkpoint or protocol, which do not count.
  """

  def __init__(self, logdir: str, identity: dict[str, Any], protocol: dict[str, Any], free: Container[str]):
    """Reads the results of an interrupted evaluation, if the identity and the protocol are the same.

    Args:
      logdir: the run directory.
      identity: checkpoint, selection of actions, number of episodes and seed.
      protocol: settings of the environments.
      free: names of the protocol's settings that may change without a change of what is played.
    """
    self._file = run_directory.path(logdir, run_directory.EVALUATION_UNFINISHED)
    decisive = {part: settings and {name: value for name, value in settings.items()
                                    if name not in free or (name, value) == ('dataset_path', dmlab.DUMMY_DATASET)}
                for part, settings in protocol.items()}
    self._of = identity | {'protocol': decisive}
    self.results = {}
    self.are_others = False
    with contextlib.suppress(run_directory.RunDirectoryError):  # Then all levels are played.
      left = run_directory.read_json(self._file, _unfinished)
      self.are_others = left is not None and left['of'] != self._of
      if left and not self.are_others:
        self.results = left['levels']
    self._kept = 0

  def keep(self, results):
    """Writes the file again if more levels are finished than at the last call."""
    if len(results) > self._kept:
      self._kept = len(results)
      run_directory.write_json(self._file, {'of': self._of, 'levels': self.results | results})

  def forget(self):
    """Removes the file."""
    with contextlib.suppress(FileNotFoundError):
      os.remove(self._file)
