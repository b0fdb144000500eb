"""Tests of a small experiment: its table, its files, and runs that fail."""

import contextlib
import csv
import io
import json
import os
import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from matplotlib import image
import numpy as np

from scalable_agents.agents import sweeps
from scalable_agents.environments import registry
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tools import comparison
from scalable_agents.tools import off_policy
from scalable_agents.tools import reward_scales


class RewardScalesTest(parameterized.TestCase):

  def _run(self, **settings):
    """Returns what the program prints."""
    config = reward_scales.RewardScalesConfig(**settings)
    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.object(
        reward_scales.run_flags, 'config_from_flags', return_value=config), mock.patch.object(
            comparison.device_report, 'read', return_value='learns and acts on a card'):
      reward_scales.main()
    return screen.getvalue()

  def test_a_small_experiment(self):
    folder = self.create_tempdir().full_path
    experiment = reward_scales.EXPERIMENTS['clipping']
    self.enter_context(mock.patch.dict(
        reward_scales.EXPERIMENTS, clipping=experiment._replace(lines=experiment.lines[:1])))
    screen = self._run(experiment='clipping', seeds=1, frames=600, output=folder)
    file = os.path.join(folder, 'clipping')
    name = experiment.lines[0].name
    self.assertRegex(screen, rf'(?m)^{name} +0\.\d\d \(0\.\d\d to 0\.\d\d\)')
    with open(f'{file}.csv', encoding='utf-8') as stream:
      rows = list(csv.DictReader(stream))
    for row in rows:
      self.assertEqual((row['agent'], row['seed']), (name, '1'))
      self.assertBetween(float(row['harvest']), 0., 1.)
    self.assertEqual(int(rows[-1]['environment_frames']), 768)  # Whole batches.
    self.assertGreater(np.ptp(image.imread(f'{file}.png')), 0.5)
    with mock.patch.object(comparison.forked_program, 'run', side_effect=AssertionError):  # No run starts again.
      self.assertEqual(self._run(experiment='clipping', seeds=1, frames=600, output=folder), screen)

  @parameterized.parameters(
      (0, 'stopped', 'clipping_0_seed_1: interrupted, or too short for an episode of each task'),
      (1, 'a warning\nerror: --torso=tall\n', 'clipping_0_seed_1: error: --torso=tall$'),
      (-9, '', 'clipping_0_seed_1: exit code -9$'))
  def test_a_failed_run_is_a_one_line_error(self, code, screen, message):
    row = {'environment_frames': 5, 'episode_return/harvest': 1.}
    with mock.patch.object(comparison.forked_program, 'run', return_value=(code, screen)), mock.patch.object(
        comparison.run_rows, 'read_metrics', return_value=[row]):
      with self.assertRaisesRegex(errors.UserError, message):
        self._run(experiment='clipping', seeds=1, output=self.create_tempdir().full_path)

  def test_an_interrupted_run_is_made_again_from_its_start(self):
    line, folder = reward_scales.EXPERIMENTS['clipping'].lines[0], self.create_tempdir().full_path
    for name, frames, rows, is_kept in (('cut', 600, [{'environment_frames': 599}], False), ('begun', 600, [], False),
                                        ('complete', 600, [{'environment_frames': 600}], True),
                                        ('another', 700, [{'environment_frames': 10}], True)):
      with self.subTest(name):
        logdir = os.path.join(folder, name)
        run_directory.open_run(logdir, {'total_environment_frames': frames}, ()).close()
        with open(os.path.join(logdir, 'metrics.jsonl'), 'w', encoding='utf-8') as stream:
          stream.writelines(json.dumps(row | {'wall_seconds': 1.}) + '\n' for row in rows)

        def run(*unused, logdir=logdir):
          return 1, f'{os.path.exists(logdir)}'

        with mock.patch.object(comparison.forked_program, 'run', run):
          with self.assertRaisesRegex(errors.UserError, f'^{logdir}: {is_kept}$'):
            comparison.train(reward_scales.EXPERIMENTS['clipping'], line, 1, 600, logdir)

  def test_each_number_is_of_its_line_seed_and_task(self):
    """The runs of line l with seed s have the shares 0.1 l + 0.01 s + 0.001 t of the optimal return of task t."""
    experiment = reward_scales.EXPERIMENTS['scales']
    lines, runs, folder = experiment.lines[:2], [], self.create_tempdir().full_path
    self.enter_context(mock.patch.dict(reward_scales.EXPERIMENTS, scales=experiment._replace(lines=lines)))

    def run(unused_imported, unused_module, arguments):
      runs.append(arguments)
      return 0, ''

    def read_metrics(logdir):
      index, seed = map(int, re.fullmatch(r'scales_(\d)_seed_(\d)', os.path.basename(logdir)).groups())
      shares = 0.1 * index + 0.01 * seed + 0.001 * np.arange(3)
      returns = dict(zip(lines[index].levels, shares * lines[index].optimal_returns))
      rows = ((10, dict.fromkeys(returns)), (20, {level: 0. for level in returns}), (95, returns), (100, returns))
      return [{'environment_frames': frames} | {f'episode_return/{level}': value for level, value in row.items()}
              for frames, row in rows]

    with mock.patch.object(comparison.forked_program, 'run', run), mock.patch.object(
        comparison.run_rows, 'read_metrics', read_metrics):
      screen = self._run(experiment='scales', seeds=2, frames=100, output=folder)
    self.assertEqual(screen.splitlines()[0], 'each run learns and acts on a card')
    self.assertEqual(screen.splitlines()[2:4], [
        f'{lines[0].name:<48}0.01 (0.01 to 0.02)     0.02 (0.01 to 0.02)     0.02 (0.01 to 0.02)     ',
        f'{lines[1].name:<48}0.12 (0.11 to 0.12)     0.12 (0.11 to 0.12)     0.12 (0.11 to 0.12)     '])
    levels = [next(flag for flag in arguments if flag.startswith('--level_name=')) for arguments in runs]
    self.assertCountEqual(levels, 2 * ['--level_name=catch_x0.1,catch_mirror_x10,catch_shift_x1000',
                                       '--level_name=catch_x100,catch_mirror_x10000,catch_shift_x1000000'])
    with open(os.path.join(folder, 'scales.csv'), encoding='utf-8') as stream:
      rows = list(csv.reader(stream))
    self.assertEqual(rows[0], ['agent', 'seed', 'environment_frames', 'catch', 'catch_mirror', 'catch_shift'])
    self.assertLen(rows, 1 + 2 * 2 * 60)
    self.assertEqual(rows[1], [lines[0].name, '1', '20', '0', '0', '0'])
    self.assertEqual(rows[-1], [lines[1].name, '2', '100', '0.12', '0.121', '0.122'])

  def test_an_experiment_may_have_seeds_of_its_own(self):
    seeds, folder = [], self.create_tempdir().full_path
    experiment = reward_scales.EXPERIMENTS['clipping']
    self.enter_context(mock.patch.dict(reward_scales.EXPERIMENTS, clipping=experiment._replace(first_seed=101)))

    def train(unused_experiment, unused_line, seed, unused_frames, logdir):
      self.assertEndsWith(logdir, f'_seed_{seed}')
      seeds.append(seed)
      return comparison.Curve(np.array([0, 600]), np.zeros([2, 1]))

    with mock.patch.object(comparison, 'train', train):
      self._run(experiment='clipping', seeds=2, frames=600, output=folder)
    self.assertCountEqual(seeds, len(experiment.lines) * [101, 102])
    with open(os.path.join(folder, 'clipping.csv'), encoding='utf-8') as stream:
      self.assertEqual({row['seed'] for row in csv.DictReader(stream)}, {'101', '102'})

  def test_the_corrections_are_compared_without_and_with_replay(self):
    """Espeholt et al. 2018, table 2: four corrections, each without and with half of a batch from the replay."""
    experiment = off_policy.EXPERIMENTS['corrections']
    flags = {(line.name, *line.flags) for line in experiment.lines}
    self.assertEqual(flags, {
        (f'{name}, {kind} replay', '--policy_lag=60', f'--off_policy_correction={value}', f'--replay_share={share}')
        for name, value in (('V-trace', 'vtrace'), ('1-Step', 'one_step'), ('epsilon-correction', 'epsilon'),
                            ('No-correction', 'none'))
        for kind, share in (('without', 0), ('with', 0.5))})

  def test_samples_are_sorted_by_their_scores_at_the_end(self):
    """Appendix E. A panel has a variant's samples; sample i of variant v with seed s ends at 0.4 v + 0.1 i + 0.01 s."""
    folder, lines = self.create_tempdir().full_path, off_policy.EXPERIMENTS['action_values'].lines

    def read_metrics(logdir):
      index, seed = map(int, re.fullmatch(r'action_values_(\d+)_seed_(\d)', os.path.basename(logdir)).groups())
      variant, sample = divmod(index, 8)
      self.assertEqual(lines[index].flags[-1], f'--sweep_index={sample}')
      share = 0.4 * variant + 0.1 * (sample % 4) + 0.01 * seed
      return [{'environment_frames': frames, 'episode_return/catch': value}
              for frames, value in ((50, 0.), (100, share))]

    config = off_policy.OffPolicyConfig(experiment='action_values', seeds=2, frames=100, output=folder)
    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.object(
        off_policy.run_flags, 'config_from_flags', return_value=config), mock.patch.object(
            comparison.device_report, 'read', return_value='on a card'), mock.patch.object(
                comparison.forked_program, 'run', return_value=(0, '')), mock.patch.object(
                    comparison.run_rows, 'read_metrics', read_metrics), mock.patch.object(
                        comparison.drawing, 'save') as save:
      off_policy.main()
    self.assertIn('sample 3, r + γ V of the next state', screen.getvalue())
    panels, ranked = (call.args[0] for call in save.call_args_list)
    self.assertEqual([axes.get_title('left') for axes in panels.axes],
                     ['r + γ v of the next state', 'r + γ V of the next state'])
    self.assertEqual([text.get_text() for text in panels.legends[0].get_texts()], [f'sample {i}' for i in range(8)])
    np.testing.assert_allclose([line.get_ydata() for line in ranked.axes[1].lines if len(line.get_ydata()) == 8], [
        np.repeat([0.3, 0.2, 0.1, 0.], 2) + 0.4 * variant + 0.015 for variant in range(2)])
    # The best three samples of a variant end at 0.3, 0.3 and 0.2.
    np.testing.assert_allclose([line.get_ydata()[[0, -1]] for line in ranked.axes[0].lines], [
        [0., 0.8 / 3 + 0.4 * variant + 0.015] for variant in range(2)])

  def test_hyper_parameters_of_a_sample_have_no_flag(self):
    for experiment in off_policy.EXPERIMENTS.values():
      for line in experiment.lines:
        flags = {flag.partition('=')[0].removeprefix('--') for flag in (*experiment.flags, *line.flags)}
        self.assertNotEqual('sweep_index' in flags, 'learning_rate' in flags)
        self.assertTrue('sweep_index' not in flags or flags.isdisjoint(sweeps.IMPALA.ranges))

  def test_the_optimal_returns_are_those_of_the_levels(self):
    for experiment in (reward_scales.EXPERIMENTS | off_policy.EXPERIMENTS).values():
      for line in experiment.lines:
        for task, level, optimal in zip(experiment.tasks, line.levels, line.optimal_returns, strict=True):
          factor = float(level.removeprefix(task).removeprefix('_x') or 1)
          self.assertAlmostEqual(registry.make(task, seed=0).optimal_return * factor, optimal)


if __name__ == '__main__':
  absltest.main()
