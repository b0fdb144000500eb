"""Tests which unrolls from other processes are taken for possible."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.experience import stored_unrolls
from scalable_agents.experience import unroll_check
from scalable_agents.tests.training import unrolls

_LEVELS = 3
_BATCH = 4
_SLOT = 2  # The slot of the unroll that is changed.


class UnrollCheckTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    config = configs.ImpalaConfig(use_lstm=True)
    agent = impala.Agent(unrolls.environment_spec(), config)
    self.batch = unrolls.random_unroll(agent, batch=_BATCH)

  def _possible(self, path, slot, value):
    """Checks the batch after a change of the component at this path."""
    def changed(nest, path):
      if not path:
        array = nest.numpy()
        array[slot] = value
        return tf.constant(array)
      name, *rest = path
      if hasattr(nest, '_replace'):
        return nest._replace(**{name: changed(getattr(nest, name), rest)})
      return nest | {name: changed(nest[name], rest)}
    return unroll_check.is_valid(changed(self.batch, path), _LEVELS, unrolls.NUM_ACTIONS).numpy().tolist()

  def test_every_number_in_range_is_possible(self):
    self.assertEqual(self._possible(['level_id'], _SLOT, _LEVELS - 1), [True] * _BATCH)
    self.assertEqual(self._possible(['agent_output', 'action'], (3, _SLOT), unrolls.NUM_ACTIONS - 1), [True] * _BATCH)

  @parameterized.parameters(
      (['level_id'], _SLOT, _LEVELS), (['level_id'], _SLOT, -1), (['actor_id'], _SLOT, -1), (['index'], _SLOT, -1),
      (['index'], _SLOT, 2**63 - 1),
      (['agent_output', 'action'], (3, _SLOT), unrolls.NUM_ACTIONS), (['agent_output', 'action'], (0, _SLOT), -1),
      (['agent_output', 'policy_logits'], (6, _SLOT, 1), np.nan), (['parameter_version'], (1, _SLOT), -1),
      (['environment_output', 'observation', 'vector'], (5, _SLOT, 0), -np.inf))
  def test_an_impossible_number_rules_out_its_unroll_and_no_other(self, path, slot, value):
    self.assertEqual(self._possible(path, slot, value), [True, True, False, True])

  def test_the_ids_of_stored_rows_have_time(self):
    rows = stored_unrolls.of_unroll(self.batch)
    for name, value in (('level_id', _LEVELS), ('level_id', -1), ('actor_id', -1)):
      wrong = tf.tensor_scatter_nd_update(getattr(rows, name), [[3, _SLOT]], [value])
      possible = unroll_check.is_valid(
          rows._replace(index=self.batch.index, **{name: wrong}), _LEVELS, unrolls.NUM_ACTIONS)
      self.assertEqual(possible.numpy().tolist(), [True, True, False, True])

  def test_a_recurrent_state_must_be_finite(self):
    first, *others = tf.nest.flatten(self.batch.agent_state)
    first = tf.tensor_scatter_nd_update(first, [[_SLOT, 0]], [np.inf])
    batch = self.batch._replace(agent_state=tf.nest.pack_sequence_as(self.batch.agent_state, [first, *others]))
    possible = unroll_check.is_valid(batch, _LEVELS, unrolls.NUM_ACTIONS)
    self.assertEqual(possible.numpy().tolist(), [True, True, False, True])

  def test_earlier_frames_must_be_finite(self):
    frames = np.zeros([_BATCH, 3, 2], np.float32)
    frames[_SLOT, 1, 1] = np.inf
    possible = unroll_check.is_valid(
        self.batch._replace(earlier_frames={'vector': tf.constant(frames)}), _LEVELS, unrolls.NUM_ACTIONS)
    self.assertEqual(possible.numpy().tolist(), [True, True, False, True])

  def test_a_reward_that_is_not_finite_is_the_environments_fault_and_not_the_hosts(self):
    self.assertEqual(self._possible(['environment_output', 'reward'], (2, _SLOT), np.nan), [True] * _BATCH)


if __name__ == '__main__':
  absltest.main()
