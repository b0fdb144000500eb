"""Tests of sharing a replay with agents that guess: real processes on the smallest size of the experiment."""

import contextlib
import csv
import io
import os
from unittest import mock

from absl.testing import absltest
import numpy as np

from scalable_agents.records import errors
from scalable_agents.records import run_rows
from scalable_agents.tools import comparison
from scalable_agents.tools import shared_replay


class SharedReplayTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.multiple(shared_replay, _NUM_LEARNERS=1, _NUM_GUESSERS=2))
    self._folder = self.create_tempdir().full_path

  def _run(self, *lines, frames=0):
    """Runs lines of the experiment with one seed. Returns what the program prints."""
    experiment = shared_replay.EXPERIMENTS['sharing']
    config = shared_replay.SharedReplayConfig(seeds=1, frames=frames, output=self._folder)
    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.dict(
        shared_replay.EXPERIMENTS, sharing=experiment._replace(lines=lines)), mock.patch.object(
            shared_replay.run_flags, 'config_from_flags', return_value=config):
      shared_replay.main()
    return screen.getvalue()

  def test_agents_share_a_replay(self):
    own, _, trusting = shared_replay.EXPERIMENTS['sharing'].lines
    screen = self._run(own, trusting, frames=1_280)
    for index, line in enumerate((own, trusting)):
      self.assertRegex(screen, rf'(?m)^{line.name} +-?\d\.\d\d \(-?\d\.\d\d to -?\d\.\d\d\)')
      folder = os.path.join(self._folder, f'sharing_{index}_seed_1')
      self.assertEqual(os.path.isdir(os.path.join(folder, 'replay')), line is trusting)
      row = run_rows.last_metrics(os.path.join(folder, 'agent_0'))
      self.assertEqual(row['environment_frames'], 1_280)
      self.assertEqual('replay_lead' in row, line is trusting)
    with open(os.path.join(self._folder, 'sharing.csv'), encoding='utf-8') as stream:
      self.assertEqual({row['agent'] for row in csv.DictReader(stream)}, {own.name, trusting.name})

  def test_a_process_that_dies_is_a_one_line_error(self):
    own = shared_replay.EXPERIMENTS['sharing'].lines[0]
    with self.assertRaisesRegex(errors.UserError, 'agent_0: error: --torso=tall: .*'):
      self._run(own._replace(flags=('--torso=tall',)))

  def test_a_replay_that_ends_is_a_one_line_error(self):
    """The agents would wait for it without end."""
    def start(command, directory):
      with open(f'{directory}.txt', 'w', encoding='utf-8') as output:
        output.write('agents wait\nstopped\n')
      return mock.Mock(**{'poll.return_value': 0 if 'scalable_agents.agents.laser_replay' in command else None})

    self.enter_context(mock.patch.object(shared_replay, '_start', start))
    experiment = shared_replay.EXPERIMENTS['sharing']
    with self.assertRaisesRegex(errors.UserError, 'replay: stopped'):
      shared_replay.train(experiment, experiment.lines[2], 1, 100, self._folder)

  def test_the_curve_is_the_mean_of_the_agents_that_learn(self):
    self.enter_context(mock.patch.multiple(shared_replay, _NUM_LEARNERS=2))
    started = self.enter_context(mock.patch.object(shared_replay, '_start'))
    started.return_value.poll.return_value = 0
    curves = [comparison.Curve(np.array([0, 10, 20]), np.array([[0.], [1.], [2.]])),
              comparison.Curve(np.array([0, 20]), np.array([[1.], [3.]]))]
    experiment = shared_replay.EXPERIMENTS['sharing']
    with mock.patch.object(comparison, 'read_curve', side_effect=curves):
      curve = shared_replay.train(experiment, experiment.lines[2], 1, 100, self._folder)
    np.testing.assert_array_equal(curve.frames, [0, 10, 20])
    np.testing.assert_allclose(curve.shares, [[0.5], [1.5], [2.5]])
    commands = [call.args[0] for call in started.call_args_list]
    self.assertEqual(['--entropy_cost=500' in command for command in commands], [False, False, True, True, False])
    self.assertLen({flag for command in commands for flag in command if flag.startswith('--shared_replay=')}, 1)


if __name__ == '__main__':
  absltest.main()
