"""Learners and actor hosts as programs: they train together, and the others go on when one of them ends."""

import glob
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.agents import configs
from scalable_agents.cluster import learner_connection
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.cluster import namespaced
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import training

_CATCH = ('--level_name=catch', '--torso=shallow', '--batch_size=4', '--num_environment_workers=1',
          '--unroll_length=20', '--checkpoint_interval_seconds=0.5', '--log_interval_seconds=0.5')
_ENVIRONMENTS = '--num_environments=4'
_NONE = '--num_environments=0'
_SLOW = (*faulty_environments.SLOW_FLAGS, '--total_environment_frames=1000000000',
         '--parameter_precision=bfloat16')  # A training without end.
_FIGURES = ('frames_per_second', 'megabytes_per_second', 'environment_restarts', 'reconnects', 'lost_unrolls',
            'policy_lag')
_NONSENSE = 7  # Number of invalid unrolls that a test sends.
_ADDRESSES = ('10.213.7.1', '10.213.7.2')  # Of two machines.


def setUpModule():
  training.configure_tensorflow()


class _TestCase(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.port = self.enterContext(cluster_testing.free_port())
    self.logdir = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    self.address = f'localhost:{self.port}'

  def _start(self, job, *flags, **kwargs):
    return self.enterContext(training.Training(
        self.logdir, *_CATCH, f'--job_name={job}', f'--learner_addresses={self.address}', *flags, **kwargs))

  def _actor(self, task, *flags, **kwargs):
    return self._start('actor', _ENVIRONMENTS, f'--task={task}', *flags, **kwargs)

  def _wait_for_row(self, learner, condition, what):
    """Waits for a new row of metrics.jsonl that meets the condition, and returns it."""
    before = len(training.rows(self.logdir))
    find = lambda: [row for row in training.rows(self.logdir)[before:] if condition(row)]
    learner.wait_until(find, what)
    return find()[0]

  def _check_actors_end(self, actors):
    for actor in actors:
      code, _ = actor.end()
      self.assertEqual(code, 0, actor.screen())
      self.assertRegex(actor.screen(), '\nthe learner has ended the run\n$')
      self.assertNotIn('Traceback', actor.screen())


def _hosts(*names):
  """Returns a condition: a row of metrics has all figures of exactly these actor hosts."""
  wanted = {f'actor/{name}/{figure}' for name in names for figure in _FIGURES}
  return lambda row: {name for name in row if name.startswith('actor/')} == wanted and row['actor_hosts'] == len(names)


def _plays(row):
  """Whether the learner has just got unrolls of actor host 1."""
  return 'actor/task_1/policy_lag' in row


class LifeOfAClusterTest(_TestCase):

  def test_actors_and_learners_come_and_go(self):
    first, learner = self._check_an_actor_waits_for_a_learner()
    relay = self.enterContext(cluster_testing.free_port())
    second = self._actor(1, *_SLOW, f'--relay_port={relay}')
    self._check_another_configuration_is_refused()
    self._check_nonsense_is_dropped(learner)
    row = self._wait_for_row(learner, _hosts('task_0', 'task_1'), 'two actor hosts')
    self.assertGreater(row['frames_per_second'], 0)
    self.assertEqual(row['skipped_updates'], 0)
    self.assertEqual({level for _, level, _, _ in training.episodes(self.logdir)},
                     {faulty_environments.level(faulty_environments.Slow)})
    self._check_one_freezes(learner, second)
    # An actor host is killed, and a new one joins.
    self.assertEmpty(first.kill())
    # It has no --task: its number is random.
    third = self._start('actor', _ENVIRONMENTS, *_SLOW, '--parameter_refresh=5', f'--parameters_from=localhost:{relay}')
    lag = re.compile(rf'actor/({re.escape(socket.gethostname())}-\d+)/policy_lag')
    third.wait_until(lambda: f'parameters come from the relay at localhost:{relay}' in third.screen(), 'the relay')
    row = self._wait_for_row(
        learner, lambda row: any(lag.fullmatch(column) and row[column] is not None for column in row),
        'the third actor host')
    name, = (match[1] for match in map(lag.fullmatch, row) if match)
    learner = self._check_a_killed_learner_comes_back(learner, second, third, name)
    # An actor host leaves.
    workers = [worker for actor in (second, third) for worker in actor.workers()]
    self.assertGreaterEqual(len(workers), 2)
    code, _ = third.end(signal.SIGTERM)
    self.assertEqual(code, 128 + signal.SIGTERM, third.screen())  # The run goes on.
    self.assertRegex(third.screen(), '\nstopped\n$')
    self._wait_for_row(learner, _hosts('task_1'), 'one actor host')
    self._check_the_only_one_freezes(learner, second)
    # Ctrl-C ends the learner.
    code, _ = learner.end(signal.SIGINT)
    self.assertEqual(code, 0, learner.screen())
    self._check_actors_end([second])
    self.assertEmpty(training.still_alive(workers))

  def _check_an_actor_waits_for_a_learner(self):
    """Returns an actor host and the learner that it has found."""
    actor = self._actor(0, *_SLOW)
    actor.wait_until(lambda: f'no learner at {self.address} for ' in actor.screen(), 'a word')
    self.assertRegex(actor.screen(), r'^acts on the CPU(: the .*)?\n'
                     rf'no learner at {self.address} for ([5-9]|\d\d+) s: Connection refused\n$')
    learner = self._start('learner', _NONE, *_SLOW)
    row = self._wait_for_row(
        learner, lambda row: _hosts('task_0')(row) and row['actor/task_0/policy_lag'] < row['learner_steps'] / 2,
        'an actor host that has parameters of late')
    self.assertEqual(row['actor/task_0/reconnects'], 0)
    return actor, learner

  def _check_another_configuration_is_refused(self):
    wrong = self._actor(2, *_SLOW, '--unroll_length=10')
    code, _ = wrong.end()
    self.assertEqual(code, 1)
    self.assertRegex(wrong.screen(), '^acts on the CPU(: the .*)?\n(no learner .*\n)*'
                                     f'error: {self.address}: the learner has another '
                                     'configuration: --unroll_length is 5 there and 10 here. Give all .*\n$')

  def _check_nonsense_is_dropped(self, learner):
    self._send_nonsense()
    for warning in ('malformed reports ignored: [1-3], the last one from an unknown sender: ',
                    f'unrolls dropped: [1-{_NONSENSE}], the last one from environment [0-9]+ of '):
      learner.wait_until(lambda: re.search(f'\n{warning}', learner.screen()), 'a warning')

  def _check_one_freezes(self, learner, second):
    """One of two actor hosts freezes, then continues."""
    second.process.send_signal(signal.SIGSTOP)
    row = self._wait_for_row(learner, lambda row: row['frames_per_second'] and not _plays(row), 'training without it')
    self.assertEqual(row['actor_hosts'], 2)  # The learner does not forget it at once.
    second.process.send_signal(signal.SIGCONT)
    self._wait_for_row(learner, _plays, 'its unrolls')

  def _check_a_killed_learner_comes_back(self, learner, second, third, name):
    """The learner is killed, and starts again with environments of its own. Returns the new one.

    `name` is the name of the third actor host.
    """
    learner.wait_for_checkpoint()
    learner.kill()
    # The restarted learner must know which unrolls of the actor hosts it had already.
    self.assertNotEmpty(glob.glob(os.path.join(self.logdir, 'checkpoints', 'ckpt-*.intake', 'unroll_order.json')))
    frames = training.rows(self.logdir)[-1]['environment_frames']
    learner = self._start('learner', _ENVIRONMENTS, *_SLOW)
    self._wait_for_row(learner, lambda row: row['environment_frames'] > frames, 'more frames than before')
    for actor in (second, third):
      actor.wait_until(lambda: 'connected to the learner at ' in actor.screen(), 'a connection')
    row = self._wait_for_row(learner, _hosts('task_1', name), 'both actor hosts')
    self.assertEqual((row['actor/task_1/reconnects'], row[f'actor/{name}/reconnects']), (1, 1))
    return learner

  def _check_the_only_one_freezes(self, learner, second):
    """The only actor host freezes. The learner continues with its own environments alone."""
    second.process.send_signal(signal.SIGSTOP)
    row = self._wait_for_row(learner, lambda row: not _plays(row), 'no unrolls of an actor')
    self._wait_for_row(
        learner, lambda later: later['environment_frames'] > row['environment_frames'] and not _plays(later),
        'more frames')
    second.process.send_signal(signal.SIGCONT)
    self._wait_for_row(learner, _plays, 'its unrolls')

  def _send_nonsense(self):
    """Sends invalid reports and unrolls."""
    spec = [tf.TensorSpec([])]
    reader = learner_connection.Connection(self.address, learner_connection.make_graph(0, spec, spec, queue_size=1))
    specs = {what: [tf.TensorSpec(shape, dtype) for dtype, shape in reader.greeting[what]]
             for what in ('unroll', 'parameters')}
    graph = learner_connection.make_graph(0, specs['unroll'], specs['parameters'],
                                          configs.ImpalaConfig().queue_size)
    sender = learner_connection.Connection(self.address, graph)
    sender.open()
    try:
      self._send_with(sender, specs)
    finally:
      for connection in (reader, sender):  # Now, since closing may block for ever once the learner is gone.
        connection.close().join()

  def _send_with(self, sender, specs):
    for text in (b'\xff', b'[' * 3000, b'{"host": -1}'):
      sender._beat(text)
    # Each pair: the index of an unroll's invalid component, and its value.
    for index, value in ((0, 1), (0, -1), (1, -1), (3, -1), (-3, 99), (-2, np.nan), (-1, -1)):
      unroll = [np.zeros(spec.shape, spec.dtype.as_numpy_dtype) for spec in specs['unroll']]
      unroll[index][...] = value
      sender.push([unroll])


class EndTest(_TestCase):

  def _make_machines(self):
    """Makes two network namespaces, joined by a virtual cable. Returns their names, none where this is not allowed."""
    names = [f'sa-{os.getpid()}-{side}' for side in 'ab']

    def ip(*arguments):
      return subprocess.run(['ip', *arguments], check=True, capture_output=True, text=True)

    try:
      for name in names:
        ip('netns', 'add', name)
        self.addCleanup(subprocess.run, ['ip', 'netns', 'del', name], check=False, capture_output=True)
      ip('-n', names[0], 'link', 'add', 'cable', 'type', 'veth', 'peer', 'name', 'cable', 'netns', names[1])
      for name, address in zip(names, _ADDRESSES):
        ip('-n', name, 'addr', 'add', f'{address}/24', 'dev', 'cable')
        ip('-n', name, 'link', 'set', 'cable', 'up')
        ip('-n', name, 'link', 'set', 'lo', 'up')
      ip('netns', 'exec', names[0], sys.executable, '-c', '')
    except (OSError, subprocess.CalledProcessError) as error:
      print(f'no network namespaces here: {(getattr(error, "stderr", "") or str(error)).strip()}')
      return []
    return names

  def test_training_to_the_end(self):
    """The learner and the actor host are on two machines, where network namespaces can be made."""
    machines = self._make_machines()
    if machines:
      self.address = f'{_ADDRESSES[0]}:{self.port}'

    def start(job, *flags):
      program = {}
      if machines:
        self.enterContext(mock.patch.dict(os.environ, {namespaced.NAMESPACE: machines.pop(0)}))
        program = {'program': namespaced.__name__}
      return self._start(job, '--total_environment_frames=4000', *flags, **program)

    learner = start('learner', _NONE)
    actor = start('actor', _ENVIRONMENTS, '--task=0')
    code, _ = learner.end()
    self.assertEqual(code, 0, learner.screen())
    self._check_actors_end([actor])
    self.assertRegex(learner.screen(), f'^port {self.port} opens? .*private network\n')
    self.assertRegex(learner.screen(), f'\n4,000 frames trained, see {self.logdir}\n$')
    self.assertNotIn('Traceback', learner.screen())
    row = training.rows(self.logdir)[-1]
    self.assertEqual((row['environment_frames'], row['learner_steps']), (4_000, 50))


class SeveralLearnersTest(_TestCase):

  def test_in_one_process(self):
    flags = ('--num_learners=2', '--total_environment_frames=8000')
    with training.Training(self.logdir, *_CATCH, _ENVIRONMENTS, *flags) as run:
      run.wait_for_rows(1)
      self.assertEqual(run.end(signal.SIGINT)[0], 0, run.screen())
      self.assertRegex(run.screen(), '(?m)^2 learners; one of their devices sums their gradients$')
    frames = training.rows(self.logdir)[-1]['environment_frames']
    self.assertLessEqual(frames, 8_000)
    with training.Training(self.logdir, *_CATCH, _ENVIRONMENTS, *flags) as run:
      self.assertEqual(run.end()[0], 0, run.screen())
    row = training.rows(self.logdir)[-1]  # An update takes two batches of four unrolls of 20 steps.
    self.assertEqual((row['environment_frames'], row['learner_steps']), (8_000, 50))
    self.assertGreater(row['episodes'], 0)
    training.run_preset('impala_atari57', f'--logdir={self.logdir}', '--mode=test', '--test_num_episodes=2')


if __name__ == '__main__':
  absltest.main()
