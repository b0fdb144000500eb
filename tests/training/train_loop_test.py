"""Tests the training loop in this process, with real environment workers: the order of events and the run's files.

Whole training processes, with their signals, kills and screens, are in impala_atari57_train_test.py.
"""

import dataclasses
import io
import itertools
import os
import pathlib
import shutil
import signal
import threading
import types
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.agents import impala
from scalable_agents.environments import registry
from scalable_agents.environments import scores
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import signal_handlers
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls
from scalable_agents.training import atari57_protocol
from scalable_agents.training import collector
from scalable_agents.training import metrics_row
from scalable_agents.training import run_flags
from scalable_agents.training import run_log
from scalable_agents.training import train_loop

_TIMING = {'wall_seconds', 'frames_per_second', 'bottleneck', 'queue_size', 'inference_batch_size',
           'time/learner_waits', 'time/queue_full', 'time/inference_idle', 'time/environments_stepping',
           'memory_megabytes'}
_PATIENCE_SECONDS = 60.  # Deadline for everything that takes a moment on an idle machine.


def setUpModule():
  train_loop.configure_tensorflow()


def _learner(before):
  """Returns a function that makes learners. They call `before(learner, unroll)` at the start of each step."""
  def make(*args):
    learner = impala.make_learner(*args)
    step = learner.step

    def step_after(batch):
      before(learner, batch.unroll)
      return step(batch)
    learner.step = step_after
    return learner
  return make


def _values(learner):
  """Returns the whole state of a learner: parameters, optimiser slots and counters."""
  return [variable.numpy() for variable in learner.variables]


def _plain(rows):
  """Returns rows of metrics.jsonl without the figures that depend on the clock."""
  return [{name: value for name, value in row.items() if name not in _TIMING} for row in rows]


class TrainerTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    signal_handlers.restore_after(self)
    self.screen = io.StringIO()
    self._directory = None

  def _trainer(self, make_learner=impala.make_learner, make_agent=impala.Agent, logdir=None, updates=3,
               run=run_flags.RunConfig(), num_environments=4, num_workers=2, **settings):
    """Makes a trainer that ends after `updates` updates, by default each of 4 unrolls of 5 steps."""
    config = impala.ImpalaConfig(**dict(
        level_name='catch', torso='shallow', unroll_length=5, batch_size=4, synchronous=True,
        learning_rate_decay=False) | settings)
    config = dataclasses.replace(
        config, total_environment_frames=updates * config.unroll_length * config.batch_size)
    impala.validate(config)
    run = dataclasses.replace(run, logdir=logdir or self.create_tempdir().full_path,
                              num_environments=num_environments, num_environment_workers=num_workers)
    flags = dataclasses.asdict(config) | dataclasses.asdict(run)
    free = run_flags.FREE_FLAGS | {'total_environment_frames'}
    if self._directory:
      self._directory.close()  # The previous trainer, perhaps in the same directory, has ended.
    self._directory = self.enterContext(run_directory.open_run(run.logdir, flags, free))
    levels = registry.expand(config.level_name)
    host = actor_host.ActorHost(levels, atari57_protocol.Protocol().environments(levels, training=True), run, config.seed)
    self.addCleanup(host.close)
    agent = types.SimpleNamespace(**vars(impala) | {'Agent': make_agent, 'make_learner': make_learner})
    trainer = train_loop.Trainer(host, agent, config, levels, run, self._directory, self.screen)
    trainer.logdir = run.logdir
    return trainer

  def _rows(self, *args, **settings):
    """Trains. Returns the rows of metrics.jsonl."""
    trainer = self._trainer(*args, **settings)
    trainer.train()
    return training.rows(trainer.logdir)

  @parameterized.parameters(
      dict(level_name='catch', num_environments=4), dict(level_name='catch', num_environments=48),
      dict(level_name='recall', num_environments=4, use_lstm=True))
  def test_a_synchronous_run_is_determined_by_its_seed_and_not_by_its_workers(self, num_environments, **settings):
    settings |= dict(updates=100, batch_size=16, learning_rate_decay=True)
    first, second = (_plain(self._rows(num_environments=num_environments, num_workers=workers, **settings))
                     for workers in (2, 3))
    self.assertLen(first, 100)
    self.assertEqual(first, second)
    self.assertContainsSubset(
        {'loss/total', 'loss/policy_gradient', 'loss/baseline', 'loss/entropy', 'grad_norm', 'episode_return'}, first[0])
    self.assertLen({row['loss/total'] for row in first}, 100)

  def test_another_seed_is_another_run(self):
    first, second = (_plain(self._rows(seed=seed)) for seed in (1, 2))
    self.assertNotEqual(first[0]['loss/total'], second[0]['loss/total'])

  def test_all_comes_back_from_a_checkpoint_and_two_resumes_are_identical(self):
    settings = dict(level_name='recall', use_lstm=True, rmsprop_momentum=0.5)
    first = self._trainer(updates=4, **settings)
    first.train()
    copy = os.path.join(self.create_tempdir().full_path, 'copy')
    shutil.copytree(first.logdir, copy)
    resumed = []
    for logdir in (first.logdir, copy):
      trainer = self._trainer(updates=9, logdir=logdir, **settings)
      for restored, saved in zip(_values(trainer.learner), _values(first.learner), strict=True):
        np.testing.assert_array_equal(restored, saved)
      trainer.train()
      resumed.append((trainer, _plain(training.rows(logdir)), training.episodes(logdir)))
    (one, rows, episodes), (other, other_rows, other_episodes) = resumed
    self.assertEqual([row['learner_steps'] for row in rows], list(range(1, 10)))
    self.assertEqual(rows, other_rows)
    self.assertEqual(episodes, other_episodes)
    self.assertLen(episodes, rows[-1]['episodes'])
    for value, other_value in zip(_values(one.learner), _values(other.learner), strict=True):
      np.testing.assert_array_equal(value, other_value)
    moved = [not np.array_equal(*pair) for pair in zip(_values(one.learner), _values(first.learner))]
    self.assertTrue(any(moved))

  def test_several_levels_share_an_agent_and_each_has_its_statistics(self):
    # The total is in frames, and an agent step has four frames here.
    games = ('breakout', 'space_invaders')
    trainer = self._trainer(level_name=','.join(games), updates=4 * 30, unroll_length=20, num_environments=4)
    self.assertIn((256, 18), [variable.shape for variable in trainer.learner.agent.trainable_variables])
    trainer.train()
    *_, row = run_rows.read_metrics(trainer.logdir)
    played = {game: row[f'episode_return/{game}'] for game in games}
    self.assertBetween(played['breakout'], 0, 10)
    self.assertBetween(played['space_invaders'], 15, 600)
    self.assertLess(abs(row['suite_score/mean'] - scores.summarise(played).mean), 30)
    self.assertRegex(self.screen.getvalue(), r'score -?[\d.]+ %')
    self.assertEqual({episode.level for episode in run_rows.read_episodes(trainer.logdir)}, set(games))

  def test_a_run_that_has_all_its_frames_ends_at_once(self):
    trainer = self._trainer()
    trainer.train()
    before = training.rows(trainer.logdir)
    self._trainer(logdir=trainer.logdir).train()
    self.assertEqual(training.rows(trainer.logdir), before)
    self.assertEndsWith(self.screen.getvalue(), f'60 frames trained, see {trainer.logdir}\n')

  @parameterized.parameters((0, 4), (3, 4), (2, 16))
  def test_actors_play_with_the_parameters_of_policy_lag_updates_ago(self, lag, num_environments):
    """Checks the versions in the unrolls, their logits, and the published parameters at the start of each update."""
    history, lags, agents = [], [], []

    def before(learner, unroll):
      update = int(learner.update_steps)
      history.append([variable.numpy() for variable in learner.agent.trainable_variables])
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
      for variable, then in zip(agents[0].trainable_variables, history[version]):
        variable.assign(then)
      environment, actor = unroll.environment_output, unroll.agent_output
      output, _ = agents[0].unroll(
          actor.action, environment.reward, environment.done, environment.observation, unroll.agent_state)
      np.testing.assert_allclose(output.policy_logits[:-1], actor.policy_logits[1:], rtol=1e-4, atol=1e-5)

    def make_agent(*args):
      agents.append(impala.Agent(*args))  # The first agent is the learner's.
      return agents[-1]

    trainer = self._trainer(_learner(before), make_agent, updates=8, policy_lag=lag, num_environments=num_environments,
                            learning_rate=0.01)
    trainer.published = trainer._publisher.parameters.latest  # pylint: disable=protected-access
    config = trainer._config  # pylint: disable=protected-access
    agents[:] = [impala.Agent(unrolls.environment_spec({'pixels': tf.TensorSpec([20, 20, 1], tf.uint8)}, 3), config)]
    trainer.train()
    self.assertEqual([row['policy_lag'] for row in training.rows(trainer.logdir)], lags)
    self.assertEqual(lags[-1], lag + 7 % (num_environments // 4))

  def test_the_next_batch_is_collected_while_an_update_runs(self):
    collected, begun = [threading.Event() for _ in range(8)], itertools.count(1)

    def before(*unused):
      upcoming = next(begun)
      if upcoming < 3:
        self.assertTrue(collected[upcoming].wait(_PATIENCE_SECONDS), f'batch {upcoming} was not collected meanwhile')

    trainer = self._trainer(_learner(before), synchronous=False)
    collect, events = collector.Collector._collect, iter(collected)  # pylint: disable=protected-access

    def collect_and_tell(self):
      batch = collect(self)
      next(events).set()
      return batch

    with mock.patch.object(collector.Collector, '_collect', collect_and_tell):
      trainer.train()
    self.assertEqual(next(begun), 4)

  def test_regression_what_ended_in_a_batch_has_one_shape(self):
    """With another shape, several learners would trace their step again for each number of episodes."""
    trainer = self._trainer()
    take = tf.function(trainer._experience.take_batch)  # pylint: disable=protected-access
    _, arrived = take.get_concrete_function().structured_outputs
    self.assertEqual([values.shape for values in arrived.episodes], 3 * [[5 * 4]])

  def test_an_update_that_waits_for_other_learners_is_spoken_of(self):
    word = 'do all learners get unrolls?'

    def before(learner, unused_unroll):
      if int(learner.update_steps) == 1:
        waiting.wait_until(lambda: self.screen.getvalue().count(word) > 5)

    trainer = self._trainer(_learner(before))
    trainer._together.have_peers = True  # pylint: disable=protected-access
    with mock.patch.object(train_loop, '_WAITING_WORD_SECONDS', 0.1):
      trainer.train()
    self.assertRegex(self.screen.getvalue(), r'(?m)^an update has been going on for \d+ s: do all ')

  def test_a_synchronous_run_collects_nothing_while_an_update_runs(self):
    steps = []

    def before(*unused):
      pool = trainer._host.pool  # pylint: disable=protected-access
      steps.append(pool.statistics().steps)

    trainer = self._trainer(_learner(before), updates=4)
    trainer.train()
    self.assertEqual(np.diff(steps).tolist(), [20, 20, 20])  # 4 environments, 5 steps.

  def test_actors_wait_for_a_slow_learner(self):
    """Tests back-pressure: the number of unrolls played is bounded, however long an update takes."""
    batch, queue, environments, length = 4, 2, 6, 5

    def before(*unused):
      pool = trainer._host.pool  # pylint: disable=protected-access
      began, blocked = threading.Event(), 0
      while not blocked and not began.wait(0.05):
        blocked = pool.statistics().blocked_ns
      # Unrolls learned from, collected, in the queue, on the way there, in the pool, and one of each actor.
      unrolls = 2 * batch + queue + 1 + (queue + environments) + environments
      self.assertLessEqual(pool.statistics().steps, unrolls * length + environments)

    trainer = self._trainer(_learner(before), updates=1, synchronous=False, num_environments=environments,
                            queue_size=queue, batch_size=batch, unroll_length=length)
    trainer.train()

  @parameterized.parameters(True, False)
  def test_a_killed_worker_is_replaced(self, synchronous):
    killed = []

    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2 and not killed:
        worker, *_ = psutil.Process().children()
        killed.append(worker)
        worker.kill()
        # Otherwise the other worker might play to the end before the loss is noticed.
        # pylint: disable-next=protected-access
        waiting.wait_until(lambda: synchronous or trainer._host.pool.restarts)

    trainer = self._trainer(_learner(before), updates=40, synchronous=synchronous)
    trainer.train()
    rows = training.rows(trainer.logdir)
    self.assertLen(killed, 1)
    self.assertEqual(rows[-1]['environment_restarts'], 1)
    self.assertEqual(rows[-1]['learner_steps'], 40)
    self.assertRegex(self.screen.getvalue(), '(?m)^environment worker [01] is replaced: .*$')

  @parameterized.parameters(
      (faulty_environments.RaisingAtFirst, 60., 'RuntimeError: the game has crashed'),
      (faulty_environments.HangingAtFirst, 6., r'no answer for 6 s \(--environment_timeout_seconds\)'))
  def test_training_goes_on_where_environments_raise_or_hang(self, environment, timeout_seconds, reason):
    trainer = self._trainer(level_name=faulty_environments.level(environment), updates=60, synchronous=False,
                            run=run_flags.RunConfig(environment_timeout_seconds=timeout_seconds))
    trainer.train()
    rows, episodes = training.rows(trainer.logdir), training.episodes(trainer.logdir)
    # The seeds of both workers' first lives are faulty. On a busy machine the workers after them may start late.
    self.assertGreaterEqual(rows[-1]['environment_restarts'], 1)
    self.assertEqual(rows[-1]['learner_steps'], 60)
    self.assertRegex(self.screen.getvalue(),
                     rf'(?m)^environment worker [01] is replaced: environment \d \(gymnasium:.*\) failed: {reason}$')
    self.assertEqual({(episode_return, length) for _, _, episode_return, length in episodes}, {('10.0', '10')})
    self.assertGreater(len(episodes), 4 * 2)  # More episodes than the first lives played.

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
      trainer = self._trainer(_learner(before), updates=20, synchronous=False)
      workers = psutil.Process().children()
      trainer.train()
    silent = silent_rows()
    self.assertGreater(len(silent), 2)
    for row in silent:
      self.assertEqual(row['frames_per_second'], 0)
      self.assertContainsSubset({'loss/total', 'learning_rate', 'episode_return'}, row)
    self.assertGreater(max(row['time/learner_waits'] for row in silent), 0.9)
    self.assertEqual(training.rows(trainer.logdir)[-1]['learner_steps'], 20)

  def test_memory_is_not_asked_for_in_the_learners_thread(self):
    askers = []

    def ask():
      askers.append(threading.current_thread().name)
      return float(len(askers))

    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2:
        waiting.wait_until(lambda: len(askers) > 1)  # So that the first answer has been given.

    trainer = self._trainer(_learner(before), updates=4)
    trainer._host.memory_megabytes = ask  # pylint: disable=protected-access
    with mock.patch.object(train_loop, '_MEMORY_INTERVAL_SECONDS', 0.01):
      trainer.train()
    self.assertEqual(set(askers), {'memory'})
    self.assertBetween(training.rows(trainer.logdir)[-1]['memory_megabytes'], 1., len(askers))

  def test_a_curve_that_cannot_be_drawn_ends_nothing(self):
    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2:
        waiting.wait_until(lambda: 'could not be drawn' in self.screen.getvalue())

    trainer = self._trainer(_learner(before), updates=4)
    os.mkdir(run_directory.path(trainer.logdir, run_directory.LEARNING_CURVE))
    with mock.patch.object(run_log, '_CURVE_INTERVAL_SECONDS', 0.):
      trainer.train()
    self.assertRegex(self.screen.getvalue(), '(?m)^learning_curve.png could not be drawn: .*Is a directory')
    self.assertEqual(training.rows(trainer.logdir)[-1]['learner_steps'], 4)

  def test_updates_that_are_not_finite_are_skipped_and_ten_in_a_row_end_the_run(self):
    skipped = [1] * 9 + [0] + [1] * 10 + [0] * 10
    trainer = self._trainer(updates=len(skipped))
    read, said = trainer.learner.read, iter(skipped)
    trainer.learner.read = lambda metrics: read(metrics) | {'update_skipped': next(said)}
    trainer.learner.culprit = lambda metrics: 'gradient of this'
    with self.assertRaisesRegex(errors.UserError, '^update 20: gradient of this was not finite.* 10th .*in a row'):
      trainer.train()
    self.assertEqual(training.rows(trainer.logdir)[-1]['learner_steps'], 20)

  def test_an_infinite_reward_ends_the_run_and_leaves_sound_parameters(self):
    trainer = self._trainer(level_name=faulty_environments.level(faulty_environments.InfiniteReward), updates=99,
                            reward_transform='none')
    before = _values(trainer.learner.agent)
    with self.assertRaisesRegex(errors.UserError, '^update 0: loss/policy_gradient was not finite'):
      trainer.train()
    rows = training.rows(trainer.logdir)
    self.assertEqual([row['skipped_updates'] for row in rows], list(range(1, 11)))
    self.assertIsNone(rows[-1]['loss/total'])
    again = self._trainer(level_name=faulty_environments.level(faulty_environments.InfiniteReward), updates=99,
                          reward_transform='none', logdir=trainer.logdir)
    self.assertEqual(int(again.learner.skipped_updates), 10)
    for restored, initial in zip(_values(again.learner.agent), before, strict=True):
      np.testing.assert_array_equal(restored, initial)

  @parameterized.parameters(False, True)
  def test_an_environment_whose_rewards_are_not_numbers_is_named(self, use_lstm):
    level = faulty_environments.level(faulty_environments.RewardsOfOneNotNumbers)
    trainer = self._trainer(level_name=level, updates=40, batch_size=1, use_lstm=use_lstm)
    trainer.train()
    last = training.rows(trainer.logdir)[-1]
    self.assertEqual((last['learner_steps'], last['skipped_updates']), (30, 10))  # One of four environments is faulty.
    self.assertEqual(last['episode_return'], 10.)  # The return of the other environments.
    self.assertEqual({row[2] for row in training.episodes(trainer.logdir)}, {'10.0'})
    words = [line for line in self.screen.getvalue().splitlines() if 'skipped: ' in line]
    self.assertLen(words, 1)  # There is at most one message a minute.
    self.assertRegex(words[0], rf'^an update was skipped: loss/\w+ was not finite\. .*: {level} \(actor 1\)$')
    self.assertRegex(self.screen.getvalue(), r'(?m), slowest: \w+, skipped updates: 10$')
    self.assertNotIn('is replaced', self.screen.getvalue())

  def test_an_environment_whose_observations_are_not_numbers_is_at_fault(self):
    trainer = self._trainer(level_name=faulty_environments.level(faulty_environments.ObservationNotNumbers), updates=99)
    with self.assertRaisesRegex(errors.UserError, "(?s)environment worker .*: observation 'vector': not finite"):
      trainer.train()

  def test_a_policy_whose_logits_are_not_finite_ends_the_run_and_is_not_saved(self):
    trainer = self._trainer(updates=99, learning_rate=1e12)
    with self.assertRaisesRegex(errors.UserError, "^the policy's logits are not finite with the parameters of "
                                r'update \d+: .* keeps its last checkpoint$'):
      trainer.train()
    self.assertNotIn('is replaced', self.screen.getvalue())  # No environment is blamed.
    again = self._trainer(updates=99, learning_rate=1e12, logdir=trainer.logdir)
    self.assertEqual(int(again.learner.update_steps), 0)

  @parameterized.parameters(dict(), dict(optimizer='adam'))
  def test_parameters_that_would_not_be_finite_are_neither_published_nor_saved(self, **settings):
    trainer = self._trainer(updates=99, **settings)
    trainer.learner.learning_rate.assign(np.inf)  # The flag's range excludes this value.
    with self.assertRaisesRegex(errors.UserError,
                                '^update 0: the new value of agent/.* was not finite, for the 10th time in a row'):
      trainer.train()
    again = self._trainer(updates=99, logdir=trainer.logdir, **settings)
    self.assertEqual(int(again.learner.skipped_updates), 10)
    for value in _values(again.learner.agent) + _values(again.learner.optimizer):
      self.assertTrue(np.all(np.isfinite(value)))

  def test_a_mistake_in_an_update_is_raised_and_nothing_is_saved(self):
    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2:
        raise ZeroDivisionError('a mistake')

    trainer = self._trainer(_learner(before), updates=5)
    with self.assertRaisesRegex(ZeroDivisionError, 'a mistake'):
      trainer.train()
    checkpoint.Checkpointer(run_directory.path(trainer.logdir, run_directory.CHECKPOINTS),
                            learner=trainer.learner).restore(partial=True)
    self.assertEqual(int(trainer.learner.update_steps), 0)  # Only the checkpoint of the run's beginning exists.
    self.assertEmpty(psutil.Process().children())

  def test_a_checkpoint_that_cannot_be_written(self):
    trainer = self._trainer()
    folder = run_directory.path(trainer.logdir, run_directory.CHECKPOINTS)
    shutil.rmtree(folder)
    with open(folder, 'w', encoding='utf-8'):
      pass  # A file is where the folder should be.
    said = '^.*/checkpoints.*no checkpoint could be written.*$'
    with self.assertRaisesRegex(run_directory.RunDirectoryError, said):
      trainer.train()
    self.assertEmpty(psutil.Process().children())
    os.remove(run_directory.path(trainer.logdir, run_directory.METRICS))
    with self.assertRaisesRegex(run_directory.RunDirectoryError, said):
      self._trainer(logdir=trainer.logdir)  # It fails before any training.

  @parameterized.parameters('moved', 'removed', 'replaced')
  def test_regression_a_run_whose_directory_is_gone_ends_and_writes_nothing_where_it_was(self, what):
    folder = self.create_tempdir().full_path
    logdir, moved, other = (os.path.join(folder, name) for name in ('run', 'moved', 'other'))
    self._trainer(logdir=other, updates=1).train()
    saved = None

    def before(learner, unused_unroll):
      nonlocal saved
      if int(learner.update_steps) == 2:
        while trainer._checkpointer.is_writing:
          time.sleep(0.01)
        saved = os.path.basename(checkpoint.latest(os.path.join(logdir, 'checkpoints')))
        if what == 'removed':
          shutil.rmtree(logdir)
        else:
          os.rename(logdir, moved)
        if what == 'replaced':
          os.rename(other, logdir)

    trainer = self._trainer(_learner(before), updates=100, logdir=logdir,
                            run=run_flags.RunConfig(checkpoint_interval_seconds=1e-9))
    in_others_place = {path: path.read_bytes() for path in pathlib.Path(other).rglob('*') if path.is_file()}
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{logdir} was moved or removed[^\n]*$'):
      trainer.train()
    self.assertEmpty(psutil.Process().children())
    if what != 'removed':
      self.assertEqual(checkpoint.latest(os.path.join(moved, 'checkpoints')), os.path.join(moved, 'checkpoints', saved))
    if what != 'replaced':
      self.assertFalse(os.path.exists(logdir))
    self.assertEqual({pathlib.Path(other, path.relative_to(logdir)): path.read_bytes()
                      for path in pathlib.Path(logdir).rglob('*') if path.is_file()},
                     in_others_place if what == 'replaced' else {})

  def test_regression_a_run_is_not_resumed_from_another_ones_directory(self):
    """The directory is replaced while the environments start."""
    folder = self.create_tempdir().full_path
    logdir, moved, other = (os.path.join(folder, name) for name in ('run', 'moved', 'other'))
    self._trainer(logdir=logdir, updates=2).train()
    self._trainer(logdir=other, updates=5).train()
    make_host = actor_host.ActorHost

    def replace_and_make_host(*args):
      os.rename(logdir, moved)
      os.rename(other, logdir)
      return make_host(*args)

    with mock.patch.object(actor_host, 'ActorHost', replace_and_make_host):
      trainer = self._trainer(logdir=logdir, updates=3)
    self.assertEqual(int(trainer.learner.update_steps), 2)
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{logdir} was moved or removed'):
      trainer.train()

  def test_regression_an_error_ends_a_run_whose_environments_are_stuck(self):
    """No further batch will arrive, so the trainer must not wait for the collector."""
    def before(learner, unused_unroll):
      if int(learner.update_steps) == 1:
        for worker in psutil.Process().children():
          worker.suspend()
        raise ZeroDivisionError('a mistake')

    trainer = self._trainer(_learner(before), updates=1000, synchronous=False, batch_size=64)
    with self.assertRaisesRegex(ZeroDivisionError, 'a mistake'):
      trainer.train()
    # It did not wait for the timeout. pylint: disable-next=protected-access
    self.assertEqual(trainer._host.pool.restarts, 0)

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM)
  def test_a_signal_ends_the_run_with_a_checkpoint(self, number):
    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)

    trainer = self._trainer(_learner(before), updates=10**6)
    trainer.train()
    updates = training.rows(trainer.logdir)[-1]['learner_steps']
    self.assertBetween(updates, 3, 10**5)
    again = self._trainer(updates=10**6, logdir=trainer.logdir)
    self.assertEqual(int(again.learner.update_steps), updates)
    self.assertEndsWith(self.screen.getvalue(), 'frames trained, the same command goes on from there\n')

  def test_regression_the_first_update_does_not_count_for_speed(self):
    late = 0.
    clock = mock.Mock(monotonic=lambda: time.monotonic() + late)

    def before(learner, unused_unroll):
      nonlocal late
      if not int(learner.update_steps):
        late = 1e6  # Seconds for tracing and compiling.

    with mock.patch.object(metrics_row, 'time', clock):
      rows = self._rows(_learner(before), synchronous=False, updates=20)
    self.assertGreater(min(row['frames_per_second'] for row in rows), 1)


if __name__ == '__main__':
  absltest.main()
