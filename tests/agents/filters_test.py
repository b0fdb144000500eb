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

  def _main(self, torso, level='boxing', biases=None, **settings):
    """Runs the program with an untrained agent, whose layers have these biases. Returns what it prints."""
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    learner, checkpointer = training.make_run(logdir, configs.ImpalaConfig(level_name=level, torso=torso, seed=5))
    for variable in learner.agent.acting_variables:
      for layer, values in (biases or {}).items():
        if variable.name.endswith(f'_torso/{layer}/b:0'):
          variable.assign(values)
    learner.environment_frames.assign(1_234)
    checkpointer.save()
    config = filters.FiltersConfig(logdir=logdir, steps=20, **settings)
    with mock.patch.object(run_flags, 'config_from_flags', return_value=config), contextlib.redirect_stdout(
        io.StringIO()) as output:
      filters.main()
    return output.getvalue()

  @parameterized.parameters(('shallow', 16, 256, 'conv2', [9, 9, 32]), ('dqn', 32, 512, 'conv3', [7, 7, 64]))
  def test_finds_how_much_the_layers_react(self, torso, channels, size, last, shape):
    """The biases are larger than what the layers make of their inputs."""
    shown = self._main(torso, level='pong,boxing', level_name='boxing', biases={
        'conv1': np.where(np.arange(channels) % 4 == 1, 100., -100.),
        last: np.where(np.arange(shape[-1]) % 2, 1e5, -1e5),
        'linear': np.where(np.arange(size) % 8 == 3, 1e7, -1e7)})
    shown, length = shown.rstrip('\n').rsplit(' ', 1)
    self.assertAlmostEqual(float(length.replace(',', '')), 1e5 * np.sqrt(np.prod(shape) / 2), delta=1e5)
    off, never = 3 * channels // 4, 7 * size // 8
    self.assertEqual(
        shown, 'boxing, after 1,234 frames: filters of the first convolution, and in how many places they are on\n'
        f'{" ".join(["0.0%"] * off + ["100.0%"] * (channels - off))}\n'
        f'{channels - off} of {channels} are on in more than 10 %, {off} in less than 1 %\n'
        'features, and in how many observations they are on\n'
        f'{size - never} of {size} are on in more than 10 %, {never} in less than 1 %\n'
        'length of the outputs of the last convolution:')

  def test_numbers_are_means_over_observations_of_an_agent_with_its_memory(self):
    class Torso:
      def layers(self, pixels):
        pixels = tf.constant(pixels, tf.float32)
        return [pixels, 3 * pixels, tf.constant([[1., np.sum(pixels[..., 0]), -1.]])]

    pixels = np.zeros([10, 1, 2, 2], np.uint8)
    pixels[0, ..., 0] = pixels[8, :, 0, 1] = 1  # Observations 0 and 8 are looked at.
    rows = [mock.Mock(observation={'pixels': each}, reward=number, done=number == 0)
            for number, each in enumerate(pixels)]
    given = []

    def step(observation, state, reward, done):
      given.append((state, reward, done))
      return 0, len(given)

    policy = mock.Mock(**{'agent.submodules': [Torso()], 'step': step})
    with mock.patch.object(filters, '_TORSOS', (Torso,)), \
         mock.patch.object(filters.lone_environment, 'start') as start:
      start.return_value.__enter__.return_value.advance.side_effect = rows
      found = filters.activity(policy, 'pong', 9, 1)
    np.testing.assert_allclose(found.filters, [0.25, 0.5])
    np.testing.assert_allclose(found.features, [0., 0.5, 1.])
    self.assertAlmostEqual(found.length, (3 * np.sqrt(2) + 3) / 2, places=6)  # Of two ones, and of one.
    self.assertEqual(start.call_args.args[:2], ('pong', 1))
    self.assertEqual(given, [(number or None, number, number == 0) for number in range(9)])

  @parameterized.parameters(('deep', 'boxing'), ('shallow', 'recall'))
  def test_wants_a_torso_with_such_a_layer(self, torso, level):
    with self.assertRaisesRegex(errors.UserError, '^--logdir: want a run with pixels and --torso=shallow or dqn'):
      self._main(torso, level)


if __name__ == '__main__':
  absltest.main()
