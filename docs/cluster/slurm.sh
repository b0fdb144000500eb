#!/bin/bash
# Runs a learner on the first node of a Slurm job, and one actor host on each other node. With one node, it runs the
# training there in one process. Run `make setup GPU=1` first (`make setup` if no node has a GPU), then this command
# from the project's folder, which must be on a file system that the nodes share. Further flags go to every process:
#
#   LOGDIR=runs/deep sbatch docs/cluster/slurm.sh --level_name=pong --torso=deep --num_environments=64
#   LOGDIR=runs/small sbatch --nodes=1 --gres=none docs/cluster/slurm.sh --level_name=pong --torso=shallow    # No GPU.
#   LOGDIR=runs/r2d2 PROGRAM=r2d2_atari57 sbatch docs/cluster/slurm.sh --level_name=pong
#   LOGDIR=runs/deep sbatch --nodes=1 docs/cluster/slurm.sh --mode=test    # Evaluates a run.
#
# The same command resumes the run. Slurm resumes it by itself after a node has failed.
#
# A job reserves the same on each of its nodes, so each actor host has a GPU too, where its policy acts. To reserve one
# for the learner alone, make this a heterogeneous job (`#SBATCH hetjob`): the learner's node is the first component,
# the actor hosts' nodes are the second one without --gres, and `srun --het-group=` replaces --nodelist and --exclude.
#SBATCH --job-name=impala
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gres=gpu:1
#SBATCH --time=2-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
logdir=${LOGDIR:-runs/slurm}
learner=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
num_actors=$((SLURM_JOB_NUM_NODES - 1))
actors=
program=("${PYTHON:-.venv/bin/python}" -m "scalable_agents.agents.${PROGRAM:-impala_atari57}" "$@")
part=(--logdir="$logdir")

if ((num_actors > 0)); then
  # Each job has a port of its own, so that two jobs can share a node. Linux gives ports from 32768 on to connections.
  program+=(--learner_addresses="$learner:$((10000 + SLURM_JOB_ID % 20000))")
  part+=(--job_name=learner --task=0 --num_environments=0)
  # An actor host that dies is started again. When the learner ends the run, all actor hosts exit with code 0.
  srun --nodes="$num_actors" --ntasks="$num_actors" --exclude="$learner" --kill-on-bad-exit=0 --label \
    bash -c 'until "$@" --task="$SLURM_PROCID"; do sleep 10; done' actor "${program[@]}" --job_name=actor &
  actors=$!
fi

# If the learner dies, it is started again and continues from its checkpoint. The actor hosts reconnect. If it ends early
# three times in a row, or with the exit code of an error message, such as that about a wrong flag, the job ends.
early_ends=0
while true; do
  began=$SECONDS
  srun --nodes=1 --ntasks=1 --nodelist="$learner" "${program[@]}" "${part[@]}"
  code=$?
  ((code == 0)) && break
  early_ends=$((SECONDS - began < 60 ? early_ends + 1 : 0))
  if ((early_ends == 3 || early_ends > 0 && code == 1)); then
    echo "learner: ended with code $code soon after its start: it is not started again"
    break
  fi
  echo "learner: ended with code $code before the run was complete: it is started again"
done

if [[ $actors ]]; then
  # An actor host that dies when the learner ends is started again. It then waits for a learner and must be ended.
  for ((second = 0; code == 0 && second < 30; ++second)); do
    kill -0 "$actors" 2>/dev/null || break
    sleep 1
  done
  kill "$actors" 2>/dev/null  # srun passes it on.
fi
exit "$code"
