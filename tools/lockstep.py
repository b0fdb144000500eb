"""Trains a LASER agent on `quiz` in lockstep: acting, replay and learning take turns in one process.

So runs are repeatable. The program uses the project's own agent, loss, learner, replay of episodes and replayers. A
loop replaces only the actors and their queue. Another player that always guesses may insert into the same replay.
"""

import dataclasses
from typing import Any, NamedTuple, cast
import zlib

import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import laser
from scalable_agents.agents import registry
from scalable_agents.environments import quiz
from scalable_agents.experience import experience
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import mixed_experience
from scalable_agents.experience import replayers

NO_REPLAY, OWN, SHARED = 'no replay', 'own replay', 'shared replay'
_NUM_NEW, _NUM_REPLAYED, _LENGTH = 8, 16, 8  # Unrolls of a batch, and agent steps of an unroll.
_BUCKETS = 20                                # Points of a curve.
# With the level's -0.6 and this entropy cost, guesses do not mislead the agent: naive sharing is better than no replay.
_WRONG_REWARD, _ENTROPY_COST = -0.8, 0.3
_NUM_ACTIONS = quiz.Quiz(seed=0).action_spec().num_values


class Run(NamedTuple):
  """What is trained."""
  replay: str                # NO_REPLAY, OWN, or SHARED with a player that guesses.
  threshold: float           # b of the trust region.
  learning_rate: float
  seed: int
  frames: int                # Of the agent that learns.
  entropy_steps: str         # Those with the entropy bonus: 'online' or 'all'.


class _Players:
  """Plays `quiz` in many environments, and makes unrolls."""

  def __init__(self, first_stream: int, seed: int):
    self._environments = [quiz.Quiz(seed=1000 * seed + first_stream + i, wrong_reward=_WRONG_REWARD)
                          for i in range(_NUM_NEW)]
    self._ids = np.arange(first_stream, first_stream + _NUM_NEW)
    self._index = 0
    zeros = np.zeros(_NUM_NEW, np.float32)
    self._row = (zeros, zeros, np.ones(_NUM_NEW, bool), self._observe([each.reset() for each in self._environments]),
                 np.zeros(_NUM_NEW, np.int32), np.zeros([_NUM_NEW, _NUM_ACTIONS], np.float32))
    self._returns = np.zeros(_NUM_NEW)
    self.finished = []  # Returns of the episodes that have ended.

  def unroll(self, select) -> unroll_lib.Unroll:
    """Plays for an unroll. `select` takes the row and returns actions [B] int32 and logits [B, A]."""
    rows = [self._row]
    for _ in range(_LENGTH):
      self._row = self._step(*select(self._row))
      rows.append(self._row)
    index = self._index
    self._index += 1
    reward, discount, done, vector, action, logits = (tf.constant(np.stack(parts)) for parts in zip(*rows, strict=True))
    zeros = tf.zeros_like(reward)
    return unroll_lib.Unroll(
        level_id=tf.zeros([_NUM_NEW], tf.int32), actor_id=tf.range(_NUM_NEW),
        stream_id=tf.constant(self._ids, tf.int64), index=tf.fill([_NUM_NEW], tf.constant(index, tf.int64)),
        agent_state=(), earlier_frames={}, environment_output=unroll_lib.EnvironmentOutput(
            reward, discount, done, zeros, tf.cast(zeros, tf.int32), {'vector': vector}),
        agent_output=impala.BehaviourOutput(action, logits), parameter_version=tf.cast(zeros, tf.int64))

  def _step(self, actions, logits):
    steps = [environment.step(action) for environment, action in zip(self._environments, actions, strict=True)]
    reward = np.array([step.reward for step in steps], np.float32)
    discount = np.array([step.discount for step in steps], np.float32)
    done = np.array([step.last() for step in steps])
    self._returns += reward
    self.finished += self._returns[done].tolist()
    self._returns[done] = 0.
    steps = [environment.reset() if step.last() else step
             for environment, step in zip(self._environments, steps, strict=True)]
    return reward, discount, done, self._observe(steps), actions, logits

  @staticmethod
  def _observe(steps):
    return np.stack([step.observation['vector'] for step in steps])


class _Intake:
  """Takes the place of the queue. Unrolls are played when a batch is taken."""

  def __init__(self, players, select):
    self._players = players
    self._select = select

  def take_batch(self, unused_batch_size):
    unroll = self._players.unroll(self._select)
    nothing = intake_lib.Episodes(*[tf.constant([intake_lib.NO_LEVEL])] * 3)
    return unroll, intake_lib.Arrived(_NUM_NEW * _LENGTH, nothing, unroll.actor_id, unroll.parameter_version[1:])


def settings_of(run: Run) -> configs.LaserConfig:
  """Returns all settings of a run."""
  num_replayed = 0 if run.replay == NO_REPLAY else _NUM_REPLAYED
  batch_size = _NUM_NEW + num_replayed
  return dataclasses.replace(
      cast(configs.LaserConfig, registry.PRESETS['laser_atari57'].config), level_name='quiz', torso='shallow',
      unroll_length=_LENGTH, batch_size=batch_size, replay_share=num_replayed / batch_size, replay_capacity=20_000,
      replay_minimum_size=500, learning_rate=run.learning_rate, entropy_cost=_ENTROPY_COST, discount=0.99,
      reward_transform='none', trust_region_threshold=run.threshold, entropy_steps=run.entropy_steps, seed=run.seed)


def fingerprint(run: Run) -> str:
  """Returns a text that changes with any setting of a run, also with those that are constants here."""
  return f'{zlib.crc32(repr((_WRONG_REWARD, _BUCKETS, settings_of(run))).encode()):08x}'


def train(run: Run) -> list[float]:
  """Trains. Returns the mean returns of the episodes in equal parts of the run, as shares of the optimal return."""
  tf.config.set_visible_devices([], 'GPU')  # On so small a network, the CPU is faster.
  tf.config.threading.set_intra_op_parallelism_threads(1)
  has_replay, config = run.replay != NO_REPLAY, settings_of(run)
  players = _Players(0, run.seed)
  vector = {'vector': tf.TensorSpec(quiz.Quiz(seed=0).observation_spec()['vector'].shape, tf.float32)}
  agent = laser.Agent(agent_lib.EnvironmentSpec(_NUM_ACTIONS, vector, ('quiz',)), config)
  learner = laser.LASER.make_learner(agent, config, device='/CPU:0')
  random = np.random.RandomState(run.seed)

  @tf.function(autograph=False)
  def act(observation, seed):
    zeros = tf.zeros([_NUM_NEW])
    inputs = acting.ActorInput(tf.range(_NUM_NEW), zeros, tf.range(_NUM_NEW), zeros, zeros, zeros > 0,
                               {'vector': observation})
    return agent.step(inputs, (), seed)[0]

  def select(row):
    output = act(row[3], tf.constant(random.randint(1 << 30, size=2)))
    return output.action.numpy(), output.policy_logits.numpy()

  def guess(unused_row):
    return random.randint(_NUM_ACTIONS, size=_NUM_NEW).astype(np.int32), np.zeros([_NUM_NEW, _NUM_ACTIONS], np.float32)

  intake: Any = _Intake(players, select)
  no_parameters: Any = None  # Without a recurrent state, the replayers need none.
  source, guessers = experience.QueueExperience(intake, _NUM_NEW), _Players(_NUM_NEW, run.seed)
  if has_replay:
    example = guessers.unroll(guess)  # For its shapes only.
    spec = tf.nest.map_structure(
        lambda has_time, each: tf.TensorSpec(
            [each.shape[0], *each.shape[2:]] if has_time else each.shape[1:], each.dtype),
        unroll_lib.has_time(example), example)
    episodes = replayers.own_replay(spec, {}, config.replay_capacity, config.batch_size)
    replay = replayers.Replayers(spec, {}, episodes, _NUM_REPLAYED, None, no_parameters, config.replay_minimum_size)
    source = mixed_experience.MixedExperience(
        intake, replay, mixed_experience.MixedSettings(_NUM_NEW, _NUM_REPLAYED), run.seed)
  updates, curve = run.frames // (_NUM_NEW * _LENGTH), []
  for update in range(1, updates + 1):
    if run.replay == SHARED:
      replay.insert(guessers.unroll(guess))
    learner.step(source.take_batch()[0])
    if update * _BUCKETS >= updates * (len(curve) + 1):
      curve.append(float(np.mean(players.finished)) / quiz.Quiz.optimal_return)
      players.finished.clear()
  return curve
