// TensorFlow ops of the replay of sequences. The public Python interface is replay/sequence_replay.py.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/cc/field.h"
#include "ops/cc/op_helpers.h"
#include "replay/cc/replay_op_helpers.h"
#include "replay/cc/replay_resource.h"
#include "replay/cc/sequence_replay.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
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
    .Output("states: state_types")
    .Attr("row_types: list(type) >= 1")
    .Attr("state_types: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Samples B sequences: trains [length, B], rows [rows of a sequence, B, ...], states [offsets, B, ...].");

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
    .Doc("Returns counts, in the order of replay.Statistics.");

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
    .Doc("Restores what was saved. Unavailable: the file cannot be read. InvalidArgument: it is damaged or another.");

// Which trained steps of n sequences exist: [length, n].
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

class InsertOp : public tensorflow::OpKernel {
 public:
  explicit InsertOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("signal_components", &signal_components_));
  }

  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<ReplayResource>(context);
    if (!resource) return;
    OP_REQUIRES_OK(context, Check(context, *resource));
    OP_REQUIRES_OK(context, WithMemoryForOp([&] { return Insert(context, resource.get()); }));
  }

 private:
  absl::Status Check(OpKernelContext* context, const ReplayResource& resource) const {
    const Tensor& starts = context->input(4);
    if (starts.dims() != 2 || starts.dim_size(0) < 2) {
      return InvalidArgument("starts_episode: want [T+1, B], got ", starts.shape().DebugString());
    }
    for (const char* name : {"stream_id", "index", "first_step"}) {
      TF_RETURN_IF_ERROR(CheckVector(context, name, starts.dim_size(1)));
    }
    TF_RETURN_IF_ERROR(CheckRows(context, "rows", resource.rows, starts.dim_size(0), starts.dim_size(1)));
    TF_RETURN_IF_ERROR(CheckRows(context, "states", resource.states, starts.dim_size(0), starts.dim_size(1)));
    for (size_t i = 0; i < signal_components_.size(); ++i) {
      const int component = signal_components_[i];
      if (component < 0 || component >= static_cast<int>(resource.rows.size()) ||
          context->num_outputs() != 2 + static_cast<int>(signal_components_.size()) ||
          context->expected_output_dtype(2 + i) != resource.rows[component].type) {
        return InvalidArgument("signal_components: want indices of row components, and the types of these, got ",
                               component);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Insert(OpKernelContext* context, ReplayResource* resource) const {
    OpInputList rows, states;
    TF_RETURN_IF_ERROR(context->input_list("rows", &rows));
    TF_RETURN_IF_ERROR(context->input_list("states", &states));
    const Tensor& starts = context->input(4);
    const int64_t num_unrolls = starts.dim_size(1);
    std::vector<std::shared_ptr<const Sequence>> inserted;
    for (int64_t i = 0; i < num_unrolls; ++i) {
      NewUnroll unroll;
      unroll.stream_id = context->input(1).vec<int64_t>()(i);
      unroll.index = context->input(2).vec<int64_t>()(i);
      unroll.first_step = context->input(3).vec<int64_t>()(i);
      unroll.num_rows = starts.dim_size(0);
      unroll.starts_episode = RowsOf(starts, 1, i, num_unrolls);
      unroll.rows = RowsOf(rows, resource->rows, i, num_unrolls);
      unroll.states = RowsOf(states, resource->states, i, num_unrolls);
      const Status status = resource->replay.Insert(unroll, &inserted);
      if (!status.ok()) return ToTensorFlow(status);
    }
    return SetOutputs(context, *resource, inserted);
  }

  absl::Status SetOutputs(OpKernelContext* context, const ReplayResource& resource,
                          const std::vector<std::shared_ptr<const Sequence>>& inserted) const {
    const SequenceGeometry& geometry = resource.replay.options().geometry;
    const int64_t n = inserted.size();
    Tensor* keys;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({n}), &keys));
    for (int64_t i = 0; i < n; ++i) keys->vec<int64_t>()(i) = inserted[i]->key;
    TF_RETURN_IF_ERROR(SetTrains(context, geometry, n, [&](int64_t i) -> const Sequence& { return *inserted[i]; }));
    OpOutputList signals;
    TF_RETURN_IF_ERROR(context->output_list("signals", &signals));
    for (size_t j = 0; j < signal_components_.size(); ++j) {
      const int component = signal_components_[j];
      const int64_t bytes = resource.replay.options().components[component].read_bytes();
      Tensor* signal;
      TF_RETURN_IF_ERROR(signals.allocate(j, resource.ReadShapeOf(component, geometry.length + 1, n), &signal));
      for (int64_t i = 0; i < n; ++i) {
        resource.replay.Read(*inserted[i], component, geometry.burn_in + 1, geometry.length + 1,
                             Data(*signal) + i * bytes, n * bytes);
      }
    }
    return absl::OkStatus();
  }

  std::vector<int> signal_components_;
};

class SampleOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<ReplayResource>(context);
    if (!resource) return;
    for (int input : {1, 2}) {
      OP_REQUIRES(context, context->input(input).NumElements() == 1,
                  InvalidArgument("batch_size and seed: want scalars"));
    }
    const int64_t batch_size = context->input(1).flat<int64_t>()(0);
    OP_REQUIRES(context, batch_size >= 1, InvalidArgument("batch_size: want at least 1, got ", batch_size));
    OP_REQUIRES(context,
                context->num_outputs() == static_cast<int>(7 + resource->rows.size() + resource->states.size()),
                InvalidArgument("row_types and state_types: want those of the replay"));
    OP_REQUIRES_OK(context, WithMemoryForOp([&] { return Sample(context, resource.get(), batch_size); }));
  }

 private:
  static absl::Status Sample(OpKernelContext* context, ReplayResource* resource, int64_t batch_size) {
    const ReplayOptions& options = resource->replay.options();
    std::vector<Tensor*> ids(6);
    for (int i = 0; i < 6; ++i) {
      TF_RETURN_IF_ERROR(context->allocate_output(i, TensorShape({batch_size}), &ids[i]));
    }
    std::vector<Sampled> sampled;
    const Status status = resource->replay.Sample(batch_size, context->input(2).flat<int64_t>()(0), &sampled);
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
    std::vector<Tensor*> states(resource->states.size());
    for (size_t j = 0; j < states.size(); ++j) {
      TF_RETURN_IF_ERROR(Allocate(resource->states[j].type,
                                  Prepend(num_states, Prepend(batch_size, resource->states[j].shape)), j,
                                  &state_outputs, &states[j]));
    }
    rows.ForAll(context, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Sequence& sequence = *sampled[i].sequence;
        rows.Fill(i, [&](int component, char* to, int64_t to_stride) {
          resource->replay.Read(sequence, component, 0, num_rows, to, to_stride);
        });
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
};

class UpdateOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<ReplayResource>(context);
    if (!resource) return;
    const auto keys = context->input(1).flat<int64_t>();
    const auto priorities = context->input(2).flat<float>();
    OP_REQUIRES_OK(context,
                   ToTensorFlow(resource->replay.Update({keys.data(), keys.data() + keys.size()},
                                                        {priorities.data(), priorities.data() + priorities.size()})));
  }
};

class StatisticsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<ReplayResource>(context);
    if (!resource) return;
    const ReplayStatistics s = resource->replay.GetStatistics();
    OP_REQUIRES_OK(context, SetCounts(context, {s.size, s.inserted, s.sampled, s.stale_updates, s.gaps,
                                                s.repeated_unrolls, s.streams, s.rows, s.bytes}));
  }
};

REGISTER_KERNEL_BUILDER(Name("SequenceReplayInsert").Device(tensorflow::DEVICE_CPU), InsertOp);
REGISTER_KERNEL_BUILDER(Name("SequenceReplaySample").Device(tensorflow::DEVICE_CPU), SampleOp);
REGISTER_KERNEL_BUILDER(Name("SequenceReplayUpdate").Device(tensorflow::DEVICE_CPU), UpdateOp);
REGISTER_KERNEL_BUILDER(Name("SequenceReplayStatistics").Device(tensorflow::DEVICE_CPU), StatisticsOp);
REGISTER_KERNEL_BUILDER(Name("SequenceReplaySave").Device(tensorflow::DEVICE_CPU), TextOp<ReplayResource, SaveWork>);
REGISTER_KERNEL_BUILDER(Name("SequenceReplayRestore").Device(tensorflow::DEVICE_CPU),
                        TextOp<ReplayResource, RestoreWork>);

}  // namespace
}  // namespace scalable_agents
