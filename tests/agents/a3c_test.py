"""Tests agents/a3c.py: a worker's gradient, how gradients add up, what a worker keeps, and runs that learn."""

import dataclasses
import threading

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import a2c
from scalable_agents.agents import a3c
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.launch import atari57_protocol
from scalable_agents.learner import frame_stacks
from scalable_agents.learner import learner_step
from scalable_agents.learner import queue as unroll_queue
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.agents import training_runs
from scalable_agents.tests.training import trainer_testing
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls
from scalable_agents.training import run_config

_ALONE = run_config.RunConfig(dynamic_batching=False, num_inference_threads=2)


def setUpModule():
  training.configure_tensorflow()


def _config(**settings):
  return configs.A3cConfig(**dict(level_name='catch', torso='shallow', learning_rate_decay=False) | settings)


def _made(observation=None, **settings):
  """Returns an agent, its config, and 3 random unrolls."""
  config = _config(**settings)
  agent = a3c.Agent(unrolls.environment_spec(observation), config)
  batch = unrolls.random_unroll(agent, observation)
  return agent, config, [unrolls.one(batch, index) for index in range(3)]


def _batch(unroll):
  return learner_step.Batch(unroll_lib.batch_of(unroll))


class GradientTest(parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_is_that_of_impala_for_an_unroll_of_the_same_policy(self, use_lstm):
    agent, config, (unroll, *_) = _made(use_lstm=use_lstm)
    alone = unroll_lib.batch_of(unroll)
    behaviour = unrolls.forward(agent, alone)[0].policy_logits
    alone = alone._replace(agent_output=alone.agent_output._replace(
        policy_logits=tf.concat([behaviour[:1], behaviour[:-1]], axis=0)))
    impala_config = configs.ImpalaConfig(use_lstm=use_lstm)
    with tf.GradientTape() as tape:
      total = impala.loss(agent, learner_step.Batch(alone), impala_config).total
    want = tape.gradient(total, agent.trainable_variables)
    sent = tf.function(lambda: a3c.work(agent, unroll, config), autograph=False)()
    np.testing.assert_allclose(sent.agent_output.total, [total], rtol=1e-5)
    for gradient, its in zip(sent.agent_output.gradients, want, strict=True):
      np.testing.assert_allclose(gradient, its, rtol=1e-4, atol=1e-5 * np.max(np.abs(its)))
    # What is left of the unroll is enough to count it.
    self.assertEqual((sent.environment_output.observation, sent.agent_state, sent.earlier_frames), ({}, (), {}))
    np.testing.assert_array_equal(sent.environment_output.reward, unroll.environment_output.reward)
    np.testing.assert_array_equal(sent.agent_output.action, unroll.agent_output.action)

  def test_is_of_whole_stacks_of_frames(self):
    whole = {'pixels': tf.TensorSpec([36, 36, 4], tf.uint8)}
    agent, config, (unroll, *_) = _made(whole)
    pixels = unroll.environment_output.observation['pixels']
    newest = unroll._replace(
        earlier_frames={'pixels': tf.stack(tf.unstack(pixels[0, ..., :3, tf.newaxis], axis=2))},
        environment_output=unroll.environment_output._replace(observation={'pixels': pixels[..., 3:]}))
    stacked = unrolls.one(frame_stacks.with_stacks(unroll_lib.batch_of(newest)), 0)
    got = a3c.work(agent, newest, config)
    want = a3c.work(agent, stacked._replace(earlier_frames={}), config)
    tf.nest.map_structure(np.testing.assert_array_equal, got, want)

  def test_a_worker_alone_is_a2c_with_batches_of_one(self):
    updated = []
    for definition in (a3c.A3C, a2c.A2C):
      agent, config, (unroll, *_) = _made(clip_gradient_norm=0.5)  # Smaller than the gradient.
      learner = definition.make_learner(agent, config)
      sent = a3c.work(agent, unroll, config) if definition is a3c.A3C else unroll
      metrics = learner.read(learner.step(_batch(sent))[0])
      self.assertGreater(metrics['grad_norm'], 0.5)
      updated.append((metrics, [variable.numpy() for variable in (*agent.variables, *learner.optimizer.variables)]))
    (ours, our_variables), (its, its_variables) = updated
    self.assertEqual(set(ours), set(its))
    for name, value in its.items():
      np.testing.assert_allclose(ours[name], value, rtol=1e-5, err_msg=name)
    for our, other in zip(our_variables, its_variables, strict=True):
      np.testing.assert_allclose(our, other, rtol=1e-5, atol=1e-7)


class SharedUpdateTest(parameterized.TestCase):

  def test_gradients_of_the_same_parameters_are_all_applied(self):
    """Against RMSProp in NumPy: gradients come one after the other, whole, in the order of their arrival."""
    agent, config, played = _made(clip_gradient_norm=0.)
    learner = a3c.A3C.make_learner(agent, config)
    sent = [a3c.work(agent, unroll, config) for unroll in played]  # All workers have taken version 0.
    weights = [np.float64(variable) for variable in agent.trainable_variables]
    squares = [np.ones_like(weight) for weight in weights]
    lags = []
    for one in sent:
      lags.append(learner.read(learner.step(_batch(one))[0])['policy_lag'])
      for weight, square, gradient in zip(weights, squares, one.agent_output.gradients, strict=True):
        square += 0.01 * (np.float64(gradient)**2 - square)
        weight -= config.learning_rate * np.float64(gradient) / np.sqrt(square + config.rmsprop_epsilon)
    for variable, weight in zip(agent.trainable_variables, weights, strict=True):
      np.testing.assert_allclose(variable, weight, rtol=1e-5, atol=1e-6)
    self.assertEqual(lags, [0., 1., 2.])  # Updates of others since the parameters were taken.
    self.assertEqual(int(learner.update_steps), 3)

  def test_populations_tune_only_what_the_shared_update_uses(self):
    """Workers have the entropy cost of the flag."""
    agent, config, _ = _made()
    self.assertEqual(list(a3c.A3C.make_learner(agent, config).hyper_parameters),
                     ['learning_rate', 'rmsprop_epsilon', 'clip_gradient_norm'])

  def test_a_gradient_that_is_not_finite_changes_nothing(self):
    agent, config, (unroll, *_) = _made()
    learner = a3c.A3C.make_learner(agent, config)
    before = [variable.numpy() for variable in agent.variables]
    sent = a3c.work(agent, unroll, config)
    gradients = sent.agent_output.gradients
    bad = sent._replace(agent_output=sent.agent_output._replace(gradients=[gradients[0] * np.nan, *gradients[1:]]))
    metrics = learner.read(learner.step(_batch(bad))[0])
    self.assertEqual((metrics['update_skipped'], int(learner.skipped_updates)), (1., 1))
    self.assertRegex(learner.culprit(metrics), '^gradient of ')
    for variable, old in zip(agent.variables, before, strict=True):
      np.testing.assert_array_equal(variable, old)


class WorkerTest(parameterized.TestCase):

  def test_keeps_its_parameters_for_a_whole_unroll_and_then_takes_the_latest(self):
    """Versions are published all the time. The parameters of version v are all v."""
    config = _config(unroll_length=7)
    host = actor_host.ActorHost(
        ['catch'], atari57_protocol.Protocol().environments(['catch'], True),
        dataclasses.replace(_ALONE, num_environments=5, num_environment_workers=2), 1)
    self.addCleanup(host.close)

    def work(agent, unroll):
      logits = agent.acting_variables[0]  # As `work` sees them.
      return unroll._replace(agent_output=unroll.agent_output._replace(
          policy_logits=tf.fill(unroll.agent_output.policy_logits.shape, tf.reduce_mean(logits))))

    host.make_pool(a3c.A3C.maker(host, ['catch'], config), config.unroll_length, 1, self.fail, work=work)
    parameters = parameters_lib.ParameterSnapshot(host.parameter_specs)
    publish = lambda version: parameters.publish(
        version, [tf.fill(spec.shape, float(version)) for spec in host.parameter_specs])
    publish(0)
    queue = unroll_queue.UnrollQueue(host.unroll_spec, 1, unroll_lib.has_time(host.unroll_spec))
    self.addCleanup(queue.close)
    host.start(parameters, queue.put, threading.Event().set)
    versions = {}
    for version in range(1, 10_000):
      if len(versions) == 5 and min(map(len, versions.values())) >= 5:
        break
      unroll = queue.take()
      publish(version)
      actor = int(unroll.actor_id)
      kept, = set(unroll.parameter_version.numpy()[1:].tolist())  # One version in all rows that were acted.
      np.testing.assert_array_equal(unroll.agent_output.policy_logits, np.full([8, 3], float(kept)))
      versions.setdefault(actor, []).append(kept)
    self.assertLen(versions, 5)
    for of_actor in versions.values():
      self.assertEqual(of_actor, sorted(of_actor))
      self.assertGreater(of_actor[-1], of_actor[0])
    counts = host.pool.statistics()  # The workers go on.
    self.assertEqual(counts.rows, counts.batches)  # Each worker acts alone.
    host.check()

  def test_an_unroll_begins_with_the_latest_parameters(self):
    self.assertEqual(a3c.A3C.steps_between_fetches(configs.A3cConfig()), 1)

  def test_there_are_as_many_as_in_the_paper(self):
    counts = {level: a3c.complete_run(_config(level_name=level), run_config.RunConfig()).num_environments
              for level in ('pong', 'dmlab30')}
    self.assertEqual(counts, {'pong': 32, 'dmlab30': 210})
    run = a3c.complete_run(_config(), run_config.RunConfig(num_environments=4))
    self.assertEqual((run.num_environments, run.dynamic_batching), (4, False))


class RunTest(trainer_testing.TrainerTestCase):

  def test_catch_is_learned(self):
    rows = training_runs.train(
        self, a3c.A3C, _config(total_environment_frames=40_000, unroll_length=10, synchronous=True),
        num_environments=8, until=training_runs.returns_more_than(0.95))
    self.assertGreaterEqual(rows[-1]['episode_return'], 0.95)
    for row in rows:
      # Synchronous workers take the same parameters, and then make an update each.
      self.assertEqual(row['policy_lag'], (row['learner_steps'] - 1) % 8)
      self.assertEqual(row['environment_frames'], 10 * row['learner_steps'])

  def test_goes_on_when_a_process_with_workers_is_killed(self):
    killed = []

    def before(learner, unused_unroll):
      if int(learner.update_steps) == 6 and not killed:
        killed.append(psutil.Process().children()[0])
        killed[0].kill()
        waiting.wait_until(lambda: trainer._host.pool.restarts)

    trainer = self.trainer(
        trainer_testing.learner_calling(before, a3c.A3C), updates=60, synchronous=False, agent=a3c.A3C, batch_size=1,
        num_workers=2, run=_ALONE)
    trainer.train()
    last = training.rows(trainer.logdir)[-1]
    self.assertEqual((last['environment_restarts'], last['learner_steps']), (1, 60))
    self.assertEqual(last['inference_batch_size'], 1.)
    self.assertEqual(last['environment_frames'], 60 * 5)
    self.assertGreater(last['policy_lag'], 0.)


if __name__ == '__main__':
  absltest.main()
