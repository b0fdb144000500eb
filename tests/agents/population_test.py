"""Tests populations of real training processes: the binary from the user's side, and that exploitation helps."""

import os
import statistics
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import population
from scalable_agents.agents import sweeps
from scalable_agents.launch import atari57_protocol
from scalable_agents.population import population_directory
from scalable_agents.processes import python_path
from scalable_agents.records import run_directory
from scalable_agents.tests.processes import signal_handlers
from scalable_agents.tests.training import training

_CATCH = ('--level_name=catch', '--torso=shallow', '--num_environments=16', '--num_environment_workers=1',
          '--batch_size=8', '--unroll_length=10', '--checkpoint_interval_seconds=0.5', '--log_interval_seconds=0.5')


def _binary(logdir, *flags):
  """Starts a population."""
  return training.Training(logdir, *flags, program=('-m', population.__name__))


def _members(process):
  """Returns the training processes of a population: member -> process."""
  found = {}
  for child, words in training.commands(process):
    for word in words:
      if word.startswith('--logdir='):
        found[population_directory.member_index(word.removeprefix('--logdir='))] = child
  return found


def setUpModule():
  training.configure_tensorflow()


class BinaryTest(parameterized.TestCase):

  def test_a_killed_member_is_replaced_and_the_other_one_goes_on(self):
    folder = os.path.join(self.create_tempdir().full_path, 'population')
    logdirs = [os.path.join(folder, population_directory.member_name(index)) for index in range(2)]
    initial_frames, frames = 4000, 12_000
    with _binary(folder, '--agent=impala_atari57', '--population_size=2', '--seed=5', *_CATCH,
                 '--population_episodes=100', f'--population_initial_frames={initial_frames}',
                 f'--total_environment_frames={frames}') as run:
      run.wait_until(lambda: set(_members(run.process)) == {0, 1}, 'both members')
      members = _members(run.process)
      members[0].suspend()  # So that it does not end meanwhile.
      run.wait_until(lambda: population_directory.read_fitness(logdirs[1]), 'a fitness')
      members[1].kill()
      run.wait_until(lambda: 'it is started again' in run.screen(), 'a replacement')
      self.assertEqual(_members(run.process)[0], members[0])
      members[0].resume()
      code, _ = run.end()
      screen = run.screen()
    self.assertEqual(code, 0, screen)
    self.assertRegex(screen, '(?m)^member_01 ended by SIGKILL: it is started again$')
    for index, logdir in enumerate(logdirs):
      self.assertRegex(screen, f'(?m)^member_0{index}: .* frames/s, return ')
      self.assertRegex(screen, f'(?m)^member_0{index}: fitness -?[0-9.]+ at [0-9,]+ frames with learning_rate ')
      rows = training.rows(logdir)
      self.assertEqual(rows[-1]['environment_frames'], frames)
      evolutions = population_directory.read_evolutions(logdir)
      evolved_at = [evolution.environment_frames for evolution in evolutions]
      self.assertEqual(evolved_at, sorted(set(evolved_at)))  # Each evolution comes once and in order.
      self.assertGreaterEqual(evolved_at[0], initial_frames)
      start = sweeps.IMPALA.draw(4 + index)  # Member i's seed - 1.
      self.assertContainsSubset({'seed': 5 + index, 'sweep_index': 4 + index, 'population_size': 2, **start},
                                run_directory.read_config(logdir)['flags'])
      for name in start:
        for row in rows:
          if row['environment_frames'] < evolved_at[0]:  # On a fast machine there may be none.
            self.assertAlmostEqual(row[name] / start[name], 1, places=5)
        self.assertEqual(rows[-1][name], evolutions[-1].hyper_parameters[name])
    self.assertRegex(screen, f'(?m)^fittest: {folder}/member_0[01]$')

  @parameterized.parameters(('impala_atari57', 24), ('impala_dmlab30', 24), ('popart_impala_atari57', 24),
                            ('popart_impala_dmlab30', 8), ('laser_dmlab30', 10), ('r2d2_atari57', 24))
  def test_populations_have_the_papers_sizes(self, agent, size):
    self.assertEqual(population.size_of(population.LauncherConfig(agent=agent)), size)
    self.assertEqual(population.size_of(population.LauncherConfig(agent=agent, population_size=3)), 3)

  def test_populations_with_different_seeds_start_differently(self):
    samples = {}
    for seed in (0, 1, 101, 201):
      first = population.first_sample(population.LauncherConfig(seed=seed))
      samples[seed] = [tuple(sweeps.IMPALA.draw(first + index).values()) for index in range(24)]
    self.assertEqual(samples[0], samples[1])  # Their members have equal seeds too, except one.
    self.assertEqual(samples[1][7], tuple(sweeps.IMPALA.draw(7).values()))
    self.assertLen({*samples[1], *samples[101], *samples[201]}, 3 * 24)

  def test_members_share_a_replay(self):
    folder, frames = os.path.join(self.create_tempdir().full_path, 'population'), 800
    with _binary(folder, '--agent=laser_atari57', '--population_size=2', '--share_replay', '--level_name=catch',
                 '--torso=shallow', '--num_environments=2', '--num_environment_workers=1', '--batch_size=4',
                 '--unroll_length=20', '--replay_share=0.75', '--replay_capacity=5000', '--replay_minimum_size=100',
                 f'--total_environment_frames={frames}', '--log_interval_seconds=0.001') as run:
      code, _ = run.end()
      self.assertEqual(code, 0, run.screen())
    logdirs = [os.path.join(folder, population_directory.member_name(index)) for index in range(2)]
    flags = [run_directory.read_config(logdir)['flags'] for logdir in logdirs]
    self.assertEqual([(member['sweep_index'], member['seed']) for member in flags], [(0, 1), (1, 2)])
    self.assertLen({member['shared_replay'] for member in flags}, 1)
    self.assertTrue(os.path.exists(os.path.join(folder, 'replay', 'replay.json')))
    # Whoever ends last has seen in the replay what both have made. An agent step of catch is a frame.
    rows = [training.rows(logdir) for logdir in logdirs]
    self.assertEqual([member[-1]['environment_frames'] for member in rows], [frames, frames])
    self.assertGreater(max(member[-1]['replay_size'] for member in rows), 1.25 * frames)

  @parameterized.parameters(
      (['--agent=ape_x_atari57'], '--agent=ape_x_atari57: want module:NAME or one of impala_atari57, .*dmlab30'),
      (['--population_size=1'], "--population_size=1: want at least 2, or 0 for the paper's number"),
      (['--seed=-1'], '--seed=-1: want a whole number from 0 to 2147482623'),
      (['--logdir='], '--logdir=: want a folder'),
      (['--share_replay', '--agent=popart_impala_dmlab30'],
       '--share_replay: want --agent=laser_atari57 or laser_dmlab30, got popart_impala_dmlab30'),
      (['--share_replay', '--agent=laser_dmlab30', '--shared_replay=here:1'],
       '--shared_replay=here:1: the population sets this flag of its members by itself'),
      (['--torso', 'deep', '--population_size=2'],
       'deep: no such argument; flags begin with -- (--help shows them)'),
      (['--mode=test'], '--mode=test: the population sets this flag of its members by itself'),
      (['--nolearning_rate_decay'],
       '--nolearning_rate_decay: the population sets this flag of its members by itself'))
  def test_bad_input_is_one_line(self, flags, wanted):
    folder = os.path.join(self.create_tempdir().full_path, 'population')
    done = subprocess.run([sys.executable, '-m', population.__name__, f'--logdir={folder}', *flags],
                          env=python_path.environment(), text=True, capture_output=True, check=False)
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    pattern = wanted.replace('(', r'\(').replace(')', r'\)')
    self.assertRegex(done.stderr, f'^error: {pattern}\n$')
    self.assertFalse(os.path.exists(folder))


class LearningTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    signal_handlers.restore_after(self)

  def test_a_population_beats_its_own_median_without_exploitation(self):
    """The members train one after the other, so that the result does not depend on their speeds."""
    folder = self.create_tempdir().full_path
    # Learning rate, and the frames after which evolution begins. Only the first rate is large enough to learn. That
    # member evolves when it has learned. Before that, fitness is noise, and it might copy another one.
    members = (2e-3, 10_000), (1e-9, 1_000), (1e-8, 1_000)
    for index, (rate, initial_frames) in enumerate(members):
      training.run_in_this_process(
          impala.IMPALA, configs.ImpalaConfig(), atari57_protocol.Protocol(), *_CATCH, '--synchronous',
          '--nolearning_rate_decay', '--rmsprop_epsilon=1e-3',
          '--entropy_cost=0.005', f'--population_size={len(members)}', '--population_episodes=100',
          f'--population_initial_frames={initial_frames}', f'--total_environment_frames={initial_frames + 1_000}',
          f'--learning_rate={rate}', f'--seed={index}',
          f'--logdir={os.path.join(folder, population_directory.member_name(index))}')
    rows = [training.rows(logdir) for logdir in population_directory.members(folder).values()]
    # Until then each member learns on its own.
    alone = [[row for row in member if row['environment_frames'] < frames][-1]
             for member, (_, frames) in zip(rows, members, strict=True)]
    for row, (_, frames) in zip(alone, members):
      self.assertGreater(row['environment_frames'], 0.9 * frames)
    without = statistics.median(row['episode_return'] for row in alone)
    with_evolution = statistics.median(member[-1]['episode_return'] for member in rows)
    # A random policy returns -0.6 and the best one 1.
    self.assertLess(without, -0.3)
    self.assertGreater(with_evolution, without + 0.8)


if __name__ == '__main__':
  absltest.main()
