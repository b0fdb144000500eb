"""Tests training with the binary from the user's side: kills, signals, faults, the screen and the run directory."""

import itertools
import os
import signal
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized
from matplotlib import image
import numpy as np
import psutil
from tensorboard.backend.event_processing import event_accumulator
import tensorflow as tf

from scalable_agents.agents import impala_atari57
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import training

_FRAMES_PER_UPDATE = 80
_TOTAL_FRAMES = 4_000_000
_LEARNING_RATE = 0.001
_CATCH = ('--level_name=catch', '--torso=shallow', '--num_environments=8', '--num_environment_workers=2',
          '--batch_size=8', '--unroll_length=10', f'--learning_rate={_LEARNING_RATE}',
          f'--total_environment_frames={_TOTAL_FRAMES}', '--checkpoint_interval_seconds=0.5',
          '--log_interval_seconds=0.2')

# The columns of metrics.jsonl in DESIGN, section 3, run directory.
_COLUMNS = {
    'environment_frames', 'learner_steps', 'wall_seconds', 'frames_per_second', 'episode_return', 'episodes',
    'learning_rate', 'loss/total', 'loss/policy_gradient', 'loss/baseline', 'loss/entropy', 'grad_norm', 'policy_lag',
    'episode_return/catch', 'queue_size', 'inference_batch_size', 'environment_restarts', 'skipped_updates',
    'bottleneck', 'memory_megabytes', 'time/learner_waits', 'time/queue_full', 'time/inference_idle',
    'time/environments_stepping'}
_PROGRESS = (r'\d[\d.]*k?/4.00M, [\d,]+ frames/s, return (none yet|-?[\d.]+), '
             r'(ETA (\d+d )?\S+, slowest: (learner|inference|environments|other jobs)'
             r'|starting: \d+ of \d+ environments)')

# Runs the binary with an update that does not end.
_ENDLESS_UPDATE = '''
import time
from scalable_agents.agents import train
from scalable_agents.processes import quiet
quiet.start()
from scalable_agents.learner import learner_step

def step(*unused):
  print('the update has begun', flush=True)
  time.sleep(1000)

learner_step.Learner.step = step
train.main('impala_atari57')
'''


class LifeOfARunTest(absltest.TestCase):
  """Tests one run that is killed twice and resumed by the same command. The last part is on a terminal until Ctrl-C."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.logdir = os.path.join(cls.enterClassContext(tempfile.TemporaryDirectory()), 'run')
    cls.survivors, cls.rows_at_kill = [], []
    with training.Training(cls.logdir, *_CATCH, program=('-m', impala_atari57.__name__)) as first:
      first.wait_for_rows(2)
      tree = [psutil.Process(first.process.pid), *first.workers()]
      cls.sockets = [process.net_connections('inet') for process in tree]
      cls.mapped = [mapped.path for process in tree for mapped in process.memory_maps()]
      first.workers()[0].kill()
      first.wait_until(lambda: training.rows(cls.logdir)[-1]['environment_restarts'], 'a replaced worker')
      for _ in range(2):  # The first one may have begun before the worker was replaced.
        first.wait_for_checkpoint()
      first.wait_for_rows(1)
      cls.survivors += first.kill()
      cls.first_screen = first.screen()
    cls.rows_at_kill.append(training.rows(cls.logdir))
    with training.Training(cls.logdir, *_CATCH) as second:
      second.wait_for_rows(2)
      second.wait_for_checkpoint()
      cls.survivors += second.kill()
    cls.rows_at_kill.append(training.rows(cls.logdir))
    terminal = training.Terminal()
    with training.Training(cls.logdir, *_CATCH, terminal=terminal) as last:
      last.wait_for_rows(2)
      with training.Training(cls.logdir, *_CATCH) as intruder:
        cls.intruder = *intruder.end(), intruder.screen()
      last.wait_for_rows(1)
      workers = last.workers()
      terminal.press_ctrl_c()
      last.wait_until(lambda: len(terminal.text) > 0, 'any text')
      terminal.press_ctrl_c()
      cls.exit_code, _ = last.end()
      cls.survivors += training.still_alive(workers)
    terminal.close()
    cls.terminal = training.SLOW_START.sub('', terminal.text)
    cls.rows, cls.episodes = training.rows(cls.logdir), training.episodes(cls.logdir)
    # On a busy machine, a row may be written while the learner waits, also before the first update of a process.
    cls.updated = [row for row in cls.rows if row.get('loss/total') is not None]

  def test_ctrl_c_twice_ends_it_well(self):
    self.assertEqual(self.exit_code, 0)
    self.assertRegex(self.terminal.replace('^C', ''),
                     r'\r\n[\d,]+ frames trained, run the same command to continue\r\n$')

  def test_ctrl_c_leaves_a_checkpoint_of_the_last_row(self):
    latest = tf.train.load_checkpoint(os.path.join(self.logdir, 'checkpoints'))
    name, = (name for name in latest.get_variable_to_shape_map() if 'environment_frames' in name)
    self.assertEqual(latest.get_tensor(name), self.rows[-1]['environment_frames'])

  def test_no_worker_outlives_its_run(self):
    self.assertEmpty(self.survivors)

  def test_no_port_is_open(self):
    self.assertEqual(self.sockets, [[], [], []])  # Sockets of the training process and of two workers.

  def test_no_shared_memory_has_a_name(self):
    self.assertEmpty([path for path in self.mapped if path.startswith('/dev/shm')])
    self.assertNotEmpty([path for path in self.mapped if path.startswith('/memfd:environments')])

  def test_no_row_is_missing_or_there_twice(self):
    for before, after in itertools.pairwise(self.rows):
      self.assertLess(before['wall_seconds'], after['wall_seconds'])
      self.assertLessEqual(before['environment_frames'], after['environment_frames'])
    for row in self.rows:
      self.assertEqual(row['environment_frames'], row['learner_steps'] * _FRAMES_PER_UPDATE)
    for before, after in zip(self.rows_at_kill, [self.rows_at_kill[1], self.rows]):
      kept = [row for row in before if row in after]
      self.assertEqual(kept, after[:len(kept)])
      self.assertNotEmpty(kept)
      self.assertLess(kept[-1]['environment_frames'], after[-1]['environment_frames'])

  def test_no_episode_is_missing_or_there_twice(self):
    counted_at = [int(episode[0]) for episode in self.episodes]
    self.assertEqual(counted_at, sorted(counted_at))
    for row in self.rows:
      self.assertEqual(row['episodes'], sum(at <= row['environment_frames'] for at in counted_at))
    self.assertLen(self.episodes, self.rows[-1]['episodes'])
    self.assertEqual({(level, length) for _, level, _, length in self.episodes}, {('catch', '4')})

  def test_the_learning_rate_goes_on(self):
    for before, row in itertools.pairwise(self.updated):
      # The row has the mean over the updates since the row before. An update has the learning rate of its first frame.
      frames = (before['environment_frames'] + row['environment_frames'] - _FRAMES_PER_UPDATE) / 2
      self.assertAlmostEqual(row['learning_rate'], _LEARNING_RATE * (1 - frames / _TOTAL_FRAMES), delta=1e-9)

  def test_replaced_workers_stay_counted(self):
    restarts = [row['environment_restarts'] for row in self.rows]
    self.assertEqual(restarts, sorted(restarts))
    self.assertGreater(restarts[-1], 0)

  def test_time_goes_on(self):
    for rows in self.rows_at_kill:
      self.assertGreater(self.rows[-1]['wall_seconds'], rows[-1]['wall_seconds'])

  def test_rows_have_all_columns(self):
    for row in self.updated:
      self.assertContainsSubset(_COLUMNS, row)
    for row in self.rows:
      self.assertIn(row['bottleneck'], ('learner', 'inference', 'environments', 'other jobs'))
      self.assertBetween(row['queue_size'], 0, 1)
      self.assertBetween(row['memory_megabytes'], 100, 3000)
      for name, share in row.items():
        if name.startswith('time/'):
          self.assertBetween(share, 0, 1, name)

  def test_rows_with_an_update_have_a_speed(self):
    self.assertEqual({row['frames_per_second'] for row in self.rows if row not in self.updated} - {0}, set())
    # The first update of each of the three processes does not count.
    self.assertLessEqual(sum(row['frames_per_second'] == 0 for row in self.updated), 3)

  def test_tensorboard_shows_the_rows(self):
    """Three processes have written rows; two of them were killed."""
    accumulator = event_accumulator.EventAccumulator(self.logdir, {event_accumulator.SCALARS: 0})  # 0: all of them.
    accumulator.Reload()
    for name in ('wall_seconds', 'loss/total', 'episode_return', 'grad_norm'):
      shown = [(event.step, event.value) for event in accumulator.Scalars(name)]
      wanted = [(row['environment_frames'], row[name]) for row in self.rows if row.get(name) is not None]
      np.testing.assert_allclose(shown, wanted, rtol=1e-6)

  def test_a_curve_is_drawn(self):
    self.assertGreater(np.ptp(image.imread(os.path.join(self.logdir, 'learning_curve.png'))), 0.5)

  def test_a_killed_worker_is_one_line_on_the_screen(self):
    lines = [line for line in self.first_screen.splitlines() if 'worker' in line]
    self.assertLen(lines, 1)
    self.assertRegex(lines[0], '^environment worker 0 is replaced: .*')

  def test_plain_lines_on_a_pipe_and_no_chatter(self):
    where, *lines = (line for line in self.first_screen.splitlines() if 'worker' not in line)
    self.assertRegex(where, '^learns and acts on the CPU(: the .*)?$')
    self.assertGreater(len(lines), 2)
    for line in lines:
      self.assertRegex(line, f'^{_PROGRESS}$')

  def test_one_moving_line_on_a_terminal_and_no_chatter(self):
    lines = self.terminal.replace('^C', '').split('\r\n')
    where, line, _, empty = (line for line in lines if not line.startswith('waiting up to '))
    self.assertRegex(where, '^learns and acts on the CPU(: the .*)?$')
    self.assertEqual(empty, '')
    states = [state.strip() for state in line.split('\r') if state.strip()]
    self.assertGreater(len(states), 2)
    for state in states:
      self.assertRegex(state, rf'^({_PROGRESS} +)?\d+%')

  def test_a_second_trainer_is_refused(self):
    code, _, screen = self.intruder
    self.assertEqual(code, 1)
    self.assertRegex(screen, f'^error: {self.logdir} is in use: process [0-9]+ .*\n$')


class EndsTest(parameterized.TestCase):

  def _logdir(self):
    return os.path.join(self.create_tempdir().full_path, 'run')

  @parameterized.parameters(signal.SIGTERM, signal.SIGINT)
  def test_a_signal_before_the_first_update(self, number):
    with training.Training(self._logdir(), *_CATCH) as run:
      run.wait_until(run.workers, 'workers')
      workers = run.workers()
      code, _ = run.end(number)
      self.assertEmpty(training.still_alive(workers))
      self.assertIn(code, (0, -number, 128 + number))
      self.assertNotIn('Traceback', run.screen())

  def test_ctrl_c_does_not_wait_for_an_update_that_takes_long(self):
    with training.Training(self._logdir(), *_CATCH, program=['-c', _ENDLESS_UPDATE]) as run:
      run.wait_until(lambda: 'the update has begun' in run.screen(), 'an update')
      workers = run.workers()
      code, _ = run.end(signal.SIGINT)
      self.assertEqual(code, 0)
      self.assertEmpty(training.still_alive(workers))
      self.assertEndsWith(run.screen(), '\nended without another checkpoint; run the same command to continue from the '
                                        'last one\n')

  def test_a_run_that_was_stopped_goes_on_with_its_workers(self):
    """Stops the run for longer than a worker may take: alone (Ctrl-Z), and with its workers (docker pause)."""
    timeout_seconds = 5
    level = faulty_environments.level(faulty_environments.SlowInParts)
    with training.Training(
        self._logdir(), f'--level_name={level}', '--num_environments=2', '--num_environment_workers=2',
        '--unroll_length=1', '--batch_size=1', '--log_interval_seconds=0.2',
        f'--environment_timeout_seconds={timeout_seconds}') as run:
      *_, before = run.wait_for_rows(2)
      for stopped in [run.process], [run.process, *run.workers()]:
        for process in stopped:
          process.send_signal(signal.SIGSTOP)
        time.sleep(timeout_seconds + 1)
        for process in stopped:
          process.send_signal(signal.SIGCONT)
        self.assertEqual(run.wait_for_rows(4)[-1]['environment_restarts'], before['environment_restarts'])

  def test_environments_that_keep_failing_end_a_run(self):
    level = faulty_environments.level(faulty_environments.Raising)
    with training.Training(self._logdir(), f'--level_name={level}', '--num_environments=2',
                           '--num_environment_workers=1') as run:
      self.assertEqual(run.end()[0], 1)
      # Lines of progress are left out.
      lines = [line for line in run.screen().split('\n') if ' frames/s, ' not in line]
    where, *replaced, traceback = '\n'.join(lines).split('\n', maxsplit=5)
    self.assertRegex(where, '^learns and acts on the CPU(: the .*)?$')
    fault = r'environment [01] \(gymnasium:\S+\) failed: RuntimeError: the game has crashed'
    for line in replaced:
      self.assertRegex(line, f'^environment worker 0 is replaced: {fault}$')
    self.assertRegex(traceback, '^Traceback (.|\n)*\n'
                                'error: environment worker 0 failed 5 times, each within 120 s of its start: '
                                f'{fault}\n$')
    self.assertFalse(os.path.exists(run.logdir))  # Nothing was learned.


if __name__ == '__main__':
  absltest.main()
