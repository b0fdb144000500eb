"""Learners in several processes equal one learner, and end together. The processes connect over loopback."""

import contextlib
import os
import pathlib
import shutil
import signal
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.agents import popart_impala
from scalable_agents.learner import learner_step
from scalable_agents.processes import free_ports
from scalable_agents.records import run_directory
from scalable_agents.tests.cluster import learner_process
from scalable_agents.tests.launch import forked_program
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls
from scalable_agents.training import learner_group

_NUM_LEARNERS = 2
_UPDATES = 3
_BATCH_SIZE = 4
# Joins the learners of its argument as the second one, and takes no part in any update.
_JOIN = '''
import signal, sys
from scalable_agents.cluster import learner_port, cluster_config
port = learner_port.LearnerPort(cluster_config.ClusterConfig("learner", sys.argv[1], 1), {})
learner_port.make_strategy(1, port)
signal.pause()
'''


def _free_addresses():
  """Returns HOST:PORT for free ports, with commas between them."""
  return ','.join(f'localhost:{port}' for port in free_ports.find(_NUM_LEARNERS))


class LearnersTogetherTest(absltest.TestCase):

  def test_processes_learn_as_one_with_a_large_batch(self):
    folder, addresses = self.create_tempdir().full_path, _free_addresses()
    files = [os.path.join(folder, f'{task}.npz') for task in range(_NUM_LEARNERS)]
    processes = [forked_program.start(self, learner_process.__name__, addresses, str(task), str(_UPDATES), file)[0]
                 for task, file in enumerate(files)]
    config = learner_process.config(task=0)
    one = popart_impala.POPART_IMPALA.make_learner(
        popart_impala.Agent(unrolls.environment_spec(levels=learner_process.LEVELS), config), config, 'never')
    for update in range(_UPDATES):
      expected = unrolls.update(one, unrolls.random_unroll(
          one.agent, batch=_NUM_LEARNERS * learner_process.BATCH_SIZE, seed=update,
          level_ids=learner_process.LEVEL_IDS))
    self.assertEqual([process.wait(300) for process in processes], [0, 0])
    for file in files:
      found = np.load(file)
      for index, variable in enumerate(one.variables):
        np.testing.assert_allclose(found[f'arr_{index}'], variable, 1e-5, 1e-6, err_msg=variable.name)
      for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, 1e-5, 1e-6, err_msg=name)
      # All learners know all episodes, and that one learner asks to leave.
      self.assertEqual(found['level_ids'].tolist(), [1, 1])
      self.assertEqual((found['returns'].tolist(), found['lengths'].tolist()), ([2., 2.], [2, 2]))
      self.assertTrue(found['leaving'])
    first, second = map(np.load, files)
    of_agent = {id(moment) for moment in one.agent.statistics}
    statistics = [index for index, variable in enumerate(one.variables) if id(variable) in of_agent]
    self.assertLen(statistics, 2)
    for index in statistics:
      np.testing.assert_array_equal(first[f'arr_{index}'], second[f'arr_{index}'])  # Bit for bit.

  def test_one_alone(self):
    config = learner_process.config(task=0)
    learner = popart_impala.POPART_IMPALA.make_learner(
        popart_impala.Agent(unrolls.environment_spec(levels=learner_process.LEVELS), config), config, 'never')
    together = learner_group.LearnerGroup(None, '/CPU:0')
    batch = learner_step.Batch(unrolls.random_unroll(learner.agent))
    update = together.step(learner, [batch], [learner_process.arrived(1, 2, batch.unroll)], False)
    self.assertEqual((update.environment_frames, int(learner.environment_frames)), (48, 48))
    self.assertFalse(update.leaving)
    self.assertEqual(update.episodes.lengths.tolist(), [2, 2])
    self.assertFalse(together.have_peers)


  def test_an_internal_error_is_named(self):
    together = learner_group.LearnerGroup(None, '/CPU:0')
    together.have_peers = True
    error = tf.errors.InternalError(None, None, 'NCCL: unhandled system error\nat nccl.cc:12')
    with mock.patch.object(together, '_broadcast', side_effect=error), self.assertRaisesRegex(
        learner_group.LostLearnerError, 'is gone.* If all are there, this is why: NCCL: unhandled system error$'):
      together.broadcast([tf.Variable(0.)])


class TrainingTogetherTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.logdir = os.path.join(self.create_tempdir().full_path, 'run')
    self.addresses = _free_addresses()
    self.enter_context(mock.patch.dict(os.environ, {'http_proxy': 'http://127.0.0.1:9'}))  # There is none.

  def _start(self, stack, job, task, num_environments, *flags):
    return stack.enter_context(training.Training(
        self.logdir, f'--job_name={job}', f'--learner_addresses={self.addresses}', f'--task={task}',
        *faulty_environments.SLOW_FLAGS, '--torso=shallow', f'--batch_size={_BATCH_SIZE}',
        f'--num_environments={num_environments}', '--num_environment_workers=1', '--log_interval_seconds=0.5',
        '--total_environment_frames=100_000_000', '--checkpoint_interval_seconds=0.5',
        *flags))

  def _start_learners(self, stack):
    """Starts a learner with environments of its own, and one without."""
    return [self._start(stack, 'learner', task, 4 * (task == 0)) for task in range(_NUM_LEARNERS)]

  def _wait_for_actors(self, learners):
    """Waits until each learner has learned from its own actor host."""
    for task, logdir in enumerate((self.logdir, self.logdir + '_learner_1')):
      learners[task].wait_until(
          lambda: any(f'actor/task_{task}/policy_lag' in row for row in training.rows(logdir)[-1:]), 'its actor')

  @parameterized.parameters((0, signal.SIGINT), (1, signal.SIGTERM))
  def test_one_that_waits_for_others_hears_a_signal(self, task, number):
    learner = self._start(self.enterContext(contextlib.ExitStack()), 'learner', task, 0)
    log = pathlib.Path(self.logdir + '_learner_1' * task, run_directory.LIBRARY_LOG)
    learner.wait_until(lambda: log.exists() and 'Started server' in log.read_text(), 'its port')
    self.assertEqual(learner.end(number)[0], -number)
    self.assertRegex(learner.screen(), '^port .*; it waits for all 2 learners\n$')

  def test_learners_with_other_settings_are_refused(self):
    stack = self.enterContext(contextlib.ExitStack())
    learners = [self._start(stack, 'learner', task, 4, f'--learning_rate=0.00{1 + task}') for task in range(2)]
    for learner in learners:
      self.assertEqual(learner.end()[0], 1)
      self.assertRegex(learner.screen(), r'\nerror: learners of one cluster have different configurations: '
                                         r'--learning_rate is 0\.001 and 0\.002\. Give all .*\n$')

  def test_a_second_ctrl_c_leaves_without_a_learner_that_gets_no_unrolls(self):
    stack = self.enterContext(contextlib.ExitStack())
    first, second = self._start_learners(stack)
    actor = self._start(stack, 'actor', 0, 4)
    actor.wait_until(lambda: 'unrolls sent' in actor.screen(), 'contact')
    first.process.send_signal(signal.SIGTERM)
    first.wait_until(lambda: 'a second signal to end without the others' in first.screen(), 'a word')
    self.assertEqual(first.end(signal.SIGINT)[0], 0)
    actor.wait_until(lambda: f'no learner at {self.addresses.split(",")[0]}' in actor.screen(), 'waiting')
    self._check_left_alone(second)  # It waits for unrolls.

  def _check_left_alone(self, learner):
    self.assertEqual(learner.end()[0], 1)
    self.assertRegex(learner.screen(), r'\nerror: a learner of this cluster is gone, so all learners end: start all of '
                                       r'them again .*\n$')
    self.assertNotIn('Traceback', learner.screen())

  @parameterized.parameters(signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
  def test_before_the_first_update(self, number):
    """Tests with a learner that dies, or freezes for too long, or with SIGTERM to the learner that waits for it."""
    seconds = 60 if number == signal.SIGTERM else 3  # On a busy machine, the signal comes later than 3 s.
    first = self._start(
        self.enterContext(contextlib.ExitStack()), 'learner', 0, 0, f'--learner_timeout_seconds={seconds}')
    second, _ = forked_program.start(self, '-c', _JOIN, self.addresses)
    first.wait_until(first.workers, 'a worker')
    workers = first.workers()
    if number == signal.SIGTERM:
      self.assertEqual(first.end(number)[0], -number)
    else:
      second.send_signal(number)
      self._check_left_alone(first)
    self.assertEmpty(training.still_alive(workers))

  def test_all_end_with_one_and_begin_again_together(self):
    actors_stack = self.enterContext(contextlib.ExitStack())
    actors = [self._start(actors_stack, 'actor', task, 4) for task in range(2)]
    with contextlib.ExitStack() as stack:
      first, second = self._start_learners(stack)
      self._wait_for_actors([first, second])
      first.wait_for_checkpoint()
      second.process.send_signal(signal.SIGSTOP)
      time.sleep(12.)  # TensorFlow's default would end the others after 10 s.
      second.process.send_signal(signal.SIGCONT)
      first.wait_for_rows(2)
      second.kill()
      self._check_left_alone(first)
    frames = training.rows(self.logdir)[-1]['environment_frames']
    with contextlib.ExitStack() as stack:
      first, second = self._start_learners(stack)
      first.wait_until(lambda: training.rows(self.logdir)[-1]['environment_frames'] > frames, 'more frames')
      rows = first.wait_for_rows(1)
      self.assertEqual(rows[-1]['environment_frames'],
                       rows[-1]['learner_steps'] * _NUM_LEARNERS * _BATCH_SIZE *
                       faulty_environments.SLOW_UNROLL_LENGTH)
      self._wait_for_actors([first, second])  # The run has not ended, so the actor hosts stay.
      self.assertEqual(second.end(signal.SIGINT)[0], 0)  # Ctrl-C to one learner ends all.
      self.assertEqual(first.end()[0], 0)
      for actor in actors:
        self.assertEqual(actor.end()[0], 0)
        self.assertRegex(actor.screen(), '\nthe learner has ended the run\n$')
    ends = [training.rows(logdir)[-1] for logdir in (self.logdir, self.logdir + '_learner_1')]
    for name in ('environment_frames', 'learner_steps'):
      self.assertEqual(ends[0][name], ends[1][name])
    self.assertAlmostEqual(ends[0]['learning_rate'], ends[1]['learning_rate'], delta=1e-7)  # A row's mean.
    self._check_that_a_run_without_its_first_learner_is_kept(ends[1])

  def _check_that_a_run_without_its_first_learner_is_kept(self, end):
    shutil.rmtree(self.logdir)
    second_logdir = self.logdir + '_learner_1'
    checkpoints = sorted(os.listdir(os.path.join(second_logdir, 'checkpoints')))
    with contextlib.ExitStack() as stack:
      first, second = self._start_learners(stack)
      self.assertEqual(second.end()[0], 1)
      self.assertRegex(second.screen(), rf'\nerror: {second_logdir} has a run of {end["environment_frames"]:,} frames, '
                                        r"and the first learner begins a new one: put the first learner's .*\n$")
      self._check_left_alone(first)
    self.assertEqual(training.rows(second_logdir)[-1], end)
    self.assertEqual(sorted(os.listdir(os.path.join(second_logdir, 'checkpoints'))), checkpoints)


if __name__ == '__main__':
  absltest.main()
