"""The learning curve shows the run's own figures, and drawing disturbs nothing."""

import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import weakref

from absl.testing import absltest
from matplotlib import figure
from matplotlib import image
import numpy as np

from scalable_agents.processes import python_path
from scalable_agents.records import learning_curve
from scalable_agents.records import metrics
from scalable_agents.records import row_file
from scalable_agents.records import run_directory


class _Run:
  """A run directory with so many rows, 100 frames and 36 s apart, and three episodes in each."""

  def __init__(self, test, rows, first_return=0, first_score=None, level='breakout'):
    self.logdir = test.enterContext(tempfile.TemporaryDirectory())
    self.seconds = 0.
    run_directory.open_run(self.logdir, {'level_name': level}, ()).close()
    writer = metrics.MetricsWriter(self.logdir, 0, lambda: self.seconds)
    for row in range(rows):
      self.seconds += 36.
      mean = row if row >= first_return else None
      if mean is not None:
        writer.add_episodes(100 * (row + 1), ['breakout'] * 3, [row - 1., row, row + 1.], [7] * 3)
      score = {} if first_score is None or row < first_score else {'suite_score': row / 10}
      writer.write({'environment_frames': 100 * (row + 1), 'episode_return': mean} | score)
    writer.close()

  def evaluate(self, *points, suite_score=None):
    """Adds evaluations; `points` are their frames and mean returns."""
    writer = metrics.MetricsWriter(self.logdir, 10**9)
    for frames, mean in points:
      writer.add_evaluation({'environment_frames': frames, 'num_episodes': 10, 'levels': {'breakout': {'mean': mean}},
                             'suite': suite_score and {'suite_score': suite_score}})
    writer.close()

  @property
  def picture(self):
    return os.path.join(self.logdir, 'learning_curve.png')

  def draw(self):
    """Draws, and returns the axes: the main one and the one on top."""
    figures = []

    def keep(drawn, *args, **kwargs):
      figures.append(drawn)
      return save(drawn, *args, **kwargs)
    save = figure.Figure.savefig
    with absltest.mock.patch.object(figure.Figure, 'savefig', keep):
      learning_curve.draw(self.logdir)
    return figures[0].axes


class LearningCurveTest(absltest.TestCase):

  def test_regression_no_figure_outlives_its_drawing(self):
    run, drawn = _Run(self, rows=20), weakref.WeakSet()
    save = figure.Figure.savefig
    with absltest.mock.patch.object(
        figure.Figure, 'savefig',
        lambda picture, *args, **kwargs: [drawn.add(picture), save(picture, *args, **kwargs)]):
      learning_curve.draw(run.logdir)
    self.assertTrue(os.path.exists(run.picture))
    self.assertEmpty(list(drawn))

  def test_shows_a_suites_score(self):
    axes, _ = _Run(self, rows=50, first_score=20).draw()
    line, = axes.lines  # No episodes: 1,000 points in one game are not what they are in another.
    self.assertEqual(line.get_xydata().tolist(), [[100 * (row + 1), row / 10] for row in range(20, 50)])
    self.assertEqual(axes.get_ylabel(), 'human-normalised score, %')
    self.assertEqual(axes.get_title(loc='left'), 'breakout: 4.9 after 5,000 frames')

  def test_regression_dollar_signs_in_a_level_are_no_formula(self):
    run = _Run(self, rows=5, level='gymnasium:Task-v0?path=$x_{$')  # As a formula, it has an error.
    axes, _ = run.draw()
    self.assertStartsWith(axes.get_title(loc='left'), 'gymnasium:Task-v0?path=$x_{$: ')
    self.assertTrue(os.path.exists(run.picture))

  def test_regression_a_long_name_leaves_room_for_the_return_which_has_all_digits(self):
    run = _Run(self, rows=1, level='pong,breakout,boxing,qbert,seaquest,space_invaders')
    with open(os.path.join(run.logdir, 'metrics.jsonl'), 'a', encoding='utf-8') as stream:
      stream.write('{"environment_frames": 10000, "wall_seconds": 360, "episode_return": 13546.2}\n')
    self.assertEqual(run.draw()[0].get_title(loc='left'),
                     'pong,breakout,boxing,…eaquest,space_invaders: 13,546 after 10,000 frames')

  def test_shows_the_figures_of_the_run(self):
    run = _Run(self, rows=200, first_return=10)
    axes, top = run.draw()
    lines = {line.get_label(): line.get_xydata() for line in axes.lines}
    rows = np.arange(10, 200)
    np.testing.assert_array_equal(
        lines['training: mean of the last 100 episodes'], np.stack([100 * (rows + 1), rows], axis=1))
    np.testing.assert_array_equal(lines['episode'][:4], [[1100, 9], [1100, 10], [1100, 11], [1200, 10]])
    self.assertLen(lines['episode'], 570)
    self.assertEqual((axes.get_xlabel(), axes.get_ylabel()), ('environment frames', 'episode return'))
    self.assertEqual(axes.get_title(loc='left'), 'breakout: 199 after 20,000 frames')
    # 36 s per 100 frames: an hour is 10,000 frames.
    self.assertEqual(top.get_xlabel(), 'hours of training')
    np.testing.assert_allclose([10_000 * float(label.get_text()) for label in top.get_xticklabels()], top.get_xticks())
    self.assertEqual(top.get_xlim(), axes.get_xlim())
    band, = axes.collections
    (_, low), (_, high) = band.get_datalim(axes.transData).get_points()
    self.assertBetween(low, 9, 20)
    self.assertBetween(high, 190, 200)
    self.assertEqual(image.imread(run.picture).shape, (600, 960, 4))

  def test_the_band_is_the_middle_half_of_the_episodes(self):
    run = _Run(self, rows=1)
    with open(os.path.join(run.logdir, 'episodes.csv'), 'a', encoding='utf-8') as stream:
      stream.writelines(f'{frames},breakout,{frames % 21},1\n' for frames in range(200, 200 + 21 * 200))
    band, = run.draw()[0].collections
    (_, low), (_, high) = band.get_datalim(band.axes.transData).get_points()
    self.assertBetween(low, 4., 6.)  # Returns are 0 to 20, each as often.
    self.assertBetween(high, 14., 16.)

  def test_shows_evaluations_beside_training(self):
    run = _Run(self, rows=20)
    run.evaluate((500, 3.), (1_000, 8.5))
    axes, _ = run.draw()
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    self.assertEqual(lines['evaluation: mean of 10 episodes per level'], [[500, 3.], [1_000, 8.5]])
    self.assertLen(lines['training: mean of the last 100 episodes'], 20)
    self.assertContainsSubset(['evaluation: mean of 10 episodes per level', 'training: mean of the last 100 episodes'],
                              [text.get_text() for text in axes.get_legend().get_texts()])
    self.assertEqual({line.get_markersize() for line in axes.get_legend().get_lines()}, {10.})

  def test_shows_a_suites_score_of_evaluations(self):
    run = _Run(self, rows=50, first_score=20)
    run.evaluate((500, 3.), (1_000, 8.5), suite_score=40.)
    axes, _ = run.draw()
    training, evaluation = axes.lines
    self.assertEqual((training.get_label(), evaluation.get_label()),
                     ('training: all levels', 'evaluation: mean of 10 episodes per level'))
    self.assertEqual(evaluation.get_ydata().tolist(), [40., 40.])

  def test_a_short_run_is_shown_in_minutes_and_without_a_band(self):
    axes, top = _Run(self, rows=4).draw()
    self.assertEmpty(axes.collections)
    self.assertEqual(top.get_xlabel(), 'minutes of training')
    np.testing.assert_allclose([float(label.get_text()) * 60 / 36 * 100 for label in top.get_xticklabels()],
                               top.get_xticks())

  def test_marks_of_time_keep_apart_where_time_passed_without_frames(self):
    run = _Run(self, rows=100)
    with open(os.path.join(run.logdir, 'metrics.jsonl'), 'a', encoding='utf-8') as stream:
      for row in range(1, 101):  # After an hour without frames.
        stream.write(f'{{"environment_frames": {10_000 + 100 * row}, "wall_seconds": {7200 + 36 * row}, '
                     '"episode_return": 1.0}\n')
    _, top = run.draw()
    self.assertEqual([label.get_text() for label in top.get_xticklabels()], ['0.5', '1', '2.5', '3'])
    np.testing.assert_allclose(top.get_xticks(), [5_000, 10_000, 15_000, 20_000])

  def test_many_episodes_are_thinned_out(self):
    run = _Run(self, rows=2)
    with open(os.path.join(run.logdir, 'episodes.csv'), 'a', encoding='utf-8') as stream:
      stream.writelines(f'{frames},breakout,1.0,1\n' for frames in range(200, 20_200))
    axes, _ = run.draw()
    dots, = (line for line in axes.lines if line.get_label() == 'episode')
    self.assertBetween(len(dots.get_xdata()), 3000, 4000)

  def test_a_long_run_is_read_in_samples(self):
    run = _Run(self, rows=1)
    with (open(os.path.join(run.logdir, 'metrics.jsonl'), 'a', encoding='utf-8') as metrics_file,
          open(os.path.join(run.logdir, 'episodes.csv'), 'a', encoding='utf-8') as episodes_file):
      for row in range(2, 5_001):
        metrics_file.write(
            f'{{"environment_frames": {100 * row}, "wall_seconds": {36 * row}, "episode_return": {row}}}\n')
        episodes_file.write(f'{100 * row},breakout,{row}.0,7\n')
    with (absltest.mock.patch.multiple(learning_curve, _MAX_ROWS=50, _MAX_EPISODES=50),
          absltest.mock.patch.object(row_file, 'read', side_effect=AssertionError('all rows are read'))):
      axes, _ = run.draw()
    frames, means = axes.lines[-1].get_xydata().T
    self.assertBetween(len(frames), 40, 50)
    np.testing.assert_array_equal(means[1:], frames[1:] / 100)
    np.testing.assert_allclose(frames, np.linspace(100, 500_000, len(frames)), atol=20_000)
    self.assertEqual((frames[0], frames[-1]), (100, 500_000))

  def test_nothing_to_draw_yet(self):
    run = _Run(self, rows=2, first_return=9)
    learning_curve.draw(run.logdir)
    self.assertFalse(os.path.exists(run.picture))

  def test_one_row_is_enough(self):
    run = _Run(self, rows=1)
    learning_curve.draw(run.logdir)
    self.assertTrue(os.path.exists(run.picture))

  def test_a_mean_without_episodes_is_drawn(self):
    run = _Run(self, rows=3)
    os.remove(os.path.join(run.logdir, 'episodes.csv'))
    axes, _ = run.draw()
    self.assertLen(axes.lines, 1)

  def test_a_failure_leaves_the_old_picture(self):
    run = _Run(self, rows=3)
    learning_curve.draw(run.logdir)
    before = pathlib.Path(run.picture).read_bytes()

    def fill_the_disk(_, name, **unused):
      pathlib.Path(name).write_bytes(b'half a pic')
      raise OSError(28, 'No space left on device', name)
    with absltest.mock.patch.object(figure.Figure, 'savefig', fill_the_disk):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, 'learning_curve.png.new: No space left on device'):
        learning_curve.draw(run.logdir)
    self.assertEqual(pathlib.Path(run.picture).read_bytes(), before)

  def test_a_damaged_file_is_named(self):
    run = _Run(self, rows=3)
    with open(os.path.join(run.logdir, 'episodes.csv'), 'a', encoding='utf-8') as stream:
      stream.write('what is this\n')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'episodes.csv, line 11 is damaged'):
      learning_curve.draw(run.logdir)

  def test_threads_can_draw_at_the_same_time(self):
    runs = [_Run(self, rows=30) for _ in range(3)]
    threads = [threading.Thread(target=learning_curve.draw, args=(run.logdir,)) for run in runs]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    pictures = [image.imread(run.picture) for run in runs]
    np.testing.assert_array_equal(pictures[0], pictures[1])
    np.testing.assert_array_equal(pictures[0], pictures[2])

  def test_drawing_needs_neither_tensorflow_nor_a_display(self):
    run = _Run(self, rows=3)
    program = ('import sys; from scalable_agents.records import learning_curve; learning_curve.draw(sys.argv[1]); '
               'print(sorted({"tensorflow", "matplotlib.pyplot", "tkinter"} & set(sys.modules)))')
    shown = subprocess.run([sys.executable, '-c', program, run.logdir], env=python_path.environment(), check=True,
                           capture_output=True, text=True)
    self.assertEqual(shown.stdout, '[]\n')
    self.assertTrue(os.path.exists(run.picture))


if __name__ == '__main__':
  absltest.main()
