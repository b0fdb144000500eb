"""The style that all figures share: colours, axes, titles, legends, and writing the file."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib import figure
from matplotlib import ticker
from matplotlib.backends import backend_agg
import numpy as np

from scalable_agents.records import run_directory
from scalable_agents.tables.results import results

INK = '#3b3b3b'
PAPER = '#b8c4d0'
LINES = ('#1f5fa8', '#c8511b', '#2c8a4b', '#7b4ea3', '#a3812a', '#b0306a')
_HUMAN = _LINEAR_UP_TO = 100.  # Per cent.
_SCORES = (-100, 0, 25, 50, 75, 100, 1000, 10_000)  # Per cent, marked on logarithmic axes.
_UNITS = ((1_000_000, 'M'), (1_000, 'K'))
_STYLES = ('-', '--', ':', '-.')  # The next style is used when all colours have been used.
_HATCHES = ('', '//', '..', 'xx')  # Bars have these instead.


def grid(rows: int, columns: int, width: float, height: float, sharex: bool = False,
         sharey: bool = False, heights: Sequence[float] | None = None) -> tuple[figure.Figure, np.ndarray]:
  """Returns a picture, with its width and height in inches, and its panels, [rows, columns].

  `title_and_legend` adds to the height. `heights`: relative heights of the rows, which are equal by default.
  """
  picture = figure.Figure(figsize=(width, height), dpi=110, layout='constrained')
  return picture, picture.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey, height_ratios=heights)


def line_style(number: int) -> dict[str, str]:
  """Returns the colour and style of the line with this number."""
  return {'color': LINES[number % len(LINES)], 'linestyle': _STYLES[number // len(LINES) % len(_STYLES)]}


def bar_style(style: Mapping[str, str]) -> dict[str, str]:
  """Returns the colour and pattern of bars, given what `line_style` returns."""
  return {'color': style['color'], 'hatch': _HATCHES[_STYLES.index(style['linestyle'])]}


def labelled(axes: Any) -> list[Any]:
  """Returns the lines and bars of a panel that have a label."""
  return axes.get_legend_handles_labels()[0]


def frames_axis(axes: Any):
  """Formats the horizontal axis for environment frames from 0."""
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda frames, _: results.short(int(frames))))
  axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
  axes.set_xlim(left=0)


def returns_axis(axes: Any):
  """Formats the vertical axis for returns, which have from one to seven digits."""
  def text(value, _):
    unit, letter = next(((unit, letter) for unit, letter in _UNITS if abs(value) >= 10 * unit), (1, ''))
    return f'{value / unit:,.6g}{letter}'

  axes.yaxis.set_major_formatter(ticker.FuncFormatter(text))


def panel_title(axes: Any, text: str, fontsize: int = 10):
  """Writes a text above a panel, as it is: the name of a level may have a $, which could begin a formula."""
  axes.set_title(text, color=INK, loc='left', fontsize=fontsize, parse_math=False)


def frames_panel(axes: Any, quantity: str, title: str = '', frames: str = 'environment frames'):
  """Labels and styles a panel of a quantity against environment frames. `frames`: label of the horizontal axis."""
  panel_title(axes, title)
  axes.set_xlabel(frames, color=INK)
  axes.set_ylabel(quantity, color=INK)
  frames_axis(axes)
  plain(axes, 'both')


def hours_panel(axes: Any, quantity: str):
  """Labels and styles a panel of a quantity against hours of training."""
  axes.set_xlabel('hours of training', color=INK)
  axes.set_ylabel(quantity, color=INK)
  axes.set_xlim(left=0)
  plain(axes, 'both')


def scores_axis(axes: Any, is_logarithmic: bool):
  """Marks a random policy and a human on the horizontal axis, which has human-normalised scores.

  Args:
    axes: the panel.
    is_logarithmic: whether the axis is logarithmic above 100 %, because Atari scores reach tens of thousands.
  """
  axes.axvline(_HUMAN, color=INK, linewidth=0.9, linestyle=':', label='human')
  axes.axvline(0, color=INK, linewidth=0.9)
  if is_logarithmic:
    axes.set_xscale('symlog', linthresh=_LINEAR_UP_TO, linscale=1.5)
    axes.set_xticks(_SCORES, [f'{score:,}' for score in _SCORES])
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def vertical_scores_axis(axes: Any):
  """Formats the vertical axis for human-normalised Atari scores. It is logarithmic above 100 %."""
  lowest = min(each.dataLim.y0 for each in axes.get_shared_y_axes().get_siblings(axes))
  axes.set_ylim(bottom=min(lowest, 0.) - 5)  # Otherwise the axis would begin far below the lowest score.
  axes.set_yscale('symlog', linthresh=_LINEAR_UP_TO, linscale=1.5)
  axes.yaxis.set_major_locator(ticker.FixedLocator(_SCORES))
  axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda score, _: f'{score:,.0f}'))
  axes.yaxis.set_minor_locator(ticker.NullLocator())


def plain(axes: Any, grid: str):
  """Styles a panel. `grid`: 'x', 'y' or 'both', the axes with grid lines."""
  axes.grid(axis=grid, color='#dddddd', linewidth=0.6)
  axes.set_axisbelow(True)
  axes.tick_params(labelsize=8)
  axes.spines[['top', 'right']].set_visible(False)


def papers_label(name: str) -> str:
  """Returns the label of the paper's final score of an agent."""
  return f"{name}: the paper's final score"


def papers_line(axes: Any, score: float, name: str, style: Mapping[str, str]):
  """Draws a paper's final score of an agent, as a dotted line in the colour of the agent's curve."""
  axes.axhline(score, color=style['color'], linewidth=1.1, linestyle=':', label=papers_label(name))


def mean_and_range(axes: Any, frames: np.ndarray, values: np.ndarray, label: str, style: Mapping[str, str]):
  """Draws the mean of several curves as a line, and the area from the smallest to the largest value.

  Args:
    axes: the panel.
    frames: [P].
    values: [curves, P].
    label: the line's label.
    style: from `line_style`.
  """
  line_and_area(axes, frames, values.mean(axis=0), (values.min(axis=0), values.max(axis=0)), label, style)


def line_and_area(axes: Any, frames: np.ndarray, values: np.ndarray, area: tuple[np.ndarray, np.ndarray], label: str,
                  style: Mapping[str, str]):
  """Draws a line with an area around it.

  Args:
    axes: the panel.
    frames: [P].
    values: [P].
    area: its lowest and highest values, [P] each. NaN for no area.
    label: the line's label.
    style: from `line_style`.
  """
  if len(frames) and frames[0] == frames[-1]:
    style = {'marker': 'o', **style}  # A line of no length would not be seen.
  axes.plot(frames, values, linewidth=1.6, label=label, **style)
  axes.fill_between(frames, *area, color=style['color'], alpha=0.2, linewidth=0)


def title_and_legend(picture: figure.Figure, text: str, panels: Iterable[Any]):
  """Adds a title above the panels, and below the title a legend of the lines and bars in all panels.

  The legend has two columns if they fit. The picture grows by the height of title and legend, and becomes wider if it
  is narrower than they are.
  """
  handles = {handle.get_label(): handle for axes in panels for handle in labelled(axes)}
  renderer = backend_agg.FigureCanvasAgg(picture).get_renderer()

  def add(columns):
    # The title is the legend's title, because matplotlib would draw a figure title over the legend.
    return picture.legend(handles.values(), handles.keys(), title=text, alignment='left', loc='outside upper left',
                          ncols=columns, frameon=False, fontsize=9, title_fontproperties={'size': 11})

  legend = add(2)
  if legend.get_window_extent(renderer).width > picture.bbox.width:
    legend.remove()
    legend = add(1)
  box = legend.get_window_extent(renderer)
  width, height = picture.get_size_inches()
  picture.set_size_inches(max(width, box.width / picture.dpi), height + box.height / picture.dpi)


def save(picture: figure.Figure, file: str):
  """Writes a picture as PNG. Raises run_directory.RunDirectoryError if it cannot be written."""
  with run_directory.replaced(file) as new:
    picture.savefig(new, format='png')
