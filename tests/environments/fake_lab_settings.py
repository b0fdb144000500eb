"""Settings of the fake `deepmind_lab`, checked as DeepMind Lab checks them."""

import re

_LOG_LEVELS = ('NEVER', 'ERROR', 'WARN', 'INFO', 'ALL')


def size(config, name, default):
  """Returns a width or height. Raises RuntimeError with Lab's message."""
  text = config.get(name, default)
  if not re.fullmatch(' *[+-]?[0-9]+', text):
    raise RuntimeError(f"Failed to apply setting '{name} = {text}' - \"Invalid int setting {text}\n\"")
  value = int(text)
  if value <= 0 or value % 4:
    raise RuntimeError(f"Failed to apply setting '{name} = {text}' - \"'{name}' must be a positive multiple of 4. "
                       f'Actual {text}"')
  return value


def mixer_seed(config):
  """Returns the mixer seed. Raises RuntimeError with Lab's message."""
  text = config.get('mixerSeed', '0')
  if not re.fullmatch(' *[0-9]+', text) or int(text) >= 2**32:
    raise RuntimeError(f"Failed to apply setting 'mixerSeed = {text}' - \"Invalid mixerSeed value, must be a positive "
                       "integer not greater than '4294967295'.\"")
  return int(text)


def check_fps(config):
  """Checks the frames per second. Raises RuntimeError with Lab's message."""
  text = config.get('fps', '60')
  try:
    float(text)
  except ValueError:
    raise RuntimeError(f"Failed to apply setting 'fps = {text}' - \"Invalid double arg {text}\n\"") from None


def check_log_level(config):
  """Checks the log level. Raises RuntimeError with Lab's message."""
  text = config.get('logLevel', 'WARN')
  if text not in _LOG_LEVELS:
    raise RuntimeError(f"Failed to apply setting 'logLevel = {text}'")
