"""The progress of a run on the screen: a line that is updated in place on a terminal, else a line per log interval."""

import math
import os
from typing import Any, TextIO

from absl import logging
import tqdm


def short(value: float) -> str:
  """Returns a number with four digits, or without decimals if it has more."""
  return f'{value:,.0f}' if 9_999.5 <= abs(value) < 1e15 else f'{value:.4g}'


class Line:
  """A status line that is updated in place, and messages above it. Without a terminal, each update is a new line."""

  def __init__(self, total: int, initial: int, bar_format: str, stream: TextIO):
    """Creates the line.

    Args:
      total: the amount of work.
      initial: the part of it that is already done.
      bar_format: tqdm's format of the status line.
      stream: where to write. Its errors are not caught; binaries pass a stream without errors, see
        processes/standard_streams.py.
    """
    self._stream = stream
    self._bar = None
    if stream.isatty() and os.get_terminal_size(stream.fileno()).columns:  # Some terminals do not know their size.
      self._bar = _Bar(total=total, initial=initial, file=stream, dynamic_ncols=True, bar_format=bar_format)

  def message(self, text: str):
    """Prints a line, above the status line if there is one."""
    if self._bar is None:
      print(text, file=self._stream, flush=True)
    else:
      self._bar.write(text, file=self._stream)

  def show(self, text: str):
    """Sets the text of the status line."""
    if self._bar is None:
      self.message(text)
    else:
      self._bar.set_description_str(text, refresh=True)

  def report_fault(self, text: str):
    """Shows the first line of an error. The whole text, such as a worker's traceback, goes to the libraries' log."""
    logging.warning('%s', text)
    self.message(text.splitlines()[0])

  def close(self):
    """Ends the status line. Its last state stays on the screen."""
    if self._bar is not None:
      self._bar.close()


class Progress(Line):
  """Shows how far a run has come: frames, frames per second, mean return or score, time left, and the bottleneck."""

  def __init__(self, total_frames: int, initial_frames: int, stream: TextIO):
    """Begins to show.

    Args:
      total_frames: environment frames to train for.
      initial_frames: environment frames of earlier processes; 0 in a new run.
      stream: where to write.
    """
    # A narrow terminal cuts the bar first.
    super().__init__(total_frames, initial_frames, '{desc} {percentage:3.0f}% {bar:20}', stream)
    self._total_frames = total_frames
    self._frames_per_second = 0.  # Not known yet.

  def update(self, values: dict[str, Any], starting: str = ''):
    """Shows a row of metrics.jsonl.

    Args:
      values: `environment_frames`, `frames_per_second`; if known also `episode_return`, `suite_score` (in per cent, for
        suites only, shown instead of the return), `bottleneck` (a word) and `skipped_updates`. If `replay_filled` is
        below 1, learning has not begun, and this fraction is shown in place of speed, return and time left.
      starting: what still starts, such as '12 of 30 environments'. It is shown in place of time left and bottleneck.
    """
    self._smooth(values['frames_per_second'])
    if self._bar is not None:
      self._bar.n = min(values['environment_frames'], self._total_frames)
    self.show(self._text(values, starting))

  def _smooth(self, frames_per_second: float):
    """Averages the speed over about ten intervals, for a steady estimate of the time left."""
    if not self._frames_per_second:
      self._frames_per_second = frames_per_second
    self._frames_per_second += 0.1 * (frames_per_second - self._frames_per_second)

  def _text(self, values: dict[str, Any], starting: str) -> str:
    frames = values['environment_frames']
    mean_return = values.get('episode_return')
    bottleneck = values.get('bottleneck')
    count = f'{_count(frames)}/{_count(self._total_frames)}'
    starts = [f'starting: {starting}'] if starting else []
    if (filled := values.get('replay_filled', 1)) < 1:
      return ', '.join([count, f'filling the replay: {int(100 * filled)} %', *starts])
    left = max(self._total_frames - frames, 0)
    seconds = left / self._frames_per_second if self._frames_per_second > 0 else math.inf
    if 'suite_score' in values:
      score = f'score {values["suite_score"]:.1f} %'
    else:
      score = 'return ' + ('none yet' if mean_return is None else short(mean_return))
    slowest = [f'slowest: {bottleneck}'] if bottleneck else []
    parts = [count, f'{values["frames_per_second"]:,.0f} frames/s', score,
             *(starts or [f'ETA {_duration(seconds)}', *slowest])]  # So far it fits in 80 columns.
    return ', '.join(parts + ([f'skipped updates: {skipped:,}'] if (skipped := values.get('skipped_updates')) else []))


class _Bar(tqdm.tqdm):
  """A tqdm bar without the thread that would redraw it."""
  monitor_interval = 0


def _count(frames: int) -> str:
  """Formats a number of frames, such as 50.2M."""
  return tqdm.tqdm.format_sizeof(frames)


def _duration(seconds: float) -> str:
  """Formats a duration, such as 1:02:03 or 4d 01:02:03."""
  if not math.isfinite(seconds):
    return 'unknown'
  minutes, seconds = divmod(math.ceil(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  days, hours = divmod(hours, 24)
  return f'{days}d {hours:02}:{minutes:02}:{seconds:02}' if days else f'{hours}:{minutes:02}:{seconds:02}'
