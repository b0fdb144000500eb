"""Tests which parts of a benchmark are reported as slow, with made-up numbers."""

import os
from unittest import mock

from absl.testing import absltest

from scalable_agents.processes import kernels
from scalable_agents.tools import peers


def _cost(per_second):
  return {'cpu_seconds': 1 / per_second}


def _shortfalls(environment=3_000, vector_env=3_000, inference=12_000, learner=5_000, precision='float32', onednn=True):
  return peers.shortfalls(_cost(environment) | {'vector_env_cpu_seconds': 1 / vector_env}, _cost(inference),
                          _cost(learner), precision, onednn)


class PeersTest(absltest.TestCase):

  def test_processors_that_are_well_have_no_shortfall(self):
    self.assertEmpty(_shortfalls())
    self.assertEmpty(_shortfalls(3_560, 2_945, 22_165, 8_386, 'bfloat16'))  # docs/performance.md's Zen 4.
    # docs/performance.md's Cascade Lake; the inference number is made up.
    self.assertEmpty(_shortfalls(1_420, 1_577, 5_000, 4_165))
    self.assertEmpty(_shortfalls(300, 300, 1_200, 500))                     # A tenth of the speed.

  def test_a_part_far_below_the_others_is_named_with_a_cause(self):
    self.assertEqual(_shortfalls(learner=1_000), [
        'learner: 1,000 per second per core is far below comparable processors, which reach 3,600 or more; likely '
        'cause: other programs on these cores'])
    line, = _shortfalls(inference=3_000)
    self.assertRegex(line, '^inference: 3,000 per second per core is far below comparable .*, which reach 9,300 ')
    line, = _shortfalls(environment=1_000)
    self.assertRegex(line, '^environment: 1,000 per second per core is far below comparable .*, which reach 2,400 ')

  def test_the_cause_is_what_the_user_has_set(self):
    with mock.patch.dict(os.environ, TF_ENABLE_ONEDNN_OPTS='0'):
      line, = _shortfalls(learner=1_000, onednn=False)
    self.assertEndsWith(line, 'likely cause: oneDNN is off (TF_ENABLE_ONEDNN_OPTS=0)')
    with mock.patch.object(kernels, 'has_bfloat16', lambda: False):
      line, = _shortfalls(learner=1_000, precision='bfloat16')
    self.assertEndsWith(line, 'likely cause: the processor has no instructions for --torso_precision=bfloat16')

  def test_what_onednn_would_bring(self):
    with mock.patch.dict(os.environ, TF_ENABLE_ONEDNN_OPTS='0'):
      self.assertEqual(peers.shortfall_without_onednn(_cost(1_160), _cost(3_060)), [
          'learner: 2.6 times as fast with oneDNN, which TF_ENABLE_ONEDNN_OPTS=0 turns off: unset it'])
      self.assertEmpty(peers.shortfall_without_onednn(_cost(3_000), _cost(3_060)))


if __name__ == '__main__':
  absltest.main()
