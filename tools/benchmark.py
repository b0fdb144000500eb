"""Measures this machine: the parts of IMPALA one by one, and the whole on Pong against what its parts allow.

  make benchmark        or        bazel run //tools:benchmark

Every part is measured with all cores busy on it, in a process per core, and costs so much CPU time per agent step.
If nothing else cost anything, the cores would do `cores / sum of the costs` steps per second: the additive bound.
The last line is a JSON object with all figures. Compare figures of one run only: machines vary from run to run.
"""

from concurrent import futures
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time

from absl import app
from absl import flags
import numpy as np
import tree

from scalable_agents.actor import python_path

_SECONDS = flags.DEFINE_float('seconds', 10., 'How long each part is measured; end to end six times as long.',
                              lower_bound=0.1)

_TORSO_PRECISION = flags.DEFINE_enum('torso_precision', 'float32', ['float32', 'bfloat16'],
                                     'What the network computes in; see the flag of //agents:impala_atari57.')

_LEVEL = 'pong'
_UNROLL_LENGTH = 20  # Agent steps.
_BATCH_SIZE = 32     # Unrolls.
_ACTION_REPEATS = 4
_LONGEST_WARM_UP_SECONDS = 3.


def _warm_up_seconds(seconds):
  """How long a part runs before it is measured for `seconds`."""
  return min(seconds, _LONGEST_WARM_UP_SECONDS)


def _rate(step, amount, seconds):
  """Calls `step` for `seconds` after a warm-up. Returns (amount per second, CPU seconds of this process per amount)."""
  stop = time.monotonic() + _warm_up_seconds(seconds)
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
  ours = registry.make(_LEVEL, seed=os.getpid())
  actions = random.randint(ours.action_spec().num_values, size=10_000)
  theirs = vector_env.AtariVectorEnv(_LEVEL, num_envs=1, num_threads=1, batch_size=1)
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


def _shallow_agent(tf, precision):
  from scalable_agents.agents import impala  # pylint: disable=g-import-not-at-top
  config = impala.ImpalaConfig(torso='shallow', torso_precision=precision, unroll_length=_UNROLL_LENGTH,
                               batch_size=_BATCH_SIZE)
  return impala.Agent(6, {'pixels': tf.TensorSpec([84, 84, 4], tf.uint8)}, config), config


def _inference(seconds, precision, batch_sizes):
  """Rows/s of the shallow network at each batch size, on one thread: batches in a graph, as in training."""
  tf = _one_thread()
  agent, _ = _shallow_agent(tf, precision)
  results = {}
  for size in batch_sizes:
    # Other pixels for each call, lest TensorFlow computes the network once for all.
    pixels = tf.constant(np.random.RandomState(0).randint(256, size=[10, size, 84, 84, 4]), tf.uint8)

    @tf.function
    def act(pixels, size=size):
      def body(count, actions):
        output, _ = agent.step(tf.zeros([size], tf.int32), tf.zeros([size]), tf.zeros([size], tf.bool),
                               {'pixels': pixels[count]}, (), tf.stack([0, count]))
        return count + 1, actions + output.action
      return tf.while_loop(lambda count, actions: count < 10, body, [tf.constant(0), tf.zeros([size], tf.int32)],
                           parallel_iterations=1)

    rate, cpu = _rate(lambda: act(pixels), 10 * size, seconds / len(batch_sizes))
    results[size] = {'rows_per_second': rate, 'cpu_seconds': cpu}
  return results


def _learner(seconds, precision):
  """Transitions/s of the shallow network's learner, on one thread."""
  tf = _one_thread()
  from scalable_agents.actor import unroll  # pylint: disable=g-import-not-at-top
  from scalable_agents.agents import impala  # pylint: disable=g-import-not-at-top
  agent, config = _shallow_agent(tf, precision)
  learner = impala.Learner(agent, config, _ACTION_REPEATS)
  rows, random = [_UNROLL_LENGTH + 1, _BATCH_SIZE], np.random.RandomState(0)
  batch = unroll.Unroll(
      level_id=tf.zeros([_BATCH_SIZE], tf.int32), actor_id=tf.zeros([_BATCH_SIZE], tf.int32), agent_state=(),
      environment_output=unroll.EnvironmentOutput(
          reward=tf.random.normal(rows), discount=tf.ones(rows), done=tf.zeros(rows, tf.bool),
          episode_return=tf.zeros(rows), episode_length=tf.zeros(rows, tf.int32),
          observation={'pixels': tf.constant(random.randint(256, size=rows + [84, 84, 4]), tf.uint8)}),
      agent_output=unroll.AgentOutput(tf.zeros(rows, tf.int32), tf.zeros(rows + [6]), tf.zeros(rows)),
      parameter_version=tf.zeros(rows, tf.int64))
  rate, cpu = _rate(lambda: learner.step(batch), _UNROLL_LENGTH * _BATCH_SIZE, seconds)
  return {'transitions_per_second': rate, 'cpu_seconds': cpu}


def _batcher(seconds):
  """Calls/s of a function that costs nothing, batched for as many callers as there is room for in a graph."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  from scalable_agents.actor import dynamic_batching  # pylint: disable=g-import-not-at-top
  callers = 64

  @dynamic_batching.batch_fn
  def identity(x):
    return tf.identity(x)

  @tf.function
  def call_many(x):
    return tf.map_fn(lambda row: identity(row[tf.newaxis])[0], x, parallel_iterations=callers)

  x = tf.zeros([16 * callers])
  rate, _ = _rate(lambda: call_many(x), 16 * callers, seconds)
  identity.close()
  return {'calls_per_second': rate}


def _pool(seconds):
  """Agent steps/s of the actor pool with environments and a policy that cost nothing, in real worker processes."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  from scalable_agents.actor import actor_pool, environment_workers, unroll  # pylint: disable=g-import-not-at-top
  cores = len(os.sched_getaffinity(0))
  environments = 32 * cores
  workers = environment_workers.EnvironmentWorkers(
      'scalable_agents.tools.constant_environment:Constant', [{'seed': i} for i in range(environments)], cores)
  output_spec = unroll.AgentOutput(tf.TensorSpec([], tf.int32), tf.TensorSpec([6]), tf.TensorSpec([]))
  pool = actor_pool.ActorPool(workers, _UNROLL_LENGTH, output_spec, (), [0] * environments, _BATCH_SIZE)

  @tf.function
  def act():
    def body(count):
      batch = pool.next_batch()
      size = tf.shape(batch.actor_id)[0]
      output = unroll.AgentOutput(tf.zeros([size], tf.int32), tf.zeros([size, 6]), tf.zeros([size]))
      pool.complete_batch(batch.id, tf.constant(0, tf.int64), output, ())
      return [count + 1]
    tf.while_loop(lambda count: True, body, [0], parallel_iterations=1)

  @tf.function
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
  while pool.statistics().steps < 4 * _UNROLL_LENGTH * environments:  # Until both graphs have been traced.
    time.sleep(0.01)
  time.sleep(_warm_up_seconds(seconds))
  before, began = pool.statistics(), time.monotonic()
  time.sleep(seconds)
  after, ended = pool.statistics(), time.monotonic()
  pool.close()
  for thread in threads:
    thread.join()
  workers.close()
  return {'steps_per_second': (after.steps - before.steps) / (ended - began)}


def _end_to_end(seconds, precision):
  """Agent steps/s of a training run on Pong once it is under way, and its batches of inference."""
  with tempfile.TemporaryDirectory() as folder, open(f'{folder}/screen', 'w+', encoding='utf-8') as screen:
    metrics = f'{folder}/run/metrics.jsonl'
    command = [sys.executable, '-m', 'scalable_agents.agents.impala_atari57', f'--level_name={_LEVEL}',
               '--torso=shallow', f'--torso_precision={precision}', f'--unroll_length={_UNROLL_LENGTH}',
               f'--batch_size={_BATCH_SIZE}', f'--logdir={folder}/run', f'--log_interval_seconds={min(1., seconds / 8)}']
    training = subprocess.Popen(command, env=python_path.environment(), stdout=screen, stderr=screen)
    try:
      while not os.path.exists(metrics) or not os.path.getsize(metrics):
        if training.poll() is not None:
          screen.seek(0)
          raise RuntimeError(f'training ended with exit code {training.returncode}: {screen.read()}')
        time.sleep(0.1)
      time.sleep(_warm_up_seconds(seconds) + seconds)
    finally:
      training.terminate()
      training.wait()
    with open(metrics, encoding='utf-8') as file:
      rows = [json.loads(line) for line in file]
  steady = [row for row in rows if row['wall_seconds'] >= rows[0]['wall_seconds'] + _warm_up_seconds(seconds)]
  if len(steady) < 3:
    raise RuntimeError(f'only {len(rows)} rows of metrics.jsonl in {seconds:g} s: try a larger --seconds')
  first, last = steady[0], steady[-2]  # The last row is the end's, of a shorter interval.
  frames = last['environment_frames'] - first['environment_frames']
  return {'steps_per_second': frames / _ACTION_REPEATS / (last['wall_seconds'] - first['wall_seconds']),
          'inference_batch_size': float(np.mean([row['inference_batch_size'] for row in steady])),
          **{name: float(np.mean([row[name] for row in steady])) for name in rows[-1] if name.startswith('time/')}}


def _mute():
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _executor(processes):
  """Fresh processes for a part, without what libraries have to say; an error comes back as the part's exception."""
  return futures.ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context('spawn'),
                                     initializer=_mute)


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


def main(_):
  """Runs all parts, prints the table as it grows, then the JSON line."""
  cores, seconds, precision = len(os.sched_getaffinity(0)), _SECONDS.value, _TORSO_PRECISION.value
  print(f'{f"{cores} cores, {precision}":<44}{"per second":>12}{"CPU us each":>16}')
  end_to_end = _end_to_end(6 * seconds, precision)
  _line('IMPALA on Pong, end to end: agent steps', end_to_end['steps_per_second'])
  environment = _on_all_cores(_environment, seconds)
  _line('environment: agent steps, one core', environment['steps_per_second'], environment['cpu_seconds'])
  _line('  ale-py\'s AtariVectorEnv: the same', environment['vector_env_steps_per_second'],
        environment['vector_env_cpu_seconds'])
  occurring = max(1, round(end_to_end['inference_batch_size']))
  inference = _on_all_cores(_inference, 2 * seconds, precision, sorted({1, 8, 16, _BATCH_SIZE, occurring}))
  for size, result in inference.items():
    _line(f'inference: rows, batches of {size}, one core', result['rows_per_second'], result['cpu_seconds'])
  learner = _on_all_cores(_learner, seconds, precision)
  _line('learner: transitions, one core', learner['transitions_per_second'], learner['cpu_seconds'])
  batcher = _alone(_batcher, seconds)
  _line('dynamic batcher: calls', batcher['calls_per_second'])
  pool = _alone(_pool, seconds)
  _line('actor pool, free environments and policy: steps', pool['steps_per_second'])
  cost = environment['cpu_seconds'] + inference[occurring]['cpu_seconds'] + learner['cpu_seconds']
  bound, steps = cores / cost, end_to_end['steps_per_second']
  _line('additive bound: agent steps', bound, cost)
  print(f'end to end is {steps / bound:.1%} of the bound, with inference in batches of {occurring} on average')
  print(json.dumps({
      'end_to_end_steps_per_second': steps, 'bound_steps_per_second': bound, 'share_of_bound': steps / bound,
      'cores': cores, 'torso_precision': precision, 'end_to_end': end_to_end, 'environment': environment,
      'inference': inference, 'learner': learner, 'dynamic_batcher': batcher, 'actor_pool': pool}))


if __name__ == '__main__':
  app.run(main)
