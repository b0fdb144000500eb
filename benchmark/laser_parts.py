"""The parts of the benchmark that belong to LASER and its replay. Each function measures one part in its own process.

The functions import TensorFlow themselves, as those of benchmark_parts.py do.
"""

from scalable_agents.benchmark import benchmark_parts
from scalable_agents.benchmark import training_rate

_EPISODE_UNROLLS = 42  # An episode of Pong has about 800 agent steps.


def pong(precision: str) -> benchmark_parts.Workload:
  """Returns the workload of Pong: the paper's unrolls and share of replay, with the shallow network.

  Args:
    precision: the value of --torso_precision.
  """
  return benchmark_parts.Workload(
      dict(level_name=benchmark_parts.GAME, torso='shallow', torso_precision=precision, unroll_length=19, batch_size=40,
           replay_share=0.8, replay_capacity=50_000, replay_minimum_size=2_000, save_replay=False),
      level='atari', learner_rows=20, wanted_share=0.87, agent='laser')


def replayers(seconds, workload, use_lstm):
  """Measures the CPU time per agent step inserted, and per agent step replayed, on one thread.

  Args:
    seconds: duration.
    workload: the workload.
    use_lstm: whether the agent has an LSTM, so that replayers compute its states.
  """
  tf = benchmark_parts.one_thread()
  from scalable_agents.actor import inference
  from scalable_agents.actor import parameters
  from scalable_agents.actor import unroll
  from scalable_agents.agents import impala
  from scalable_agents.benchmark import constant_environment
  from scalable_agents.experience import replayers as replayers_lib
  workload = workload._replace(config=workload.config | {'use_lstm': use_lstm})
  definition, config = benchmark_parts.definition_and_config(workload)
  agent = benchmark_parts.make_agent(tf, workload, definition, config)
  snapshot = parameters.ParameterSnapshot(inference.specs(agent.acting_variables))
  snapshot.publish(0, list(agent.acting_variables))
  num_new, num_replayed = config.split_batch()
  rows = [config.unroll_length + 1, num_new]
  numbers = iter(range(1 << 60))
  logits = tf.zeros([*rows, constant_environment.LEVELS[workload.level].num_actions])
  observation, earlier_frames = benchmark_parts.observations_of_unrolls(tf, workload, *rows)
  environment = unroll.EnvironmentOutput(
      tf.random.normal(rows), tf.ones(rows), tf.zeros(rows, tf.bool), tf.zeros(rows), tf.zeros(rows, tf.int32),
      observation)

  def next_unroll():
    number = next(numbers)
    ends = number % _EPISODE_UNROLLS == _EPISODE_UNROLLS - 1
    done = tf.concat([tf.fill([1, num_new], number % _EPISODE_UNROLLS == 0), tf.fill([rows[0] - 2, num_new], False),
                      tf.fill([1, num_new], ends)], axis=0)
    return unroll.Unroll(
        tf.zeros(rows[1:], tf.int32), tf.range(num_new), tf.range(num_new, dtype=tf.int64),
        tf.fill(rows[1:], tf.constant(number, tf.int64)), agent.initial_state(num_new),
        earlier_frames, environment._replace(done=done), impala.BehaviourOutput(tf.zeros(rows, tf.int32), logits),
        tf.zeros(rows, tf.int64))

  has_time = unroll.has_time(next_unroll())
  spec = tf.nest.map_structure(
      lambda x, with_time: tf.TensorSpec([x.shape[0], *x.shape[2:]] if with_time else x.shape[1:], x.dtype),
      next_unroll(), has_time)
  numbers = iter(range(1 << 60))
  stacks = benchmark_parts.frame_stacks(workload)
  replay = replayers_lib.Replayers(
      spec, stacks, replayers_lib.own_replay(spec, stacks, config.replay_capacity, config.batch_size), num_replayed,
      agent if use_lstm else None, snapshot, minimum_size=1)
  insert = tf.function(replay.insert, autograph=False)
  while replay.metrics()['replay_size'] < config.replay_capacity // 2:
    insert(next_unroll())
  steps = config.unroll_length
  _, insert_cpu = benchmark_parts.rate(lambda: insert(next_unroll()), num_new * steps, seconds / 2)
  draw = tf.function(lambda seed: replay.draw(num_replayed, seed), autograph=False)
  seeds = iter(range(1 << 60))
  _, replay_cpu = benchmark_parts.rate(lambda: draw(tf.constant(next(seeds), tf.int64)), num_replayed * steps,
                                       seconds / 2)
  return {'insert_cpu_seconds': insert_cpu, 'replay_cpu_seconds': replay_cpu}


def end_to_end(seconds, workload):
  """Measures the agent steps/s of a training run after its start, and its inference batch size."""
  steady = benchmark_parts.training_rows(seconds, workload)
  return {'steps_per_second': training_rate.frames_per_second(steady) / 4,
          'inference_batch_size': benchmark_parts.mean_of(steady, 'inference_batch_size')}
