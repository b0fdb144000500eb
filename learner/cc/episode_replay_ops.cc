// TensorFlow ops of the replay of episodes. The public Python interface is learner/episode_replay.py.
#include <string>
#include <vector>

#include "learner/cc/episode_replay.h"
#include "learner/cc/episode_replay_resource.h"
#include "learner/cc/replay_op_helpers.h"
#include "ops/cc/field.h"
#include "ops/cc/op_helpers.h"
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

REGISTER_OP("EpisodeReplay")
    .Output("handle: resource")
    .Attr("row_types: list(type) >= 1")
    .Attr("row_shapes: list(shape) >= 1")
    .Attr("stacks: list(int) >= 1")
    .Attr("done_component: int")
    .Attr("unroll_length: int")
    .Attr("capacity: int")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Makes a replay. Types and shapes are those of one row; of a stack of frames, those of the newest frame.");

REGISTER_OP("EpisodeReplayInsert")
    .Input("handle: resource")
    .Input("life_id: int64")
    .Input("index: int64")
    .Input("rows: row_types")
    .Attr("row_types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Inserts B unrolls: life_id, index [B], rows [rows of an unroll, B, ...].");

REGISTER_OP("EpisodeReplayNext")
    .Input("handle: resource")
    .Input("key: int64")
    .Input("step: int64")
    .Input("seed: int64")
    .Output("next_key: int64")
    .Output("next_step: int64")
    .Output("first_step: int64")
    .Output("life_id: int64")
    .Output("life_row: int64")
    .Output("trains: bool")
    .Output("rows: row_types")
    .Attr("row_types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Returns the next unrolls of N replayers, whose positions are key and step [N]: their new positions, trains "
         "[T, N] and rows [T+1, N, ...]. While there is no episode, all rows are padding, and the keys are -1.");

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
    .Doc("Restores what was saved. Unavailable: the file cannot be read. InvalidArgument: it is damaged or another.");

class ReplayOp : public tensorflow::ResourceOpKernel<EpisodeReplayResource> {
 public:
  explicit ReplayOp(OpKernelConstruction* context) : ResourceOpKernel(context) {
    OP_REQUIRES_OK(context, GetRowAttributes(context, &rows_));
    options_.components = rows_.components;
    options_.done = rows_.done;
    OP_REQUIRES_OK(context, context->GetAttr("unroll_length", &options_.unroll_length));
    OP_REQUIRES_OK(context, context->GetAttr("capacity", &options_.capacity));
    OP_REQUIRES(context, options_.unroll_length >= 1 && options_.capacity >= 1,
                InvalidArgument("unroll_length and capacity: want at least 1, got ", options_.unroll_length, " and ",
                                options_.capacity));
  }

 private:
  absl::Status CreateResource(EpisodeReplayResource** resource) override {
    return ToTensorFlow(WithMemory([&] {
      *resource = new EpisodeReplayResource(options_, rows_.fields);
      return Status();
    }));
  }

  EpisodeReplayOptions options_;
  RowAttributes rows_;
};

class InsertOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<EpisodeReplayResource>(context);
    if (!resource) return;
    OP_REQUIRES_OK(context, WithMemoryForOp([&] { return Insert(context, resource.get()); }));
  }

 private:
  static absl::Status Insert(OpKernelContext* context, EpisodeReplayResource* resource) {
    OpInputList rows;
    TF_RETURN_IF_ERROR(context->input_list("rows", &rows));
    const TensorShape& shape = rows[0].shape();
    if (shape.dims() < 2 || shape.dim_size(0) < 2) {
      return InvalidArgument("rows, component 0: want [T+1, B, ...], got ", shape.DebugString());
    }
    const int64_t num_rows = shape.dim_size(0), num_unrolls = shape.dim_size(1);
    TF_RETURN_IF_ERROR(CheckVector(context, "life_id", num_unrolls));
    TF_RETURN_IF_ERROR(CheckVector(context, "index", num_unrolls));
    TF_RETURN_IF_ERROR(CheckRows(context, "rows", resource->rows, num_rows, num_unrolls));
    for (int64_t i = 0; i < num_unrolls; ++i) {
      const Status status = resource->replay.Insert(context->input(1).vec<int64_t>()(i),
                                                    context->input(2).vec<int64_t>()(i), num_rows,
                                                    RowsOf(rows, resource->rows, i, num_unrolls));
      if (!status.ok()) return ToTensorFlow(status);
    }
    return absl::OkStatus();
  }
};

class NextOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<EpisodeReplayResource>(context);
    if (!resource) return;
    OP_REQUIRES_OK(context, WithMemoryForOp([&] { return Next(context, resource.get()); }));
  }

 private:
  static absl::Status Next(OpKernelContext* context, EpisodeReplayResource* resource) {
    EpisodeReplay& replay = resource->replay;
    const Tensor &keys = context->input(1), &steps = context->input(2);
    if (keys.dims() != 1) return InvalidArgument("key: want [N], got ", keys.shape().DebugString());
    const int64_t n = keys.dim_size(0), length = replay.options().unroll_length;
    TF_RETURN_IF_ERROR(CheckVector(context, "step", n));
    if (context->input(3).NumElements() != 1) return InvalidArgument("seed: want a scalar");
    std::vector<ReplayedUnroll> unrolls;
    const auto vector = [n](const Tensor& tensor) {
      const int64_t* data = tensor.vec<int64_t>().data();
      return std::vector<int64_t>(data, data + n);
    };
    const Status status =
        replay.Next(vector(keys), vector(steps), context->input(3).flat<int64_t>()(0), &unrolls);
    if (!status.ok()) return ToTensorFlow(status);

    std::vector<Tensor*> numbers(5);
    for (size_t j = 0; j < numbers.size(); ++j) {
      TF_RETURN_IF_ERROR(context->allocate_output(j, TensorShape({n}), &numbers[j]));
    }
    Tensor* trains;
    TF_RETURN_IF_ERROR(context->allocate_output("trains", TensorShape({length, n}), &trains));
    auto trains_matrix = trains->matrix<bool>();
    for (int64_t i = 0; i < n; ++i) {
      const ReplayedUnroll& unroll = unrolls[i];
      const int64_t values[] = {unroll.episode->key, unroll.first_step + length, unroll.first_step,
                                unroll.episode->life_id, unroll.episode->life_row + unroll.first_step};
      for (size_t j = 0; j < numbers.size(); ++j) numbers[j]->vec<int64_t>()(i) = values[j];
      for (int step = 0; step < length; ++step) trains_matrix(step, i) = unroll.Trains(step);
    }
    RowOutputs rows;
    TF_RETURN_IF_ERROR(rows.Allocate(context, resource->rows, replay.options().components, length + 1, n));
    rows.ForAll(context, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        rows.Fill(i, [&](int component, char* to, int64_t to_stride) {
          replay.Read(unrolls[i], component, to, to_stride);
        });
      }
    });
    return absl::OkStatus();
  }
};

class StatisticsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<EpisodeReplayResource>(context);
    if (!resource) return;
    const EpisodeReplayStatistics s = resource->replay.GetStatistics();
    OP_REQUIRES_OK(context, SetCounts(context, {s.steps, s.episodes, s.inserted_steps, s.inserted_episodes,
                                                s.replayed_unrolls, s.gaps, s.repeated_unrolls, s.streams, s.rows,
                                                s.bytes}));
  }
};

REGISTER_KERNEL_BUILDER(Name("EpisodeReplay").Device(tensorflow::DEVICE_CPU), ReplayOp);
REGISTER_KERNEL_BUILDER(Name("EpisodeReplayInsert").Device(tensorflow::DEVICE_CPU), InsertOp);
REGISTER_KERNEL_BUILDER(Name("EpisodeReplayNext").Device(tensorflow::DEVICE_CPU), NextOp);
REGISTER_KERNEL_BUILDER(Name("EpisodeReplayStatistics").Device(tensorflow::DEVICE_CPU), StatisticsOp);
REGISTER_KERNEL_BUILDER(Name("EpisodeReplaySave").Device(tensorflow::DEVICE_CPU),
                        TextOp<EpisodeReplayResource, SaveWork>);
REGISTER_KERNEL_BUILDER(Name("EpisodeReplayRestore").Device(tensorflow::DEVICE_CPU),
                        TextOp<EpisodeReplayResource, RestoreWork>);

}  // namespace
}  // namespace scalable_agents
