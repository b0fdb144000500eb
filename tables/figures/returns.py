"""Draws the training returns of any runs against frames, beside those that others published: a panel per level.

A last panel has the interquartile means of the human-normalised scores over the levels, with 95 % intervals from a
bootstrap over the runs (Agarwal et al. 2021). The table of the same numbers is tables/papers/returns_table.py.
"""

from matplotlib import figure
import numpy as np

from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.papers import returns_table

_STYLES_OF_OTHERS = ('--', ':')


def picture(found: returns_table.Returns) -> figure.Figure:
  """Returns the picture."""
  lines = {**found.lines, **found.others}
  iqm, title = 'interquartile mean of the levels', 'Training returns, areas from the worst to the best run'
  has_iqm = any(line.iqm for line in lines.values())
  drawn, panels = curves.grid_of_returns([*found.levels, *([iqm] if has_iqm else [])],
                                         frames='environment frames per level')
  styles = curves.styles_of(found.lines) | {
      name: {'color': drawing.INK, 'linestyle': style}
      for name, style in zip(found.others, _STYLES_OF_OTHERS, strict=False)}
  frames = np.array(found.frames)
  for name, line in lines.items():
    label = curves.label(name, min(map(len, line.of_levels.values())))
    for level, returns in line.of_levels.items():
      reached = ~np.isnan(returns).any(axis=0)
      drawing.mean_and_range(panels[level], frames[reached], returns[:, reached], label, styles[name])
    if line.iqm:
      reached = ~np.isnan([middle for middle, _, _ in line.iqm])
      middle, low, high = np.transpose(line.iqm)[:, reached]
      drawing.line_and_area(panels[iqm], frames[reached], middle, (low, high), label, styles[name])
  for axes in panels.values():
    drawing.frames_axis(axes)
  if has_iqm:
    panels[iqm].set_ylabel('human-normalised score (%)', color=drawing.INK)
    title += '; interquartile mean with its 95 % interval'
  drawing.title_and_legend(drawn, title, panels.values())
  return drawn
