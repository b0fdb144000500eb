"""Tests learning and acting on different devices. Two logical CPU devices represent a CPU and a GPU.

Devices must be made before TensorFlow computes anything, so a process of its own trains.
"""

import collections
import dataclasses
import io
import queue
import re
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.experience import replayers
from scalable_agents.records import run_directory
from scalable_agents.tests.experience import streams
from scalable_agents.tests.launch import forked_program
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls
from scalable_agents.training import collector
from scalable_agents.training import run_config
from scalable_agents.training import train_loop

_LEARNING, _ACTING = 'CPU:1', 'CPU:0'
_PATIENCE_SECONDS = 60.
_PROGRAM = '''
import sys
from scalable_agents.tests.training import devices_test
devices_test.train_on_two_devices(sys.argv[1])
'''


def _check(what, tensors, device):
  for tensor in tensors:
    if not tensor.device.endswith(device):
      raise AssertionError(f'{what}: want {device}, got {tensor.device}')


def _make_learner(collected):
  """Returns a function that makes a learner. The learner checks its own device, that of its batches and its results.

  Args: a queue of batches, each of which comes as soon as it is there.
  """
  def make(*args):
    learner, counts = impala.IMPALA.make_learner(*args), collections.Counter()
    step = learner.step

    def checked_step(batch):
      counts['steps'] += 1
      while counts['batches'] <= counts['steps']:  # The next update's batch arrives before this update ends.
        _check('prefetched', tf.nest.flatten(collected.get(timeout=_PATIENCE_SECONDS)), _LEARNING)
        counts['batches'] += 1
      _check('variables', learner.variables, _LEARNING)
      _check('batch', tf.nest.flatten(batch), _LEARNING)
      metrics, feedback = step(batch)
      _check('results', tf.nest.flatten(metrics), _LEARNING)
      return metrics, feedback
    learner.step = checked_step
    return learner
  return make


def _train(logdir, updates):
  """Trains with a learner on one device and actors on the other."""
  config = configs.ImpalaConfig(level_name='catch', torso='shallow', unroll_length=5, batch_size=4, use_lstm=True,
                               learning_rate_decay=False, total_environment_frames=20 * updates)
  run = run_config.RunConfig(logdir=logdir, num_environments=4, num_environment_workers=2)
  host = actor_host.ActorHost([config.level_name], {}, run, config.seed)
  acting, collected = [], queue.SimpleQueue()

  def make_agent(*args):
    agent = impala.Agent(*args)
    acting.append(agent)  # The first agent is the learner's.
    return agent

  flags = dataclasses.asdict(config) | dataclasses.asdict(run)
  with run_directory.open_run(logdir, flags, {*run_config.FREE_FLAGS, 'total_environment_frames'}) as directory:
    try:
      agent = dataclasses.replace(impala.IMPALA, network=make_agent)
      object.__setattr__(agent, 'make_learner', _make_learner(collected))  # The definition is frozen.
      trainer = train_loop.Trainer(host, training.job(agent, config, run), directory, io.StringIO(), '/' + _LEARNING)
      collect = collector.Collector._collect

      def collect_and_tell(self):
        batches = collect(self)
        collected.put(batches[0][0])
        return batches

      _check('learner', acting[0].variables, _LEARNING)
      _check('actors', acting[1].variables, _ACTING)
      with mock.patch.object(collector.Collector, '_collect', collect_and_tell):
        trainer.train()
    finally:
      host.close()


def _replay():
  """Draws from replayers whose copy of the agent is on another device than the replay."""
  with tf.device('/' + _LEARNING):
    agent = impala.Agent(unrolls.environment_spec(), configs.ImpalaConfig(use_lstm=True))
  parameters = parameters_lib.ParameterSnapshot(inference.specs(agent.acting_variables))
  parameters.publish(0, agent.acting_variables)
  stream, state = streams.Stream(1, 20), tf.nest.map_structure(lambda x: x[0].numpy(), agent.initial_state(1))
  spec = stream.spec(4, state)
  replay = replayers.Replayers(spec, streams.FRAME_STACKS, replayers.own_replay(spec, streams.FRAME_STACKS, 100, 2), 2,
                               agent, parameters, minimum_size=1)
  for index in range(10):
    replay.insert(streams.batch([stream.unroll(index, 4, state)]))
  with mock.patch.object(agent, 'unroll', wraps=agent.unroll) as unroll, tf.device('/' + _ACTING):
    draw = tf.function(lambda seed: replay.draw(2, seed), autograph=False)
    for seed in range(2):
      assert np.all(draw(tf.constant(seed, tf.int64)).key >= 0)
      replay.draw(2, tf.constant(seed, tf.int64))
  _check('inputs of the copy', tf.nest.flatten(unroll.call_args.args[0]), _LEARNING)


def train_on_two_devices(logdir):
  """Makes two devices, and checks where this process learns, acts and replays. Its screen has all placements."""
  cpu, = tf.config.list_physical_devices('CPU')
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  tf.debugging.set_log_device_placement(True)
  _replay()
  _train(logdir, updates=3)
  _train(logdir, updates=6)  # This resumes the run.


class DevicesTest(absltest.TestCase):

  def test_the_learner_has_a_device_of_its_own(self):
    logdir = self.create_tempdir().full_path
    process, output = forked_program.start(self, '-c', _PROGRAM, logdir)
    placements = output.read()
    self.assertEqual(process.wait(), 0)
    self.assertEqual(training.rows(logdir)[-1]['learner_steps'], 6)
    devices = collections.defaultdict(set)
    for operation, device in re.findall(r'\((\w+)\): \S*/device:(CPU:\d)\n', placements):
      devices[operation].add(device)
    for operation in ('Conv2DBackpropFilter', 'LogSoftmax', 'ResourceApplyRMSProp'):
      self.assertEqual(devices[operation], {_LEARNING})
    for operation in ('ActorPoolNextBatch', 'ActorPoolNextUnroll', 'QueueDequeueV2', 'ParameterSnapshotLatest'):
      self.assertEqual(devices[operation], {_ACTING})
    self.assertEqual(devices['Conv2D'], {_LEARNING, _ACTING})


if __name__ == '__main__':
  absltest.main()
