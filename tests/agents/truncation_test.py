"""Tests that a truncated episode is learned from as if it went on after its last observation. See actor/unroll.py."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import a2c
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import laser
from scalable_agents.agents import popart_impala
from scalable_agents.agents import r2d2
from scalable_agents.experience import mixed_experience
from scalable_agents.experience import replay_experience
from scalable_agents.learner import learner_step
from scalable_agents.tests.training import endless
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls

_PIXELS = {'pixels': tf.TensorSpec([16, 16, 1], tf.uint8)}
_LEVELS = ('catch', 'recall')
_CUT = 3  # The reset after the truncated episode is row 3 of 8.


def setUpModule():
  training.configure_tensorflow()


def _rows(unroll, rows):
  return tf.nest.map_structure(lambda x, has_time: x[rows] if has_time else x, unroll, unroll_lib.has_time(unroll))


def _truncated(agent, spec, batch):
  """Random unrolls of 8 rows, in which row _CUT is the reset after a truncated episode."""
  unroll = unrolls.random_unroll(agent, spec, steps=7, batch=batch, level_ids=(0, 1))
  environment = unroll.environment_output
  values = {name: getattr(environment, name).numpy() for name in ('reward', 'discount', 'done')}
  for name, value in (('reward', 0.), ('discount', 1.), ('done', True)):
    values[name][_CUT] = value
  return unroll._replace(environment_output=environment._replace(
      **{name: tf.constant(array) for name, array in values.items()}))


class LossTest(parameterized.TestCase):
  """The loss of unrolls with a truncation is the sum of the losses of the rows before the reset and from it on."""

  @parameterized.parameters(
      (impala, configs.ImpalaConfig, {}),
      (impala, configs.ImpalaConfig, dict(use_lstm=True, use_pixel_control=True, pixel_control_cost=0.1)),
      (impala, configs.ImpalaConfig, dict(off_policy_correction='one_step')), (a2c, configs.A2cConfig, {}),
      (popart_impala, configs.PopArtImpalaConfig, dict(use_lstm=True)),
      (laser, configs.LaserConfig, dict(use_pixel_control=True, trust_region_threshold=1.)))
  def test_of_actor_critics(self, module, config_class, settings):
    config = config_class(torso='deep', reward_transform='none', **settings)
    spec = unrolls.environment_spec(_PIXELS, levels=_LEVELS)
    agent = (impala if module is a2c else module).Agent(spec, config)
    unroll = _truncated(agent, _PIXELS, batch=4)
    sample = ()
    if module is laser:
      sample = mixed_experience.MixedSample(tf.constant([0.1, 0.2]), tf.constant([3, 4], tf.int64))

    def loss_and_gradient(*parts):
      with tf.GradientTape() as tape:
        losses = [module.loss(agent, learner_step.Batch(each, sample), config) for each in parts]
        total = tf.add_n([loss.total for loss in losses])
      return total, tf.concat([tf.reshape(g, [-1]) for g in tape.gradient(
          total, agent.trainable_variables, unconnected_gradients='zero')], axis=0)

    total, gradient = loss_and_gradient(unroll)
    want_total, want_gradient = loss_and_gradient(_rows(unroll, slice(0, _CUT)), _rows(unroll, slice(_CUT, None)))
    np.testing.assert_allclose(total, want_total, rtol=1e-4)
    np.testing.assert_allclose(gradient, want_gradient, rtol=1e-3, atol=1e-4 * np.abs(want_gradient).max())
    # As an ordinary end, the episode would have another loss.
    environment = unroll.environment_output
    ended = unroll._replace(environment_output=environment._replace(
        discount=tf.where(environment.done, 0., environment.discount)))
    self.assertGreater(abs(loss_and_gradient(ended)[0] - total), 0.01 * abs(total))

  def test_of_r2d2(self):
    lengths = {'all': 7, 'before': _CUT - 1, 'after': 7 - _CUT}
    # The priority of a sequence is the mean of its errors.
    config_of = {name: configs.R2d2Config(burn_in=0, sequence_length=length, n_step=3, discount=0.9, priority_eta=0.)
                 for name, length in lengths.items()}
    agent = r2d2.Agent(unrolls.environment_spec(), config_of['all'])
    unroll = _truncated(agent.online, unrolls.VECTOR, batch=1)
    rows = {'all': slice(0, None), 'before': slice(0, _CUT), 'after': slice(_CUT, None)}
    losses = {}
    for name, length in lengths.items():
      sample = replay_experience.SequenceSample(
          tf.fill([length, 1], True), tf.constant([0.5]), tf.constant([0]), (), tf.constant([0], tf.int64),
          tf.constant([0], tf.int64))
      losses[name] = r2d2.loss(agent, learner_step.Batch(_rows(unroll, rows[name]), sample), config_of[name])
    np.testing.assert_allclose(losses['all'].total, losses['before'].total + losses['after'].total, rtol=1e-4)
    means = [lengths[name] * losses[name].feedback for name in ('before', 'after')]
    np.testing.assert_allclose(losses['all'].feedback, sum(means) / (lengths['before'] + lengths['after']), rtol=1e-4)


class TrainingTest(absltest.TestCase):

  def test_values_of_a_task_without_an_end_are_those_of_the_whole_sum(self):
    """With a discount of 0.8 they are 1 / (1 - 0.8) = 5. If the time limit ended the task, they would be below 3."""
    values = {}
    # With a period of 4, the reset after an episode is alone in a sequence, which then has no real step.
    for is_task_over, period in ((False, 2), (False, 4), (True, 2)):
      logdir = self.create_tempdir().full_path
      training.run_preset(
          'r2d2_atari57', f'--level_name=dm_env:{endless.__name__}:make?is_task_over={is_task_over}', '--synchronous',
          f'--logdir={logdir}', '--nouse_lstm', '--burn_in=0', '--sequence_length=4', f'--sequence_period={period}',
          '--unroll_length=4', '--num_environments=4', '--batch_size=8', f'--samples_per_period={period / 2}',
          '--n_step=3', '--discount=0.8', '--novalue_rescaling', '--replay_capacity=500', '--replay_minimum_size=20',
          '--target_update_interval=10', '--learning_rate=3e-3', '--total_environment_frames=2000')
      row = training.rows(logdir)[-1]
      values[is_task_over, period] = row['value']
      self.assertEqual(row['episode_return'], 4.)
      self.assertEqual(row['episode_length'], 4)
      self.assertEqual(row['skipped_updates'], 0)
    self.assertAlmostEqual(values[False, 2], 5., delta=0.5)
    self.assertAlmostEqual(values[False, 4], 5., delta=0.5)
    self.assertLess(values[True, 2], 3.)


if __name__ == '__main__':
  absltest.main()
