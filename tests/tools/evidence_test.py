"""Tests of the claims: which hold, what is written, and that runs with a broken agent fail."""

import builtins
import contextlib
import io
import json
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from matplotlib import image
import numpy as np

from scalable_agents.records import errors
from scalable_agents.tables.results import intervals
from scalable_agents.tools import comparison
from scalable_agents.tools import evidence

# The returns of runs by the flags that decide them, before 0.001 times the seed.
_RETURNS = {'--off_policy_correction=vtrace': 0.9, '--off_policy_correction=one_step': 0.8,
            '--off_policy_correction=epsilon': 0.7, '--off_policy_correction=none': 0.6}


class EvidenceTest(parameterized.TestCase):

  def _run(self, folder, **settings):
    """Returns what the program prints, with runs whose returns depend on the last correction in their flags."""
    self._runs = {}  # Run directory -> arguments.

    def run(unused_imported, unused_module, arguments):
      logdir = next(word.removeprefix('--logdir=') for word in arguments if word.startswith('--logdir='))
      self._runs[logdir] = arguments
      return 0, ''

    def read_metrics(logdir):
      seed = int(logdir.rpartition('_')[2])
      lag = next((word for word in self._runs[logdir] if word.startswith('--policy_lag=')), '')
      correction = [word for word in self._runs[logdir] if word in _RETURNS][-1]
      value = 0.9 if lag == '--policy_lag=0' else _RETURNS[correction]
      # In the first half of a run, all lines are alike.
      return [{'environment_frames': frames, 'episode_return/catch': (value if frames > 20_000 else 0) + 0.001 * seed}
              for frames in range(5_000, 41_000, 5_000)]

    config = evidence.EvidenceConfig(papers='impala', output=folder, **settings)
    commit = mock.patch.object(evidence.package_versions, 'installed', return_value={'scalable_agents': 'abc1234'})
    with contextlib.redirect_stdout(io.StringIO()) as screen, commit, mock.patch.object(
        evidence.run_flags, 'config_from_flags', return_value=config), mock.patch.object(
            comparison.device_report, 'read', return_value=''), mock.patch.object(
                comparison.forked_program, 'run', run), mock.patch.object(
                    comparison.run_rows, 'read_metrics', read_metrics), mock.patch.object(
                        intervals, '_RESAMPLES', 20):  # Each takes milliseconds.
      evidence.main()
    return screen.getvalue()

  def test_claims_that_hold_are_on_a_page_with_their_numbers(self):
    folder = self.create_tempdir().full_path
    screen = self._run(folder)
    self.assertEqual(screen.count('holds  '), 10)
    with open(os.path.join(folder, 'evidence_impala.md'), encoding='utf-8') as file:
      page = file.read()
    self.assertIn('10 of 10 claims hold. Commit abc1234, ', page)
    self.assertIn("with Holm's correction for 9 tests, 9 have p < 0.05.", page)
    self.assertRegex(page, r'\| V-trace, policy lag of 60 updates > 1-Step, policy lag of 60 updates '
                           r'\| 0\.4[56] \(0\.4[56] to 0\.4[56]\) \| 0\.4[01] \(0\.4[01] to 0\.4[01]\) '
                           r'\| yes: p < 0\.001 \|')
    self.assertRegex(page, r'updates > 1-Step, policy lag of 60 updates \| \+0\.00, p = 0\.\d+ \| \+0\.00, p = 0\.\d+ '
                           r'\| \*\*\+0\.03\*\*, p < 0\.001 \| \*\*\+0\.05\*\*, p < 0\.001 \|')
    self.assertIn('`scalable-agents off_policy --experiment=policy_lag --seeds=10`, 40,000 environment frames per run. '
                  'A score is the mean return over the whole run.', page)
    self.assertIn('`scalable-agents off_policy --experiment=corrections --frames=20_000 --seeds=15`, 20,000 environment'
                  ' frames per run.', page)
    self.assertLen(self._runs, 10 * 10 + 4 * 15)  # The lines that claims compare.
    self.assertGreater(np.ptp(image.imread(os.path.join(folder, 'impala.png'))), 0.5)

  def test_runs_of_several_commits_are_named(self):
    """Runs that are complete are kept when the code changes."""
    folder = self.create_tempdir()
    for name, versions in (('a', {'scalable_agents': 'abc1234'}), ('b', {'scalable_agents': 'def5678'}), ('c', {})):
      folder.create_file(f'impala/{name}/config.json', content=json.dumps({'flags': {}, 'versions': versions}))
    screen = self._run(folder.full_path)
    self.assertIn('the runs are of several commits: abc1234, def5678, unknown; another --output makes', screen)
    with open(os.path.join(folder.full_path, 'evidence_impala.md'), encoding='utf-8') as file:
      self.assertIn('10 of 10 claims hold. Commit abc1234, def5678, unknown, ', file.read())

  def test_a_broken_agent_is_an_error_and_on_the_page(self):
    """Without a correction in any run, all lines are alike."""
    folder = self.create_tempdir().full_path
    with self.assertRaisesRegex(errors.UserError, r'^9 of 10 claims do not hold: V-trace, policy lag of 15 updates > '):
      self._run(folder, broken_with='--off_policy_correction=none')
    with open(os.path.join(folder, 'evidence_impala.md'), encoding='utf-8') as file:
      page = file.read()
    self.assertEqual(page.count('| **no**: p = '), 9)
    self.assertIn(', all runs with --off_policy_correction=none.', page)

  @parameterized.parameters(
      (0., [1.0, 1.1, 1.2, 1.3, 1.4], [0.9, 0.8, 0.7, 0.6, 0.5], True, 'p = 0.004'),  # 1 of 252 orders.
      (0., [0.9, 0.8, 0.7, 0.6, 0.5], [1.0, 1.1, 1.2, 1.3, 1.4], False, 'p = 1.000'),
      (0., [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], False, 'p = '),
      (0., [2.5, 5.1, 5.2, 5.3, 4.5], [1, 2, 3, 4, 5], True, 'p = 0.048'),   # 12 of 252 orders.
      (0., [1.5, 5.1, 5.2, 5.3, 4.5], [1, 2, 3, 4, 5], False, 'p = 0.075'),  # 19 of 252 orders.
      (0.1, [1.0, 2.0, 3.0, 4.0, 5.0], [1.04, 2.04, 3.04, 4.04, 5.04], True, 'from -0.040 to -0.040'),
      (0.1, [1.0, 2.0, 3.0, 4.0, 5.0], [1.2, 2.2, 3.2, 4.2, 5.2], False, 'from -0.200 to -0.200'),
      (0.1, [1.2, 2.2, 3.2, 4.2, 5.2], [1.0, 2.0, 3.0, 4.0, 5.0], False, 'from +0.200 to +0.200'))
  def test_a_claim_is_judged_by_its_seeds(self, margin, first, second, holds, reason):
    verdict = evidence.judge(evidence.Claim('', '', '', '', margin), first, second)
    self.assertEqual(verdict.holds, holds)
    self.assertIn(reason, verdict.reason)

  @parameterized.parameters(
      ([0.2] * 10, 2 ** -10), ([-0.2] * 10, 1.), ([0.] * 10, 1.),
      ([0.1, 0.2, 0.3, 0.4, -0.05], 2 / 2 ** 5),   # The rank sums of at least 14 of 15: 2 of 32 choices of signs.
      ([0.1, 0.2, 0.3, 0.4, 0.5, -0.15], 3 / 2 ** 6))
  def test_a_claim_by_seed_is_judged_by_the_differences(self, differences, p):
    second = 10. * np.arange(len(differences))  # The differences between seeds are much larger.
    verdict = evidence.judge(evidence.Claim('', '', '', '', by_seed=True), second + differences, second)
    self.assertEqual(verdict.holds, p < 0.05)
    self.assertEqual(verdict.reason, f'p = {p:.3f}' if p >= 0.001 else 'p < 0.001')
    self.assertFalse(evidence.judge(evidence.Claim('', '', '', ''), second + differences, second).holds)

  @parameterized.parameters(
      ([0.04, 0.01, 0.03], [0.03, 0.06, 0.06]), ([0.004, 0.01, 0.02, 0.03], [0.016, 0.03, 0.04, 0.04]),
      ([0.6, 0.5], [1., 1.]), ([0.02], [0.02]), ([], []))
  def test_holms_correction(self, p_values, wanted):
    """The k-th smallest of n is multiplied by n + 1 - k, and none is smaller than the one before."""
    np.testing.assert_allclose(evidence.holm(p_values), wanted)

  def test_claims_say_if_they_are_by_seed(self):
    for paper in evidence.PAPERS.values():
      for claim in paper.claims:
        self.assertEqual(claim.by_seed, 'by seed: ' in claim.text)

  def test_claims_say_within_which_margin_scores_are_equal(self):
    equal = [claim for paper in evidence.PAPERS.values() for claim in paper.claims if claim.margin]
    self.assertLen(equal, 2)
    for claim in equal:
      self.assertEndsWith(claim.text, f', within {claim.margin:g}')

  def test_laser_is_measured_over_the_first_parts_of_its_runs(self):
    with mock.patch.object(evidence.shared_replay, 'run', return_value={'no replay': np.array([[0., 1, 2, 3]])}):
      found = evidence.PAPERS['laser'].studies['sharing'].scores(
          evidence.EvidenceConfig(), self.create_tempdir().full_path, {'no replay'})
    np.testing.assert_allclose(found['no replay'], [[0.], [0.5], [1.], [1.5]])

  def test_a_few_failed_seeds_do_not_change_the_printed_difference(self):
    second = np.arange(20.)
    first = second + np.where(np.arange(20) < 2, -30., 0.02)
    for margin in (0., 0.05):
      self.assertAlmostEqual(evidence.judge(evidence.Claim('', '', '', '', margin), first, second).difference, 0.02)

  def test_each_claim_is_about_lines_of_its_study(self):
    tools = (evidence.off_policy, evidence.reward_scales, evidence.memory_tasks)
    lines = {name: {line.full_name for line in experiment.lines}
             for tool in tools for name, experiment in tool.EXPERIMENTS.items()}
    lines['sharing'] = set(evidence.shared_replay.LINES)
    for paper in evidence.PAPERS.values():
      for claim in paper.claims:
        self.assertIn(claim.study, paper.studies)
        self.assertLessEqual({claim.first, claim.second}, lines[claim.study])

  def test_runs_of_laser_cannot_be_broken_by_a_flag(self):
    config = evidence.EvidenceConfig(broken_with='--off_policy_correction=none')
    with mock.patch.object(evidence.run_flags, 'config_from_flags', return_value=config):
      with self.assertRaisesRegex(errors.UserError, '^--broken_with=.* runs of laser have no flags: '):
        evidence.main()

  def test_a_package_that_is_missing_is_named_before_any_run(self):
    find = lambda name: None if name in ('scipy', 'bsuite') else name
    config = evidence.EvidenceConfig(output=self.create_tempdir().full_path)
    with mock.patch.object(evidence.util, 'find_spec', find), mock.patch.object(
        evidence.run_flags, 'config_from_flags', return_value=config):
      with self.assertRaisesRegex(errors.UserError, '^the claims need scipy, bsuite: .* -r requirements-evidence.txt$'):
        evidence.main()

  def test_a_package_that_cannot_be_imported_is_named_before_any_run(self):
    config = evidence.EvidenceConfig(output=self.create_tempdir().full_path, papers='impala')
    import_it = builtins.__import__

    def import_others(name, *arguments):
      if name == 'rliable':
        raise ImportError('it needs an older pandas')
      return import_it(name, *arguments)

    with mock.patch.object(builtins, '__import__', import_others), mock.patch.object(
        comparison.forked_program, 'run', side_effect=AssertionError), mock.patch.object(
            evidence.run_flags, 'config_from_flags', return_value=config):
      with self.assertRaisesRegex(errors.UserError, r'needs rliable \(it needs an older pandas\)'):
        evidence.main()

  def test_an_unknown_paper_is_refused(self):
    config = evidence.EvidenceConfig(papers='impala,alphago')
    with mock.patch.object(evidence.run_flags, 'config_from_flags', return_value=config):
      with self.assertRaisesRegex(errors.UserError, '^--papers=impala,alphago: unknown: alphago: want some of '):
        evidence.main()

  @parameterized.parameters('', 'impala,', ' ,laser')
  def test_an_empty_name_of_a_paper_is_refused(self, papers):
    config = evidence.EvidenceConfig(papers=papers)
    with mock.patch.object(evidence.run_flags, 'config_from_flags', return_value=config):
      with self.assertRaisesRegex(errors.UserError, f'^--papers={papers}: a name is empty: want some of impala, '):
        evidence.main()


if __name__ == '__main__':
  absltest.main()
