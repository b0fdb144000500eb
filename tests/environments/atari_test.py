"""Tests of environments/atari.py, by comparison with a second emulator that gets the same actions."""

import collections
from concurrent import futures
import json
import math
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ale_py
import ale_py.roms
import cv2
from dm_env import test_utils
import numpy as np

from scalable_agents.environments import atari
from scalable_agents.environments import pixel_pass

_NO_NOOPS = atari.AtariSettings(noop_max=0)


def _emulator(game, seed=0, repeat_action_probability=0.0):
  ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
  emulator = ale_py.ALEInterface()
  emulator.setInt('random_seed', seed)
  emulator.setFloat('repeat_action_probability', repeat_action_probability)
  emulator.loadROM(ale_py.roms.get_rom_path(game))
  emulator.reset_game()
  return emulator


def _average_rows(screen, rows):
  """[rows, W] float64: each new row the mean of the area it covers, by way of rows that divide both old and new."""
  parts = rows // math.gcd(len(screen), rows)
  return np.repeat(screen, parts, axis=0).reshape(rows, -1, screen.shape[1]).mean(axis=1)


def _area_average(screen, height=84, width=84):
  """Returns the mean over the area that each resized pixel covers, before rounding."""
  return _average_rows(_average_rows(screen, height).T, width).T


def _rounded(means):
  """Returns the nearest whole numbers. Halves are rounded up; those that are a little below by an error, too."""
  return np.floor(means + 0.5 + 1e-9)


class _Reference:
  """A plain second implementation of the protocol, without no-ops. It also keeps the frames before resizing."""

  def __init__(self, game):
    self.emulator = _emulator(game)
    self.actions = self.emulator.getMinimalActionSet()
    self.pooled = self.emulator.getScreenGrayscale()
    self.last = self.pooled
    self.stack = collections.deque([np.zeros((84, 84))] * 3 + [_area_average(self.pooled)], maxlen=4)

  def step(self, action):
    screens, reward = [], 0
    while len(screens) < 4 and not self.emulator.game_over():
      reward += self.emulator.act(self.actions[action])
      screens.append(self.emulator.getScreenGrayscale())
    self.last = screens[-1]
    self.pooled = self.last if self.emulator.game_over() else np.max(screens[-2:], axis=0)
    self.stack.append(_area_average(self.pooled))
    return reward


class SettingsTest(parameterized.TestCase):

  @parameterized.parameters(
      dict(action_repeats=0), dict(max_pooled_frames=0), dict(max_pooled_frames=5), dict(height=0), dict(width=-84),
      dict(frame_stack=0), dict(noop_max=-1), dict(noop_max=100, max_episode_frames=100), dict(max_episode_frames=0),
      dict(sticky_actions=-0.1), dict(sticky_actions=1.0))
  def test_refuses_values_out_of_range_by_name(self, **values):
    with self.assertRaisesRegex(ValueError, f'^{list(values)[0]}: want .*got {list(values.values())[0]}$'):
      atari.AtariSettings(**values)

  def test_travels_as_json(self):
    settings = atari.AtariSettings(noop_max=37, episode_end_on_life_loss=True, sticky_actions=0.25)
    self.assertEqual(atari.AtariSettings(**json.loads(json.dumps(vars(settings)))), settings)

  def test_defaults_are_the_papers_protocol(self):
    self.assertEqual(vars(atari.AtariSettings()), dict(
        action_repeats=4, max_pooled_frames=2, height=84, width=84, frame_stack=4, noop_max=30,
        episode_end_on_life_loss=False, full_action_set=False, sticky_actions=0.0, max_episode_frames=108_000))


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return atari.Atari('breakout', seed=0, settings=atari.AtariSettings(max_episode_frames=60))


class PreprocessingTest(parameterized.TestCase):

  @parameterized.parameters('breakout', 'seaquest', 'asteroids')
  def test_observes_stacked_area_averages_of_pooled_gray_screens(self, game):
    environment = atari.Atari(game, seed=0, settings=_NO_NOOPS)
    reference = _Reference(game)
    random = np.random.RandomState(0)
    time_step = environment.reset()
    differing, flickers = [], 0
    for _ in range(250):
      observed = time_step.observation['pixels']
      self.assertEqual((observed.shape, observed.dtype), ((84, 84, 4), np.uint8))
      expected = np.stack(reference.stack, axis=-1)
      np.testing.assert_array_equal(observed, _rounded(expected))
      by_opencv = cv2.resize(reference.pooled, (84, 84), interpolation=cv2.INTER_AREA)
      differing.append(np.abs(observed[..., 3] - by_opencv.astype(int)))
      action = random.randint(environment.action_spec().num_values)
      time_step = environment.step(action)
      self.assertEqual(time_step.reward, reference.step(action))
      if time_step.last():
        break
      flickers += (reference.pooled != reference.last).any()
    self.assertLessEqual(np.max(differing), 1)  # OpenCV computes in single precision, or rounds halves otherwise.
    self.assertLess(np.mean(differing), 0.005)
    self.assertGreater(flickers, 50)  # Otherwise pooling would not be tested.

  def test_without_the_library_the_observations_are_the_same(self):
    native = atari.Atari('seaquest', seed=0)
    with mock.patch.object(pixel_pass, '_load', lambda: None):
      in_numpy = atari.Atari('seaquest', seed=0)
    for number in range(100):
      got, want = (one.step(number % 18).observation['pixels'] for one in (in_numpy, native))
      np.testing.assert_array_equal(got, want)

  def test_an_episode_starts_with_an_empty_stack_and_leaves_nothing_to_the_next(self):
    environment = atari.Atari('pong', seed=0)
    environment.reset()
    for _ in range(30):
      environment.step(2)
    for _ in range(2):
      pixels = environment.reset().observation['pixels']
      self.assertEqual(pixels[..., :3].max(), 0)
      self.assertGreater(pixels[..., 3].max(), 0)

  def test_observations_are_not_written_again(self):
    environment = atari.Atari('pong', seed=0)
    first = environment.reset().observation['pixels']
    before = first.copy()
    second = environment.step(2).observation['pixels']
    for _ in range(10):
      environment.step(3)
    np.testing.assert_array_equal(first, before)
    np.testing.assert_array_equal(second[..., 2], first[..., 3])

  def test_observations_are_written_to_the_arrays_that_are_given(self):
    environment, usual = (atari.Atari('pong', seed=0) for _ in range(2))
    given = np.full([84, 84, 4], 7, np.uint8)
    environment.write_observations_to({'pixels': given})
    for action in range(6):
      observed, want = (one.step(action).observation['pixels'] for one in (environment, usual))
      self.assertIs(observed, given)
      np.testing.assert_array_equal(given, want)
    for one in (environment, usual):
      observed = one.reset().observation['pixels']
      self.assertEqual(observed[..., :3].max(), 0)

  def test_environments_in_threads_do_not_mix_their_screens(self):
    def play(game):
      environment = atari.Atari(game, seed=0)
      return [environment.step(number % 3).observation['pixels'] for number in range(60)]

    games = 'pong', 'seaquest'
    alone = [play(game) for game in games]
    with futures.ThreadPoolExecutor(2) as threads:
      at_once = list(threads.map(play, games))
    np.testing.assert_array_equal(at_once, alone)

  def test_every_part_of_the_protocol_is_an_argument(self):
    settings = atari.AtariSettings(
        action_repeats=6, max_pooled_frames=3, height=40, width=60, frame_stack=2, noop_max=0)
    environment = atari.Atari('seaquest', seed=0, settings=settings)
    self.assertEqual((environment.frames_per_step, environment.frame_stacks), (6, {'pixels': 2}))
    environment.reset()
    observed = environment.step(1).observation['pixels']
    emulator = _emulator('seaquest')
    screens = []
    for _ in range(6):
      emulator.act(emulator.getMinimalActionSet()[1])
      screens.append(emulator.getScreenGrayscale())
    self.assertEqual(observed.shape, (40, 60, 2))
    np.testing.assert_allclose(observed[..., 1], _area_average(np.max(screens[-3:], axis=0), 40, 60), atol=0.501)

  def test_a_single_frame_without_repeats_or_pooling(self):
    settings = atari.AtariSettings(action_repeats=1, max_pooled_frames=1, frame_stack=1, noop_max=0)
    environment = atari.Atari('seaquest', seed=0, settings=settings)
    environment.reset()
    observed = environment.step(1).observation['pixels']
    emulator = _emulator('seaquest')
    emulator.act(emulator.getMinimalActionSet()[1])
    self.assertEqual(observed.shape, (84, 84, 1))
    np.testing.assert_allclose(observed[..., 0], _area_average(emulator.getScreenGrayscale()), atol=0.501)


class NoopTest(absltest.TestCase):

  def _counts(self, seed, episodes, **settings):
    environment = atari.Atari('freeway', seed=seed, settings=atari.AtariSettings(**settings))
    counts = []
    for _ in range(episodes):
      environment.reset()
      counts.append(environment._emulator.getEpisodeFrameNumber())
    return counts

  def test_counts_are_uniform_from_1_to_30_and_drawn_from_the_seed(self):
    counts = self._counts(seed=3, episodes=300)
    self.assertEqual(set(counts), set(range(1, 31)))
    # Chi-squared with 29 degrees of freedom: one seed in a thousand exceeds 58.3.
    expected = len(counts) / 30
    chi_squared = sum((counts.count(n) - expected)**2 / expected for n in range(1, 31))
    self.assertLess(chi_squared, 58.3)
    self.assertEqual(self._counts(seed=3, episodes=10), counts[:10])
    self.assertNotEqual(self._counts(seed=4, episodes=10), counts[:10])

  def test_the_largest_count_is_an_argument(self):
    self.assertEqual(set(self._counts(seed=0, episodes=5, noop_max=0)), {0})
    self.assertEqual(set(self._counts(seed=0, episodes=5, noop_max=1)), {1})
    self.assertEqual(set(self._counts(seed=0, episodes=30, noop_max=3)), {1, 2, 3})

  def test_noops_are_what_is_played(self):
    environment = atari.Atari('breakout', seed=5)
    observed = environment.reset().observation['pixels'][..., 3]
    emulator = _emulator('breakout')
    for _ in range(environment._emulator.getEpisodeFrameNumber()):
      emulator.act(ale_py.Action.NOOP)
    np.testing.assert_allclose(observed, _area_average(emulator.getScreenGrayscale()), atol=0.501)
    np.testing.assert_array_equal(environment._emulator.getRAM(), emulator.getRAM())

  def test_a_game_that_ends_during_noops_starts_again(self):
    emulator = _emulator('pong')
    idle_frames = 0
    while not emulator.game_over():
      emulator.act(ale_py.Action.NOOP)
      idle_frames += 1
    noops = idle_frames + 9
    seed = next(seed for seed in range(100_000) if np.random.RandomState(seed).randint(1, noops + 1) == noops)
    environment = atari.Atari('pong', seed=seed, settings=atari.AtariSettings(
        noop_max=noops, max_episode_frames=noops + 1))
    environment.reset()
    self.assertFalse(environment._emulator.game_over())
    self.assertEqual(environment._emulator.getEpisodeFrameNumber(), noops - idle_frames)
    self.assertTrue(environment.step(0).mid())  # The frames of the game that has ended do not count.


class EndOfEpisodeTest(absltest.TestCase):

  def _play_breakout(self, **settings):
    """Plays an episode of random actions. Returns (time steps, lives before the first and after each step)."""
    environment = atari.Atari('breakout', seed=0, settings=atari.AtariSettings(noop_max=0, **settings))
    random = np.random.RandomState(0)
    time_steps, lives = [environment.reset()], [environment._emulator.lives()]
    while not time_steps[-1].last():
      time_steps.append(environment.step(random.randint(4)))
      lives.append(environment._emulator.lives())
    return time_steps, lives

  def test_a_lost_life_is_a_mid_step_with_discount_0_and_the_game_goes_on(self):
    time_steps, lives = self._play_breakout(episode_end_on_life_loss=True)
    reference = _Reference('breakout')
    random = np.random.RandomState(0)
    total = 0
    while not reference.emulator.game_over():
      total += reference.step(random.randint(4))
    self.assertGreater(total, 0)
    self.assertEqual(sum(time_step.reward for time_step in time_steps[1:]), total)
    self.assertEqual(lives[0], 5)
    self.assertEqual(lives[-1], 0)
    for before, after, time_step in zip(lives, lives[1:], time_steps[1:-1]):
      self.assertTrue(time_step.mid())
      self.assertEqual(time_step.discount, 0.0 if after < before else 1.0)
    self.assertLen([1 for time_step in time_steps[1:] if time_step.discount == 0.0], 5)
    # Only the last screen is shown, because the game ended while the action was repeated.
    np.testing.assert_allclose(
        time_steps[-1].observation['pixels'][..., 3], _area_average(reference.last), atol=0.501)

  def test_a_life_that_is_won_ends_nothing(self):
    settings = atari.AtariSettings(episode_end_on_life_loss=True, noop_max=0)
    environment = atari.Atari('breakout', seed=0, settings=settings)
    environment.reset()
    environment._emulator.setRAM(57, 7)  # The number of lives.
    self.assertEqual(environment.step(0).discount, 1.)
    self.assertEqual(environment._emulator.lives(), 7)

  def test_without_it_only_the_last_discount_differs_from_1(self):
    learning, _ = self._play_breakout(episode_end_on_life_loss=True)
    plain, _ = self._play_breakout()
    self.assertLen(plain, len(learning))
    for one, other in zip(learning[1:], plain[1:]):
      self.assertEqual((one.step_type, one.reward), (other.step_type, other.reward))
      np.testing.assert_array_equal(one.observation['pixels'], other.observation['pixels'])
    self.assertEqual({time_step.discount for time_step in plain[1:-1]}, {1.0})
    self.assertEqual(plain[-1].discount, 0.0)

  def test_rewards_are_summed_and_not_clipped(self):
    environment = atari.Atari('space_invaders', seed=0, settings=_NO_NOOPS)
    environment.reset()
    rewards = {environment.step(i % 6).reward for i in range(300)}
    self.assertGreater(max(rewards), 1.0)
    self.assertIs(type(max(rewards)), float)

  def test_the_cap_counts_noops_and_cuts_the_last_step_short(self):
    for seed in range(4):
      environment = atari.Atari('freeway', seed=seed, settings=atari.AtariSettings(max_episode_frames=61))
      for _ in range(2):
        time_step = environment.reset()
        noops = environment._emulator.getEpisodeFrameNumber()
        steps = 0
        while not time_step.last():
          self.assertLess(environment._emulator.getEpisodeFrameNumber(), 61)
          time_step = environment.step(1)
          steps += 1
        self.assertEqual(time_step.discount, 0.0)
        self.assertEqual(environment._emulator.getEpisodeFrameNumber(), 61)
        self.assertEqual(steps, -(-(61 - noops) // 4))

  def test_lives_of_an_abandoned_episode_are_not_lost_in_the_next(self):
    environment = atari.Atari('breakout', seed=0, settings=atari.AtariSettings(episode_end_on_life_loss=True))
    environment.reset()
    environment._emulator.setRAM(57, 7)  # The address of this game's number of lives.
    environment.step(0)
    self.assertEqual(environment._emulator.lives(), 7)
    environment.reset()
    time_step = environment.step(0)
    self.assertEqual(environment._emulator.lives(), 5)
    self.assertEqual(time_step.discount, 1.0)

  def test_a_step_of_one_frame_before_the_cap_shows_that_frame_alone(self):
    settings = atari.AtariSettings(noop_max=0, max_episode_frames=301)
    environment = atari.Atari('seaquest', seed=0, settings=settings)
    emulator = _emulator('seaquest')
    environment.reset()
    for _ in range(75):
      environment.step(1)
    time_step = environment.step(1)
    for _ in range(300):
      emulator.act(emulator.getMinimalActionSet()[1])
    before = emulator.getScreenGrayscale()
    emulator.act(emulator.getMinimalActionSet()[1])
    last = emulator.getScreenGrayscale()
    self.assertTrue((before > last).any())  # Otherwise a maximum with an older frame would not be noticed.
    self.assertTrue(time_step.last())
    np.testing.assert_allclose(time_step.observation['pixels'][..., 3], _area_average(last), atol=0.501)


class ActionTest(absltest.TestCase):

  def test_minimal_and_full_action_sets(self):
    for game, minimal in (('pong', 6), ('breakout', 4), ('seaquest', 18)):
      self.assertEqual(atari.Atari(game, seed=0).action_spec().num_values, minimal)
      full = atari.Atari(game, seed=0, settings=atari.AtariSettings(full_action_set=True))
      self.assertEqual(full.action_spec().num_values, 18)

  def test_indices_mean_ale_actions_in_order(self):
    for full in (False, True):
      settings = atari.AtariSettings(noop_max=0, full_action_set=full)
      environment = atari.Atari('pong', seed=0, settings=settings)
      emulator = _emulator('pong')
      meanings = emulator.getLegalActionSet() if full else emulator.getMinimalActionSet()
      environment.reset()
      for action in np.random.RandomState(0).randint(len(meanings), size=100):
        environment.step(action)
        for _ in range(4):
          emulator.act(meanings[action])
      np.testing.assert_array_equal(environment._emulator.getRAM(), emulator.getRAM())

  def _pixels(self, seed, **settings):
    environment = atari.Atari('breakout', seed=seed, settings=atari.AtariSettings(**settings))
    environment.reset()
    return np.stack([environment.step(a).observation['pixels'][..., 3]
                     for a in np.random.RandomState(0).randint(4, size=150)])

  def test_without_sticky_actions_the_game_is_a_function_of_the_actions(self):
    np.testing.assert_array_equal(self._pixels(1, noop_max=0), self._pixels(2, noop_max=0))

  def test_sticky_actions_are_drawn_from_the_seed(self):
    sticky = self._pixels(1, noop_max=0, sticky_actions=0.25)
    self.assertTrue((sticky != self._pixels(1, noop_max=0)).any())
    self.assertTrue((sticky != self._pixels(2, noop_max=0, sticky_actions=0.25)).any())
    np.testing.assert_array_equal(sticky, self._pixels(1, noop_max=0, sticky_actions=0.25))

  def test_each_frame_repeats_the_action_before_with_the_given_probability(self):
    environment = atari.Atari('seaquest', seed=3, settings=atari.AtariSettings(noop_max=0, sticky_actions=0.25))
    environment.reset()
    emulator = _emulator('seaquest', seed=3, repeat_action_probability=0.25)
    actions = emulator.getMinimalActionSet()
    for action in np.random.RandomState(0).randint(len(actions), size=100):
      environment.step(action)
      for _ in range(4):
        emulator.act(actions[action])
      np.testing.assert_array_equal(environment._emulator.getRAM(), emulator.getRAM())
    self.assertFalse(emulator.game_over())

  def test_one_seed_gives_one_game(self):
    np.testing.assert_array_equal(self._pixels(1), self._pixels(1))
    self.assertTrue((self._pixels(1) != self._pixels(2)).any())


class LoadingTest(absltest.TestCase):

  def test_renders_the_screen_in_colour(self):
    environment = atari.Atari('pong', seed=0)
    environment.reset()
    picture = environment.render()
    self.assertEqual((picture.shape, picture.dtype), ((210, 160, 3), np.uint8))
    self.assertGreater(len(np.unique(picture.reshape(-1, 3), axis=0)), 3)

  def test_an_unknown_game_is_named(self):
    with self.assertRaisesRegex(ValueError, 'no_such_game: ale-py .* has no such game'):
      atari.Atari('no_such_game', seed=0)

  def test_a_missing_package_is_named_with_its_remedy(self):
    with mock.patch.dict(sys.modules, {'ale_py': None}):
      with self.assertRaisesRegex(ImportError, 'pong: .*ale_py.*pip install ale-py'):
        atari.Atari('pong', seed=0)

  def test_prints_nothing(self):
    script = ('from scalable_agents.environments import atari\n'
              'environment = atari.Atari("pong", seed=0)\n'
              'environment.reset(), environment.step(0), environment.close()\n')
    result = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, check=True)
    self.assertEqual((result.stdout, result.stderr), ('', ''))


if __name__ == '__main__':
  absltest.main()
