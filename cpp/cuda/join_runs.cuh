// Rows whose gradients lie in several runs: their shares, summed in a fixed order, then
// the step of the optimizer.
#pragma once

#include "cuda/runs.cuh"

namespace dynemb {

inline constexpr int kJoinThreads = 512;

// Threads that join a row together.
struct WarpGroup {
  static constexpr int kSize = 32;
  __device__ static int Rank() { return Lane(); }
  __device__ static void Sync() { __syncwarp(); }
  template <class T>
  __device__ static T Sum(T value) {
    return WarpSum(value);
  }
};

struct BlockGroup {
  static constexpr int kSize = kJoinThreads;
  __device__ static int Rank() { return static_cast<int>(threadIdx.x); }
  __device__ static void Sync() { __syncthreads(); }
  template <class T>
  __device__ static T Sum(T value) {
    __shared__ T warps[kJoinThreads / 32];
    value = WarpSum(value);
    __syncthreads();
    if (Lane() == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    T sum = 0;
    for (T warp : warps) sum += warp;
    return sum;
  }
};

// A row whose gradients began in `run` and end in `last_run`, a later one.
struct Join {
  uint32_t part;  // position of the table in the launch
  uint32_t run, last_run;
  uint32_t unique;
};

// exchange: shared memory, [kSize].
template <class Group, int VEC, class Rule, class Elements>
__device__ void JoinRow(const Rule& rule, const Elements& elements, const TableRuns& runs,
                        const TableView& view, const Join& join, float4* exchange) {
  Piece<VEC>* pieces = reinterpret_cast<Piece<VEC>*>(exchange);
  const RowLayout& layout = view.layout;
  const int dim = layout.dim;
  float* total = runs.Tail(join.run);
  // As many threads as the row has pieces sum every so many runs.
  int width = 1;
  while (width < Group::kSize && width * VEC < dim) width *= 2;
  const uint32_t share = static_cast<uint32_t>(Group::Rank() / width);
  const uint32_t shares = static_cast<uint32_t>(Group::kSize / width);
  for (int start = 0; start < dim; start += width * VEC) {
    const int column = start + Group::Rank() % width * VEC;
    Piece<VEC> sum = Piece<VEC>::Filled(0.0f);
    if (column < dim) {
      if (share == 0) sum = Piece<VEC>::Load(total + column);
#pragma unroll 8
      for (uint32_t r = join.run + 1 + share; r <= join.last_run; r += shares) {
        sum.AddScaled(1.0f, Piece<VEC>::Load(runs.Head(r) + column));
      }
    }
    Group::Sync();
    pieces[Group::Rank()] = sum;
    Group::Sync();
    if (share != 0 || column >= dim) continue;
    for (int s = 1; s < static_cast<int>(shares); ++s) {
      sum.AddScaled(1.0f, pieces[s * width + Group::Rank()]);
    }
    sum.Store(total + column);
  }
  Group::Sync();

  bool clips = false;
  if constexpr (kClips<Rule>) clips = rule.Clips();
  if (clips) {
    double squares = 0.0;
    for (int c = Group::Rank(); c < dim; c += Group::kSize) {
      squares += static_cast<double>(total[c]) * static_cast<double>(total[c]);
    }
    float scale = 1.0f;
    squares = Group::Sum(squares);
    if constexpr (kClips<Rule>) scale = rule.ClipScaleOf(squares);
    for (int c = Group::Rank(); c < dim; c += Group::kSize) total[c] *= scale;
  }
  float* row = view.Row(runs.Row(join.unique));
  float none0 = 0.0f, none1 = 0.0f, sums[2] = {};
  const auto state = [&](int vector, int column, float& none) -> float& {
    return vector < Rule::kVectors ? row[layout.VectorOffset(vector) + column] : none;
  };
  if constexpr (Rule::kSums > 0) {
    for (int c = Group::Rank(); c < dim; c += Group::kSize) {
      rule.Sum(total[c], elements.Load(row, c), state(0, c, none0), state(1, c, none1), sums);
    }
    for (int s = 0; s < Rule::kSums; ++s) sums[s] = Group::Sum(sums[s]);
  }
  float scalars[Rule::kScalars > 0 ? Rule::kScalars : 1] = {};
  for (int i = 0; i < Rule::kScalars; ++i) scalars[i] = row[layout.ScalarOffset() + i];
  const Key key = elements.KeepsKey() ? layout.LoadKey(row) : 0;
  const auto terms = rule.Row(scalars, sums, dim);
  Group::Sync();
  for (int c = Group::Rank(); c < dim; c += Group::kSize) {
    float w = 0.0f;
    if constexpr (kReadsRow<Rule>) w = elements.Load(row, c);
    rule.Column(terms, total[c], w, state(0, c, none0), state(1, c, none1));
    elements.Store(Piece<1>{{w}}, key, row, c);
  }
  if (Group::Rank() == 0) {
    for (int i = 0; i < Rule::kScalars; ++i) row[layout.ScalarOffset() + i] = scalars[i];
  }
}

template <class Group, class Rule, class Elements, class Tables>
__device__ void JoinRow(const Tables& parts, const UpdateScratch& scratch, const Join& join,
                        float4* exchange) {
  const UpdateTable& part = parts.tables[join.part];
  const TableView& view = scratch.tables[part.table];
  const StepOperands operands = OperandsOf(scratch, part.table);
  const Rule rule(scratch.optimizers[part.table], operands);
  const Elements elements(view, operands.step);
  const TableRuns runs(part, scratch);
  if (view.layout.dim % 4 == 0) {  // shares are of floats in any case
    JoinRow<Group, 4>(rule, elements, runs, view, join, exchange);
  } else {
    JoinRow<Group, 1>(rule, elements, runs, view, join, exchange);
  }
}

// What run number `at` of a launch has to join; false: nothing.
template <class List, class Tables>
__device__ bool FindJoin(const List& list, const Tables& parts, const UpdateScratch& scratch,
                         uint32_t at, Join* join) {
  const UpdateTable& part = TableAt(parts, &UpdateTable::first_run, at);
  const TableRuns runs(part, scratch);
  const uint32_t run = at - part.first_run;
  if (runs.RunBegin(run) >= runs.end) return false;
  const uint32_t unique = UniqueOfId(list, scratch.sorted[runs.RunEnd(run) - 1]);
  const uint32_t begin = scratch.offsets[unique], end = scratch.offsets[unique + 1];
  if (begin < runs.RunBegin(run) || end == runs.RunEnd(run)) return false;
  *join = {static_cast<uint32_t>(&part - parts.tables), run, (end - 1 - runs.begin) / kRunLength,
           unique};
  return true;
}

// A row of so many runs is worth a block.
inline constexpr uint32_t kWarpJoins = 8;

// One warp a run: where a row began in it and ends in a later one, the warp joins it,
// or the block where the row is hot.
template <class Rule, class Elements, class List, class Tables>
__global__ void __launch_bounds__(kJoinThreads)
    JoinRunsKernel(const __grid_constant__ List list, const __grid_constant__ Tables parts,
                   UpdateScratch scratch) {
  if (scratch.group->run == 0) return;
  __shared__ float4 exchange[kJoinThreads];
  __shared__ Join hot[kJoinThreads / 32];
  __shared__ int num_hot;
  if (threadIdx.x == 0) num_hot = 0;
  __syncthreads();
  const uint32_t at = (blockIdx.x * kJoinThreads + threadIdx.x) / 32;
  Join join{};
  if (at < parts.runs && FindJoin(list, parts, scratch, at, &join)) {
    if (join.last_run - join.run <= kWarpJoins) {
      JoinRow<WarpGroup, Rule, Elements>(parts, scratch, join, exchange + threadIdx.x / 32 * 32);
    } else if (Lane() == 0) {
      hot[atomicAdd(&num_hot, 1)] = join;
    }
  }
  __syncthreads();
  for (int h = 0; h < num_hot; ++h) {
    JoinRow<BlockGroup, Rule, Elements>(parts, scratch, hot[h], exchange);
  }
}

}  // namespace dynemb
