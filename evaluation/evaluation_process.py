"""The process that plays an evaluation during training; evaluation/evaluations.py starts it.

It reads a JSON object from its standard input:

  agent       'module:NAME' of the agent's definition
  config      the hyper-parameters
  levels      the names of the levels, in their version for evaluation
  protocol    the settings of the environments; see registry.make_from_json
  run         the fields of a RunConfig
  directory   a path that leads to the run directory
  logdir      the name of the run directory, for messages

It prints a row for evaluations.jsonl, or a line that says why there is none. It uses no GPU, one thread to compute, and
few environments, and it plays one level after the other.
"""

from scalable_agents.processes import background_process
from scalable_agents.processes import kernels
from scalable_agents.processes import python_path

_NICENESS = 19  # The lowest priority.

if __name__ == '__main__':
  background_process.begin(_NICENESS)  # Before the imports, which take seconds.
  kernels.choose()

import contextlib
import io
import json
import os
import sys
from typing import Any

import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.evaluation import evaluation
from scalable_agents.evaluation import evaluation_results
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.training import run_config


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
  """Plays the newest checkpoint. Returns a row for evaluations.jsonl.

  Raises:
    errors.UserError: as evaluation.evaluate.
  """
  agent, run = python_path.load(request['agent']), run_config.RunConfig(**request['run'])
  config = agent.config(**request['config'])
  loaded = evaluation.load(request['directory'], request['logdir'])
  # With one seed for all, a run's evaluations would play the same few starts again and again, on each level.
  levels, seed = request['levels'], evaluation.seed_of(config.seed, checkpoint.number_of(loaded.path))
  selection, results, trained = evaluation.selection_of(agent, run), {}, {}
  for level_id in range(len(levels)):
    with evaluation.explaining(request['logdir'], loaded), contextlib.closing(
        actor_host.ActorHost(levels, request['protocol'], run, seed + level_id * int(run.num_environments),
                             played=[level_id])) as host:
      make_agent = agent.maker(host, levels, config)
      policy = evaluation.restore(make_agent, loaded, host.device)
      evaluator = evaluation.play(policy, make_agent, selection, host, run, io.StringIO())
    trained = {'environment_frames': policy.environment_frames, 'learner_steps': policy.learner_steps}
    results |= evaluation_results.of_levels(evaluator, levels, [level_id])
  return {**trained, **evaluation.identify(loaded, run, seed, selection), 'levels': results,
          'suite': evaluation_results.suite_of(results)}


def _main():
  out = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What libraries print goes to the log.
  request = json.load(sys.stdin)
  tf.config.set_visible_devices([], 'GPU')
  tf.config.threading.set_intra_op_parallelism_threads(1)
  try:
    print(json.dumps(evaluate(request), allow_nan=False), file=out, flush=True)
  except errors.UserError as error:
    print(str(error).splitlines()[0], file=out, flush=True)
    sys.exit(1)


if __name__ == '__main__':
  _main()
