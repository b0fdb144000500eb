"""Calls a drawing function and looks at its picture, for the tests of figures."""

import os

from absl.testing import absltest
from matplotlib import figure
from matplotlib import image


def panels(test, draw, *arguments):
  """Calls a drawing function, which must draw. Returns the visible panels of its picture.

  Args:
    test: the test case.
    draw: the function. Its last argument is the file to write.
    *arguments: its other arguments.
  """
  saved, save = [], figure.Figure.savefig

  def keep(picture, *args, **kwargs):
    saved.append(picture)
    return save(picture, *args, **kwargs)

  file = os.path.join(test.create_tempdir().full_path, 'picture.png')
  with absltest.mock.patch.object(figure.Figure, 'savefig', keep):
    test.assertIsNot(draw(*arguments, file), False)
  test.assertGreater(image.imread(file).shape[0], 200)
  return [axes for axes in saved[0].axes if axes.get_visible()]
