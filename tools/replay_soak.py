"""Uses a full replay for a long time. Checks that its memory is flat, and that no key is lost or doubled.

  bazel run //tools:replay_soak -- --minutes=60

Some threads insert what made-up actors have lived, and one samples and sets priorities, at the paper's ratio and with
the paper's sequences. The replay is saved now and then. Actors lose unrolls and are replaced. Every sample is compared
with what was inserted under its key: the number of each row, and the pixels of its newest frame.

The program prints a line of progress each minute. Its last line is a JSON object. The exit code is 1 if a key comes
twice or not at all, a sample is not what was inserted, a sequence in the replay cannot be drawn, or the memory grows.
"""

import collections
import dataclasses
import json
import tempfile
import threading
import time
from typing import Any

from scalable_agents.training import kernels

if __name__ == '__main__':
  kernels.choose()  # Before TensorFlow is imported.

# pylint: disable=g-import-not-at-top
import numpy as np
import psutil
import tensorflow as tf

from scalable_agents.learner import replay as replay_lib
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.training import run_flags

_GEOMETRY = replay_lib.Geometry(burn_in=40, length=80, period=40)
_UNROLL_LENGTH, _BATCH_SIZE, _SAMPLES_PER_INSERT = 40, 64, 0.77
_LIVES_PER_WRITER = 8
_LOST_UNROLLS, _ENDED_LIVES, _ENDED_EPISODES = 1 / 100, 1 / 200, 1 / 500  # Shares of unrolls, unrolls and rows.
_SPEC = {'pixels': tf.TensorSpec([84, 84, 1], tf.uint8), 'done': tf.TensorSpec([], tf.bool),
         'number': tf.TensorSpec([], tf.int64)}
_DRAWS = 8  # Draws per sequence at the end, until it counts as lost.
_GROWTH = 1.05  # The largest memory in the second half of the time may be larger than in the first half by this.


@dataclasses.dataclass(frozen=True)
class ReplaySoakConfig:
  """The flags."""

  minutes: float = setting(60., 'Length of the test in minutes, counted from when the replay is full.', more_than=0,
                           at_most=100_000)
  capacity: int = setting(10_000, 'Sequences in the replay; 10,000 take 2.9 GB.', at_least=2 * _BATCH_SIZE,
                          at_most=10_000_000)
  writers: int = setting(2, 'Threads that insert.', at_least=1, at_most=100)
  inserts_per_second: float = setting(
      150., 'Sequences inserted per second, once the replay is full. 0: as many as it takes.', at_least=0, at_most=1e9)
  seconds_between_saves: float = setting(300., 'Seconds from one save to the next one.', more_than=0, at_most=1e9)
  seed: int = setting(1, 'Random seed of episodes, lost unrolls and samples.', at_least=0, at_most=settings.MAX_SEED)


class Soak:
  """A replay, what was inserted into it, and what was found to be wrong.

  Attributes:
    replay: the replay.
    error: a line that says what is wrong; None if nothing is.
    is_over: an event, set to end all threads, and by the first error.
  """

  def __init__(self, config: ReplaySoakConfig):
    self._config = config
    self.replay = _make_replay(config, replay_lib.RateLimit(
        _SAMPLES_PER_INSERT, tolerance=2 * _BATCH_SIZE, minimum_size=_BATCH_SIZE))
    self.error, self.is_over = None, threading.Event()
    self._lock = threading.Lock()
    self._rows = {}      # Key -> number of the row that the first trained step led to. Only for the newest keys.
    self._next_key = 0   # All smaller keys have come.
    self._early = set()  # Keys that have come, while a smaller one has not.
    self._next_life = 0
    work = [*((self._write, number) for number in range(config.writers)), (self._read,), (self._save,)]
    self._threads = [threading.Thread(target=self._run, args=arguments, daemon=True) for arguments in work]
    for thread in self._threads:
      thread.start()

  def is_full(self) -> bool:
    """Whether the replay is full."""
    return self.replay.statistics().size == self._config.capacity

  def end(self) -> replay_lib.Statistics:
    """Ends the threads, and checks that each key has come, and that each sequence can be drawn. Returns the counts."""
    self.is_over.set()
    self.replay.close()
    for thread in self._threads:
      thread.join()
    counts = self.replay.statistics()
    if not self.error:
      self._run(self._check_all, counts)
    return counts

  def _check_all(self, counts):
    if self._next_key + len(self._early) != counts.inserted:
      self._fail(f'{counts.inserted} keys were given, but {self._next_key + len(self._early)} have come')
    left = set(range(counts.inserted - counts.size, counts.inserted))
    with tempfile.TemporaryDirectory() as folder:
      self.replay.save(f'{folder}/replay')
      self.replay = _make_replay(self._config)  # It may be sampled without inserts, and is not closed.
      self.replay.restore(f'{folder}/replay')
    for seed in range(_DRAWS * self._config.capacity // _BATCH_SIZE):
      sample = self._sample(seed)
      self._check(sample)
      left -= set(sample.key.tolist())
      # What was drawn gets so small a priority that it hardly ever comes again.
      self.replay.update(sample.key, np.full(_BATCH_SIZE, 1e-9, np.float32))
      if not left:
        return
    self._fail(f'{len(left)} of {counts.size} sequences in the replay cannot be drawn')

  def _fail(self, line):
    self.error = self.error or line
    self.is_over.set()

  def _run(self, work, *arguments):
    try:
      work(*arguments)
    except tf.errors.CancelledError as error:
      if not self.is_over.is_set():
        self._fail(str(error))
    except Exception as error:  # pylint: disable=broad-except; the main thread reports it.
      self._fail(f'{type(error).__name__}: {error}')

  def _write(self, number):
    """Inserts what some actors have lived."""
    random = np.random.RandomState([self._config.seed, number])
    lives = np.array([self._new_life() for _ in range(_LIVES_PER_WRITER)])
    indices, done = np.zeros_like(lives), np.ones(len(lives), bool)
    since_full, inserted = None, 0
    while not self.is_over.is_set():
      for place in np.flatnonzero(random.uniform(size=len(lives)) < _ENDED_LIVES):
        lives[place], indices[place], done[place] = self._new_life(), 0, True
      indices += random.uniform(size=len(lives)) < _LOST_UNROLLS
      numbers = _number(lives, indices * _UNROLL_LENGTH + np.arange(_UNROLL_LENGTH + 1)[:, np.newaxis])
      dones = np.concatenate([done[np.newaxis], random.uniform(size=(_UNROLL_LENGTH, len(lives))) < _ENDED_EPISODES])
      shades = _shade(numbers)[..., np.newaxis, np.newaxis, np.newaxis]
      pixels = np.broadcast_to(shades, (*numbers.shape, 84, 84, 1))
      rows = {'pixels': pixels, 'done': dones, 'number': numbers}
      new = self.replay.insert(lives, indices, np.zeros_like(lives), dones, rows, ())
      self._add(new.key.numpy().tolist(), new.signals.numpy()[0].tolist())
      self.replay.update(new.key, tf.ones_like(new.key, tf.float32))
      indices, done = indices + 1, dones[-1]
      if self.is_full() and self._config.inserts_per_second:
        since_full = since_full or time.monotonic()
        inserted += len(new.key)
        due = since_full + inserted * self._config.writers / self._config.inserts_per_second
        self.is_over.wait(max(due - time.monotonic(), 0))

  def _read(self):
    """Samples, checks, and sets priorities, also of sequences that have left the replay."""
    random = np.random.RandomState(self._config.seed)
    drawn = collections.deque(maxlen=max(self._config.capacity // _BATCH_SIZE, 2))  # Keys of the last batches.
    while not self.is_over.is_set():
      sample = self._sample(random.randint(2**31))
      self._check(sample)
      drawn.append(sample.key)
      for keys in (drawn[0], drawn[-1]):
        self.replay.update(keys, random.uniform(0.5, 1., size=_BATCH_SIZE).astype(np.float32))

  def _save(self):
    with tempfile.TemporaryDirectory() as folder:
      while not self.is_over.wait(self._config.seconds_between_saves):
        self.replay.save(f'{folder}/replay')

  def _new_life(self):
    with self._lock:
      self._next_life += 1
      return self._next_life

  def _add(self, keys, rows):
    """Takes note of new sequences."""
    with self._lock:
      for key, row in zip(keys, rows, strict=True):
        if key < self._next_key or key in self._early:
          self._fail(f'key {key} has come twice')
        self._early.add(key)
        self._rows[key] = row
        self._rows.pop(key - 2 * self._config.capacity, None)
      while self._next_key in self._early:
        self._early.remove(self._next_key)
        self._next_key += 1

  def _sample(self, seed):
    return tf.nest.map_structure(lambda values: values.numpy(), self.replay.sample(_BATCH_SIZE, seed))

  def _check(self, sample):
    """Compares a sample with what was inserted under its keys."""
    numbers, newest = sample.rows['number'], sample.rows['pixels'][..., -1]
    rows, first = np.arange(len(numbers))[:, np.newaxis], _GEOMETRY.burn_in + 1
    exists = np.concatenate([rows[:first] >= sample.padding, sample.trains])
    wanted = _number(sample.life_id, sample.life_row + rows)
    with self._lock:
      inserted = [self._rows.get(key) for key in sample.key.tolist()]
    same = (numbers == wanted) & (newest == _shade(wanted)[..., np.newaxis, np.newaxis]).all(axis=(2, 3))
    if inserted != wanted[first].tolist() or not same[exists].all():
      self._fail('a sample is not what was inserted under its key')


def _make_replay(config, rate_limit=replay_lib.UNLIMITED):
  return replay_lib.SequenceReplay(
      _SPEC, (), _GEOMETRY, config.capacity, done=lambda rows: rows['done'],
      frame_stacks={'pixels': 4, 'done': 1, 'number': 1}, signals=lambda rows: rows['number'], priority_exponent=0.9,
      rate_limit=rate_limit)


def _number(lives, rows):
  """A number that no other row has."""
  return lives * 2**32 + rows


def _shade(numbers):
  """The pixels of rows with these numbers."""
  return (numbers % 251).astype(np.uint8)


def run(soak: Soak, config: ReplaySoakConfig) -> dict[str, Any]:
  """Waits until the time is over, or until something is wrong, and ends the soak test.

  Returns:
    The numbers for the JSON line.
  """
  process = psutil.Process()
  while not soak.is_full() and not soak.is_over.wait(0.1):
    pass
  began = said = time.monotonic()
  halves = [0., 0.]  # The largest memory in each half of the time, in megabytes.
  while (passed := time.monotonic() - began) < 60 * config.minutes and not soak.is_over.wait(0.2):
    megabytes = process.memory_info().rss * 1e-6
    half = passed > 30 * config.minutes
    halves[half] = max(halves[half], megabytes)
    if time.monotonic() - said >= 60:
      said = time.monotonic()
      counts = soak.replay.statistics()
      print(f'minute {passed / 60:.0f}: {counts.inserted:,} inserted, {counts.sampled:,} sampled, '
            f'{counts.gaps:,} gaps, {megabytes:.0f} MB', flush=True)
  counts = soak.end()
  return counts._asdict() | {'megabytes': halves}


def main():
  """Runs the test. Returns the exit code, 1 after an error."""
  config = run_flags.config_from_flags(ReplaySoakConfig)
  soak = Soak(config)
  figures = run(soak, config)
  print(json.dumps(figures))
  first, second = figures['megabytes']
  if second > _GROWTH * first:
    soak.error = soak.error or f'the memory has grown from {first:.0f} to {second:.0f} MB'
  if soak.error:
    print(f'error: {soak.error}')
  return bool(soak.error)


if __name__ == '__main__':
  run_flags.define(ReplaySoakConfig())
  run_flags.run_main(main)
