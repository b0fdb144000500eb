#!/bin/bash
# A learner on the first node of a Slurm job, and actors on all others, one each. From the project's folder, on a file
# system that the nodes share, after `make setup`; further flags are for every process:
#
#   sbatch docs/cluster/slurm.sh --level_name=pong --torso=deep
#
# The same command resumes, and so does Slurm itself after a node has failed.
#SBATCH --job-name=impala
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=2-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
logdir=${LOGDIR:-runs/slurm}
learner=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
num_actors=$((SLURM_JOB_NUM_NODES - 1))
program=("${PYTHON:-.venv/bin/python}" -m scalable_agents.agents.impala_atari57
         --learner_addresses="$learner:5000" "$@")

# One that dies is started again; all end by themselves, with exit code 0, when the learner has told them to.
srun --nodes="$num_actors" --ntasks="$num_actors" --exclude="$learner" --kill-on-bad-exit=0 --label \
  bash -c 'until "$@" --task="$SLURM_PROCID"; do sleep 10; done' actor "${program[@]}" --job_name=actor &

# A learner that has died goes on from its checkpoint, and the actors find it again.
for life in 1 2 3 4 5; do
  if srun --nodes=1 --ntasks=1 --nodelist="$learner" \
    "${program[@]}" --job_name=learner --task=0 --logdir="$logdir" --num_environments=0; then
    wait
    exit 0
  fi
  echo "learner: its life $life has ended before the run"
done
exit 1  # The actors end with the script.
