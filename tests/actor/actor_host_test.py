"""The acting half with real environment workers: what it makes of its settings, and how its loops end."""

import collections
import dataclasses
import io
import secrets
import subprocess
import sys
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.cluster import cluster_config
from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab30
from scalable_agents.learner import queue as unroll_queue
from scalable_agents.processes import machine
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.training import faulty_environments
from scalable_agents.training import run_config

_SOUND = faulty_environments.level(faulty_environments.Sound)
_CONFIG = configs.ImpalaConfig(level_name=_SOUND, torso='shallow', unroll_length=3)


class CountsTest(parameterized.TestCase):

  def _counts(self, cores, levels=('pong',), **settings):
    with mock.patch.object(machine, 'num_cores', return_value=cores):
      return actor_host.counts(run_config.RunConfig(**settings), levels)

  def test_auto_grows_with_the_cores(self):
    environments, *_ = self._counts(cores=1)
    self.assertEqual(self._counts(cores=2), (2 * environments, 2, 1))
    self.assertEqual(self._counts(cores=8), (8 * environments, 8, 1))
    self.assertEqual(self._counts(cores=2, num_environment_workers=5), (2 * environments, 5, 1))

  def test_no_worker_is_without_an_environment(self):
    self.assertEqual(self._counts(cores=8, num_environments=3), (3, 3, 1))
    self.assertEqual(self._counts(2, num_environments=10, num_environment_workers=50, num_inference_threads=3),
                     (10, 10, 3))

  def test_every_lab_has_a_worker_of_its_own_and_every_level_an_environment(self):
    labs = dmlab30.LEVELS
    self.assertEqual(self._counts(2, labs[:1]), (8, 8, 1))
    self.assertEqual(self._counts(2, labs), (30, 30, 1))
    self.assertEqual(self._counts(64, labs), (240, 240, 1))
    self.assertEqual(self._counts(2, labs, num_environments=60, num_environment_workers=3), (60, 3, 1))
    self.assertEqual(self._counts(1, atari57.LEVELS), (57, 1, 1))
    self.assertEqual(self._counts(2, atari57.LEVELS), (57, 2, 1))


class ActorHostTest(parameterized.TestCase):

  def _host(self, levels=(_SOUND,), seed=1, first_actor_id=0, **settings):
    run = run_config.RunConfig(**dict(num_environments=4, num_environment_workers=2) | settings)
    host = actor_host.ActorHost(levels, {}, run, seed, first_actor_id=first_actor_id)
    self.addCleanup(host.close)
    return host

  def _start(self, host, make_agent=impala.Agent, config=_CONFIG, put=None):
    """Lets the actors play with parameters of version 0. Returns a function that gives the next unroll, and an event
    that is set when a loop ends.
    """
    self.faults = []
    agent = dataclasses.replace(impala.IMPALA, network=make_agent)
    host.make_pool(agent.maker(host, [_SOUND], config), config.unroll_length, 1,
                   self.faults.append, config.barrier)
    learned = impala.IMPALA.maker(host, [_SOUND], config)().acting_variables
    parameters = parameters_lib.ParameterSnapshot(inference.specs(learned))
    parameters.publish(0, [variable.read_value() for variable in learned])
    self.queue = unroll_queue.UnrollQueue(
        host.pool.unroll_spec, 1, tf.nest.map_structure(lambda spec: False, host.pool.unroll_spec))
    self.addCleanup(self.queue.close)
    ended = threading.Event()
    host.start(parameters, put or self.queue.put, ended.set)
    return tf.function(lambda: tf.nest.map_structure(lambda x: x[0], self.queue.take_batch(1))), ended

  @parameterized.parameters(1, 2)
  def test_every_environment_plays(self, loops):
    host = self._host([_SOUND, _SOUND], num_environments=5, num_inference_threads=loops)
    self.assertEqual((host.num_environments, host.num_workers, host.num_loops), (5, 2, loops))
    self.assertEqual(host.specification, (2, {'vector': ['float32', [3]]}, 1, {}))
    self.assertEqual(host.observation_spec['vector'].shape, [3])
    with mock.patch.object(inference, 'make_loop', wraps=inference.make_loop) as make_loop:
      next_unroll, ended = self._start(host)
    seeds = [call.args[3] for call in make_loop.call_args_list]
    self.assertEqual(seeds, [1, 2][:loops])  # Loops with one seed would draw the same numbers for their actions.
    steps, indices = collections.defaultdict(list), collections.defaultdict(list)
    while len(steps) < 5 or min(map(len, steps.values())) < 12:
      unroll = next_unroll()
      actor = int(unroll.actor_id)
      self.assertEqual(int(unroll.level_id), actor % 2)  # Levels in turn.
      steps[actor].extend(unroll.environment_output.observation['vector'].numpy()[1:, 0])
      indices[actor, int(unroll.stream_id)].append(int(unroll.index))
    self.assertLen(indices, 5)  # One stream of each actor.
    for played in indices.values():
      self.assertEqual(played, list(range(len(played))))
    for played in steps.values():  # Unrolls of an actor are in order, and none is missing.
      np.testing.assert_allclose(played[:12], np.arange(1, 13) % 10 / 10, rtol=1e-6)
    self.assertFalse(ended.is_set())
    host.check()
    self.queue.close()
    host.close()
    self.assertTrue(ended.wait(waiting.PATIENCE_SECONDS))
    host.check()
    host.close()
    self.assertEmpty(psutil.Process().children())
    self.assertEmpty(self.faults)

  def test_actors_have_places_among_those_of_their_level(self):
    host = self._host([_SOUND, _SOUND], num_environments=5)
    self.assertEqual(host.actors.ids.tolist(), [0, 1, 2, 3, 4])
    self.assertEqual(host.actors.places.tolist(), [0., 0., 0.5, 1., 1.])

  def test_actors_of_one_of_many_processes_have_its_ids_and_places(self):
    with mock.patch.object(environment_workers, 'EnvironmentWorkers') as workers:
      workers.return_value.specification.observation = {}
      host = actor_host.ActorHost(['catch', 'recall'], {}, run_config.RunConfig(num_environments=4), 1,
                                  first_actor_id=70, place_offset=0.5)
    self.assertEqual(host.actors.ids.tolist(), [70, 71, 72, 73])
    self.assertEqual(host.actors.places.tolist(), [0.25, 0.25, 0.75, 0.75])  # Two actors play each level.

  @parameterized.parameters(1, 4)
  def test_the_actors_of_many_processes_have_places_all_over(self, num_environments):
    """The actors of each process must not act like those of the process before it."""
    places = []
    for host_number in range(1, 100):
      first = cluster_config.first_actor_id(host_number)
      places += actor_host.places_of([0] * num_environments, first).tolist()
    gaps = np.diff(sorted([0., *places, 1.]))
    self.assertLess(max(gaps), 5 / len(places))
    self.assertGreater(min(gaps), 0)

  def test_single_actors_of_many_levels_have_different_places(self):
    places = sorted(actor_host.places_of(range(57), 0).tolist())
    self.assertLen(set(places), 57)
    self.assertLess(max(np.diff([0., *places, 1.])), 5 / 57)

  def test_some_levels_of_a_run_keep_their_ids(self):
    run = run_config.RunConfig(num_environments=3, num_environment_workers=1)
    for first, want in ((0, [2, 1, 2]), (5, [1, 2, 1])):
      host = actor_host.ActorHost(['no such level', _SOUND, _SOUND], {}, run, 1, played=[2, 1], first_level=first)
      self.addCleanup(host.close)
      self.assertEqual(host.level_ids, want)

  def test_a_synchronous_run_has_one_inference_loop(self):
    """Two would race for the batches, and each samples actions from random numbers of its own."""
    host = self._host(num_inference_threads=2, first_actor_id=70)
    next_unroll, _ = self._start(host, config=dataclasses.replace(_CONFIG, synchronous=True))
    self.assertEqual([int(next_unroll().actor_id) for _ in range(4)], [70, 71, 72, 73])
    self.assertEqual(host.num_loops, 1)

  def test_streams_of_no_two_processes_have_the_same_id(self):
    ids = set()
    for drawn in (0, 1, 2**39 - 1):
      with mock.patch.object(secrets, 'randbits', return_value=drawn) as randbits:
        host = self._host(num_environment_workers=1)
      randbits.assert_called_once_with(39)
      next_unroll, _ = self._start(host, config=dataclasses.replace(_CONFIG, synchronous=True))
      streams = [int(next_unroll().stream_id) for _ in range(4)]
      self.assertEqual(streams, [(drawn << 24) + number for number in range(4)])
      ids.update(streams)
    self.assertLen(ids, 12)
    self.assertBetween(max(ids), 0, 2**63 - 1)

  def test_no_two_actors_and_no_two_seeds_play_alike(self):
    actions = []
    for seed in (1, 2):
      host = self._host(seed=seed, num_inference_threads=1)
      next_unroll, _ = self._start(host, config=dataclasses.replace(_CONFIG, unroll_length=30, synchronous=True))
      actions += [tuple(next_unroll().agent_output.action[1:].numpy()) for _ in range(4)]
    self.assertLen(set(actions), 8)
    for played in actions:  # Of an agent that knows nothing: each action is about as likely.
      self.assertBetween(sum(played), 5, 25)

  def test_environments_have_seeds_of_their_own(self):
    with mock.patch.object(environment_workers, 'EnvironmentWorkers') as workers, \
         mock.patch.object(actor_host.devices, 'choose') as choose:
      workers.return_value.specification.observation = {}
      actor_host.ActorHost(
          ['catch', 'recall'], {'atari': {'noop_max': 1}},
          run_config.RunConfig(num_environments=3, worker_niceness=6, inference_device='cpu'), 7)
    _, environments, *_, niceness, _ = workers.call_args.args
    self.assertEqual(niceness, 6)
    choose.assert_called_once_with('cpu')
    self.assertEqual(environments, [{'level_name': level, 'seed': seed, 'protocol': {'atari': {'noop_max': 1}}}
                                    for level, seed in (('catch', 7), ('recall', 8), ('catch', 9))])

  def test_environments_of_another_making(self):
    with mock.patch.object(environment_workers, 'EnvironmentWorkers') as workers:
      workers.return_value.specification.observation = {}
      for options in ({}, {'environment': 'package.module:make'}):
        actor_host.ActorHost(['catch'], {}, run_config.RunConfig(), 1, **options)
    constructors = [call.args[0] for call in workers.call_args_list]
    self.assertEqual(constructors, ['scalable_agents.environments.registry:make_from_json', 'package.module:make'])

  def test_an_environment_that_cannot_be_made(self):
    with self.assertRaisesRegex(environment_workers.WorkerError, '(?s)could not be made.*unknown level .pnog.'):
      self._host(['pnog'])
    self.assertEmpty(psutil.Process().children())

  def test_an_error_in_inference_is_told(self):
    class Agent(impala.Agent):

      def step(self, *args):
        _, _, seed, *_ = args
        tf.debugging.Assert(tf.reduce_all(seed == 0), ['no idea'])  # It is 0 while the agent is made.
        return super().step(*args)

    host = self._host()
    _, ended = self._start(host, Agent)
    self.assertTrue(ended.wait(waiting.PATIENCE_SECONDS))
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'no idea'):
      host.check()

  def test_an_error_on_the_way_of_unrolls_is_told(self):
    def put(unroll):
      tf.debugging.Assert(unroll.level_id < 0, ['the queue is on fire'])

    host = self._host()
    _, ended = self._start(host, put=put)
    self.assertTrue(ended.wait(waiting.PATIENCE_SECONDS))
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'the queue is on fire'):
      host.check()

  def test_environments_that_cannot_be_kept_alive(self):
    host = self._host([faulty_environments.level(faulty_environments.Raising)], num_environment_workers=1)
    _, ended = self._start(host, config=dataclasses.replace(_CONFIG, unroll_length=20))
    self.assertTrue(ended.wait(waiting.PATIENCE_SECONDS))
    with self.assertRaisesRegex(environment_workers.WorkerError, '(?s)failed 5 times.*the game has crashed'):
      host.check()
    self.assertLen(self.faults, 4)

  def test_how_many_environments_are_made_is_shown_where_it_takes_long(self):
    screen = io.StringIO()
    run = run_config.RunConfig(num_environments=5, num_environment_workers=2)
    with mock.patch.object(actor_host, '_START_REPORT_SECONDS', 0.):
      actor_host.ActorHost([_SOUND], {}, run, 1, screen).close()
    self.assertEqual(screen.getvalue(), '3 of 5 environments made\n5 of 5 environments made\n')
    screen = io.StringIO()
    with mock.patch.object(actor_host, '_START_REPORT_SECONDS', 1000.):
      actor_host.ActorHost([_SOUND], {}, run, 1, screen).close()
    self.assertEqual(screen.getvalue(), '')

  def test_memory_counts_the_workers_but_shared_pages_once(self):
    host = self._host(num_environment_workers=2)
    own = psutil.Process()
    workers = own.children(recursive=True)
    self.assertLen(workers, 2)
    of_each = [process.memory_info().rss * 1e-6 for process in (own, *workers)]
    counted = host.memory_megabytes()
    self.assertBetween(counted, own.memory_full_info().uss * 1e-6 + 10, sum(of_each))
    # A process that is no worker, as that of an evaluation, does not count.
    code = 'import sys; memory = bytearray(b"." * 300_000_000); print(flush=True); sys.stdin.read()'
    with subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
      other.stdout.readline()
      self.assertLess(host.memory_megabytes(), counted + 150)
      other.stdin.close()

  def test_closing_before_the_start(self):
    host = self._host()
    host.close()
    host.check()
    self.assertEmpty(psutil.Process().children())


if __name__ == '__main__':
  absltest.main()
