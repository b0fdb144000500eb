"""The parts of the benchmark that belong to R2D2 and its replay. Each function measures one part in its own process.

The functions import TensorFlow themselves, as those of benchmark_parts.py do.
"""

import threading

import numpy as np

from scalable_agents.benchmark import benchmark_parts
from scalable_agents.benchmark import constant_environment
from scalable_agents.benchmark import training_rate

SEQUENCES = 1_000_000  # For the cost of priorities.


def pong(precision: str) -> benchmark_parts.Workload:
  """Returns the workload of Pong: the paper's sequences and ratio, with the shallow network.

  Args:
    precision: the value of --torso_precision.
  """
  return benchmark_parts.Workload(
      dict(level_name=benchmark_parts.GAME, torso='shallow', torso_precision=precision, batch_size=16,
           replay_capacity=2_000, replay_minimum_size=64, save_replay=False),
      level='atari', learner_rows=121, wanted_share=0.88, agent='r2d2')


def _replay(tf, settings):
  """Returns a replay of Atari sequences as R2D2 has it, and a function that inserts an unroll of each of 16 actors."""
  from scalable_agents.replay import sequence_replay as replay_lib
  row = {'pixels': tf.TensorSpec([84, 84, 1], tf.uint8), 'done': tf.TensorSpec([], tf.bool),
         'numbers': tf.TensorSpec([10])}
  state = (tf.TensorSpec([512]), tf.TensorSpec([512]))
  geometry = replay_lib.Geometry(settings.burn_in, settings.sequence_length, settings.sequence_period)
  replay = replay_lib.SequenceReplay(
      row, state, geometry, settings.replay_capacity, done=lambda rows: rows['done'],
      frame_stacks={'pixels': 4, 'done': 1, 'numbers': 1}, priority_exponent=settings.priority_exponent)
  actors, length = 16, settings.unroll_length
  rows = {name: tf.zeros([length + 1, actors, *spec.shape], spec.dtype) for name, spec in row.items()}
  states = tuple(tf.zeros([length + 1, actors, *spec.shape]) for spec in state)
  numbers = iter(range(1 << 60))

  def insert():
    inserted = replay.insert(tf.range(actors, dtype=tf.int64), tf.fill([actors], tf.constant(next(numbers), tf.int64)),
                             tf.zeros([actors], tf.int64), rows['done'], rows, states)
    replay.update(inserted.key, tf.ones_like(inserted.key, tf.float32))
    return inserted.key.shape[0]

  while replay.statistics().size < settings.replay_capacity // 4:
    insert()
  return replay, insert, actors * length


def replay_at_once(seconds, workload):
  """Measures the sequences/s inserted and sampled at the same time by two threads of one process, and bytes/s."""
  import tensorflow as tf
  _, settings = benchmark_parts.definition_and_config(workload)
  replay, insert, _ = _replay(tf, settings)
  is_over = threading.Event()
  counts = {'inserted': 0, 'sampled': 0}

  def write():
    while not is_over.is_set():
      counts['inserted'] += insert()

  def read():
    seed = 0
    while not is_over.is_set():
      sample = replay.sample(settings.batch_size, seed)
      replay.update(sample.key, tf.ones([settings.batch_size]))
      counts['sampled'] += settings.batch_size
      seed += 1

  threads = [threading.Thread(target=work) for work in (write, read)]
  for thread in threads:
    thread.start()
  try:
    rates = benchmark_parts.rates_of_threads(threads, lambda: dict(counts), seconds)
  finally:
    is_over.set()
    for thread in threads:
      thread.join()
  frames = settings.burn_in + settings.sequence_length + 1 + 3  # The newest of each row, and the stack before row 0.
  return {'inserted_per_second': rates['inserted'], 'sampled_per_second': rates['sampled'],
          'sampled_bytes_per_second': rates['sampled'] * frames * 84 * 84}


def replay_costs(seconds, workload):
  """Measures the CPU time of the replay per agent step inserted and per sequence sampled, on one thread."""
  tf = benchmark_parts.one_thread()
  _, settings = benchmark_parts.definition_and_config(workload)
  replay, insert, steps = _replay(tf, settings)
  _, insert_cpu = benchmark_parts.rate(insert, steps, seconds / 2)
  seeds = iter(range(1 << 60))  # Other sequences each time, which are not in the processor's cache.
  _, sample_cpu = benchmark_parts.rate(
      lambda: replay.sample(settings.batch_size, next(seeds)), settings.batch_size, seconds / 2)
  return {'insert_cpu_seconds': insert_cpu, 'sample_cpu_seconds': sample_cpu}


def priorities(seconds):
  """Measures the CPU time to draw a sequence, and to set a priority, in a replay of a million sequences."""
  tf = benchmark_parts.one_thread()
  from scalable_agents.replay import sequence_replay as replay_lib
  replay = replay_lib.SequenceReplay(
      {'done': tf.TensorSpec([], tf.bool)}, (), replay_lib.Geometry(0, 1, 1), SEQUENCES,
      done=lambda rows: rows['done'], priority_exponent=0.9)
  length, batch = 10_000, 10_000
  done = tf.ones([length + 1, 1], tf.bool)  # Every row begins an episode, so every step is a sequence.
  random = np.random.RandomState(0)
  for index in range(SEQUENCES // length):
    inserted = replay.insert([0], [index], [0], done, {'done': done}, ())
    replay.update(inserted.key, random.uniform(size=inserted.key.shape).astype(np.float32))
  keys = tf.constant(random.randint(SEQUENCES, size=batch))
  values = tf.constant(random.uniform(size=batch), tf.float32)
  seeds = iter(range(1 << 60))
  _, sample_cpu = benchmark_parts.rate(lambda: replay.sample(batch, next(seeds)), batch, seconds / 2)
  _, update_cpu = benchmark_parts.rate(lambda: replay.update(keys, values), batch, seconds / 2)
  return {'sequences': replay.statistics().size, 'sample_cpu_seconds': sample_cpu, 'update_cpu_seconds': update_cpu}


def learner_batch(tf, workload, agent, config):
  """Returns a learner_step.Batch of sequences with random data, the same in each call; see benchmark_parts."""
  from scalable_agents.actor import unroll
  from scalable_agents.agents import r2d2
  from scalable_agents.experience import replay_experience
  from scalable_agents.learner import learner_step
  random = np.random.RandomState(0)
  size, rows = config.batch_size, workload.learner_rows
  num_actions = constant_environment.LEVELS[workload.level].num_actions

  def zeros(*shape, dtype=tf.float32):
    return tf.zeros([*shape, size], dtype)

  state = agent.initial_state(size)
  observation, earlier_frames = benchmark_parts.observations_of_unrolls(tf, workload, rows, size)
  return learner_step.Batch(
      unroll.Unroll(zeros(dtype=tf.int32), zeros(dtype=tf.int32), zeros(dtype=tf.int64), zeros(dtype=tf.int64),
                    state.network, earlier_frames,
                    unroll.EnvironmentOutput(tf.constant(random.normal(size=[rows, size]), tf.float32), zeros(rows) + 1,
                                             zeros(rows, dtype=tf.bool), zeros(rows), zeros(rows, dtype=tf.int32),
                                             observation),
                    r2d2.BehaviourOutput(tf.constant(random.randint(num_actions, size=[rows, size]), tf.int32),
                                         zeros(rows), zeros(rows), (), ()),
                    zeros(rows, dtype=tf.int64)),
      replay_experience.SequenceSample(
          zeros(config.sequence_length, dtype=tf.bool) | True, zeros() + 0.1, zeros(dtype=tf.int64),
          tf.nest.map_structure(lambda x: x[tf.newaxis][:0], state.network), zeros(dtype=tf.int64),
          zeros(dtype=tf.int64)))


def learner(seconds, workload):
  """Measures the CPU time of learning from a sequence, on one thread."""
  tf = benchmark_parts.one_thread()
  definition, config = benchmark_parts.definition_and_config(workload)
  agent = benchmark_parts.make_agent(tf, workload, definition, config)
  agents_learner = definition.make_learner(agent, config)
  batch = learner_batch(tf, workload, agent, config)
  per_second, cpu = benchmark_parts.rate(lambda: agents_learner.step(batch), config.batch_size, seconds)
  return {'sequences_per_second': per_second, 'cpu_seconds': cpu}


def end_to_end(seconds, workload):
  """Measures the agent steps/s of a training run after its start, and its inference batch size."""
  steady = benchmark_parts.training_rows(seconds, workload)
  frames, sampled = (steady[-1][name] - steady[0][name] for name in ('environment_frames', 'sequences_sampled'))
  return {'steps_per_second': training_rate.frames_per_second(steady) / 4,
          'inference_batch_size': benchmark_parts.mean_of(steady, 'inference_batch_size'),
          'sequences_learned_per_step': sampled / (frames / 4)}
