"""Tests learning and acting on different devices. Two logical CPU devices represent a CPU and a GPU.

Devices must be made before TensorFlow computes anything, so a process of its own trains.
"""

import collections
import dataclasses
import io
import json
import os
import pathlib
import queue
import re
import sys
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from scalable_agents.actor import actor_host
from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.experience import experience
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import replayers
from scalable_agents.records import run_directory
from scalable_agents.tests.experience import streams
from scalable_agents.tests.launch import forked_program
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls
from scalable_agents.training import collector
from scalable_agents.training import learner_group
from scalable_agents.training import publisher as publisher_lib
from scalable_agents.training import run_config
from scalable_agents.training import train_loop

_LEARNING, _ACTING = 'CPU:1', 'CPU:0'
_PATIENCE_SECONDS = 300.
_PROGRAM = '''
import sys
from scalable_agents.tests.training import devices_test
getattr(devices_test, sys.argv[1])(sys.argv[2])
'''
_NUM_COUNTED = 5  # Updates.
_SEND = re.compile(r'_Send input \d+ from \S*device:(CPU:\d) to \S*device:(CPU:\d)')
_SEND_IN_GRAPH = re.compile(r'(?!GroupCrossDeviceControlEdges)\S*:_Send')  # These edges have no data.


def _check(what, tensors, device):
  for tensor in tensors:
    if not tensor.device.endswith(device):
      raise AssertionError(f'{what}: want {device}, got {tensor.device}')


def _copied(batch):
  return [tensor for tensor in tf.nest.flatten(batch) if tensor.dtype != tf.int32]


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
        _check('prefetched', _copied(collected.get(timeout=_PATIENCE_SECONDS)), _LEARNING)
        counts['batches'] += 1
      _check('variables', learner.variables, _LEARNING)
      _check('batch', _copied(batch), _LEARNING)
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
      with mock.patch.object(train_loop.devices, 'choose', return_value='/' + _LEARNING):
        trainer = train_loop.Trainer(host, training.job(agent, config, run), directory, io.StringIO())
      collect = collector.Collector._collect

      def collect_and_tell(self):
        batches = collect(self)
        collected.put(batches[0].batch)
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


def _make_devices():
  cpu, = tf.config.list_physical_devices('CPU')
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def _transfers(folder):
  """Returns how many tensors a profile saw go to another device, by direction, or 'in graphs'."""
  path, = pathlib.Path(folder).glob('plugins/profile/*/*.xplane.pb')
  space = xplane_pb2.XSpace.FromString(path.read_bytes())
  names = [plane.event_metadata[event.metadata_id].name
           for plane in space.planes for line in plane.lines for event in line.events]
  found = [' to '.join(sent.groups()) for name in names if (sent := _SEND.match(name))]
  return collections.Counter(found + ['in graphs' for name in names if _SEND_IN_GRAPH.match(name)])


def count_transfers(folder):
  """Makes updates on one device from batches of another, and prints what went between the devices.

  The experience, the collector, the learner and the publisher are those of training. The actors would be on the
  learner's device, and so are their parameters.
  """
  _make_devices()
  spec, device = unrolls.environment_spec(unrolls.INSTRUCTED), '/' + _LEARNING
  config = configs.ImpalaConfig(batch_size=3, unroll_length=6, use_lstm=True)
  together = learner_group.LearnerGroup(None, device)
  with together.scope():
    learner = impala.IMPALA.make_learner(impala.Agent(spec, config), config, 'auto', device)
  with tf.device('/CPU:0'):
    unroll = unrolls.random_unroll(learner.agent, unrolls.INSTRUCTED)
    one = unrolls.one(unroll, 0)
  intake = intake_lib.Intake(tf.nest.map_structure(tf.TensorSpec.from_tensor, one), 30, frames_per_step=4)
  for index in range(3 * (_NUM_COUNTED + 3)):
    intake.put(one._replace(index=tf.constant(index, tf.int64)))
  publisher = publisher_lib.Publisher(learner, 0, device)
  publisher.begin()
  with collector.Collector(experience.QueueExperience(intake, config.batch_size), learner.prepare, together.devices,
                           mock.Mock(), 0, takes_turns=False) as collecting:
    def update():
      collecting.wait(None)
      collected = collecting.take()[0]
      results = together.step(learner, [collected.batch], [collected.arrived], False)
      publisher.publish()
      return collected.batch, results

    update()  # It is traced.
    collecting.wait(None)  # The next batch is there before the count begins.
    # Level 3 has all operations of graphs.
    tf.profiler.experimental.start(folder, tf.profiler.experimental.ProfilerOptions(3, 0))
    unread = None
    for _ in range(_NUM_COUNTED):
      batch, results = update()
      if unread is not None:
        learner.read(unread)
      unread = results.metrics
    collecting.wait(None)
    tf.profiler.experimental.stop()
    intake.close()
  assert int(learner.update_steps) == publisher.version == _NUM_COUNTED + 1
  _check('published', publisher.parameters.latest()[1], _LEARNING)
  components = tf.nest.flatten(batch)
  print('RESULT', json.dumps({'components': len(components),
                              'int32': sum(each.dtype == tf.int32 for each in components), **_transfers(folder)}))


def train_on_two_devices(logdir):
  """Makes two devices, and checks where this process learns, acts and replays. Its screen has all placements."""
  _make_devices()
  # TensorFlow also logs the placements: with that megabyte, Bazel would not show which test of the suite failed.
  sys.stderr = open(os.dup(2), 'w', encoding='utf-8', buffering=1)  # For tracebacks.
  with open(os.devnull, 'wb') as nothing:
    os.dup2(nothing.fileno(), 2)
  tf.debugging.set_log_device_placement(True)
  _replay()
  _train(logdir, updates=3)
  _train(logdir, updates=6)  # This resumes the run.


class DevicesTest(absltest.TestCase):

  def test_the_learner_has_a_device_of_its_own(self):
    logdir = self.create_tempdir().full_path
    process, output = forked_program.start(self, '-c', _PROGRAM, 'train_on_two_devices', logdir)
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

  def test_an_update_takes_one_batch_and_returns_one_vector(self):
    process, output = forked_program.start(self, '-c', _PROGRAM, 'count_transfers', self.create_tempdir().full_path)
    screen = output.read()
    self.assertEqual(process.wait(), 0, screen)
    counts = json.loads(re.search('^RESULT (.*)$', screen, re.M)[1])
    components, int32 = counts.pop('components'), counts.pop('int32')
    self.assertBetween(counts.pop('in graphs'), 1, _NUM_COUNTED * int32)  # The step takes those that it needs.
    self.assertEqual(counts, {
        # The rest of the batch, and two numbers: how many frames arrived, and the version of the parameters.
        f'{_ACTING} to {_LEARNING}': _NUM_COUNTED * (components - int32 + 2),
        # The metrics of all updates but the last one, which would be read after the next one.
        f'{_LEARNING} to {_ACTING}': _NUM_COUNTED - 1})


if __name__ == '__main__':
  absltest.main()
