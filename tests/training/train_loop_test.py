"""Tests the training loop in this process, with real environment workers: the order of events and the run's files.

Whole training processes, with their signals, kills and screens, are in impala_atari57_train_test.py.
"""

import collections
import functools
import itertools
import os
import shutil
import signal
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.agents import impala
from scalable_agents.agents import popart_impala
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.records import disk_events
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import trainer_testing
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls
from scalable_agents.training import collector
from scalable_agents.training import metrics_row
from scalable_agents.training import run_config
from scalable_agents.training import run_log
from scalable_agents.training import train_loop

_learner, _plain, _values = trainer_testing.learner_calling, trainer_testing.plain, trainer_testing.values


def setUpModule():
  training.configure_tensorflow()


class PublisherTest(absltest.TestCase):

  def test_actor_hosts_get_the_parameters_of_policy_lag_updates_ago_with_each_update(self):
    """However seldom this process's own actors take new ones. Versions go on after a resume."""
    config = impala.IMPALA.config(torso='shallow')
    learner = impala.IMPALA.make_learner(impala.Agent(unrolls.environment_spec(), config), config)
    learner.update_steps.assign(5)
    learner.skipped_updates.assign(2)
    publisher = train_loop.publisher_lib.Publisher(learner, 2, '/CPU:0', 'of_hosts', is_due=lambda: False)
    for update in range(5):
      for variable in learner.agent.acting_variables:
        variable.assign(tf.fill(variable.shape, float(update)))
      if update:
        publisher.publish()
      else:
        publisher.begin()
      version, parameters = publisher._shared.latest()
      oldest = max(update - 2, 0)
      self.assertEqual((int(version), publisher.version), (7 + oldest, 7 + update))
      for parameter in parameters:
        np.testing.assert_array_equal(parameter, np.full(parameter.shape, oldest))
      self.assertEqual(int(publisher.parameters.latest()[0]), 7)


class TrainLoopTest(trainer_testing.TrainerTestCase):

  def test_a_synchronous_run_is_determined_by_its_seed_and_not_by_its_workers(self):
    first, second = (_plain(self.rows(updates=10, batch_size=16, num_environments=48, num_workers=workers,
                                      learning_rate_decay=True)) for workers in (2, 3))
    self.assertLen(first, 10)
    self.assertEqual(first, second)
    self.assertContainsSubset(
        {'loss/total', 'loss/policy_gradient', 'loss/baseline', 'loss/entropy', 'grad_norm', 'episode_return'},
        first[0])
    self.assertLen({row['loss/total'] for row in first}, 10)

  def test_each_graph_is_traced_once(self):
    traces, function = collections.Counter(), tf.function

    def counting(python_function=None, **options):
      if python_function is None:
        return functools.partial(counting, **options)

      def traced(*args, **kwargs):
        traces[python_function.__qualname__] += 1
        return python_function(*args, **kwargs)
      return function(traced, **options)

    with mock.patch.object(tf, 'function', counting):
      self.trainer(updates=3).train()
    for name in ('Learner._step', 'Learner._gradients', 'Collector.__init__.<locals>.take', 'make_loop.<locals>.loop',
                 'endless.<locals>.loop'):
      self.assertEqual(traces[name], 1, name)
    self.assertEqual(set(traces.values()), {1}, traces)

  @parameterized.parameters(
      dict(level_name='recall', use_lstm=True, rmsprop_momentum=0.5, batch_size=8),
      dict(agent=popart_impala.POPART_IMPALA, popart_decay=0.3,
           level_name='catch,catch_mirror_x100', reward_transform='none'))
  def test_all_comes_back_from_a_checkpoint_and_two_resumes_are_identical(self, **settings):
    first = self.trainer(updates=4, **settings)
    first.train()
    copy = os.path.join(self.create_tempdir().full_path, 'copy')
    shutil.copytree(first.logdir, copy)
    resumed = []
    for workers, logdir in enumerate((first.logdir, copy), 1):  # The number of workers makes no difference.
      trainer = self.trainer(updates=9, logdir=logdir, num_workers=workers, **settings)
      for restored, saved in zip(_values(trainer.learner), _values(first.learner), strict=True):
        np.testing.assert_array_equal(restored, saved)
      trainer.train()
      resumed.append((trainer, _plain(training.rows(logdir)), training.episodes(logdir)))
    (one, rows, episodes), (other, other_rows, other_episodes) = resumed
    self.assertEqual([row['learner_steps'] for row in rows], list(range(1, 10)))
    self.assertEqual(rows, other_rows)
    self.assertEqual({row['policy_lag'] for row in rows[4:]}, {row['policy_lag'] for row in rows[:4]})
    self.assertEqual(episodes, other_episodes)
    self.assertLen(episodes, rows[-1]['episodes'])
    for value, other_value in zip(_values(one.learner), _values(other.learner), strict=True):
      np.testing.assert_array_equal(value, other_value)
    moved = [not np.array_equal(*pair) for pair in zip(_values(one.learner), _values(first.learner))]
    self.assertTrue(any(moved))

  def test_several_levels_share_an_agent_and_each_has_its_statistics(self):
    # The total is in frames, and an agent step has four frames here.
    games = ('breakout', 'space_invaders')
    trainer = self.trainer(level_name=','.join(games), updates=4 * 30, unroll_length=20, num_environments=4)
    self.assertIn((256, 18), [variable.shape for variable in trainer.learner.agent.trainable_variables])
    trainer.train()
    *_, row = run_rows.read_metrics(trainer.logdir)
    self.assertEqual((row['environment_frames'], row['learner_steps']), (30 * 4 * 20 * 4, 30))
    played = {game: row[f'episode_return/{game}'] for game in games}
    self.assertBetween(played['breakout'], 0, 10)
    self.assertBetween(played['space_invaders'], 15, 600)
    # Whenever both games have ended since the last score, the mean returns since then are scored.
    returns, score = {game: [] for game in games}, None
    for _, episodes in itertools.groupby(run_rows.read_episodes(trainer.logdir), lambda episode: episode.frames):
      for episode in episodes:
        returns[episode.level].append(episode.episode_return)
      if all(returns.values()):
        breakout, space_invaders = (np.mean(returns.pop(game)) for game in games)
        score = 50 * (breakout - 1.7) / (30.5 - 1.7) + 50 * (space_invaders - 148.) / (1668.7 - 148.)
        returns = {game: [] for game in games}
    self.assertAlmostEqual(row['suite_score/mean'], score, places=4)
    self.assertRegex(self.screen.getvalue(), r'score -?[\d.]+ %')
    self.assertEqual({episode.level for episode in run_rows.read_episodes(trainer.logdir)}, set(games))

  @parameterized.parameters((0, [0, 0, 0, 0, 0, 0]), (10, [0, 1, 0, 1, 0, 1]), (15, [0, 1, 2, 0, 1, 2]),
                            (12, [0, 1, 2, 0, 1, 2]))
  def test_actors_refresh_their_parameters_after_so_many_steps_of_each(self, steps, lags):
    """Each environment makes 5 steps per update, and new parameters come with an update."""
    self.assertEqual([row['policy_lag'] for row in self.rows(updates=6, refresh_steps=steps)], lags)

  def test_replayers_of_a_learner_without_environments_get_new_parameters(self):
    """Its own actors count no steps."""
    trainer = self.trainer(refresh_steps=10)
    self.assertFalse(trainer._publisher._is_due())
    trainer._host.is_idle = True
    self.assertTrue(trainer._publisher._is_due())

  @parameterized.parameters((0, 4), (3, 4), (2, 16))
  def test_actors_play_with_the_parameters_of_policy_lag_updates_ago(self, lag, num_environments):
    """Checks the versions in the unrolls, their logits, and the published parameters at the start of each update.

    Nothing is collected while an update runs.
    """
    history, lags, agents, steps = [], [], [], []

    def before(learner, unroll):
      update = int(learner.update_steps)
      steps.append(trainer._host.pool.statistics().steps)
      history.append([variable.numpy() for variable in learner.agent.acting_variables])
      versions = unroll.parameter_version.numpy()
      # In a round each environment plays one unroll. Each batch of a round is one update older than the one before it.
      age = update % (num_environments // 4)
      version = max(update - age - lag, 0)
      np.testing.assert_array_equal(versions[1:], np.full_like(versions[1:], version))
      lags.append(update - version)
      published, parameters = trainer.published()
      self.assertEqual(int(published), max(update - lag, 0))
      for parameter, then in zip(parameters, history[int(published)], strict=True):
        np.testing.assert_array_equal(parameter, then)
      for variable, then in zip(agents[0].acting_variables, history[version], strict=True):
        variable.assign(then)
      output, _ = agents[0].unroll(acting.inputs_of(unroll), unroll.agent_state)
      np.testing.assert_allclose(
          output.policy_logits[:-1], unroll.agent_output.policy_logits[1:], rtol=1e-4, atol=1e-5)

    def make_agent(*args):
      agents.append(impala.Agent(*args))  # The first agent is the learner's.
      return agents[-1]

    trainer = self.trainer(_learner(before), make_agent, updates=8, policy_lag=lag, num_environments=num_environments,
                           learning_rate=0.01)
    trainer.published = trainer._publisher.parameters.latest
    config = trainer._config
    agents[:] = [impala.Agent(unrolls.environment_spec({'pixels': tf.TensorSpec([20, 20, 1], tf.uint8)}, 3), config)]
    trainer.train()
    self.assertEqual([row['policy_lag'] for row in training.rows(trainer.logdir)], lags)
    self.assertEqual(lags[-1], lag + 7 % (num_environments // 4))
    if num_environments == 4:  # A round is a batch of 4 unrolls of 5 steps.
      self.assertEqual(np.diff(steps).tolist(), [20] * 7)

  def test_the_next_batch_is_collected_while_an_update_runs(self):
    collected, begun = [threading.Event() for _ in range(8)], itertools.count(1)

    def before(*unused):
      upcoming = next(begun)
      if upcoming < 3:
        self.assertTrue(collected[upcoming].wait(waiting.PATIENCE_SECONDS),
                        f'batch {upcoming} was not collected meanwhile')

    trainer = self.trainer(_learner(before), synchronous=False)
    collect, events = collector.Collector._collect, iter(collected)

    def collect_and_tell(self):
      batch = collect(self)
      next(events).set()
      return batch

    with mock.patch.object(collector.Collector, '_collect', collect_and_tell):
      trainer.train()
    self.assertEqual(next(begun), 4)

  def test_what_arrives_while_a_replay_is_filled_is_counted(self):
    trainer = self.trainer(updates=3)
    take = tf.function(lambda: trainer._experience.take_batch()[1])
    fills = iter([take, take])
    with mock.patch.object(trainer._experience, 'fill', lambda: next(fills, lambda: None)()):
      trainer.train()
    row, = training.rows(trainer.logdir)  # The one update has all frames of the run.
    self.assertEqual((row['environment_frames'], row['learner_steps']), (3 * 4 * 5, 1))
    self.assertEqual(row['episodes'], 4 * (3 * 5 // 4))  # An episode of catch has four steps.
    self.assertLen(training.episodes(trainer.logdir), row['episodes'])

  def test_regression_what_ended_in_a_batch_has_one_shape(self):
    """With another shape, several learners would trace their step again for each number of episodes."""
    trainer = self.trainer()
    take = tf.function(trainer._experience.take_batch)
    _, arrived = take.get_concrete_function().structured_outputs
    self.assertEqual([values.shape for values in arrived.episodes], 3 * [[5 * 4]])
    self.assertEqual((arrived.actor_ids.shape, arrived.parameter_versions.shape), ([4], [5, 4]))

  def test_actors_wait_for_a_slow_learner(self):
    """Tests back-pressure: the number of unrolls played is bounded, however long an update takes."""
    batch, queue, environments, length = 4, 2, 6, 5

    def before(*unused):
      pool = trainer._host.pool
      began, blocked = threading.Event(), 0
      while not blocked and not began.wait(0.05):
        blocked = pool.statistics().blocked_ns
      # Unrolls learned from, collected, in the queue, on the way there, in the pool, and one of each actor.
      unrolls = 2 * batch + queue + 1 + (queue + environments) + environments
      self.assertLessEqual(pool.statistics().steps, unrolls * length + environments)

    trainer = self.trainer(_learner(before), updates=1, synchronous=False, num_environments=environments,
                           queue_size=queue, batch_size=batch, unroll_length=length)
    trainer.train()

  def test_rows_come_while_no_batch_does(self):
    def silent_rows():
      return [row for earlier, row in itertools.pairwise(training.rows(trainer.logdir))
              if row['learner_steps'] == earlier['learner_steps'] > 0]

    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2:
        for worker in workers:
          worker.suspend()
        waiting.start(go_on)

    def go_on():
      try:
        waiting.wait_until(lambda: [row['bottleneck'] for row in silent_rows()].count('environments') > 2)
      finally:
        for worker in workers:
          worker.resume()

    with mock.patch.object(train_loop, '_LONGEST_SILENCE_SECONDS', 0.5):
      trainer = self.trainer(_learner(before), updates=20, synchronous=False)
      workers = psutil.Process().children()
      trainer.train()
    silent = silent_rows()
    self.assertGreater(len(silent), 2)
    for row in silent:
      self.assertEqual(row['frames_per_second'], 0)
      self.assertContainsSubset({'loss/total', 'learning_rate', 'episode_return'}, row)
    self.assertGreater(max(row['time/learner_waits'] for row in silent), 0.9)
    self.assertEqual(training.rows(trainer.logdir)[-1]['learner_steps'], 20)

  def test_the_levels_whose_environments_start_are_named(self):
    played, late = map(faulty_environments.level, (faulty_environments.Sound, faulty_environments.Slow))

    def before(learner, unused_unroll):
      if int(learner.update_steps) == 10:
        worker.resume()
        waiting.wait_until(lambda: not trainer._host.pool.starting())

    trainer = self.trainer(_learner(before), updates=20, synchronous=False, num_environments=2, num_workers=2,
                           level_name=f'{played},{late}', run=run_config.RunConfig(
                               log_interval_seconds=1e-3, environment_timeout_seconds=waiting.PATIENCE_SECONDS))
    worker = psutil.Process(trainer._host._workers[1].process.pid)
    worker.suspend()
    with mock.patch.object(run_log, '_LATE_SECONDS', 0.):
      trainer.train()
    where, *lines = self.screen.getvalue().splitlines()
    self.assertRegex(where, '^learns and acts on the CPU(: the .*)?$')
    self.assertEqual(lines[0], f'levels without a step so far: {late}')
    self.assertEqual(lines.count(lines[0]), 1)
    self.assertEndsWith(lines[1], ', starting: 1 of 2 environments')
    self.assertIn(', slowest: ', lines[-2])

  def test_memory_and_cores_are_not_measured_in_the_learners_thread(self):
    askers, looks = [], []

    def ask():
      askers.append(threading.current_thread().name)
      return float(len(askers))

    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2:
        waiting.wait_until(lambda: trainer._host.is_starved)

    def look(stepping_seconds, workers):
      looks.append((stepping_seconds, workers))
      return stepping_seconds > 0.

    trainer = self.trainer(_learner(before), updates=4)
    trainer._host.memory_megabytes = ask
    trainer._host._starvation.look = look
    workers = [process.pid for process in psutil.Process().children()]
    with mock.patch.object(train_loop, '_WATCH_INTERVAL_SECONDS', 0.01):
      trainer.train()
    self.assertEqual(set(askers), {'machine watcher'})
    self.assertEqual(looks[0][1], workers)
    self.assertBetween(training.rows(trainer.logdir)[-1]['memory_megabytes'], 1., len(askers))

  def test_a_signal_ends_the_run_with_a_checkpoint(self):
    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)

    trainer = self.trainer(_learner(before), updates=10**6)
    with disk_events.recorded() as events:
      trainer.train()
    # A checkpoint counts what the rows have, so a power cut must not lose them.
    self.assertEqual(events[:2], [('sync', 'metrics.jsonl'), ('sync', 'episodes.csv')])
    self.assertIn(('replace', 'checkpoint.new'), events[2:])
    updates = training.rows(trainer.logdir)[-1]['learner_steps']
    self.assertBetween(updates, 3, 10**5)
    self.assertEndsWith(self.screen.getvalue(), 'frames trained, run the same command to continue\n')
    again = self.trainer(updates=10**6, logdir=trainer.logdir)
    self.assertEqual(int(again.learner.update_steps), updates)

  @parameterized.parameters(True, False)
  def test_regression_an_error_of_a_member_loses_no_episodes(self, synchronous):
    counted = []  # The number of episodes that each update brought.

    def learned(unused_frames, unused_level_ids, returns):
      counted.append(len(returns))
      if sum(counted) > 4:  # The second episode of an environment.
        raise errors.UserError('the disk is full')

    trainer = self.trainer(updates=100, synchronous=synchronous)
    trainer._member = mock.Mock(learned=learned, metrics=dict)
    with self.assertRaisesRegex(errors.UserError, 'the disk is full'):
      trainer.train()
    self.assertLen(list(run_rows.read_episodes(trainer.logdir)), sum(counted))
    self.assertEqual(training.rows(trainer.logdir)[-1]['environment_frames'], 4 * 5 * len(counted))

  def test_regression_a_complete_run_keeps_its_checkpoint(self):
    """Another one would have another name, under which an evaluation that was interrupted begins again."""
    first = self.trainer(updates=2)
    first.train()
    latest = checkpoint.latest(os.path.join(first.logdir, run_directory.CHECKPOINTS))
    again = self.trainer(updates=2, logdir=first.logdir)
    again.train()
    self.assertEqual(checkpoint.latest(os.path.join(first.logdir, run_directory.CHECKPOINTS)), latest)
    self.assertEndsWith(self.screen.getvalue(), f'frames trained, see {first.logdir}\n')

  def test_regression_the_first_update_does_not_count_for_speed(self):
    late = 0.
    clock = mock.Mock(monotonic=lambda: time.monotonic() + late)

    def before(learner, unused_unroll):
      nonlocal late
      if not int(learner.update_steps):
        late = 1e6  # Seconds for tracing and compiling.

    with mock.patch.object(metrics_row, 'time', clock):
      rows = self.rows(_learner(before), synchronous=False, updates=20)
    self.assertGreater(min(row['frames_per_second'] for row in rows), 1)


if __name__ == '__main__':
  absltest.main()
