"""Tests the files in docs/cluster: they parse, and the program accepts every flag in them."""

import json
import os
import pathlib
import re
import shlex
import stat
import subprocess
import sys
import tomllib

from absl import flags
from absl.testing import absltest
import yaml

from scalable_agents.agents import configs
from scalable_agents.agents import registry
from scalable_agents.cluster import cluster_config
from scalable_agents.launch import preset_flags
from scalable_agents.processes import run_flags
from scalable_agents.tests import source_tree

_FOLDER = source_tree.ROOT / 'docs' / 'cluster'
_FREE = ('job_name', 'learner_addresses', 'logdir', 'num_environments', 'task')

# Takes the place of Python on a node. Records its arguments. The process that learns exits with code 3 once, or always
# with the code in ALWAYS_DIES. If WAITS is set, an actor host waits until it is ended, as without a learner.
_PYTHON = f'''#!{sys.executable}
import json, os, signal, sys
with open(os.environ['CALLS'], 'a') as file:
  file.write(json.dumps(sys.argv[1:]) + '\\n')
if '--job_name=actor' in sys.argv:
  if 'WAITS' in os.environ:
    signal.pause()
elif 'ALWAYS_DIES' in os.environ or not os.path.exists(os.environ['CALLS'] + '.died'):
  open(os.environ['CALLS'] + '.died', 'w').close()
  sys.exit(int(os.environ.get('ALWAYS_DIES', 3)))
'''
_SRUN = '''#!/bin/bash
set -m  # A process group for each task, to which a signal is passed on.
trap '[[ $! ]] && kill -- -$!; exit' TERM
num_tasks=1
while [[ $1 == --* ]]; do
  [[ $1 == --nodes=0 ]] && exec /bin/sleep infinity  # As Slurm does.
  [[ $1 == --ntasks=* ]] && num_tasks=${1#*=}
  shift
done
for ((SLURM_PROCID = 0; SLURM_PROCID < num_tasks; ++SLURM_PROCID)); do
  export SLURM_PROCID
  "$@" &
  wait $! || exit
done
'''
_SLEEP = '#!/bin/bash\nexec /bin/sleep "0.$1"\n'
_SCONTROL = '#!/bin/bash\n[[ $* == "show hostnames node[1-"?] ]] && printf "node%d\\n" $(seq ${3:7:1})\n'


def _parse(arguments):
  """Parses arguments as the program does and returns the flag values. Raises the errors that the program raises."""
  flag_values = flags.FlagValues()
  preset_flags.define(registry.PRESETS['impala_atari57'], flag_values)
  rest = flag_values(['program', *arguments])
  assert rest == ['program'], rest
  for config_class, validate in ((configs.ImpalaConfig, configs.validate_impala),
                                 (cluster_config.ClusterConfig, cluster_config.validate)):
    run_flags.config_from_flags(config_class, validate, flag_values=flag_values)
  return flag_values


def _without_free_flags(flag_values):
  return {name: value for name, value in flag_values.flag_values_dict().items() if name not in _FREE}


class KubernetesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    documents = list(yaml.safe_load_all((_FOLDER / 'kubernetes.yaml').read_text(encoding='utf-8')))
    self.parts = {(document['kind'], document['metadata']['name']): document for document in documents}
    self.assertLen(self.parts, len(documents))

  def _pod(self, kind, name):
    """Returns the pod template of a part."""
    spec = self.parts[kind, name]['spec']
    self.assertEqual(spec['selector']['matchLabels'], spec['template']['metadata']['labels'])
    return spec['template']

  def _flags(self, pod):
    """Returns the flag values that the program in a pod parses from its arguments."""
    container, = pod['spec']['containers']
    self.assertEqual(container['command'], ['tini', '--', 'python', '-m', 'scalable_agents.agents.impala_atari57'])
    volumes = {volume['name']: volume.get('configMap', {}).get('name') for volume in pod['spec'].get('volumes', [])}
    files = {}
    for mount in container['volumeMounts']:
      if config := volumes.get(mount['name']):
        files |= {os.path.join(mount['mountPath'], name): text
                  for name, text in self.parts['ConfigMap', config]['data'].items()}
    arguments = []
    for argument in container['args']:
      name, _, path = argument.partition('=')
      arguments += shlex.split(files[path]) if name == '--flagfile' else [argument]
    return _parse(arguments)

  def test_all_parts_are_there(self):
    self.assertCountEqual(self.parts, [
        ('ConfigMap', 'impala'), ('Service', 'impala-learner'), ('StatefulSet', 'impala-learner'),
        ('Deployment', 'impala-actor'), ('NetworkPolicy', 'impala-learner')])

  def test_learner_and_actors_have_all_but_their_roles_in_common(self):
    learner = self._flags(self._pod('StatefulSet', 'impala-learner'))
    actor = self._flags(self._pod('Deployment', 'impala-actor'))
    self.assertEqual((learner.job_name, learner.task), ('learner', 0))
    self.assertEqual((actor.job_name, actor.task, actor['logdir'].present), ('actor', -1, 0))
    self.assertEqual(learner.learner_addresses, actor.learner_addresses)
    self.assertEqual(_without_free_flags(learner), _without_free_flags(actor))

  def test_the_learner_is_where_actors_look_and_its_runs_are_on_the_disk(self):
    learner, service = self.parts['StatefulSet', 'impala-learner'], self.parts['Service', 'impala-learner']
    pod = self._pod('StatefulSet', 'impala-learner')
    container, = pod['spec']['containers']
    port, = service['spec']['ports']
    values = self._flags(pod)
    self.assertEqual(values.learner_addresses, f'impala-learner-0.impala-learner:{port["port"]}')
    self.assertEqual(learner['spec']['serviceName'], 'impala-learner')
    self.assertEqual(learner['spec']['replicas'], 1)
    self.assertEqual(service['spec']['clusterIP'], 'None')
    self.assertEqual(service['spec']['selector'], pod['metadata']['labels'])
    claim, = learner['spec']['volumeClaimTemplates']
    mounts = {mount['name']: mount['mountPath'] for mount in container['volumeMounts']}
    self.assertStartsWith(values.logdir, mounts[claim['metadata']['name']] + '/')

  def test_only_actors_reach_the_learner_and_only_its_port(self):
    policy = self.parts['NetworkPolicy', 'impala-learner']['spec']
    self.assertEqual(policy['policyTypes'], ['Ingress'])
    self.assertEqual(policy['podSelector']['matchLabels'],
                     self._pod('StatefulSet', 'impala-learner')['metadata']['labels'])
    rule, = policy['ingress']
    self.assertEqual(rule['from'], [
        {'podSelector': {'matchLabels': self._pod('Deployment', 'impala-actor')['metadata']['labels']}}])
    self.assertEqual([port['port'] for port in rule['ports']],
                     [port['port'] for port in self.parts['Service', 'impala-learner']['spec']['ports']])


class SlurmTest(absltest.TestCase):

  def test_the_script_parses(self):
    subprocess.run(['bash', '-n', _FOLDER / 'slurm.sh'], check=True)

  def _run(self, num_nodes, **variables):
    """Runs the script on nodes 1 to `num_nodes`. Returns the completed process and the arguments of its programs.

    It has completed when all its processes have ended, because they share its output. It sleeps a tenth of each second.
    """
    folder = self.create_tempdir()
    for name, text in (('srun', _SRUN), ('scontrol', _SCONTROL), ('python', _PYTHON), ('sleep', _SLEEP)):
      path = folder.create_file(name, content=text).full_path
      os.chmod(path, stat.S_IRWXU)
    calls = os.path.join(folder.full_path, 'calls')
    environment = dict(
        os.environ, PATH=f'{folder.full_path}:{os.environ["PATH"]}', PYTHON='python', CALLS=calls,
        SLURM_JOB_NODELIST=f'node[1-{num_nodes}]', SLURM_JOB_NUM_NODES=str(num_nodes), SLURM_CPUS_PER_TASK='16',
        SLURM_JOB_ID='123456', **variables)
    done = subprocess.run(['bash', _FOLDER / 'slurm.sh', '--level_name=pong,breakout', '--torso=shallow'],
                          env=environment, text=True, capture_output=True, check=False, timeout=60)
    self.assertEqual(done.stderr, '')
    return done, list(map(json.loads, pathlib.Path(calls).read_text(encoding='utf-8').splitlines()))

  def _start(self, num_nodes):
    """Runs the script on nodes 1 to `num_nodes`. Returns the flags that its processes parse."""
    done, calls = self._run(num_nodes)
    self.assertEqual((done.returncode, done.stdout),
                     (0, 'learner: ended with code 3 before the run was complete: it is started again\n'))
    parsed = []
    for arguments in calls:
      *module, level, torso = arguments[:4]
      self.assertEqual(module, ['-m', 'scalable_agents.agents.impala_atari57'])
      self.assertEqual((level, torso), ('--level_name=pong,breakout', '--torso=shallow'))
      parsed.append(_parse(arguments[2:]))
    return parsed

  def test_what_it_starts(self):
    roles = []
    for values in self._start(3):
      self.assertEqual(values.learner_addresses, 'node1:13456')
      roles.append((values.job_name, values.task, values.logdir))
    self.assertCountEqual(roles, [('learner', 0, 'runs/slurm')] * 2 + [('actor', task, '') for task in range(2)])

  def test_actor_hosts_that_do_not_end_are_ended(self):
    for variables, code in (({}, 0), ({'ALWAYS_DIES': '3'}, 3)):
      done, _ = self._run(2, WAITS='1', **variables)
      self.assertEqual((done.returncode, done.stdout.count('learner: ended')), (code, 3 if code else 1))

  def test_a_learner_that_ends_early_is_not_started_again_for_ever(self):
    for code, attempts in ((1, 1), (3, 3)):
      done, calls = self._run(1, ALWAYS_DIES=str(code))
      self.assertEqual((done.returncode, len(calls)), (code, attempts))
      self.assertEndsWith(done.stdout, f'ended with code {code} soon after its start: it is not started again\n')

  def test_program_names_another_program(self):
    _, calls = self._run(1, PROGRAM='r2d2_atari57')
    self.assertEqual({arguments[1] for arguments in calls}, {'scalable_agents.agents.r2d2_atari57'})

  def test_one_node_trains_in_one_process(self):
    for values in self._start(1):
      self.assertEqual((values.job_name, values.learner_addresses, values.logdir, values.num_environments),
                       ('', '', 'runs/slurm', 'auto'))


class DockerfileTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    text = (source_tree.ROOT / 'Dockerfile').read_text(encoding='utf-8')
    self.lines = [line for line in text.splitlines() if line and not line.startswith('#')]

  def _arguments(self, instruction):
    return [line.split()[1:] for line in self.lines if line.startswith(instruction + ' ')]

  def test_what_it_copies_is_there_and_not_ignored(self):
    ignored = (source_tree.ROOT / '.dockerignore').read_text(encoding='utf-8').split()
    copied = [name for *names, _ in self._arguments('COPY') if not names[0].startswith('--from=') for name in names]
    self.assertEqual(copied, ['requirements.txt', 'requirements-gpu.txt', '.'])
    for name in copied:
      self.assertTrue((source_tree.ROOT / name).exists(), name)
      self.assertNotIn(name, ignored)

  def test_it_builds_with_the_pinned_backend_and_the_oldest_python(self):
    backend, = re.findall(r'setuptools==[\d.]+', '\n'.join(self.lines))
    project = tomllib.loads((source_tree.ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
    self.assertIn(backend, project['build-system']['requires'])
    oldest = re.match(r'>=([\d.]+)', project['project']['requires-python'])[1]
    self.assertEqual({image for image, *_ in self._arguments('FROM')}, {f'python:{oldest}-slim-bookworm'})

  def test_its_program_and_its_name_are_those_of_the_other_files(self):
    *first, program = json.loads(' '.join(self._arguments('ENTRYPOINT')[0]))
    self.assertEqual(first, ['tini', '--'])
    project = tomllib.loads((source_tree.ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
    self.assertIn(program, project['project']['scripts'])
    self.assertIn(f'image: {program}:latest', (_FOLDER / 'kubernetes.yaml').read_text(encoding='utf-8'))


if __name__ == '__main__':
  absltest.main()
