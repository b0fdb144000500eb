"""Tests of agents/filters.py with the real emulator."""

import contextlib
import io
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.agents import configs
from scalable_agents.agents import filters
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.tests.training import training


class FiltersTest(parameterized.TestCase):

  def _main(self, torso, level='boxing', biases=()):
    """Runs the program with an untrained agent, whose first convolution has these biases. Returns what it prints."""
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    learner, checkpointer = training.make_run(logdir, configs.ImpalaConfig(level_name=level, torso=torso, seed=5))
    for variable in learner.agent.acting_variables:
      if variable.name.endswith('_torso/conv1/b:0'):
        variable.assign(biases)
    learner.environment_frames.assign(1_234)
    checkpointer.save()
    config = filters.FiltersConfig(logdir=logdir, steps=20)
    with mock.patch.object(run_flags, 'config_from_flags', return_value=config), contextlib.redirect_stdout(
        io.StringIO()) as output:
      filters.main()
    return output.getvalue()

  @parameterized.parameters(('shallow', 16), ('dqn', 32))
  def test_finds_the_filters_that_are_on(self, torso, channels):
    """A bias of ±100 is larger than what a filter makes of pixels in [0, 1]."""
    shown = self._main(torso, biases=np.where(np.arange(channels) % 4 == 1, 100., -100.))
    off = 3 * channels // 4
    self.assertEqual(
        shown, 'boxing, after 1,234 frames: filters of the first convolution, and in how many places they are on\n'
        f'{" ".join(["0.0%"] * off + ["100.0%"] * (channels - off))}\n'
        f'{channels - off} of {channels} are on in more than 10 %, {off} in less than 1 %\n')

  def test_shares_are_means_over_observations_of_an_agent_with_its_memory(self):
    class Torso:
      def first_layer(self, pixels):
        return tf.cast(pixels, tf.float32)

    pixels = np.zeros([10, 1, 2, 2], np.uint8)
    pixels[0, ..., 0] = pixels[8, :, 0, 1] = 1  # Observations 0 and 8 are looked at.
    rows = [mock.Mock(observation={'pixels': each}, reward=number, done=number == 0)
            for number, each in enumerate(pixels)]
    given = []

    def step(observation, state, reward, done):
      given.append((state, reward, done))
      return 0, len(given)

    policy = mock.Mock(**{'agent.submodules': [Torso()], 'step': step}, levels=['pong'])
    with mock.patch.object(filters, '_TORSOS', (Torso,)), \
         mock.patch.object(filters.lone_environment, 'start') as start:
      start.return_value.__enter__.return_value.advance.side_effect = rows
      np.testing.assert_allclose(filters.shares(policy, 9, 1), [0.25, 0.5])
    self.assertEqual(given, [(number or None, number, number == 0) for number in range(9)])

  @parameterized.parameters(('deep', 'boxing'), ('shallow', 'recall'))
  def test_wants_a_torso_with_such_a_layer(self, torso, level):
    with self.assertRaisesRegex(errors.UserError, '^--logdir: want a run with pixels and --torso=shallow or dqn'):
      self._main(torso, level)


if __name__ == '__main__':
  absltest.main()
