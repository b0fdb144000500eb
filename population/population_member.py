"""Population-based training within one training process, a member of the population.

Espeholt et al. 2018 (IMPALA), appendix F. Members are training processes. Their run directories are
POPULATION/member_00, member_01, ... agents/population.py starts the members, but they can also be started one by one,
on machines that share a file system.

After a number of episodes, a member measures its fitness, writes a snapshot of its agent and compares itself with
another member. population/population_directory.py has the files, and population/pbt.py the decisions.
"""

from collections.abc import Callable, Mapping, Sequence
import json
import os
from typing import cast

from absl import logging
import numpy as np
import tensorflow as tf

from scalable_agents.environments import scores
from scalable_agents.learner import learner_step
from scalable_agents.population import pbt
from scalable_agents.population import population_config
from scalable_agents.population import population_directory
from scalable_agents.records import checkpoint
from scalable_agents.records import run_directory


class Member(tf.train.experimental.PythonState):
  """A member of a population. Its state, part of a checkpoint, has the returns since the last evolution."""

  def __init__(self, learner: learner_step.Learner, report: Callable[[str], None],
               config: population_config.PopulationConfig, levels: Sequence[str], seed: int,
               directory: run_directory.Run):
    """Reads and writes no files yet.

    Args:
      learner: has `agent`, `optimizer` and `hyper_parameters`.
      report: shows the user a line.
      config: the population's settings.
      levels: names of levels. A level id is an index of this sequence.
      seed: random seed of the member's decisions.
      directory: the member's run directory, which the caller has opened.
    """
    self._learner = learner
    self._report = report
    self._config = config
    self._levels = tuple(levels)
    self._seed = seed
    self._directory = directory
    self._index = cast(int, population_directory.member_index(directory.logdir))
    self._snapshots = self._checkpointer(directory.path)
    self._measurements = 0  # Number of measurements of its fitness.
    self._fitness = None
    self._clear()

  def resume(self, environment_frames: int):
    """Removes evolutions after the checkpoint that was restored.

    Args:
      environment_frames: of the checkpoint.
    Raises:
      run_directory.RunDirectoryError: evolution.jsonl is damaged.
    """
    population_directory.drop_evolutions_after(self._directory.path, environment_frames)

  def learned(self, environment_frames: int, level_ids: np.ndarray, returns: np.ndarray):
    """Counts finished episodes. If there are enough, the member evolves. Must be called after each update.

    Args:
      environment_frames: environment frames of training so far.
      level_ids: [N] int32, the levels of the episodes that ended.
      returns: [N] float32, finite, the returns of these episodes (sums of raw rewards).
    Raises:
      run_directory.RunDirectoryError: a file of the member cannot be written.
    """
    np.add.at(self._episodes, level_ids, 1)
    np.add.at(self._returns, level_ids, np.float64(returns))
    if self._episodes.sum() < self._config.population_episodes or not self._episodes.all():
      return
    fitness = fitness_of(dict(zip(self._levels, (self._returns / self._episodes).tolist(), strict=True)))
    self._fitness = fitness
    self._snapshots.save(number=environment_frames)
    # The snapshot is written first, so that a member that reads the fitness finds the snapshot.
    population_directory.write_fitness(self._directory.path, population_directory.Fitness(
        environment_frames, fitness, self._hyper_parameters()))
    self._clear()  # The paper does not state whether the count restarts.
    self._measurements += 1
    if environment_frames >= self._config.population_initial_frames:
      self._evolve(environment_frames, fitness)

  def metrics(self) -> dict[str, float | None]:
    """Returns the values for a row of metrics.jsonl: the current hyper-parameters and the last fitness."""
    return self._hyper_parameters() | {'fitness': self._fitness}

  def serialize(self) -> str:
    """Returns the state as text, for tf.train.Checkpoint."""
    return json.dumps({'levels': self._levels, 'episodes': self._episodes.tolist(), 'returns': self._returns.tolist(),
                       'measurements': self._measurements, 'fitness': self._fitness})

  def deserialize(self, string_value: str | bytes):
    """Restores a state from `serialize`.

    Raises:
      ValueError: the state has other levels.
    """
    state = json.loads(string_value)
    if tuple(state['levels']) != self._levels:
      raise ValueError(f'Member: want levels {self._levels}, got {tuple(state["levels"])}')
    self._episodes = np.array(state['episodes'])
    self._returns = np.array(state['returns'])
    self._measurements = state['measurements']
    self._fitness = state['fitness']

  def _clear(self):
    self._episodes = np.zeros(len(self._levels), np.int64)
    self._returns = np.zeros(len(self._levels))  # Sums over the episodes.

  def _hyper_parameters(self) -> dict[str, float]:
    # With several learners a variable has a copy for each learner, and float(variable) does not accept that.
    return {name: float(variable.numpy()) for name, variable in self._learner.hyper_parameters.items()}

  def _checkpointer(self, logdir):
    return checkpoint.Checkpointer(
        run_directory.path(logdir, population_directory.SNAPSHOTS), agent=self._learner.agent,
        optimizer=self._learner.optimizer, **self._learner.hyper_parameters)

  def _evolve(self, environment_frames: int, fitness: float):
    """Makes a step of evolution: exploits, then explores."""
    random = np.random.RandomState([self._seed, self._index, self._measurements])
    others = self._others()
    partner = pbt.partner(sorted(others), random)
    copied_frames = None
    if partner is not None and pbt.is_exploited(fitness, others[partner].fitness):
      copied_frames = self._copy(partner)
    for name, value in pbt.explore(self._hyper_parameters(), random).items():
      self._learner.hyper_parameters[name].assign(value)
    population_directory.append_evolution(self._directory.path, population_directory.Evolution(
        environment_frames, fitness, None if copied_frames is None else partner, copied_frames,
        self._hyper_parameters()))

  def _others(self) -> dict[int, population_directory.Fitness]:
    """Returns the fitness of the other members, by index. Members without a fitness are left out."""
    others = {}
    for index in set(range(self._config.population_size)) - {self._index}:
      try:
        fitness = population_directory.read_fitness(self._sibling(index))
      except run_directory.RunDirectoryError as error:
        logging.warning('%s', error)
        self._report(f'{population_directory.member_name(index)} is skipped: its fitness cannot be read')
        continue
      if fitness:
        others[index] = fitness
    return others

  def _copy(self, index) -> int | None:
    """Copies a member's snapshot and returns its frames. If it cannot be read, changes nothing and returns None."""
    variables = [*self._learner.agent.variables, *self._learner.optimizer.variables,
                 *self._learner.hyper_parameters.values()]
    before = [variable.read_value() for variable in variables]
    try:
      if path := self._checkpointer(self._sibling(index)).restore():
        return checkpoint.number_of(path)
    except run_directory.RunDirectoryError as error:
      logging.warning('%s', error)
      for variable, value in zip(variables, before, strict=True):  # Some variables may have been read already.
        variable.assign(value)
    self._report(f'{population_directory.member_name(index)} is not copied: its snapshot is gone or cannot be read')
    return None

  def _sibling(self, index) -> str:
    return os.path.join(os.path.dirname(self._directory.logdir), population_directory.member_name(index))


def fitness_of(means: Mapping[str, float]) -> float:
  """Returns the fitness of an agent in points, given its mean returns by level.

  The fitness is the mean capped human-normalised score in per cent (appendix F). On a single level the score is not
  capped, because otherwise all agents above the human would be equal. If a level has no human score, the fitness is 100
  times the mean return, so that a point is a hundredth of the return.
  """
  if all(map(scores.has_reference, means)):
    summary = scores.summarise(means)
    return summary.mean_capped if len(means) > 1 else summary.mean
  return 100 * float(np.mean(list(means.values())))
