"""Tests the learner with IMPALA: its step, its counters, and what it does with a batch that is not finite."""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.learner import frame_stacks
from scalable_agents.learner import learner_step
from scalable_agents.records import errors
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls

PIXELS = unrolls.PIXELS
_STACKED = {'pixels': tf.TensorSpec([20, 20, 2], tf.uint8)}
_unroll, _update = unrolls.random_unroll, unrolls.update


def setUpModule():
  training.disable_grappler()


def _variables(learner):
  return [v.numpy() for v in learner.variables]


def _new_learner(spec=None, xla='never', **settings):
  settings = {'torso': 'shallow', 'total_environment_frames': 10_000} | settings
  config = configs.ImpalaConfig(**settings)
  return impala.IMPALA.make_learner(impala.Agent(unrolls.environment_spec(spec), config), config, xla)


_made = {}  # Arguments of _learner -> a learner and its initial variables.


def _learner(*args, **kwargs):
  """Returns a learner in its initial state. The same learner serves all tests that ask for it: XLA compiles it once."""
  key = repr((args, sorted(kwargs.items())))
  if key not in _made:
    learner = _new_learner(*args, **kwargs)
    _made[key] = learner, _variables(learner)
  learner, initial = _made[key]
  for variable, value in zip(learner.variables, initial, strict=True):
    variable.assign(value)
  return learner


class LearnerTest(parameterized.TestCase):

  def test_counts_frames_and_decays_the_learning_rate_after_them(self):
    learner = _learner(learning_rate=1.0, total_environment_frames=144)
    unroll = _unroll(learner.agent, steps=6, batch=3)  # 72 environment frames.
    self.assertEqual([float(_update(learner, unroll)['learning_rate']) for _ in range(3)], [1.0, 0.5, 0.0])
    self.assertEqual(int(learner.environment_frames), 216)
    self.assertEqual(int(learner.update_steps), 3)

  def test_learning_rate_without_decay(self):
    learner = _learner(learning_rate=0.125, learning_rate_decay=False, total_environment_frames=1)
    unroll = _unroll(learner.agent)
    self.assertEqual([float(_update(learner, unroll)['learning_rate']) for _ in range(2)], [0.125, 0.125])

  @parameterized.parameters((40.0, False), (0.5, True), (0.0, False))
  def test_a_step_is_rmsprop_on_the_clipped_gradient(self, clip, is_clipped):
    learner = _learner(clip_gradient_norm=clip, learning_rate=0.01, rmsprop_decay=0.9, rmsprop_epsilon=0.1)
    unroll = _unroll(learner.agent)
    variables = learner.agent.trainable_variables
    with tf.GradientTape() as tape:
      total = impala.loss(learner.agent, learner_step.Batch(unroll), learner.config).total
    gradients = [np.float64(g) for g in tape.gradient(total, variables)]
    before = [v.numpy() for v in variables]
    metrics = _update(learner, unroll)
    norm = np.sqrt(sum(np.sum(g**2) for g in gradients))
    self.assertBetween(norm, 0.5, 40.0)
    np.testing.assert_allclose(metrics['grad_norm'], norm, rtol=1e-4)
    for old, new, gradient in zip(before, variables, gradients):
      gradient = gradient * (clip / norm if is_clipped else 1.0)
      want = old - 0.01 * gradient / np.sqrt(0.9 + 0.1 * gradient**2 + 0.1)
      np.testing.assert_allclose(new, want, rtol=1e-4, atol=1e-6)

  @parameterized.parameters('never', 'always')
  def test_hyper_parameters_may_change_between_steps(self, xla):
    """A new value has the same effect as if the config had had it from the start, and nothing is compiled again."""
    changed = dict(learning_rate=0.03, entropy_cost=0.5, rmsprop_epsilon=1e-3, clip_gradient_norm=0.5)
    learner = _learner(xla=xla, learning_rate_decay=False)
    unroll = _unroll(learner.agent)
    state = [v.numpy() for v in learner.variables]
    _update(learner, unroll)
    count_traces = learner._compiled_step.experimental_get_tracing_count
    traces = count_traces()
    for variable, value in zip(learner.variables, state, strict=True):
      variable.assign(value)
    for name, variable in learner.hyper_parameters.items():
      variable.assign(changed[name])
    metrics = _update(learner, unroll)
    self.assertEqual(count_traces(), traces)
    wanted = _learner(learning_rate_decay=False, **changed)
    for name, value in _update(wanted, unroll).items():
      np.testing.assert_allclose(metrics[name], value, rtol=1e-4, err_msg=name)
    for variable, value in zip(learner.variables, wanted.variables, strict=True):
      np.testing.assert_allclose(variable, value, rtol=1e-4, atol=1e-6)
    self.assertGreater(float(metrics['grad_norm']), 0.5)  # Larger than the limit, so it was clipped.

  @parameterized.parameters('never', 'always')
  def test_the_loss_gets_whole_stacks_of_frames(self, xla):
    learner = _learner(_STACKED, xla)
    whole = _unroll(learner.agent, _STACKED)
    environment = whole.environment_output
    newest = environment.observation['pixels'][..., -1:]
    earlier = {'pixels': environment.observation['pixels'][0, :, tf.newaxis, ..., :1]}
    stacks = frame_stacks.stack(newest, earlier['pixels'], environment.done)
    updated = []
    for pixels, frames in ((stacks, {}), (newest, earlier)):
      learner = _learner(_STACKED, xla)
      _update(learner, whole._replace(
          earlier_frames=frames, environment_output=environment._replace(observation={'pixels': pixels})))
      updated.append(_variables(learner))
    for want, got in zip(*updated, strict=True):
      np.testing.assert_array_equal(got, want)

  @parameterized.parameters(lambda pixels: {}, lambda pixels: {'pixels': tf.cast(pixels, tf.float32)})
  def test_frames_of_stacks_that_are_prepared(self, prepare):
    learner = _new_learner(_STACKED)
    unroll = _unroll(learner.agent, _STACKED)._replace(earlier_frames={'pixels': tf.zeros([3, 1, 20, 20, 2], tf.uint8)})
    with mock.patch.object(learner.agent, 'prepare', lambda observation: prepare(observation['pixels'])):
      with self.assertRaisesRegex(errors.UserError, "^the agent's prepare.. changes 'pixels', which is a stack of "):
        learner.prepare(learner_step.Batch(unroll))

  def test_hyper_parameters_are_those_in_use(self):
    self.assertEqual({name: float(value) for name, value in _learner(learning_rate=0.5).hyper_parameters.items()}, {
        'learning_rate': 0.5, 'entropy_cost': np.float32(0.01), 'rmsprop_epsilon': np.float32(0.01),
        'clip_gradient_norm': 40.0})
    self.assertEqual(set(_learner(clip_gradient_norm=0., optimizer='adam').hyper_parameters),
                     {'learning_rate', 'entropy_cost'})

  def test_a_changed_learning_rate_decays_too(self):
    learner = _learner(learning_rate=1.0, total_environment_frames=144)
    unroll = _unroll(learner.agent, steps=6, batch=3)  # 72 environment frames.
    _update(learner, unroll)
    learner.learning_rate.assign(0.25)
    self.assertEqual(float(_update(learner, unroll)['learning_rate']), 0.125)

  def test_two_steps_are_those_of_rmsprop_with_momentum(self):
    learner = _learner(learning_rate=0.01, rmsprop_decay=0.9, rmsprop_momentum=0.5, rmsprop_epsilon=0.1,
                       learning_rate_decay=False, clip_gradient_norm=0.)
    variables = learner.agent.trainable_variables
    want = [np.float64(v) for v in variables]
    squares, momenta = [np.ones_like(values) for values in want], [np.zeros_like(values) for values in want]
    for step in (1, 2):
      unroll = _unroll(learner.agent, seed=step)
      with tf.GradientTape() as tape:
        total = impala.loss(learner.agent, learner_step.Batch(unroll), learner.config).total
      for i, gradient in enumerate(np.float64(g) for g in tape.gradient(total, variables)):
        squares[i] = 0.9 * squares[i] + 0.1 * gradient**2
        momenta[i] = 0.5 * momenta[i] + 0.01 * gradient / np.sqrt(squares[i] + 0.1)
        want[i] -= momenta[i]
      _update(learner, unroll)
      for value, variable in zip(want, variables, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-3, atol=2e-5)

  def test_two_steps_are_those_of_adam(self):
    learner = _learner(optimizer='adam', learning_rate=0.01, adam_beta1=0.5, adam_beta2=0.8, adam_epsilon=1e-3,
                       learning_rate_decay=False, clip_gradient_norm=0.)
    variables = learner.agent.trainable_variables
    want = [np.float64(v) for v in variables]
    first, second = ([np.zeros_like(values) for values in want] for _ in range(2))
    for step in (1, 2):  # Kingma & Ba 2015, section 2, with epsilon in the efficient form.
      unroll = _unroll(learner.agent, seed=step)
      with tf.GradientTape() as tape:
        total = impala.loss(learner.agent, learner_step.Batch(unroll), learner.config).total
      for i, gradient in enumerate(np.float64(g) for g in tape.gradient(total, variables)):
        first[i] = 0.5 * first[i] + 0.5 * gradient
        second[i] = 0.8 * second[i] + 0.2 * gradient**2
        rate = 0.01 * np.sqrt(1. - 0.8**step) / (1. - 0.5**step)
        want[i] -= rate * first[i] / (np.sqrt(second[i]) + 1e-3)
      _update(learner, unroll)
      for value, variable in zip(want, variables, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-3, atol=2e-5)

  def test_policy_lag(self):
    learner = _learner()
    unroll = _unroll(learner.agent)
    self.assertEqual(float(_update(learner, unroll)['policy_lag']), 0.0)
    versions = np.zeros([7, 3], np.int64)
    versions[1:4] = 1
    versions[1, 0] = 7  # Actors of several learners may be ahead.
    versions[0] = -1000  # Row 0 does not count: it is part of the previous unroll.
    metrics = _update(learner, unroll._replace(parameter_version=tf.constant(versions)))
    self.assertEqual(float(metrics['policy_lag']), 0.5)

  def test_xla_agrees_after_ten_updates(self):
    spec = PIXELS | unrolls.INSTRUCTED
    learners = [_learner(spec, xla=xla, use_lstm=True) for xla in ('auto', 'always')]
    for seed in range(10):
      metrics = [_update(learner, _unroll(learner.agent, spec, seed=seed)) for learner in learners]
    for learner in learners:
      self.assertEqual(learner._compiled_step.experimental_get_tracing_count(), 1)
    for name in ('loss/total', 'grad_norm', 'learning_rate'):
      np.testing.assert_allclose(metrics[0][name], metrics[1][name], rtol=1e-4, err_msg=name)
    for plain, compiled in zip(*(learner.agent.trainable_variables for learner in learners)):
      difference = np.linalg.norm(plain - compiled) / np.linalg.norm(plain)
      self.assertLess(difference, 1e-4, plain.name)

  def test_one_seed_gives_one_run(self):
    runs = []
    for _ in range(2):
      learner = _new_learner(PIXELS, use_lstm=True)
      before = _variables(learner)
      metrics = [_update(learner, _unroll(learner.agent, PIXELS, seed=i)) for i in range(3)]
      runs.append([float(value) for one in metrics for value in one.values()] + _variables(learner))
    for first, again in zip(*runs, strict=True):
      np.testing.assert_array_equal(first, again)
    other = _new_learner(PIXELS, use_lstm=True, seed=2)
    self.assertFalse(all(map(np.array_equal, before, _variables(other))))

  def test_goes_on_from_a_checkpoint_bit_for_bit(self):
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    learner, resumed = _learner(use_lstm=True), _learner(use_lstm=True, seed=2)
    for seed in range(3):
      _update(learner, _unroll(learner.agent, seed=seed))
    saved = tf.train.Checkpoint(learner=learner).write(path)
    tf.train.Checkpoint(learner=resumed).read(saved).assert_consumed()
    for one in (learner, resumed):
      _update(one, _unroll(one.agent, seed=3))
    self.assertEqual(int(resumed.environment_frames), 4 * 6 * 3 * 4)
    for a, b in zip(_variables(learner), _variables(resumed)):
      np.testing.assert_array_equal(a, b)

  def _check_skipped(self, learner, unroll, *culprits):
    kept = learner.agent.variables + learner.optimizer.variables
    before = [v.numpy() for v in kept]
    metrics = _update(learner, unroll)
    self.assertEqual(float(metrics['update_skipped']), 1.0)
    self.assertIn(learner.culprit(metrics), culprits)
    for old, new in zip(before, kept):
      np.testing.assert_array_equal(old, new)
    self.assertEqual(int(learner.skipped_updates), 1)
    self.assertEqual(int(learner.update_steps), 0)
    self.assertEqual(int(learner.environment_frames), 72)

  @parameterized.parameters('never', 'always')
  def test_skips_a_loss_that_is_not_finite_and_goes_on(self, xla):
    learner = _learner(xla=xla, learning_rate_decay=False)
    good = _unroll(learner.agent)
    logits = good.agent_output.policy_logits.numpy()
    logits[2, 1] = np.nan
    bad = good._replace(agent_output=good.agent_output._replace(policy_logits=tf.constant(logits)))
    self._check_skipped(learner, bad, 'loss/policy_gradient')
    metrics = _update(learner, good)
    self.assertEqual(float(metrics['update_skipped']), 0.0)
    self.assertIsNone(learner.culprit(metrics))
    self.assertEqual(int(learner.update_steps), 1)
    self.assertEqual(int(learner.skipped_updates), 1)
    # Versions count skipped updates, too: actors have been told of the parameters after them.
    self.assertEqual(int(learner.version()), 2)
    versions = tf.ones([7, 3], tf.int64)
    self.assertEqual(float(_update(learner, good._replace(parameter_version=versions))['policy_lag']), 1.0)

  def test_names_the_baseline(self):
    learner = _learner(reward_transform='none')
    unroll = _unroll(learner.agent)
    reward = np.full([7, 3], 1e25, np.float32)  # Finite, but its square is not.
    self._check_skipped(
        learner, unroll._replace(environment_output=unroll.environment_output._replace(reward=tf.constant(reward))),
        'loss/baseline')

  def test_names_the_gradient(self):
    learner = _learner()
    for variable in learner.agent.trainable_variables:
      if 'policy' in variable.name or 'baseline' in variable.name:
        variable.assign(tf.zeros_like(variable))
    unroll = _unroll(learner.agent)
    # With zero heads the loss is finite. The heads' gradients are the torso's outputs times errors; the norm's squares
    # of them overflow.
    observation = {'vector': 1e25 * unroll.environment_output.observation['vector']}
    self._check_skipped(
        learner, unroll._replace(environment_output=unroll.environment_output._replace(observation=observation)),
        'gradient of agent/baseline/w:0')

  @parameterized.parameters('never', 'always')
  def test_a_gradient_norm_beyond_float32_clips_nothing(self, xla):
    clipping = _learner(xla=xla, learning_rate_decay=False)
    clipping.hyper_parameters['clip_gradient_norm'].assign(np.inf)
    learners = [clipping, _learner(learning_rate_decay=False, clip_gradient_norm=0.)]
    for learner in learners:
      self.assertEqual(float(_update(learner, _unroll(learner.agent))['update_skipped']), 0.0)
    for clipped, unclipped in zip(*(learner.agent.trainable_variables for learner in learners), strict=True):
      np.testing.assert_allclose(clipped, unclipped, rtol=1e-4, atol=1e-6)

  def test_learns_which_of_five_actions_pays(self):
    learner = _learner(learning_rate=0.01, total_environment_frames=100_000)
    template = _unroll(learner.agent, steps=5, batch=16)
    environment = template.environment_output._replace(
        discount=tf.zeros([6, 16]), observation={'vector': tf.ones([6, 16, 4])})
    for update in range(40):
      inputs = acting.ActorInput(tf.zeros([96], tf.int32), tf.zeros([96]), tf.zeros([96], tf.int32), tf.zeros([96]),
                                 tf.ones([96]), tf.zeros([96], tf.bool), {'vector': tf.ones([96, 4])})
      output = learner.agent.step(inputs, (), tf.constant([1, update]))[0]
      value = learner.agent.unroll(tf.nest.map_structure(lambda x: x[tf.newaxis, :1], inputs), ())[0].baseline
      output = tf.nest.map_structure(lambda x: tf.reshape(x, [6, 16, *x.shape[1:]]), output)
      reward = tf.cast(output.action == 3, tf.float32)
      _update(learner, template._replace(agent_output=output, environment_output=environment._replace(reward=reward)))
    self.assertGreater(float(tf.nn.softmax(output.policy_logits)[0, 0, 3]), 0.9)
    self.assertGreater(float(value[0, 0, 0]), 0.7)


class OtherLossTest(parameterized.TestCase):
  """Tests what IMPALA's loss does not use: means, figures per level, feedback and `after_update`."""

  def _make(self, xla):
    is_spoilt = tf.Variable(False, trainable=False)
    config = configs.ImpalaConfig(total_environment_frames=10_000)
    agent = impala.Agent(unrolls.environment_spec(), config)
    agent.seen = seen = tf.Variable(tf.zeros([3]), trainable=False, name='seen')
    agent.count = count = tf.Variable(0, dtype=tf.int64, trainable=False)

    def loss(agent, batch, config):
      of_impala = impala.loss(agent, batch, config)
      rewards = tf.reduce_sum(batch.unroll.environment_output.reward, axis=0)  # [B].
      total = tf.where(is_spoilt, np.nan, of_impala.total)
      return learner_step.Loss(total, of_impala.terms | {'loss/more': total}, {'per_level': tf.constant([1., 2.])},
                               feedback={'priority': rewards, 'key': batch.sample}, gathered=rewards)

    def after_update(gathered, updates):
      return [(seen, gathered), (count, updates)]

    learner = learner_step.Learner(
        agent, loss, impala.make_optimizer, config, {'learning_rate': True}, xla, after_update=after_update)
    return learner, is_spoilt, seen, count

  @parameterized.parameters('never', 'always')
  def test_values_come_to_where_they_belong_unless_the_update_is_skipped(self, xla):
    learner, is_spoilt, seen, count = self._make(xla)
    unroll, keys = _unroll(learner.agent), tf.constant([7, 8, 9], tf.int64)
    metrics, feedback = learner.step(learner_step.Batch(unroll, keys))
    metrics = learner.read(metrics)
    np.testing.assert_array_equal(metrics['per_level'], [1., 2.])
    self.assertEqual(np.ndim(metrics['loss/total']), 0)
    self.assertEqual(metrics['loss/more'], metrics['loss/total'])
    rewards = unroll.environment_output.reward.numpy().sum(axis=0)
    np.testing.assert_allclose(feedback['priority'], rewards, rtol=1e-5)
    np.testing.assert_array_equal(feedback['key'], keys)
    np.testing.assert_allclose(seen, rewards, rtol=1e-5)
    self.assertEqual(int(count), 1)

    # Nothing comes after an update that is skipped.
    is_spoilt.assign(True)
    metrics, feedback = learner.step(learner_step.Batch(_unroll(learner.agent, seed=1), keys))
    metrics = learner.read(metrics)
    self.assertEqual((metrics['update_skipped'], learner.culprit(metrics)), (1., 'loss/more'))
    tf.nest.map_structure(lambda values: np.testing.assert_array_equal(values, np.zeros_like(values)), feedback)
    np.testing.assert_allclose(seen, rewards, rtol=1e-5)
    self.assertEqual(int(count), 1)

  def test_a_variable_that_would_not_be_saved_is_refused(self):
    config, stranger = configs.ImpalaConfig(), tf.Variable(0., name='stranger')
    learner = learner_step.Learner(
        impala.Agent(unrolls.environment_spec(), config), impala.loss, impala.make_optimizer, config, {}, 'never',
        after_update=lambda gathered, updates: [(stranger, 1.)])
    with self.assertRaisesRegex(ValueError, 'after_update: stranger:0 is not a variable of the agent'):
      learner.step(learner_step.Batch(_unroll(learner.agent)))

  @parameterized.parameters('loss/total', 'loss/more')
  def test_a_loss_of_each_row_is_refused(self, name):
    config = configs.ImpalaConfig()

    def loss(agent, batch, config):
      whole = impala.loss(agent, batch, config)
      of_each = tf.stack([whole.total, whole.total])
      return whole._replace(total=of_each) if name == 'loss/total' else whole._replace(terms={name: of_each})

    learner = learner_step.Learner(
        impala.Agent(unrolls.environment_spec(), config), loss, impala.make_optimizer, config, {}, 'never')
    with self.assertRaisesRegex(ValueError, rf'{name}: want a scalar, got shape \(2,\)'):
      learner.step(learner_step.Batch(_unroll(learner.agent)))

  def test_the_name_of_a_term_says_that_it_is_one(self):
    """Otherwise a term that is not finite would not be named as the reason for a skipped update."""
    config = configs.ImpalaConfig()
    loss = lambda *arguments: impala.loss(*arguments)._replace(terms={'entropy': tf.zeros([])})
    learner = learner_step.Learner(
        impala.Agent(unrolls.environment_spec(), config), loss, impala.make_optimizer, config, {}, 'never')
    with self.assertRaisesRegex(ValueError, "^.*entropy: want a name of a term that begins with 'loss/'"):
      learner.step(learner_step.Batch(_unroll(learner.agent)))

  def test_a_variable_that_the_loss_does_not_use_is_named(self):
    config = configs.ImpalaConfig()
    agent = impala.Agent(unrolls.environment_spec(), config)
    agent.idle = tf.Variable(0., name='idle')
    learner = learner_step.Learner(agent, impala.loss, impala.make_optimizer, config, {}, 'never')
    with self.assertRaisesRegex(ValueError, 'the loss does not depend on idle:0'):
      learner.step(learner_step.Batch(_unroll(learner.agent)))


if __name__ == '__main__':
  absltest.main()
