"""Calls a drawing function and looks at its picture, for the tests of figures."""

import io

from matplotlib import figure
from matplotlib import image


def panels(test, draw, *arguments):
  """Calls a drawing function, which must draw. Returns the visible panels of its picture.

  Args:
    test: the test case.
    draw: the function.
    *arguments: its arguments.
  """
  picture, file = draw(*arguments), io.BytesIO()
  test.assertIsInstance(picture, figure.Figure)
  picture.savefig(file, format='png')
  test.assertGreater(image.imread(io.BytesIO(file.getvalue())).shape[0], 200)
  return [axes for axes in picture.axes if axes.get_visible()]


def lines(axes):
  """Returns the values of each line of a panel by the line's label."""
  return {line.get_label(): [*line.get_ydata()] for line in axes.lines}


def ends(axes):
  """Returns the last value of each line of a panel by the line's label."""
  return {label: values[-1] for label, values in lines(axes).items()}
