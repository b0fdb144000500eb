"""The parts of the benchmark. Each function measures one part in its own process and returns a dict of numbers.

Each function imports TensorFlow itself, because the process that starts it does not need TensorFlow.
"""

import contextlib
import functools
import json
import mmap
import os
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from scalable_agents.agents import registry
from scalable_agents.benchmark import constant_environment
from scalable_agents.benchmark import training_rate
from scalable_agents.processes import kernels
from scalable_agents.processes import machine
from scalable_agents.processes import python_path

GAME = 'pong'
LEVELS = {'atari': 57, 'dmlab': 30}  # Numbers of levels of PopArt-IMPALA.
_ATARI_FRAMES = 4  # In a stack.
_GROUP = 16  # A worker has 32 games and steps half of them at a time.
_MINIMAL_ACTIONS = 6  # Of Pong.
_ROUNDS_OF_A_TURN = 8  # Steps of the group: some 40 ms.


class Workload(NamedTuple):
  """A network and its training data."""
  config: dict[str, Any]  # Settings of the agent's config.
  level: str              # The level whose observations the network gets, one of constant_environment.LEVELS.
  learner_rows: int       # Rows of each unroll in `learner`, limited so that memory suffices for one process per core.
  wanted_share: float     # The share of the additive bound that the whole training should reach.
  agent: str = 'impala'   # The agent: impala, laser or r2d2.

  @property
  def transitions(self) -> int:
    """The number of transitions per update."""
    return self.config['unroll_length'] * self.config['batch_size']


def pong(precision: str) -> Workload:
  """Returns the workload of Pong with the shallow network. `precision`: the value of --torso_precision."""
  return Workload(dict(level_name=GAME, torso='shallow', torso_precision=precision, unroll_length=20, batch_size=32),
                  level='atari', learner_rows=21, wanted_share=0.9)


def dmlab(precision: str, unroll_length: int, batch_size: int) -> Workload:
  """Returns the workload of DeepMind Lab with the deep network, as in table D.3 of the IMPALA paper."""
  return Workload(dict(level_name='dmlab', torso='deep', torso_precision=precision, use_lstm=True,
                       unroll_length=unroll_length, batch_size=batch_size),
                  level='dmlab', learner_rows=min(26, unroll_length + 1), wanted_share=0.9)


def rate(step, amount, seconds):
  """Calls `step` for `seconds` after a warm-up. Returns (amount per second, CPU seconds per amount)."""
  stop = time.monotonic() + training_rate.warm_up_seconds(seconds)
  while time.monotonic() < stop:
    step()
  calls, wall, cpu = 0, time.monotonic(), time.process_time()
  while not calls or time.monotonic() < wall + seconds:
    step()
    calls += 1
  return calls * amount / (time.monotonic() - wall), (time.process_time() - cpu) / (calls * amount)


def rates_of_threads(threads, counts, seconds):
  """Measures what threads do per second, for `seconds` after a warm-up, or longer until each count has grown.

  Args:
    threads: the threads, which are running.
    counts: a function that returns what they have done, name -> number.
    seconds: duration.
  Returns:
    name -> number per second.
  Raises:
    RuntimeError: a thread has ended.
  """
  time.sleep(training_rate.warm_up_seconds(seconds))
  before, began = counts(), time.monotonic()
  while True:
    time.sleep(seconds)
    after, ended = counts(), time.monotonic()
    if all(after[name] > before[name] for name in before):
      return {name: (after[name] - before[name]) / (ended - began) for name in before}
    if not all(thread.is_alive() for thread in threads):
      raise RuntimeError('a thread that was measured has ended')


def _rate_of_one(step, amount):
  """Calls `step` once. Returns the amount per second."""
  start = time.monotonic()
  step()
  return amount / (time.monotonic() - start)


def environment(seconds):
  """Measures in turns what groups of games cost: a worker's slots, the emulators alone, and ale-py's AtariVectorEnv.

  A group is as large as the one that a worker steps at a time, so that the games share the processor's caches as they
  do in training. The emulators alone play the same game with random actions, four `act` calls per agent step.

  Returns:
    Agent steps/s and CPU seconds per agent step of the slots and of the vector environment, CPU seconds of the
    emulators, and the slots' CPU time divided by that of the emulators.
  """
  random = np.random.RandomState(os.getpid())
  parts = {'slot': _slots(), 'emulator': _emulators(), 'vector_env': _vector_env()}
  order, turns = list(parts), []
  stop = time.monotonic() + training_rate.warm_up_seconds(seconds) + seconds
  while not turns or time.monotonic() < stop:
    actions = random.randint(_MINIMAL_ACTIONS, size=[_ROUNDS_OF_A_TURN, _GROUP])
    turns.append({name: _times(parts[name], actions) for name in order})
    order.reverse()  # So that no part always follows the same one.
  # The first quarter warms up. On a busy machine, a median disregards the turns that other programs have disturbed.
  turns = turns[len(turns) // 4:]
  (wall, cpu), (_, emulator_cpu), (vector_env_wall, vector_env_cpu) = (
      np.median([turn[name] for turn in turns], axis=0).tolist() for name in parts)
  return {'steps_per_second': 1 / wall, 'cpu_seconds': cpu, 'emulator_cpu_seconds': emulator_cpu,
          'ratio_to_emulator': float(np.median([turn['slot'][1] / turn['emulator'][1] for turn in turns])),
          'vector_env_steps_per_second': 1 / vector_env_wall, 'vector_env_cpu_seconds': vector_env_cpu}


def _times(step, actions):
  """Calls `step` with each row of actions [R, B]. Returns the wall time and the CPU time per action."""
  wall, cpu = time.perf_counter(), time.process_time()
  for row in actions:
    step(row)
  return (time.perf_counter() - wall) / actions.size, (time.process_time() - cpu) / actions.size


def _slots():
  """Returns a function that steps a group of games as a worker does, given an action for each."""
  from scalable_agents.actor import environment_worker
  from scalable_agents.actor import shared_memory
  from scalable_agents.environments import registry
  games = [registry.make(GAME, seed=os.getpid() + number) for number in range(_GROUP)]
  layout = shared_memory.slot_layout({
      name: (spec.dtype, spec.shape) for name, spec in games[0].observation_spec().items()})
  memory = mmap.mmap(-1, shared_memory.block_bytes(layout, _GROUP))
  slots = [environment_worker.Slot(game, memory, layout, number) for number, game in enumerate(games)]

  def step(actions):
    for number, action in enumerate(actions.tolist()):
      shared_memory.ACTION.pack_into(memory, shared_memory.HEADER_BYTES + number * layout.slot_bytes, action)
      slots[number].advance()

  return step


def _emulators():
  """Returns a function that steps a group of emulators without looking at their screens, given an action for each."""
  from scalable_agents.environments import atari
  emulators = [atari.load_emulator(GAME, os.getpid() + number, sticky_actions=0.)[0] for number in range(_GROUP)]
  of_game = emulators[0].getMinimalActionSet()

  def step(actions):
    for emulator, action in zip(emulators, actions.tolist(), strict=True):
      for _ in range(4):
        emulator.act(of_game[action])
      if emulator.game_over():
        emulator.reset_game()

  return step


def _vector_env():
  """Returns a function that steps ale-py's vector environment, given an action for each of its games."""
  from ale_py import vector_env
  games = vector_env.AtariVectorEnv(GAME, num_envs=_GROUP, num_threads=1, batch_size=_GROUP)
  games.reset()
  return games.step


def one_thread():
  """Returns the TensorFlow module, restricted to one thread."""
  import tensorflow as tf
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  return tf


def definition_and_config(workload: Workload):
  """Returns the definition of the workload's agent, and its config."""
  definition = python_path.load(registry.AGENTS[workload.agent])
  return definition, definition.config(**workload.config)


def make_agent(tf, workload, definition, config, num_levels=1):
  """Returns an agent for `num_levels` levels with the workload's observations."""
  from scalable_agents.actor import agent as agent_lib
  level = constant_environment.LEVELS[workload.level]
  spec = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in level.observation.items()}
  levels = tuple(f'{workload.level}_{number}' for number in range(num_levels))
  return definition.network(
      agent_lib.EnvironmentSpec(level.num_actions, spec, levels, frame_stacks(workload)), config)


def frame_stacks(workload):
  """Returns name -> k for each observation of the workload that is a stack of k frames."""
  return {'pixels': _ATARI_FRAMES} if workload.level == 'atari' else {}


def observations(tf, workload, *leading):
  """Returns random observations [*leading, ...]. If all were equal, TensorFlow would compute the network only once."""
  random = np.random.RandomState(0)
  arrays = {name: np.broadcast_to(value, leading + value.shape)
            for name, value in constant_environment.LEVELS[workload.level].observation.items()}
  arrays['pixels'] = random.randint(256, size=arrays['pixels'].shape, dtype=np.uint8)
  return {name: tf.constant(values) for name, values in arrays.items()}


def observations_of_unrolls(tf, workload, num_rows, batch_size):
  """Returns random observations [num_rows, batch_size, ...] as unrolls have them, and Unroll.earlier_frames."""
  observation, earlier = observations(tf, workload, num_rows, batch_size), {}
  for name, k in frame_stacks(workload).items():
    *earlier_frames, newest = tf.split(observation[name], k, axis=-1)
    observation[name] = newest
    earlier[name] = tf.stack([frame[0] for frame in earlier_frames], axis=1)
  return observation, earlier


def inference(seconds, workload, batch_sizes):
  """Measures the rows/s of the network at each batch size, on one thread. Batches run in a graph, as in training."""
  tf = one_thread()
  from scalable_agents.actor import acting
  agent = make_agent(tf, workload, *definition_and_config(workload))
  results = {}
  for size in batch_sizes:
    many = observations(tf, workload, 10, size)

    @tf.function(autograph=False)
    def act(many, size=size):
      def body(count, actions):
        inputs = acting.ActorInput(
            tf.zeros([size], tf.int32), tf.zeros([size]), tf.zeros([size], tf.int32), tf.zeros([size]),
            tf.ones([size]), tf.zeros([size], tf.bool),
            {name: batches[count] for name, batches in many.items()})
        output, _ = agent.step(inputs, agent.initial_state(size), tf.stack([0, count]))
        return count + 1, actions + output.action
      return tf.while_loop(lambda count, actions: count < 10, body, [tf.constant(0), tf.zeros([size], tf.int32)],
                           parallel_iterations=1)

    per_second, cpu = rate(functools.partial(act, many), 10 * size, seconds / len(batch_sizes))
    results[size] = {'rows_per_second': per_second, 'cpu_seconds': cpu}
  return results


def learner(seconds, workload):
  """Measures the transitions/s of the network's learner, on one thread."""
  tf = one_thread()
  step = _learner_step(tf, workload, *definition_and_config(workload))
  per_second, cpu = rate(step, _learned_transitions(workload), seconds)
  return {'transitions_per_second': per_second, 'cpu_seconds': cpu}


def learners(seconds, workload, names):
  """Measures the learners of agents with the same network on one thread. They make single updates in turns.

  Args:
    seconds, workload: as for the other parts.
    names: agents that are compared with IMPALA: popart_impala, laser, pixel_control (of IMPALA) or pixel_popart.
  Returns:
    Name -> transitions/s, and name -> ratio to IMPALA's in the same turn. Both are medians over the turns.
  """
  tf = one_thread()
  steps = {name: _learner_of(tf, workload, name) for name in ('impala', *names)}
  order = list(steps)

  def take_turn():
    return {name: _rate_of_one(steps[name], _learned_transitions(workload)) for name in order}

  take_turn()  # Compiles.
  stop, rates = time.monotonic() + seconds, [take_turn()]
  while time.monotonic() < stop:
    order.reverse()  # So that no learner always follows the same one.
    rates.append(take_turn())

  def medians(values):
    return {name: float(np.median([turn[name] for turn in values])) for name in steps}

  ratios = [{name: rate / turn['impala'] for name, rate in turn.items()} for turn in rates]
  return medians(rates), medians(ratios)


def _learner_of(tf, workload, name):
  """Returns a function that makes an update of a learner; `name` is impala or one of those that `learners` compares."""
  levels = LEVELS[workload.level]
  agent, settings, num_levels = {
      'impala': ('impala', {}, 1),
      'popart_impala': ('popart_impala', {}, levels),
      'laser': ('laser', dict(value_normalization='none', trust_region_threshold=0.1), 1),
      'pixel_control': ('impala', dict(use_pixel_control=True), 1),
      'pixel_popart': ('popart_impala', dict(use_pixel_control=True), levels),
  }[name]
  workload = workload._replace(agent=agent, config=workload.config | settings)
  return _learner_step(tf, workload, *definition_and_config(workload), num_levels)


def _learned_transitions(workload):
  """Returns the number of transitions that an update of `_learner_step` stands for."""
  # The cost is proportional to the number of rows. A whole unroll has one more row than transitions.
  return workload.learner_rows / (workload.config['unroll_length'] + 1) * workload.transitions


def _learner_step(tf, workload, definition, config, num_levels=1):
  """Returns a function that makes an update with random data. Unroll b is from level b mod num_levels."""
  agent = make_agent(tf, workload, definition, config, num_levels)
  agents_learner = definition.make_learner(agent, config)
  batch = learner_batch(tf, workload, agent, config, num_levels)
  return lambda: agents_learner.step(agents_learner.prepare(batch))


def learner_batch(tf, workload, agent, config, num_levels=1):
  """Returns a learner_step.Batch of unrolls with random data, the same in each call, for all agents but R2D2.

  Args:
    tf: the TensorFlow module.
    workload: its `learner_rows` are the rows of each unroll.
    agent, config: as for Definition.make_learner.
    num_levels: unroll b is from level b mod num_levels.
  """
  from scalable_agents.actor import unroll
  from scalable_agents.agents import impala
  from scalable_agents.learner import learner_step
  random = np.random.RandomState(0)
  rows = [workload.learner_rows, config.batch_size]
  num_actions = constant_environment.LEVELS[workload.level].num_actions
  observation, earlier_frames = observations_of_unrolls(tf, workload, *rows)
  return learner_step.Batch(unroll.Unroll(
      level_id=tf.range(rows[1]) % num_levels, actor_id=tf.zeros(rows[1:], tf.int32),
      stream_id=tf.zeros(rows[1:], tf.int64), index=tf.zeros(rows[1:], tf.int64),
      agent_state=agent.initial_state(config.batch_size), earlier_frames=earlier_frames,
      environment_output=unroll.EnvironmentOutput(
          reward=tf.constant(random.normal(size=rows), tf.float32), discount=tf.ones(rows),
          done=tf.zeros(rows, tf.bool), episode_return=tf.zeros(rows), episode_length=tf.zeros(rows, tf.int32),
          observation=observation),
      agent_output=impala.BehaviourOutput(
          tf.constant(random.randint(num_actions, size=rows), tf.int32), tf.zeros([*rows, num_actions])),
      parameter_version=tf.zeros(rows, tf.int64)))


def learner_with_onednn(seconds, workload):
  """Like `learner`, but turns oneDNN on if the user has turned it off."""
  os.environ[kernels.ONEDNN] = '1'
  return learner(seconds, workload)


def batcher(seconds):
  """Measures the calls/s of the dynamic batcher, with a function that takes no time and 64 concurrent callers."""
  import tensorflow as tf

  from scalable_agents.actor import dynamic_batching
  callers = 64

  @dynamic_batching.batch_fn
  def identity(x):
    return tf.identity(x)

  @tf.function(autograph=False)
  def call_many(x):
    return tf.map_fn(lambda row: identity(row[tf.newaxis])[0], x, parallel_iterations=callers)

  x = tf.zeros([16 * callers])
  per_second, _ = rate(lambda: call_many(x), 16 * callers, seconds)
  identity.close()
  return {'calls_per_second': per_second}


def actor_pool(seconds, workload):
  """Measures the agent steps/s of the actor pool, with real worker processes.

  The environments and the policy take almost no time.
  """
  from scalable_agents.actor import actor_pool as actor_pool_lib
  from scalable_agents.actor import environment_workers
  cores = machine.num_cores()
  environments = 32 * cores
  unroll_length, batch_size = workload.config['unroll_length'], workload.config['batch_size']
  workers = environment_workers.EnvironmentWorkers(
      'scalable_agents.benchmark.constant_environment:Constant',
      [{'level_name': workload.level, 'seed': i} for i in range(environments)], cores)
  pool = actor_pool_lib.ActorPool(workers, unroll_length, _agent_output_spec(), (), [0] * environments, batch_size)
  pool.start()
  threads = [threading.Thread(target=_until_closed, args=[loop]) for loop in _pool_loops(pool)]
  for thread in threads:
    thread.start()
  try:
    # Wait until both graphs have been traced.
    while pool.statistics().steps < 4 * unroll_length * environments and all(thread.is_alive() for thread in threads):
      time.sleep(0.01)
    rates = rates_of_threads(threads, lambda: {'steps_per_second': pool.statistics().steps}, seconds)
  finally:
    pool.close()
    for thread in threads:
      thread.join()
    workers.close()
  return rates


def _agent_output_spec():
  import tensorflow as tf

  from scalable_agents.agents import impala
  return impala.BehaviourOutput(tf.TensorSpec([], tf.int32), tf.TensorSpec([6]))


def _pool_loops(pool):
  """Returns two endless loops in graphs: one acts with constant outputs, the other drops full unrolls."""
  import tensorflow as tf

  from scalable_agents.actor import actor_pool as actor_pool_lib

  def act():
    batch = pool.next_batch()
    size = tf.shape(batch.actor_id)[0]
    output = tf.nest.map_structure(lambda spec: tf.zeros([size, *spec.shape], spec.dtype), _agent_output_spec())
    pool.complete_batch(batch.id, tf.constant(0, tf.int64), output, ())

  return actor_pool_lib.endless(act), actor_pool_lib.endless(pool.next_unroll)


def _until_closed(loop):
  import tensorflow as tf
  with contextlib.suppress(tf.errors.CancelledError):
    loop()


def training_rows(seconds, workload):
  """Returns the rows of metrics.jsonl of a training run after its start. At least one has an inference batch size."""
  def arguments(run):
    if workload.config['level_name'] == GAME:
      return [f'scalable_agents.agents.{workload.agent}_atari57', *(
          f'--{name}={value}' for name, value in (workload.config | run).items())]
    return ['scalable_agents.benchmark.constant_training', json.dumps(workload.config), json.dumps(run)]

  return training_rate.steady_rows(
      arguments, seconds, lambda rows: any(row['inference_batch_size'] for row in rows))


def mean_of(rows, name):
  """Returns the mean of a metric over the rows that have it."""
  return float(np.mean([row[name] for row in rows if row[name] is not None]))


def end_to_end(seconds, workload):
  """Measures the agent steps/s of a training run after its start, its inference batch sizes and its shares of time."""
  steady = training_rows(seconds, workload)
  updates, wall_seconds = (steady[-1][name] - steady[0][name] for name in ('learner_steps', 'wall_seconds'))
  return {'steps_per_second': updates * workload.transitions / wall_seconds,
          **{name: mean_of(steady, name) for name in steady[-1]
             if name == 'inference_batch_size' or name.startswith('time/')}}
