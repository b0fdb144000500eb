"""Measures this machine: the parts of IMPALA one by one, and the whole against what its parts allow, in two sections.

  make benchmark        or        bazel run //tools:benchmark

The first is Pong with the shallow network. The second is what DeepMind Lab's levels are learned with, the deep network
with LSTM and language on images of 72x96, with environments that cost nothing.

Every part is measured with all cores busy on it, in a process per core, and costs so much CPU time per agent step.
If nothing else cost anything, the cores would do `cores / sum of the costs` steps per second: the additive bound.
A line says so where a part is far below what comparable processors reach.
The last line is a JSON object with all figures. Compare figures of one run only: machines vary from run to run.
"""

from concurrent import futures
import dataclasses
import json
import multiprocessing
import os
import signal
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import tree

from scalable_agents.actor import parent_death
from scalable_agents.records.settings import setting
from scalable_agents.tools import constant_environment
from scalable_agents.tools import peers
from scalable_agents.tools import training_rate
from scalable_agents.training import kernels
from scalable_agents.training import run_flags

_GAME = 'pong'
_STDERR = 2


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
  """The flags."""

  seconds: float = setting(10., 'How long each part is measured; end to end six or eight times as long.', at_least=0.1,
                           at_most=training_rate.MAX_SECONDS)
  torso_precision: str = setting('float32', 'What the network computes in; see the flag of //agents:impala_atari57.',
                                 choices=('float32', 'bfloat16'))
  dmlab_unroll_length: int = setting(100, 'Second section: agent steps per unroll. Table D.3 of the paper.', at_least=1,
                                     at_most=10_000)
  dmlab_batch_size: int = setting(
      32, 'Second section: unrolls per update, which takes 3.5 MB of memory for each of their steps: 11 GB if nothing '
      'else is asked for.', at_least=1, at_most=10_000)


class _Workload(NamedTuple):
  """A network and what it learns from."""
  config: dict[str, Any]  # Settings of ImpalaConfig.
  level: str              # What it observes: one of constant_environment.LEVELS.
  learner_rows: int       # Of each unroll: as many as the learner's part has memory for in a process per core.
  wanted_share: float     # Of the additive bound, end to end.

  @property
  def transitions(self) -> int:
    """Per update."""
    return self.config['unroll_length'] * self.config['batch_size']


def _pong(precision):
  return _Workload(dict(level_name=_GAME, torso='shallow', torso_precision=precision, unroll_length=20, batch_size=32),
                   level='atari', learner_rows=21, wanted_share=0.85)


def _dmlab(config):
  """As table D.3 of the IMPALA paper."""
  return _Workload(dict(level_name='dmlab', torso='deep', torso_precision=config.torso_precision, use_lstm=True,
                        unroll_length=config.dmlab_unroll_length, batch_size=config.dmlab_batch_size),
                   level='dmlab', learner_rows=min(26, config.dmlab_unroll_length + 1), wanted_share=0.9)


def _rate(step, amount, seconds):
  """Calls `step` for `seconds` after a warm-up. Returns (amount per second, CPU seconds of this process per amount)."""
  stop = time.monotonic() + training_rate.warm_up_seconds(seconds)
  while time.monotonic() < stop:
    step()
  calls, wall, cpu = 0, time.monotonic(), time.process_time()
  while time.monotonic() < wall + seconds:
    step()
    calls += 1
  return calls * amount / (time.monotonic() - wall), (time.process_time() - cpu) / (calls * amount)


def _environment(seconds):
  """Agent steps/s of one environment, and of ale-py's own vector environment of one, in turns."""
  from ale_py import vector_env  # pylint: disable=g-import-not-at-top
  from scalable_agents.environments import registry  # pylint: disable=g-import-not-at-top
  random = np.random.RandomState(os.getpid())
  ours = registry.make(_GAME, seed=os.getpid())
  actions = random.randint(ours.action_spec().num_values, size=10_000)
  theirs = vector_env.AtariVectorEnv(_GAME, num_envs=1, num_threads=1, batch_size=1)
  theirs.reset()
  ours.reset()
  numbers = iter(range(1 << 60))

  def step_ours():
    if ours.step(actions[next(numbers) % 10_000]).last():
      ours.reset()

  rates = [(_rate(step_ours, 1, seconds / 4),
            _rate(lambda: theirs.step(actions[next(numbers) % 10_000:][:1]), 1, seconds / 4)) for _ in range(2)]
  (ours_rate, ours_cpu), (theirs_rate, theirs_cpu) = np.mean(rates, axis=0)
  return {'steps_per_second': ours_rate, 'cpu_seconds': ours_cpu, 'vector_env_steps_per_second': theirs_rate,
          'vector_env_cpu_seconds': theirs_cpu}


def _one_thread():
  """TensorFlow on one thread."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  return tf


def _agent(tf, workload):
  """The workload's agent and its ImpalaConfig."""
  from scalable_agents.agents import impala  # pylint: disable=g-import-not-at-top
  from scalable_agents.training import agent_interface  # pylint: disable=g-import-not-at-top
  config, level = impala.ImpalaConfig(**workload.config), constant_environment.LEVELS[workload.level]
  spec = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in level.observation.items()}
  return impala.Agent(agent_interface.EnvironmentSpec(level.num_actions, spec, (workload.level,)), config), config


def _observations(tf, workload, *leading):
  """Observations [*leading, ...] whose pixels all differ, lest TensorFlow computes the network once for all."""
  random = np.random.RandomState(0)
  observations = {name: np.broadcast_to(value, leading + value.shape)
                  for name, value in constant_environment.LEVELS[workload.level].observation.items()}
  observations['pixels'] = random.randint(256, size=observations['pixels'].shape, dtype=np.uint8)
  return {name: tf.constant(values) for name, values in observations.items()}


def _inference(seconds, workload, batch_sizes):
  """Rows/s of the network at each batch size, on one thread: batches in a graph, as in training."""
  tf = _one_thread()
  from scalable_agents.actor import acting  # pylint: disable=g-import-not-at-top
  agent, _ = _agent(tf, workload)
  results = {}
  for size in batch_sizes:
    observations = _observations(tf, workload, 10, size)

    @tf.function(autograph=False)
    def act(observations, size=size):
      def body(count, actions):
        inputs = acting.ActorInput(
            tf.zeros([size], tf.int32), tf.zeros([size]), tf.zeros([size], tf.int32), tf.zeros([size]),
            tf.zeros([size], tf.bool), {name: batches[count] for name, batches in observations.items()})
        output, _ = agent.step(inputs, agent.initial_state(size), tf.stack([0, count]))
        return count + 1, actions + output.action
      return tf.while_loop(lambda count, actions: count < 10, body, [tf.constant(0), tf.zeros([size], tf.int32)],
                           parallel_iterations=1)

    rate, cpu = _rate(lambda: act(observations), 10 * size, seconds / len(batch_sizes))
    results[size] = {'rows_per_second': rate, 'cpu_seconds': cpu}
  return results


def _learner(seconds, workload):
  """Transitions/s of the network's learner, on one thread."""
  tf = _one_thread()
  from scalable_agents.actor import unroll  # pylint: disable=g-import-not-at-top
  from scalable_agents.agents import impala  # pylint: disable=g-import-not-at-top
  from scalable_agents.training import experience  # pylint: disable=g-import-not-at-top
  agent, config = _agent(tf, workload)
  learner = impala.make_learner(agent, config)
  rows = [workload.learner_rows, config.batch_size]
  num_actions = constant_environment.LEVELS[workload.level].num_actions
  batch = experience.Batch(unroll.Unroll(
      level_id=tf.zeros(rows[1:], tf.int32), actor_id=tf.zeros(rows[1:], tf.int32),
      life_id=tf.zeros(rows[1:], tf.int64), index=tf.zeros(rows[1:], tf.int64),
      agent_state=agent.initial_state(config.batch_size),
      environment_output=unroll.EnvironmentOutput(
          reward=tf.random.normal(rows), discount=tf.ones(rows), done=tf.zeros(rows, tf.bool),
          episode_return=tf.zeros(rows), episode_length=tf.zeros(rows, tf.int32),
          observation=_observations(tf, workload, *rows)),
      agent_output=impala.BehaviourOutput(tf.zeros(rows, tf.int32), tf.zeros([*rows, num_actions])),
      parameter_version=tf.zeros(rows, tf.int64)))
  # Cost goes with rows, of which a whole unroll has one more than transitions.
  whole_unrolls = workload.learner_rows / (config.unroll_length + 1)
  rate, cpu = _rate(lambda: learner.step(batch), whole_unrolls * workload.transitions, seconds)
  return {'transitions_per_second': rate, 'cpu_seconds': cpu}


def _learner_with_onednn(seconds, workload):
  """As `_learner`, also where the user has switched oneDNN off."""
  os.environ[kernels.ONEDNN] = '1'
  return _learner(seconds, workload)


def _batcher(seconds):
  """Calls/s of a function that costs nothing, batched for as many callers as there is room for in a graph."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  from scalable_agents.actor import dynamic_batching  # pylint: disable=g-import-not-at-top
  callers = 64

  @dynamic_batching.batch_fn
  def identity(x):
    return tf.identity(x)

  @tf.function(autograph=False)
  def call_many(x):
    return tf.map_fn(lambda row: identity(row[tf.newaxis])[0], x, parallel_iterations=callers)

  x = tf.zeros([16 * callers])
  rate, _ = _rate(lambda: call_many(x), 16 * callers, seconds)
  identity.close()
  return {'calls_per_second': rate}


def _pool(seconds, workload):
  """Agent steps/s of the actor pool with environments and a policy that cost nothing, in real worker processes."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  from scalable_agents.actor import actor_pool, environment_workers  # pylint: disable=g-import-not-at-top
  from scalable_agents.agents import impala  # pylint: disable=g-import-not-at-top
  cores = len(os.sched_getaffinity(0))
  environments = 32 * cores
  unroll_length, batch_size = workload.config['unroll_length'], workload.config['batch_size']
  workers = environment_workers.EnvironmentWorkers(
      'scalable_agents.tools.constant_environment:Constant',
      [{'level_name': workload.level, 'seed': i} for i in range(environments)], cores)
  output_spec = impala.BehaviourOutput(tf.TensorSpec([], tf.int32), tf.TensorSpec([6]))
  pool = actor_pool.ActorPool(workers, unroll_length, output_spec, (), [0] * environments, batch_size)

  @tf.function(autograph=False)
  def act():
    def body(count):
      batch = pool.next_batch()
      size = tf.shape(batch.actor_id)[0]
      output = impala.BehaviourOutput(tf.zeros([size], tf.int32), tf.zeros([size, 6]))
      pool.complete_batch(batch.id, tf.constant(0, tf.int64), output, ())
      return [count + 1]
    tf.while_loop(lambda count: True, body, [0], parallel_iterations=1)

  @tf.function(autograph=False)
  def drop_unrolls():
    def body(count):
      with tf.control_dependencies(tf.nest.flatten(pool.next_unroll())):
        return [count + 1]
    tf.while_loop(lambda count: True, body, [0], parallel_iterations=1)

  def until_closed(loop):
    try:
      loop()
    except tf.errors.CancelledError:
      pass

  pool.start()
  threads = [threading.Thread(target=until_closed, args=[loop]) for loop in (act, drop_unrolls)]
  for thread in threads:
    thread.start()
  while pool.statistics().steps < 4 * unroll_length * environments:  # Until both graphs have been traced.
    time.sleep(0.01)
  time.sleep(training_rate.warm_up_seconds(seconds))
  before, began = pool.statistics(), time.monotonic()
  time.sleep(seconds)
  after, ended = pool.statistics(), time.monotonic()
  pool.close()
  for thread in threads:
    thread.join()
  workers.close()
  return {'steps_per_second': (after.steps - before.steps) / (ended - began)}


def _end_to_end(seconds, workload):
  """Agent steps/s of a training run once it is under way, and its batches of inference."""
  def arguments(run):
    if workload.config['level_name'] == _GAME:
      return ['scalable_agents.agents.impala_atari57', *(
          f'--{name}={value}' for name, value in (workload.config | run).items())]
    return ['scalable_agents.tools.constant_training', json.dumps(workload.config), json.dumps(run)]

  steady = training_rate.steady_rows(
      arguments, seconds, lambda rows: any(row['inference_batch_size'] for row in rows))
  mean = lambda name: float(np.mean([row[name] for row in steady if row[name] is not None]))
  updates, wall_seconds = (steady[-1][name] - steady[0][name] for name in ('learner_steps', 'wall_seconds'))
  return {'steps_per_second': updates * workload.transitions / wall_seconds,
          **{name: mean(name) for name in steady[-1] if name == 'inference_batch_size' or name.startswith('time/')}}


def _begin_part():
  kernels.choose()
  parent_death.signal_at_parents_end(signal.SIGTERM)
  os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)


def _executor(processes):
  """Fresh processes for a part; an error comes back as its exception. Libraries are mute, and all end with this one."""
  return futures.ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context('spawn'),
                                     initializer=_begin_part)


def _on_all_cores(part, *arguments):
  """Runs a part in a process per core at once. Returns the results' means."""
  cores = len(os.sched_getaffinity(0))
  with _executor(cores) as executor:
    results = [future.result() for future in [executor.submit(part, *arguments) for _ in range(cores)]]
  return tree.map_structure(lambda *values: float(np.mean(values)), *results)


def _alone(part, *arguments):
  """Runs a part in a process of its own."""
  with _executor(1) as executor:
    return executor.submit(part, *arguments).result()


def _line(name, figure, cpu_seconds=None):
  print(f'{name:<44}{figure:>12,.0f}' + (f'{cpu_seconds * 1e6:>16,.1f}' if cpu_seconds else ''), flush=True)


def _against_bound(end_to_end, workload, inference, *others):
  """Prints the additive bound of the parts' costs, and the share of it that is reached end to end. Returns figures."""
  occurring = _occurring(end_to_end)
  cost = sum(part['cpu_seconds'] for part in (inference[occurring], *others))
  bound, steps = len(os.sched_getaffinity(0)) / cost, end_to_end['steps_per_second']
  _line('additive bound: agent steps', bound, cost)
  print(f'end to end is {steps / bound:.1%} of the bound (wanted: {workload.wanted_share:.0%}), with inference in '
        f'batches of {occurring} on average', flush=True)
  return {'end_to_end_steps_per_second': steps, 'bound_steps_per_second': bound, 'share_of_bound': steps / bound,
          'end_to_end': end_to_end, 'inference': inference}


def _occurring(end_to_end):
  """The mean size of inference's batches, in whole rows."""
  return max(1, round(end_to_end['inference_batch_size']))


def _network_parts(seconds, workload, batch_sizes):
  """Measures and prints inference, at these batch sizes too, and the learner. Returns the figures of both."""
  inference = _on_all_cores(_inference, 2 * seconds, workload, sorted(batch_sizes))
  for size, result in inference.items():
    _line(f'inference: rows, batches of {size}, one core', result['rows_per_second'], result['cpu_seconds'])
  learner = _on_all_cores(_learner, seconds, workload)
  _line('learner: transitions, one core', learner['transitions_per_second'], learner['cpu_seconds'])
  return inference, learner


def _measure_pong(seconds, workload):
  """The first section. Returns its figures."""
  end_to_end = _end_to_end(6 * seconds, workload)
  _line('IMPALA on Pong, end to end: agent steps', end_to_end['steps_per_second'])
  environment = _on_all_cores(_environment, seconds)
  _line('environment: agent steps, one core', environment['steps_per_second'], environment['cpu_seconds'])
  _line('  ale-py\'s AtariVectorEnv: the same', environment['vector_env_steps_per_second'],
        environment['vector_env_cpu_seconds'])
  batch_size = workload.config['batch_size']
  inference, learner = _network_parts(seconds, workload, {1, 8, 16, batch_size, _occurring(end_to_end)})
  batcher = _alone(_batcher, seconds)
  _line('dynamic batcher: calls', batcher['calls_per_second'])
  pool = _alone(_pool, seconds, workload)
  _line('actor pool, free environments and policy: steps', pool['steps_per_second'])
  return {**_against_bound(end_to_end, workload, inference, environment, learner), 'environment': environment,
          'learner': learner, 'dynamic_batcher': batcher, 'actor_pool': pool,
          'shortfalls': _shortfalls(seconds, workload, environment, inference[batch_size], learner)}


def _shortfalls(seconds, workload, environment, inference, learner):
  """Prints and returns a line for each part that is far below what comparable processors reach."""
  is_onednn_on = _alone(kernels.is_onednn_on)
  lines = peers.shortfalls(environment, inference, learner, workload.config['torso_precision'], is_onednn_on)
  if not is_onednn_on:
    with_onednn = _on_all_cores(_learner_with_onednn, seconds, workload)
    lines += peers.shortfall_without_onednn(learner, with_onednn)
  for line in lines:
    print(line, flush=True)
  return lines


def _measure_dmlab(seconds, workload):
  """The second section. Returns its figures."""
  end_to_end = _end_to_end(8 * seconds, workload)  # An update takes seconds.
  _line('IMPALA, end to end: agent steps', end_to_end['steps_per_second'])
  inference, learner = _network_parts(seconds, workload, {workload.config['batch_size'], _occurring(end_to_end)})
  return {**_against_bound(end_to_end, workload, inference, learner), 'learner': learner}


def main():
  """Measures both sections, prints the tables as they grow, then the JSON line."""
  config = run_flags.config_from_flags(BenchmarkConfig)
  cores, seconds, precision = len(os.sched_getaffinity(0)), config.seconds, config.torso_precision
  columns = f'{"per second":>12}{"CPU us each":>16}'
  print(f'{f"{cores} cores, {precision}, shallow network":<44}{columns}', flush=True)
  figures = _measure_pong(seconds, _pong(precision))
  dmlab = _dmlab(config)
  print('\nDeep network, LSTM and language on 72x96 pixels; environments that cost nothing; '
        f'{dmlab.config["batch_size"]} unrolls of {dmlab.config["unroll_length"]}\n{"":<44}{columns}', flush=True)
  figures |= {'cores': cores, 'torso_precision': precision, 'dmlab': None}
  try:
    figures['dmlab'] = _measure_dmlab(seconds, dmlab)
  except RuntimeError as error:  # It takes 11 GB, and the figures above are worth something without it.
    print(f'this section was not measured: {error}')
  print(json.dumps(figures))
  return 0 if figures['dmlab'] else 1


if __name__ == '__main__':
  run_flags.define(BenchmarkConfig())
  run_flags.run_main(main)
