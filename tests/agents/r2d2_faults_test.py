"""Tests that a run of R2D2 goes on after faults, with its replay."""

import pathlib
import shutil
import signal

from absl.testing import absltest

from scalable_agents.agents import r2d2_atari57
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import training

_SMALL = ('--level_name=catch', '--torso=shallow', '--burn_in=2', '--sequence_length=8', '--sequence_period=4',
          '--unroll_length=8', '--batch_size=4', '--samples_per_period=0.5', '--replay_capacity=200',
          '--replay_minimum_size=100', '--num_environments=4', '--log_interval_seconds=0.2',
          '--checkpoint_interval_seconds=0.5')


class R2d2FaultsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.logdir = str(pathlib.Path(self.create_tempdir().full_path) / 'run')

  def _start(self, *flags):
    return training.Training(self.logdir, *_SMALL, *flags, program=r2d2_atari57.__name__)

  def _saved(self):
    """Returns the files of the replays that are beside complete checkpoints."""
    files = pathlib.Path(self.logdir, 'checkpoints').glob('ckpt-*.experience/replay')
    return sorted(files, key=lambda file: int(file.parent.stem.removeprefix('ckpt-')))

  def test_goes_on_with_the_replay_of_the_last_checkpoint_after_kill_minus_nine(self):
    with self._start() as run:
      run.wait_until(lambda: training.rows(self.logdir) and training.rows(self.logdir)[-1]['replay_size'] == 200,
                     'a full replay')
      for _ in range(3):
        run.wait_for_checkpoint()
      self.assertEmpty(run.kill())  # Perhaps while it writes another one.
    rows = training.rows(self.logdir)
    with self._start() as run:
      # The rows after the checkpoint go. The first new row differs from all of before, in its clock at least.
      run.wait_until(lambda: [row for row in training.rows(self.logdir) if row not in rows], 'a new row')
      new = training.rows(self.logdir)
      first = next(row for row in new if row not in rows)
      self.assertEqual(first['replay_size'], 200)  # Not filled again.
      self.assertGreater(first['sequences_inserted'], 200)
      self.assertGreaterEqual(first['sequences_inserted'], max(
          row['sequences_inserted'] for row in new[:new.index(first)]))
      run.wait_for_rows(2)
      self.assertEqual(run.end(signal.SIGINT)[0], 0, run.screen())

  def test_one_huge_reward_costs_one_update(self):
    level = faulty_environments.level(faulty_environments.HugeReward)
    # In a run that is not synchronous, the next batch has been drawn already.
    with self._start(f'--level_name={level}', '--num_environments=1', '--total_environment_frames=1_500',
                     '--synchronous') as run:
      self.assertEqual(run.end()[0], 0, run.screen())
      screen = run.screen()
    self.assertIn(' was not finite. An environment gave rewards of up to 3e+38 (absolute); correct the environment: '
                  f'{level} (actor 0)', ' '.join(screen.split()))
    row = training.rows(self.logdir)[-1]
    self.assertEqual(row['skipped_updates'], 1)
    self.assertGreater(row['learner_steps'], 20)

  def test_a_replay_that_cannot_be_restored_is_refused_in_one_line_or_filled_again(self):
    with self._start() as run:
      run.wait_for_rows(2)
      self.assertEqual(run.end(signal.SIGINT)[0], 0, run.screen())
    file = self._saved()[-1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    self.assertRegex(self._refusal(), r'^error: checkpoint (\S+) is damaged \(\1\.experience/replay: the file of the '
                     r'replay is damaged\): add --nosave_replay to go on with an empty replay, or ')
    self.assertEqual(file.read_bytes(), bytes(content))
    for saved in self._saved():
      shutil.rmtree(saved.parent)
    self.assertRegex(self._refusal(), r'^error: \S+\.experience is missing: .*--nosave_replay ')
    updates = training.rows(self.logdir)[-1]['learner_steps']
    learned = lambda: [row for row in training.rows(self.logdir) if row['learner_steps'] > updates]
    with self._start('--nosave_replay') as run:
      run.wait_until(learned, 'an update')
      self.assertEqual(run.end(signal.SIGINT)[0], 0, run.screen())
    self.assertBetween(learned()[0]['replay_size'], 100, 200)
    self.assertEmpty(self._saved())

  def _refusal(self):
    """Returns the last line on the screen of a run that is refused."""
    with self._start() as run:
      self.assertEqual(run.end()[0], 1)
      return run.screen().strip().splitlines()[-1]


if __name__ == '__main__':
  absltest.main()
