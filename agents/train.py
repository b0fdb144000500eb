"""Trains and evaluates any agent: one of this project's presets, or an agent in a module of your own.

  scalable-agents train --agent=impala_atari57 --level_name=pong --logdir=runs/pong
  scalable-agents train --agent=my_package.my_agent:MY_AGENT --level_name=catch --logdir=runs/mine

--agent is the name of a preset (agents/registry.py), or module:NAME of a Definition (training/definition.py) or of a
Preset (launch/preset.py). All further flags are those of the agent: `scalable-agents train --agent=NAME --help` lists
them.
"""

import argparse
import sys

from scalable_agents.agents import registry
from scalable_agents.launch import preset_flags
from scalable_agents.processes import kernels
from scalable_agents.processes import quiet
from scalable_agents.processes import run_flags
from scalable_agents.records import errors


def main(name: str) -> None:
  """Runs the program of a preset; see registry.find. Call it before TensorFlow is imported."""
  quiet.start()
  try:
    preset = registry.find(name)
    preset_flags.define(preset)
    preset_flags.check(preset)
  except errors.UserError as error:
    run_flags.fail(str(error))
  kernels.load()
  from scalable_agents.launch import program  # Imports TensorFlow.
  program.run(preset)


if __name__ == '__main__':
  # The other flags are those of the agent, so they are defined when the agent is known.
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  parser.add_argument('--agent', nargs='?', const='', default='')
  known, others = parser.parse_known_args()
  sys.argv[1:] = others
  if not known.agent and '--help' in others:
    print(__doc__)
  else:
    main(known.agent)
