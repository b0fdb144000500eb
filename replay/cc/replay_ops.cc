// TensorFlow ops of the replay of sequences. The public Python interface is replay/sequence_replay.py.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "ops/cc/field.h"
#include "ops/cc/op_helpers.h"
#include "replay/cc/replay_op_helpers.h"
#include "replay/cc/sequence_replay.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace scalable_agents {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::errors::InvalidArgument;

using Resource = ReplayResource<SequenceReplay>;

REGISTER_OP("SequenceReplay")
    .Output("handle: resource")
    .Attr("row_types: list(type) >= 1")
    .Attr("row_shapes: list(shape) >= 1")
    .Attr("stacks: list(int) >= 1")
    .Attr("done_component: int")
    .Attr("contents: string = ''")
    .Attr("state_types: list(type) >= 0")
    .Attr("state_shapes: list(shape) >= 0")
    .Attr("state_offsets: list(int) >= 0")
    .Attr("burn_in: int")
    .Attr("length: int")
    .Attr("period: int")
    .Attr("cross_episodes: bool")
    .Attr("capacity: int")
    .Attr("priority_exponent: float")
    .Attr("max_times_sampled: int = 0")
    .Attr("samples_per_insert: float = 0")
    .Attr("tolerance: float = 0")
    .Attr("minimum_size: int = 1")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Makes a replay. Types and shapes are those of one row; of a stack of frames, those of the newest frame. Only "
        "a replay with the same `contents` can read its files.");

REGISTER_OP("SequenceReplayAvailable")
    .Input("handle: resource")
    .Input("batch_size: int64")
    .Output("available: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Returns [2]: 1 if an insert, and a sample of batch_size sequences, would not be Unavailable now, else 0.");

REGISTER_OP("SequenceReplayInsert")
    .Input("handle: resource")
    .Input("stream_id: int64")
    .Input("index: int64")
    .Input("first_step: int64")
    .Input("starts_episode: bool")
    .Input("rows: row_types")
    .Input("states: state_types")
    .Output("key: int64")
    .Output("trains: bool")
    .Output("signals: signal_types")
    .Attr("row_types: list(type) >= 1")
    .Attr("state_types: list(type) >= 0")
    .Attr("signal_components: list(int) >= 0")
    .Attr("signal_types: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(
        "Inserts B unrolls: stream_id, index, first_step [B], starts_episode, rows and states [T+1, B, ...]. Returns "
        "the n new sequences: key [n], trains [length, n], and the trained rows of some components with one more row, "
        "[length + 1, n, ...].");

REGISTER_OP("SequenceReplaySample")
    .Input("handle: resource")
    .Input("batch_size: int64")
    .Input("seed: int64")
    .Output("key: int64")
    .Output("probability: float")
    .Output("age: int64")
    .Output("stream_id: int64")
    .Output("stream_row: int64")
    .Output("padding: int64")
    .Output("trains: bool")
    .Output("rows: row_types")
    .Output("earlier: earlier_types")
    .Output("states: state_types")
    .Attr("row_types: list(type) >= 1")
    .Attr("earlier_types: list(type) >= 0")
    .Attr("state_types: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(
        "Samples B sequences: trains [length, B], rows [rows of a sequence, B, ...], "
        "the frames before row 0 of each stack [B, k-1, ...], states [offsets, B, ...].");

REGISTER_OP("SequenceReplayUpdate")
    .Input("handle: resource")
    .Input("key: int64")
    .Input("priority: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Sets the priorities [n] of the sequences with these keys [n].");

REGISTER_OP("SequenceReplayStatistics")
    .Input("handle: resource")
    .Output("statistics: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Returns counts, in the order of sequence_replay.Statistics.");

REGISTER_OP("SequenceReplaySave")
    .Input("handle: resource")
    .Input("path: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Writes the contents to a file. Unavailable: the file cannot be written.");

REGISTER_OP("SequenceReplayRestore")
    .Input("handle: resource")
    .Input("path: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(
        "Restores what was saved. Unavailable: the file cannot be read, or is damaged. InvalidArgument: it was saved "
        "with other settings, or the replay is not empty.");

// Sets the output `trains`, [length, n]: which trained steps of n sequences exist.
absl::Status SetTrains(OpKernelContext* context, const SequenceGeometry& geometry, int64_t n,
                       const std::function<const Sequence&(int64_t)>& sequence) {
  Tensor* trains;
  TF_RETURN_IF_ERROR(context->allocate_output("trains", TensorShape({geometry.length, n}), &trains));
  auto matrix = trains->matrix<bool>();
  for (int step = 0; step < geometry.length; ++step) {
    for (int64_t i = 0; i < n; ++i) matrix(step, i) = sequence(i).Trains(geometry, step);
  }
  return absl::OkStatus();
}

class ReplayOp : public tensorflow::ResourceOpKernel<Resource> {
 public:
  explicit ReplayOp(OpKernelConstruction* context) : ResourceOpKernel(context) {
    OP_REQUIRES_OK(context, GetRowAttributes(context, &rows_));
    options_.components = rows_.components;
    options_.contents = rows_.contents;
    options_.done = rows_.done;
    OP_REQUIRES_OK(context, GetFields(context, "state", &states_));
    float priority_exponent, samples_per_insert, tolerance;
    OP_REQUIRES_OK(context, context->GetAttr("state_offsets", &options_.state_offsets));
    OP_REQUIRES_OK(context, context->GetAttr("burn_in", &options_.geometry.burn_in));
    OP_REQUIRES_OK(context, context->GetAttr("length", &options_.geometry.length));
    OP_REQUIRES_OK(context, context->GetAttr("period", &options_.geometry.period));
    OP_REQUIRES_OK(context, context->GetAttr("cross_episodes", &options_.geometry.cross_episodes));
    OP_REQUIRES_OK(context, context->GetAttr("capacity", &options_.capacity));
    OP_REQUIRES_OK(context, context->GetAttr("priority_exponent", &priority_exponent));
    options_.priority_exponent = priority_exponent;
    OP_REQUIRES_OK(context, context->GetAttr("max_times_sampled", &options_.max_times_sampled));
    OP_REQUIRES_OK(context, context->GetAttr("samples_per_insert", &samples_per_insert));
    OP_REQUIRES_OK(context, context->GetAttr("tolerance", &tolerance));
    OP_REQUIRES_OK(context, context->GetAttr("minimum_size", &options_.rate_limit.minimum_size));
    options_.rate_limit.samples_per_insert = samples_per_insert;
    options_.rate_limit.tolerance = tolerance;
    const SequenceGeometry& geometry = options_.geometry;
    OP_REQUIRES(context, geometry.burn_in >= 0 && geometry.length >= 1 && geometry.period >= 1,
                InvalidArgument("burn_in, length and period: want at least 0, 1 and 1, got ", geometry.burn_in, ", ",
                                geometry.length, " and ", geometry.period));
    OP_REQUIRES(context, int64_t{geometry.burn_in} + geometry.length <= kMaximumCount,
                InvalidArgument("burn_in and length: want at most ", kMaximumCount, " steps together, got ",
                                geometry.burn_in, " and ", geometry.length));
    OP_REQUIRES(context, geometry.period <= geometry.length,
                InvalidArgument("period: want at most the length of ", geometry.length, ", got ", geometry.period,
                                ": steps between two sequences would never be trained"));
    OP_REQUIRES(context, options_.capacity >= 1, InvalidArgument("capacity: want at least 1, got ", options_.capacity));
    OP_REQUIRES(context, priority_exponent >= 0,
                InvalidArgument("priority_exponent: want at least 0, got ", priority_exponent));
    OP_REQUIRES_OK(context, CheckLimits());
    for (const Field& field : states_) options_.state_bytes.push_back(field.bytes());
    for (int offset : options_.state_offsets) {
      OP_REQUIRES(context, offset >= 0 && offset < geometry.num_rows(),
                  InvalidArgument("state_offsets: want 0 to ", geometry.num_rows() - 1, ", got ", offset));
    }
  }

 private:
  absl::Status CheckLimits() const {
    const RateLimit& limit = options_.rate_limit;
    if (options_.max_times_sampled < 0) {
      return InvalidArgument("max_times_sampled: want at least 0, got ", options_.max_times_sampled);
    }
    if (options_.max_times_sampled > std::numeric_limits<int64_t>::max() / options_.capacity) {
      return InvalidArgument("max_times_sampled: want at most 2^63 / capacity, got ", options_.max_times_sampled);
    }
    if (limit.minimum_size < 1 || limit.minimum_size > options_.capacity) {
      return InvalidArgument("minimum_size: want 1 to the capacity of ", options_.capacity, ", got ",
                             limit.minimum_size);
    }
    if (!std::isfinite(limit.samples_per_insert) || limit.samples_per_insert < 0) {
      return InvalidArgument("samples_per_insert: want a finite number of at least 0, got ", limit.samples_per_insert);
    }
    if (limit.samples_per_insert > 0 && !(limit.tolerance >= limit.samples_per_insert)) {
      return InvalidArgument("tolerance: want at least samples_per_insert, which is ", limit.samples_per_insert,
                             ", got ", limit.tolerance);
    }
    if (options_.max_times_sampled > 0 && limit.samples_per_insert > options_.max_times_sampled) {
      return InvalidArgument("samples_per_insert: want at most max_times_sampled, which is ",
                             options_.max_times_sampled, ", got ", limit.samples_per_insert);
    }
    return absl::OkStatus();
  }

  // A replay of the same name may exist, which another process has made.
  absl::Status VerifyResource(Resource* resource) override {
    return ToTensorFlow(resource->replay.CheckSame(options_));
  }

  absl::Status CreateResource(Resource** resource) override {
    return ToTensorFlow(WithMemory([&] {
      *resource = new Resource(options_, rows_.fields, states_);
      return Status();
    }));
  }

  ReplayOptions options_;
  RowAttributes rows_;
  std::vector<Field> states_;
};

// Sets the output `signals`: of each of these components, the rows of the new sequences, [length + 1, n, ...].
absl::Status SetSignals(OpKernelContext* context, const Resource& resource, const std::vector<int>& components,
                        const std::vector<std::shared_ptr<const Sequence>>& inserted) {
  const ReplayOptions& options = resource.replay.options();
  const int64_t n = inserted.size(), num_rows = options.geometry.length + 1;
  OpOutputList signals;
  TF_RETURN_IF_ERROR(context->output_list("signals", &signals));
  for (size_t j = 0; j < components.size(); ++j) {
    const RowComponent& component = options.components[components[j]];
    const int64_t bytes = component.bytes;
    Tensor* signal;
    TF_RETURN_IF_ERROR(signals.allocate(j, Prepend(num_rows, Prepend(n, resource.rows[components[j]].shape)), &signal));
    for (int64_t i = 0; i < n; ++i) {
      resource.replay.Read(*inserted[i], components[j], options.geometry.burn_in + 1, num_rows,
                           Data(*signal) + i * bytes, n * bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status Insert(OpKernelContext* context, Resource* resource) {
  const Tensor& starts = context->input(4);
  if (starts.dims() != 2 || starts.dim_size(0) < 2) {
    return InvalidArgument("starts_episode: want [T+1, B], got ", starts.shape().DebugString());
  }
  const int64_t num_rows = starts.dim_size(0), num_unrolls = starts.dim_size(1);
  for (const char* name : {"stream_id", "index", "first_step"}) {
    TF_RETURN_IF_ERROR(CheckVector(context, name, num_unrolls));
  }
  OpInputList rows, states;
  TF_RETURN_IF_ERROR(GetInputs(context, "rows", "component", resource->rows, starts.shape(), &rows));
  TF_RETURN_IF_ERROR(GetInputs(context, "states", "component", resource->states, starts.shape(), &states));
  std::vector<int> signals;
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(context->op_kernel().def(), "signal_components", &signals));
  for (size_t i = 0; i < signals.size(); ++i) {
    if (signals[i] < 0 || signals[i] >= static_cast<int>(resource->rows.size()) ||
        context->num_outputs() != 2 + static_cast<int>(signals.size()) ||
        context->expected_output_dtype(2 + i) != resource->rows[signals[i]].type) {
      return InvalidArgument("signal_components: want indices of row components, and the types of these, got ",
                             signals[i]);
    }
  }

  // MayInsert is asked once for all unrolls: if it stopped the op after some, the keys of these would be lost.
  if (const Status status = resource->replay.MayInsert(); !status.ok()) return ToTensorFlow(status);
  std::vector<std::shared_ptr<const Sequence>> inserted;
  for (int64_t i = 0; i < num_unrolls; ++i) {
    NewUnroll unroll;
    unroll.stream_id = context->input(1).vec<int64_t>()(i);
    unroll.index = context->input(2).vec<int64_t>()(i);
    unroll.first_step = context->input(3).vec<int64_t>()(i);
    unroll.num_rows = num_rows;
    unroll.starts_episode = RowsOf(starts, 1, i, num_unrolls);
    unroll.rows = RowsOf(rows, resource->rows, i, num_unrolls);
    unroll.states = RowsOf(states, resource->states, i, num_unrolls);
    const Status status = resource->replay.Insert(unroll, &inserted);
    if (!status.ok()) return ToTensorFlow(status);
  }

  const int64_t n = inserted.size();
  Tensor* keys;
  TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({n}), &keys));
  for (int64_t i = 0; i < n; ++i) keys->vec<int64_t>()(i) = inserted[i]->key;
  TF_RETURN_IF_ERROR(SetTrains(context, resource->replay.options().geometry, n,
                               [&](int64_t i) -> const Sequence& { return *inserted[i]; }));
  return SetSignals(context, *resource, signals, inserted);
}

absl::Status Available(OpKernelContext* context, Resource* resource) {
  int64_t batch_size;
  TF_RETURN_IF_ERROR(GetScalar(context, "batch_size", &batch_size));
  const auto available = [](const Status& status) { return status.code() != StatusCode::kUnavailable; };
  return SetCounts(context,
                   {available(resource->replay.MayInsert()), available(resource->replay.MaySample(batch_size))});
}

absl::Status Sample(OpKernelContext* context, Resource* resource) {
  int64_t batch_size, seed;
  TF_RETURN_IF_ERROR(GetScalar(context, "batch_size", &batch_size));
  TF_RETURN_IF_ERROR(GetScalar(context, "seed", &seed));
  if (batch_size < 1) return InvalidArgument("batch_size: want at least 1, got ", batch_size);
  const ReplayOptions& options = resource->replay.options();
  std::vector<Tensor*> ids(6);
  for (int i = 0; i < 6; ++i) {
    TF_RETURN_IF_ERROR(context->allocate_output(i, TensorShape({batch_size}), &ids[i]));
  }
  std::vector<Sampled> sampled;
  const Status status = resource->replay.Sample(batch_size, seed, &sampled);
  if (!status.ok()) return ToTensorFlow(status);
  for (int64_t i = 0; i < batch_size; ++i) {
    ids[0]->vec<int64_t>()(i) = sampled[i].sequence->key;
    ids[1]->vec<float>()(i) = sampled[i].probability;
    ids[2]->vec<int64_t>()(i) = sampled[i].age;
    ids[3]->vec<int64_t>()(i) = sampled[i].sequence->stream_id;
    ids[4]->vec<int64_t>()(i) = sampled[i].sequence->stream_row;
    ids[5]->vec<int64_t>()(i) = sampled[i].sequence->padding();
  }
  TF_RETURN_IF_ERROR(SetTrains(context, options.geometry, batch_size,
                               [&](int64_t i) -> const Sequence& { return *sampled[i].sequence; }));
  const int64_t num_rows = options.geometry.num_rows(), num_states = options.state_offsets.size();
  RowOutputs rows;
  TF_RETURN_IF_ERROR(rows.Allocate(context, resource->rows, options.components, num_rows, batch_size));
  OpOutputList state_outputs;
  TF_RETURN_IF_ERROR(context->output_list("states", &state_outputs));
  if (state_outputs.size() != static_cast<int>(resource->states.size())) {
    return InvalidArgument("state_types: want those of the replay");
  }
  std::vector<Tensor*> states(resource->states.size());
  for (size_t j = 0; j < states.size(); ++j) {
    TF_RETURN_IF_ERROR(Allocate(resource->states[j].type,
                                Prepend(num_states, Prepend(batch_size, resource->states[j].shape)), j, &state_outputs,
                                &states[j]));
  }
  rows.ForAll(context, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Sequence& sequence = *sampled[i].sequence;
      rows.Fill(
          i,
          [&](int component, char* to, int64_t to_stride) {
            resource->replay.Read(sequence, component, 0, num_rows, to, to_stride);
          },
          [&](int component, char* to) { resource->replay.ReadEarlier(sequence, component, to); });
      for (size_t j = 0; j < states.size(); ++j) {
        const int64_t bytes = options.state_bytes[j];
        for (int64_t k = 0; k < num_states; ++k) {
          resource->replay.ReadState(sequence, k, j, Data(*states[j]) + (k * batch_size + i) * bytes);
        }
      }
    }
  });
  return absl::OkStatus();
}

absl::Status Update(OpKernelContext* context, Resource* resource) {
  const auto keys = context->input(1).flat<int64_t>();
  const auto priorities = context->input(2).flat<float>();
  return ToTensorFlow(resource->replay.Update({keys.data(), keys.data() + keys.size()},
                                              {priorities.data(), priorities.data() + priorities.size()}));
}

absl::Status Statistics(OpKernelContext* context, Resource* resource) {
  const ReplayStatistics s = resource->replay.GetStatistics();
  return SetCounts(context, {s.size, s.inserted, s.sampled, s.stale_updates, s.gaps, s.repeated_unrolls, s.streams,
                             s.rows, s.bytes});
}

REGISTER_KERNEL_BUILDER(Name("SequenceReplay").Device(tensorflow::DEVICE_CPU), ReplayOp);
REGISTER_KERNEL_BUILDER(Name("SequenceReplayAvailable").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<Resource, Available>);
REGISTER_KERNEL_BUILDER(Name("SequenceReplayInsert").Device(tensorflow::DEVICE_CPU), ResourceOp<Resource, Insert>);
REGISTER_KERNEL_BUILDER(Name("SequenceReplaySample").Device(tensorflow::DEVICE_CPU), ResourceOp<Resource, Sample>);
REGISTER_KERNEL_BUILDER(Name("SequenceReplayUpdate").Device(tensorflow::DEVICE_CPU), ResourceOp<Resource, Update>);
REGISTER_KERNEL_BUILDER(Name("SequenceReplayStatistics").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<Resource, Statistics>);
REGISTER_KERNEL_BUILDER(Name("SequenceReplaySave").Device(tensorflow::DEVICE_CPU), ResourceOp<Resource, Save>);
REGISTER_KERNEL_BUILDER(Name("SequenceReplayRestore").Device(tensorflow::DEVICE_CPU), ResourceOp<Resource, Restore>);

}  // namespace
}  // namespace scalable_agents
