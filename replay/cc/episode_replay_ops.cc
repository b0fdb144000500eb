// TensorFlow ops of the replay of episodes. The public Python interface is replay/episode_replay.py.
#include <vector>

#include "ops/cc/field.h"
#include "ops/cc/op_helpers.h"
#include "replay/cc/episode_replay.h"
#include "replay/cc/replay_op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace scalable_agents {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::errors::InvalidArgument;

using Resource = ReplayResource<EpisodeReplay>;

REGISTER_OP("EpisodeReplay")
    .Output("handle: resource")
    .Attr("row_types: list(type) >= 1")
    .Attr("row_shapes: list(shape) >= 1")
    .Attr("stacks: list(int) >= 1")
    .Attr("done_component: int")
    .Attr("contents: string = ''")
    .Attr("observed_components: list(int)")
    .Attr("unroll_length: int")
    .Attr("capacity: int")
    .Attr("longest_episode: int")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Makes a replay. Types and shapes are those of one row; of a stack of frames, those of the newest frame.");

REGISTER_OP("EpisodeReplayInsert")
    .Input("handle: resource")
    .Input("stream_id: int64")
    .Input("index: int64")
    .Input("rows: row_types")
    .Attr("row_types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Inserts B unrolls: stream_id, index [B], rows [rows of an unroll, B, ...].");

REGISTER_OP("EpisodeReplayNext")
    .Input("handle: resource")
    .Input("key: int64")
    .Input("step: int64")
    .Input("seed: int64")
    .Input("minimum_size: int64")
    .Output("next_key: int64")
    .Output("next_step: int64")
    .Output("stream_id: int64")
    .Output("stream_row: int64")
    .Output("rows: row_types")
    .Output("earlier: earlier_types")
    .Attr("row_types: list(type) >= 1")
    .Attr("earlier_types: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(
        "Returns the next unrolls of N replayers, whose positions are key and step [N]: their new positions, the "
        "stream of row 0 and its number in that stream, and rows [T+1, N, ...]. Until the replay has minimum_size "
        "steps, all rows are zeros, and the keys are -1.");

REGISTER_OP("EpisodeReplayStatistics")
    .Input("handle: resource")
    .Output("statistics: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Returns counts, in the order of episode_replay.Statistics.");

REGISTER_OP("EpisodeReplaySave")
    .Input("handle: resource")
    .Input("path: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Writes the episodes to a file. Unavailable: the file cannot be written.");

REGISTER_OP("EpisodeReplayRestore")
    .Input("handle: resource")
    .Input("path: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(
        "Restores what was saved. Unavailable: the file cannot be read, or is damaged. InvalidArgument: it was saved "
        "with other settings, or the replay is not empty.");

class ReplayOp : public tensorflow::ResourceOpKernel<Resource> {
 public:
  explicit ReplayOp(OpKernelConstruction* context) : ResourceOpKernel(context) {
    OP_REQUIRES_OK(context, GetRowAttributes(context, &rows_));
    options_.components = rows_.components;
    options_.contents = rows_.contents;
    options_.done = rows_.done;
    std::vector<int> observed;
    OP_REQUIRES_OK(context, context->GetAttr("observed_components", &observed));
    options_.is_observed.resize(rows_.components.size());
    for (int component : observed) {
      OP_REQUIRES(context, component >= 0 && component < static_cast<int>(rows_.components.size()),
                  InvalidArgument("observed_components: want indices of components, got ", component));
      options_.is_observed[component] = true;
    }
    OP_REQUIRES_OK(context, context->GetAttr("unroll_length", &options_.unroll_length));
    OP_REQUIRES_OK(context, context->GetAttr("capacity", &options_.capacity));
    OP_REQUIRES_OK(context, context->GetAttr("longest_episode", &options_.longest_episode));
    OP_REQUIRES(context, options_.unroll_length <= kMaximumCount,
                InvalidArgument("unroll_length: want at most ", kMaximumCount, ", got ", options_.unroll_length));
    OP_REQUIRES(context, options_.unroll_length >= 1 && options_.capacity >= 1 && options_.longest_episode >= 1,
                InvalidArgument("unroll_length, capacity and longest_episode: want at least 1, got ",
                                options_.unroll_length, ", ", options_.capacity, " and ", options_.longest_episode));
  }

 private:
  // A replay of the same name may exist, which another process has made.
  absl::Status VerifyResource(Resource* resource) override {
    return ToTensorFlow(resource->replay.CheckSame(options_));
  }

  absl::Status CreateResource(Resource** resource) override {
    return ToTensorFlow(WithMemory([&] {
      *resource = new Resource(options_, rows_.fields);
      return Status();
    }));
  }

  EpisodeReplayOptions options_;
  RowAttributes rows_;
};

absl::Status Insert(OpKernelContext* context, Resource* resource) {
  OpInputList rows;
  TF_RETURN_IF_ERROR(context->input_list("rows", &rows));
  const TensorShape& shape = rows[0].shape();
  if (shape.dims() < 2 || shape.dim_size(0) < 2) {
    return InvalidArgument("rows, component 0: want [T+1, B, ...], got ", shape.DebugString());
  }
  const int64_t num_rows = shape.dim_size(0), num_unrolls = shape.dim_size(1);
  TF_RETURN_IF_ERROR(CheckVector(context, "stream_id", num_unrolls));
  TF_RETURN_IF_ERROR(CheckVector(context, "index", num_unrolls));
  TF_RETURN_IF_ERROR(GetInputs(context, "rows", "component", resource->rows, {num_rows, num_unrolls}, &rows));
  for (int64_t i = 0; i < num_unrolls; ++i) {
    const Status status =
        resource->replay.Insert(context->input(1).vec<int64_t>()(i), context->input(2).vec<int64_t>()(i), num_rows,
                                RowsOf(rows, resource->rows, i, num_unrolls));
    if (!status.ok()) return ToTensorFlow(status);
  }
  return absl::OkStatus();
}

absl::Status Next(OpKernelContext* context, Resource* resource) {
  EpisodeReplay& replay = resource->replay;
  const Tensor &keys = context->input(1), &steps = context->input(2);
  if (keys.dims() != 1) return InvalidArgument("key: want [N], got ", keys.shape().DebugString());
  const int64_t n = keys.dim_size(0), length = replay.options().unroll_length;
  TF_RETURN_IF_ERROR(CheckVector(context, "step", n));
  int64_t seed, minimum_size;
  TF_RETURN_IF_ERROR(GetScalar(context, "seed", &seed));
  TF_RETURN_IF_ERROR(GetScalar(context, "minimum_size", &minimum_size));
  const auto vector = [n](const Tensor& tensor) {
    const int64_t* data = tensor.vec<int64_t>().data();
    return std::vector<int64_t>(data, data + n);
  };
  RowOutputs rows;
  TF_RETURN_IF_ERROR(rows.Allocate(context, resource->rows, replay.options().components, length + 1, n));
  std::vector<ReplayedUnroll> unrolls;
  const Status status = replay.Next(vector(keys), vector(steps), seed, minimum_size, &unrolls);
  if (!status.ok()) return ToTensorFlow(status);

  std::vector<Tensor*> numbers(4);
  for (size_t j = 0; j < numbers.size(); ++j) {
    TF_RETURN_IF_ERROR(context->allocate_output(j, TensorShape({n}), &numbers[j]));
  }
  for (int64_t i = 0; i < n; ++i) {
    const ReplayedUnroll& unroll = unrolls[i];
    int64_t stream_id = 0, stream_row = 0;
    if (!unroll.parts.empty()) {
      const Episode& episode = *unroll.parts[0].episode;
      stream_id = episode.stream_id;
      stream_row = episode.stream_row + unroll.parts[0].first_step;
    }
    const int64_t values[] = {unroll.next_key, unroll.next_step, stream_id, stream_row};
    for (size_t j = 0; j < numbers.size(); ++j) numbers[j]->vec<int64_t>()(i) = values[j];
  }
  rows.ForAll(context, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      rows.Fill(
          i, [&](int component, char* to, int64_t to_stride) { replay.Read(unrolls[i], component, to, to_stride); },
          [&](int component, char* to) { replay.ReadEarlier(unrolls[i], component, to); });
    }
  });
  return absl::OkStatus();
}

absl::Status Statistics(OpKernelContext* context, Resource* resource) {
  const EpisodeReplayStatistics s = resource->replay.GetStatistics();
  return SetCounts(context, {s.steps, s.episodes, s.inserted_episodes, s.replayed_unrolls, s.gaps, s.repeated_unrolls,
                             s.streams, s.rows, s.bytes, s.long_episodes});
}

REGISTER_KERNEL_BUILDER(Name("EpisodeReplay").Device(tensorflow::DEVICE_CPU), ReplayOp);
REGISTER_KERNEL_BUILDER(Name("EpisodeReplayInsert").Device(tensorflow::DEVICE_CPU), ResourceOp<Resource, Insert>);
REGISTER_KERNEL_BUILDER(Name("EpisodeReplayNext").Device(tensorflow::DEVICE_CPU), ResourceOp<Resource, Next>);
REGISTER_KERNEL_BUILDER(Name("EpisodeReplayStatistics").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<Resource, Statistics>);
REGISTER_KERNEL_BUILDER(Name("EpisodeReplaySave").Device(tensorflow::DEVICE_CPU), ResourceOp<Resource, Save>);
REGISTER_KERNEL_BUILDER(Name("EpisodeReplayRestore").Device(tensorflow::DEVICE_CPU), ResourceOp<Resource, Restore>);

}  // namespace
}  // namespace scalable_agents
