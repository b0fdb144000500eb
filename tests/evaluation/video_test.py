"""Tests that videos show the pictures that were added, at the right speed, and that none is left incomplete."""

from fractions import Fraction
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import imageio_ffmpeg
import numpy as np
import psutil

from scalable_agents.evaluation import video
from scalable_agents.evaluation import viewers
from scalable_agents.records import errors


def _read(path):
  """Returns a video's pictures, uint8 [N, H, W, 3], and its duration in seconds."""
  frames = imageio_ffmpeg.read_frames(path)
  metadata = next(frames)
  width, height = metadata['size']
  return np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames]), metadata['duration']


def _pictures(count, height, width):
  """Returns pictures of large squares, each picture in colours of its own."""
  pictures = np.full([count, height, width, 3], [30, 60, 90], np.uint8)
  for i, picture in enumerate(pictures):
    picture[:height // 2, :width // 2] = [200, 10 * i, 255 - 10 * i]
  return pictures


class VideoTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._folder = self.create_tempdir().full_path

  def _path(self, name):
    return os.path.join(self._folder, name)

  @parameterized.product(ending=('mp4', 'gif'), pictures_per_second=(Fraction(15), Fraction(60, 7)))
  def test_pictures_and_speed(self, ending, pictures_per_second):
    pictures = _pictures(20, 42, 32)
    path = self._path(f'episode.{ending}')
    with video.Writer(path, pictures_per_second) as writer:
      for picture in pictures:
        writer.add(picture)
    shown, seconds = _read(path)
    self.assertAlmostEqual(seconds, 20 / pictures_per_second, delta=0.02)
    self.assertEqual(shown.shape, (20, 420, 320, 3))  # Enlarged ten times.
    # A GIF keeps the colours exactly, the other format only approximately.
    difference = np.abs(shown[:, 5::10, 5::10].astype(int) - pictures)
    self.assertLessEqual(difference.max(), 0 if ending == 'gif' else 20)
    self.assertEqual(os.listdir(self._folder), [f'episode.{ending}'])

  @parameterized.parameters('mp4', 'gif')
  def test_odd_sides_are_padded(self, ending):
    path = self._path(f'odd.{ending}')
    pictures = _pictures(3, 321, 323)
    with video.Writer(path, Fraction(15)) as writer:
      for picture in pictures:
        writer.add(picture)
    shown, _ = _read(path)
    self.assertEqual(shown.shape, (3, 322, 324, 3))
    self.assertLessEqual(np.abs(shown[:, 300, 300].astype(int) - pictures[:, 300, 300]).max(), 20)

  def test_an_exception_leaves_the_file_as_it_was(self):
    path = self._path('episode.gif')
    with open(path, 'wb') as file:
      file.write(b'before')
    with self.assertRaises(KeyboardInterrupt):
      with video.Writer(path, Fraction(15)) as writer:
        writer.add(_pictures(1, 8, 8)[0])
        raise KeyboardInterrupt
    with open(path, 'rb') as file:
      self.assertEqual(file.read(), b'before')
    self.assertEqual(os.listdir(self._folder), ['episode.gif'])

  def test_a_closed_window_ends_the_video(self):
    path = self._path('episode.gif')
    with self.assertRaises(viewers.Closed):
      with video.Writer(path, Fraction(15)) as writer:
        for picture in _pictures(3, 8, 8):
          writer.add(picture)
        raise viewers.Closed
    self.assertLen(_read(path)[0], 3)
    self.assertEqual(os.listdir(self._folder), ['episode.gif'])
    with self.assertRaises(viewers.Closed):
      with video.Writer(self._path('other.gif'), Fraction(15)):
        raise viewers.Closed  # Before the first picture.
    self.assertEqual(os.listdir(self._folder), ['episode.gif'])

  def test_pictures_of_another_size_are_refused(self):
    with self.assertRaisesRegex(ValueError, r'want \(8, 8, 3\), the size of the first one, got \(8, 9, 3\)'):
      with video.Writer(self._path('episode.mp4'), Fraction(15)) as writer:
        writer.add(_pictures(1, 8, 8)[0])
        writer.add(_pictures(1, 8, 9)[0])
    self.assertEmpty(os.listdir(self._folder))

  def test_an_encoder_that_fails_is_one_line(self):
    path = self._path('missing/episode.mp4')
    with self.assertRaisesRegex(errors.UserError, f'^--video={path}: no video could be written [^\n]*$'):
      with video.Writer(path, Fraction(15)) as writer:
        for picture in _pictures(20, 8, 8):
          writer.add(picture)

  def test_an_encoder_that_ends_early_says_what_may_be_wrong(self):
    with self.assertRaisesRegex(errors.UserError, r'could be written \(the encoder ended early: is the disk full\?\)$'):
      with video.Writer(self._path('episode.mp4'), Fraction(15)) as writer:
        for picture in _pictures(2, 8, 8):
          writer.add(picture)
        encoder, = psutil.Process().children()
        encoder.kill()
        psutil.wait_procs([encoder])
        for picture in 20 * [*_pictures(2, 8, 8)]:
          writer.add(picture)
    self.assertEmpty(os.listdir(self._folder))

  @parameterized.parameters('mp4', 'gif')
  def test_an_encoder_that_fails_at_the_end_leaves_the_file_as_it_was(self, ending):
    path = self._path(f'episode.{ending}')
    with open(path, 'wb') as file:
      file.write(b'before')
    with self.assertRaisesRegex(errors.UserError, f'^--video={path}: no video could be written [^\n]*$'):
      with video.Writer(path, Fraction(15)) as writer:
        for picture in _pictures(20, 8, 8):
          writer.add(picture)
        encoder, = psutil.Process().children()
        encoder.kill()
        psutil.wait_procs([encoder])
    with open(path, 'rb') as file:
      self.assertEqual(file.read(), b'before')
    self.assertEqual(os.listdir(self._folder), [f'episode.{ending}'])

  def test_a_missing_encoder_is_one_line(self):
    with mock.patch.object(imageio_ffmpeg, 'write_frames', side_effect=RuntimeError('No ffmpeg exe\nSecond line')):
      with self.assertRaisesRegex(errors.UserError, r'no video could be written \(No ffmpeg exe\)$'):
        with video.Writer(self._path('episode.mp4'), Fraction(15)) as writer:
          writer.add(_pictures(1, 8, 8)[0])

  def test_check(self):
    path = self._path('episode.mp4')
    with open(path, 'wb') as file:
      file.write(b'before')
    video.check(path)
    with open(path, 'rb') as file:
      self.assertEqual(file.read(), b'before')
    self.assertEqual(os.listdir(self._folder), ['episode.mp4'])
    with self.assertRaisesRegex(errors.UserError, 'missing/a.gif: No such file or directory: choose another file$'):
      video.check(self._path('missing/a.gif'))
    os.mkdir(self._path('folder.mp4'))
    with self.assertRaisesRegex(errors.UserError, 'folder.mp4: is a directory: choose another file$'):
      video.check(self._path('folder.mp4'))


if __name__ == '__main__':
  absltest.main()
