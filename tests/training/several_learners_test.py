"""Several learners on one machine: N learners with batches of B equal one learner with a batch of N B.

They are on logical devices of the CPU. Which way to sum gradients is chosen for GPUs is tested from their numbers.
"""

import collections
import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import popart_impala
from scalable_agents.cluster import learner_port
from scalable_agents.experience import intake
from scalable_agents.learner import learner_step
from scalable_agents.learner import popart
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls
from scalable_agents.training import learner_group

_NUM_LEARNERS = 3
_BATCH_SIZE = 2  # Unrolls per learner.


def setUpModule():
  training.configure_tensorflow()
  learner_port.configure_devices(_NUM_LEARNERS)


@functools.cache
def _strategy():
  return learner_port.make_strategy(_NUM_LEARNERS, port=None)


def _make(config, spec, xla):
  agent = popart_impala.POPART_IMPALA if isinstance(config, configs.PopArtImpalaConfig) else impala.IMPALA
  spec = unrolls.environment_spec(spec, levels=('catch', 'chain', 'recall'))
  return agent.make_learner(agent.network(spec, config), config, xla)


def _batches(learner):
  """Returns a batch for each learner, and what arrived with it."""
  unroll = unrolls.random_unroll(learner.agent, batch=_NUM_LEARNERS * _BATCH_SIZE)
  batches = [learner_step.Batch(unrolls.part(unroll, index, _BATCH_SIZE)) for index in range(_NUM_LEARNERS)]
  episode = intake.Episodes(tf.constant([0]), tf.constant([1.]), tf.constant([4]))
  return batches, [intake.Arrived(tf.constant(10 + index, tf.int64), episode, batch.unroll.actor_id,
                                  batch.unroll.parameter_version[1:]) for index, batch in enumerate(batches)]


class SeveralLearnersTest(parameterized.TestCase):

  def _compare(self, updates, xla='never', spec=None, spoil=None, rtol=1e-5, config_class=configs.ImpalaConfig,
               **settings):
    """Makes the same updates with one learner and with several. Returns both, and the parameters before."""
    config = config_class(**{'torso': 'shallow', 'total_environment_frames': 10_000, 'optimizer': 'rmsprop',
                             'learning_rate': 1e-3, 'rmsprop_epsilon': 0.1} | settings)
    spec = spec or unrolls.VECTOR
    one = _make(config, spec, xla)
    before = [variable.numpy() for variable in one.agent.trainable_variables]
    strategy = _strategy()
    with strategy.scope():
      several = _make(config, spec, xla)

    @tf.function(autograph=False)
    def step(batches):
      return strategy.run(lambda unroll: several.step(learner_step.Batch(unroll))[0], (batches,))

    for update in range(updates):
      unroll = unrolls.random_unroll(one.agent, spec, batch=_NUM_LEARNERS * _BATCH_SIZE, seed=update,
                                     level_ids=(0, 0, 2, 0))  # Nothing comes from level 1.
      if spoil == update:
        reward = unroll.environment_output.reward.numpy()
        reward[2, -1] = np.nan  # The last learner's part of the batch.
        unroll = unroll._replace(environment_output=unroll.environment_output._replace(reward=tf.constant(reward)))
      expected = unrolls.update(one, unroll)
      batches = strategy.experimental_distribute_values_from_function(
          lambda context: unrolls.part(unroll, context.replica_id_in_sync_group, _BATCH_SIZE))
      for local in strategy.experimental_local_results(step(batches)):
        for name, value in several.read(local).items():
          if name.startswith('value_loss/'):
            continue  # The learners' means per level count alike, however many rollouts each of them is about.
          np.testing.assert_allclose(value, expected[name], rtol, 1e-6, err_msg=f'{name}, update {update}')
      several.environment_frames.assign(one.environment_frames.read_value())  # learner_group does this in a run.
    for ours, theirs in zip(several.variables, one.variables, strict=True):
      for local in strategy.experimental_local_results(ours):
        np.testing.assert_allclose(local, theirs, rtol, 1e-6, err_msg=theirs.name)
    return one, several, before

  @parameterized.parameters(('never', unrolls.PIXELS), ('always', unrolls.VECTOR))
  def test_one_update_is_that_of_one_large_batch(self, xla, spec):
    one, *_ = self._compare(updates=1, xla=xla, spec=spec)
    self.assertEqual(int(one.update_steps.numpy()), 1)

  @parameterized.parameters({'optimizer': 'adam', 'clip_gradient_norm': 0.0},
                            {'use_lstm': True, 'clip_gradient_norm': 0.5})
  def test_many_updates_are(self, **settings):
    one, _, before = self._compare(updates=3, **settings)
    moved = [np.abs(new - old).max() for new, old in zip(one.agent.trainable_variables, before)]
    self.assertGreater(min(moved), 1e-6)
    self.assertGreater(max(moved), 1e-5)

  def test_the_statistics_of_popart_are_the_same_for_all(self):
    one, several, _ = self._compare(updates=3, config_class=configs.PopArtImpalaConfig, popart_decay=0.3,
                                    reward_transform='none')
    before = popart.initial_moments(3)
    for ours, theirs, initial in zip(several.agent.statistics, one.agent.statistics, before):
      first, *others = (local.numpy() for local in _strategy().experimental_local_results(ours))
      for other in others:
        np.testing.assert_array_equal(other, first)  # Bit for bit.
      np.testing.assert_allclose(first, theirs, rtol=1e-6)
      self.assertEqual((first != initial.numpy()).tolist(), [True, False, True])

  def test_what_is_not_finite_for_one_is_learned_by_none(self):
    _, several, _ = self._compare(updates=3, spoil=1)
    self.assertEqual((int(several.update_steps.numpy()), int(several.skipped_updates.numpy())), (2, 1))
    for variable in several.agent.trainable_variables:
      self.assertTrue(np.all(np.isfinite(variable.numpy())))

  def test_values_are_gathered_in_the_order_of_the_learners_and_feedback_is_not(self):
    config = configs.ImpalaConfig(torso='shallow')

    def loss(agent, batch, config):
      return impala.loss(agent, batch, config)._replace(
          means={'actor': tf.cast(tf.reduce_mean(batch.unroll.actor_id), tf.float32),
                 'per_level': tf.where(batch.unroll.actor_id[0] > [0, 9, 1], [1., 2., 3.], np.nan)},
          feedback=batch.unroll.actor_id, gathered=batch.unroll.actor_id)

    with _strategy().scope():
      agent = impala.Agent(unrolls.environment_spec(), config)
      agent.seen = tf.Variable(tf.zeros([_NUM_LEARNERS * _BATCH_SIZE], tf.int32), trainable=False)
      learner = learner_step.Learner(agent, loss, impala.make_optimizer, config, {'learning_rate': True}, 'never',
                                     after_update=lambda gathered, updates: [(agent.seen, gathered)])
    update = learner_group.LearnerGroup(_strategy(), '/CPU:0').step(learner, *_batches(learner), False)
    self.assertEqual(agent.seen.numpy().tolist(), list(range(_NUM_LEARNERS * _BATCH_SIZE)))
    self.assertEqual([feedback.numpy().tolist() for feedback in update.feedback], [[0, 1], [2, 3], [4, 5]])
    metrics = learner.read(update.metrics)
    self.assertEqual(metrics['actor'], 2.)  # The mean of 0, 2 and 4.
    # Learners without a value for a level do not count. No learner has one for the second level.
    np.testing.assert_array_equal(metrics['per_level'], [1., np.nan, 3.])
    self.assertEqual((update.environment_frames, int(learner.environment_frames.numpy())), (33, 33))
    self.assertEqual(update.episodes.lengths.tolist(), [4, 4, 4])

  @parameterized.parameters(
      (4, 4, (), 'NCCL'), (8, 8, ('10.0.0.1', '10.0.0.2'), 'NCCL'),
      (2, 1, (), 'RING'), (8, 8, ('10.0.0.1', '10.0.0.1'), 'RING'), (0, 0, ('10.0.0.1', '10.0.0.2'), 'RING'))
  def test_learners_with_a_card_each_sum_gradients_with_nccl(self, num_gpus, num_cards, machines, wanted):
    self.assertEqual(learner_port.communication(num_gpus, num_cards, machines).value, wanted)

  def test_learners_on_logical_devices_of_one_do_without_nccl(self):
    logical, physical = (len(devices('CPU')) for devices in (tf.config.list_logical_devices,
                                                             tf.config.list_physical_devices))
    self.assertEqual((logical, physical), (_NUM_LEARNERS, 1))
    self.assertEqual(learner_port.communication(logical, physical).value, 'RING')
    self.assertIsInstance(_strategy().extended._cross_device_ops, tf.distribute.ReductionToOneDevice)
    self.assertEqual(learner_port.summing(None), 'one of their devices')

  def test_nccl_sums_all_gradients_of_an_update_at_once(self):
    """Builds the graph of an update, which only GPUs can run. NCCL joins tensors, so they must have one type."""
    config = configs.PopArtImpalaConfig(torso='shallow')
    strategy = tf.distribute.MirroredStrategy([f'CPU:{index}' for index in range(_NUM_LEARNERS)],
                                              tf.distribute.NcclAllReduce())
    with strategy.scope():
      learner = _make(config, unrolls.VECTOR, 'never')
    together = learner_group.LearnerGroup(strategy, '/CPU:0')
    step = together._step.get_concrete_function(learner, *map(together._spread, _batches(learner)), tf.constant(0.))
    sizes = collections.defaultdict(list)
    for operation in step.graph.get_operations():
      if operation.type == 'NcclAllReduce':
        sizes[operation.device].append(operation.inputs[0].shape.num_elements())
    self.assertLen(sizes, _NUM_LEARNERS)
    num_parameters = sum(variable.shape.num_elements() for variable in learner.agent.trainable_variables)
    for gradients, *frames_and_leaving in sizes.values():
      self.assertGreater(gradients, num_parameters)
      self.assertEqual(frames_and_leaving, [1, 1])


if __name__ == '__main__':
  absltest.main()
