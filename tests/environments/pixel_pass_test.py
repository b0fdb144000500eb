"""Tests of pixel_pass: all of its codes against means in double precision."""

from concurrent import futures
import itertools

from absl.testing import absltest
import hypothesis
from hypothesis import strategies as st
import numpy as np

from scalable_agents.environments import pixel_pass

_ATARI = (210, 160), (84, 84)


def _passes(screen, observation, stack):
  """Returns the pixels of an environment, by each code that this processor can run."""
  library = pixel_pass._load()
  native = [pixel_pass.NativePixelPass(library, screen, observation, stack, instructions)
            for instructions in range(library.scalable_agents_best_instructions() + 1)]
  return [*native, pixel_pass.NumpyPixelPass(screen, observation, stack)]


def _means(image, axis, new_size):
  """Resizes an axis: the integral of the image over each new pixel, divided by its length."""
  edges = np.linspace(0, image.shape[axis], new_size + 1)
  integral = np.concatenate([np.zeros([1, image.shape[1 - axis]]), np.cumsum(np.moveaxis(image, axis, 0), axis=0)])
  at_edges = np.stack([np.interp(edges, np.arange(len(integral)), column) for column in integral.T], axis=1)
  return np.moveaxis(np.diff(at_edges, axis=0) * new_size / image.shape[axis], 0, axis)


def _resized(image, height, width):
  """Returns the exact means, rounded; halves are rounded up."""
  return np.floor(_means(_means(image.astype(np.float64), 0, height), 1, width) + 0.5 + 1e-6).astype(np.uint8)


class _Console:
  """Shows random screens. `look` shows them to a pass as an environment does, with memory of its own for each pass."""

  def __init__(self, size, random, grays):
    self._size, self._screens = size, {}
    self.indices, self.gray = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    self._random, self._grays = random, grays

  def show(self, colours):
    """Shows another screen of some colours."""
    self.indices[:] = self._random.choice(colours, self.indices.shape)
    self.gray[:] = self._grays[self.indices]

  def look(self, pixels, is_first):
    """Lets a pass see the screen. Returns whether it knew all colours."""
    screens = self._screens.setdefault(pixels, pixel_pass.Screens(self._size))
    screens.indices[:] = self.indices
    if pixels.add(screens, is_first):
      return True
    pixels.add_gray(screens, self.gray, is_first)
    return False

  def observe(self, pixels):
    """Returns what a pass makes of the screens that it has seen."""
    pixels.observe(self._screens[pixels])
    return pixels.stack


class PixelPassTest(absltest.TestCase):

  @hypothesis.settings(deadline=None, max_examples=40, derandomize=True)
  @hypothesis.given(st.one_of(st.just(_ATARI), st.tuples(st.tuples(st.integers(1, 60), st.integers(1, 60)),
                                                         st.tuples(st.integers(1, 50), st.integers(1, 50)))),
                    st.sampled_from([1, 2, 3, 4, 4, 5]), st.sampled_from([1, 2, 3]), st.integers(0, 2 ** 32 - 1))
  def test_all_codes_give_the_rounded_means_of_the_maximum(self, sizes, stack, num_pooled, seed):
    (screen, observation), random = sizes, np.random.default_rng(seed)
    grays = random.integers(0, 256, 256, np.uint8)
    console, passes = _Console(screen, random, grays), _passes(screen, observation, stack)
    frames = [np.zeros(observation, np.uint8)] * stack
    for _ in range(4):
      colours = random.choice(256, random.integers(1, 30))
      pooled = np.zeros(screen, np.uint8)
      for number in range(num_pooled):
        console.show(colours)
        pooled = np.maximum(pooled, console.gray)
        for each in passes:
          console.look(each, number == 0)
      frames = [*frames[1:], _resized(pooled, *observation)]
      for each in passes:
        observed = console.observe(each)
        self.assertEqual(observed.dtype, np.uint8)
        np.testing.assert_array_equal(observed, np.stack(frames, axis=-1))

  def test_extreme_grays(self):
    for gray, each in itertools.product((0, 1, 254, 255), _passes(*_ATARI, 4)):
      screens = pixel_pass.Screens(_ATARI[0])
      each.add_gray(screens, np.full(_ATARI[0], gray, np.uint8), is_first=True)
      each.observe(screens)
      np.testing.assert_array_equal(each.stack[..., 3], gray)

  def test_a_colour_is_asked_for_once(self):
    grays = np.arange(255, -1, -1, np.int64).astype(np.uint8)  # Colour 0 has the gray that stands for an unknown one.
    console = _Console(_ATARI[0], np.random.default_rng(0), grays)
    for each in _passes(*_ATARI, 4)[:-1]:
      known = []
      for colours in ([4, 6], [4, 6], [6], [4, 8], [8], [0, 4], [0, 4]):
        console.show(colours)
        known.append(console.look(each, is_first=True))
        np.testing.assert_array_equal(console.observe(each)[..., 3], _resized(console.gray, 84, 84))
      self.assertEqual(known, [False, True, True, False, True, False, False])

  def test_after_clear_the_stack_is_empty(self):
    console = _Console(_ATARI[0], np.random.default_rng(0), np.full(256, 7, np.uint8))
    console.show([2])
    for each in _passes(*_ATARI, 4):
      for _ in range(3):
        console.look(each, is_first=True)
        console.observe(each)
      self.assertEqual(np.unique(each.stack, axis=1)[0].tolist(), [[0, 7, 7, 7]])
      each.clear()
      console.look(each, is_first=True)
      self.assertEqual(console.observe(each)[0, 0].tolist(), [0, 0, 0, 7])

  def test_the_stack_is_in_the_array_that_is_given(self):
    console = _Console(_ATARI[0], np.random.default_rng(0), np.full(256, 7, np.uint8))
    console.show([2])
    for each in _passes(*_ATARI, 4):
      given = np.full([84, 84, 4], 5, np.uint8)
      each.keep_stack_in(given)
      console.look(each, is_first=True)
      self.assertIs(console.observe(each), given)
      self.assertEqual(np.unique(given, axis=1)[0].tolist(), [[5, 5, 5, 7]])

  def test_environments_of_a_thread_share_the_memory_of_screens(self):
    ours, of_other_size = pixel_pass.screens((3, 2)), pixel_pass.screens((2, 3))
    self.assertIs(pixel_pass.screens((3, 2)), ours)
    self.assertIsNot(of_other_size, ours)
    with futures.ThreadPoolExecutor(1) as executor:
      self.assertIsNot(executor.submit(pixel_pass.screens, (3, 2)).result(), ours)

  def test_regression_threads_keep_their_memory_whatever_other_threads_do(self):
    ours = pixel_pass.screens((3, 2))
    for width in range(1, 200):
      with futures.ThreadPoolExecutor(1) as executor:
        executor.submit(pixel_pass.screens, (3, width)).result()
    self.assertIs(pixel_pass.screens((3, 2)), ours)

  def test_shares_are_the_lengths_of_the_covered_parts(self):
    self.assertEqual(pixel_pass.area_weights(5, 2).tolist(), [[2, 2, 1, 0, 0], [0, 0, 1, 2, 2]])
    self.assertEqual(pixel_pass.area_weights(2, 3).tolist(), [[2, 0], [1, 1], [0, 2]])


if __name__ == '__main__':
  absltest.main()
