// Gradients of a run, summed per row, then one step of the optimizer for every row
// that begins and ends in the run. Of a row that does not, the run keeps its share.
#pragma once

#include "cuda/runs.cuh"

namespace dynemb {

// Gradient of one id: where its row of the caller's gradient is, and its weight.
template <class Grad>
struct Contribution {
  const Grad* grad;
  float scale;
};

template <class Grad>
__device__ Contribution<Grad> ContributionOf(const GradientParam& feature, int64_t i) {
  const Grad* grads = static_cast<const Grad*>(feature.grads);
  if (feature.bag_scales == nullptr) return {grads + i * feature.dim, 1.0f};
  const int64_t bag = feature.bag_of != nullptr ? feature.bag_of[i] : i / feature.bag_length;
  const float weight = feature.weights == nullptr ? 1.0f : feature.weights[i];
  return {grads + bag * feature.dim, weight * feature.bag_scales[bag]};
}

// What a team has to know of one gradient.
template <class Grad>
struct RunItem {
  const Grad* grad;  // null: none
  float* row;        // to be stepped with the sum that ends here, or null
  float scale;
  uint32_t unique;
  bool ends;  // the last gradient of its row
};

// Columns [column, column + VEC) of a row.
template <class Rule, int VEC>
struct RowColumns {
  Piece<VEC> w, s0, s1;

  __device__ void Step(const Rule& rule, const auto& terms, const Piece<VEC>& grad) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      rule.Column(terms, grad.value[v], w.value[v], s0.value[v], s1.value[v]);
    }
  }
  __device__ void Sum(const Rule& rule, const Piece<VEC>& grad, float* sums) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      rule.Sum(grad.value[v], w.value[v], s0.value[v], s1.value[v], sums);
    }
  }
  template <class Elements>
  __device__ void Store(const Elements& elements, const RowLayout& layout, Key key, float* row,
                        int column) const {
    elements.Store(w, key, row, column);
    if constexpr (Rule::kVectors > 0) s0.Store(row + layout.VectorOffset(0) + column);
    if constexpr (Rule::kVectors > 1) s1.Store(row + layout.VectorOffset(1) + column);
  }
};

// Parts of a ring's stage: a gradient, the columns it moves, what is behind them: the row's
// numbers, and its key where that is needed.
template <class Rule, class Elements>
struct RunParts {
  static constexpr bool kHasTail = Rule::kScalars > 0 || Elements::kRounds;
  static_assert(Rule::kScalars <= 2);  // numbers and key are 16 bytes
  static constexpr int kRow = Elements::kGradParts;
  static constexpr int kState = kRow + 1;
  static constexpr int kTail = kState + Rule::kVectors * Elements::kStateParts;
  static constexpr int kCount = kTail + (kHasTail ? 1 : 0);
  // As many as a block of two warps has memory for.
  static constexpr int kStages = kCount <= 5 ? 8 : 4;
};
template <class Rule, class Elements>
using RunRing = Ring<RunParts<Rule, Elements>::kStages, RunParts<Rule, Elements>::kCount>;

enum class RunPass { kSquares, kSums, kSteps };

// One warp on the runs of its teams.
template <class Rule, class Elements, int VEC, class List>
struct RunWarp {
  using Parts = RunParts<Rule, Elements>;
  using Item = RunItem<typename Elements::Grad>;

  const Rule& rule;
  const Elements& elements;
  const List& list;
  const TableRuns& runs;
  const TableView& view;
  const Teams<VEC> teams;
  const RunRing<Rule, Elements> ring;
  Item* items;   // [32], of this warp
  uint32_t run;  // of this team
  uint32_t begin, end;

  // Where a team stands between two fetches.
  struct Place {
    uint32_t unique;  // of the next gradient, or of the one before it
    bool carried;     // the team's open row began in an earlier run
  };

  __device__ uint32_t EndOf(uint32_t unique) const {
    const int64_t last = runs.table.first_unique + runs.table.capacity;
    return unique < last ? runs.scratch.offsets[unique + 1] : ~0u;
  }

  // A row and its gradients, [begin, end).
  struct Segment {
    uint32_t unique, begin, end;
  };

  // That of this lane's position, which is not before unique row `from`. Rows are
  // numbered in the order of their gradients, so the ends of the next ones lie side by
  // side: nothing has to be looked up by id.
  __device__ Segment SegmentOf(uint32_t at, uint32_t from) const {
    Segment segment{from, 0, 0};
    bool found = false;
    do {
      const uint32_t end = EndOf(from + static_cast<uint32_t>(teams.member));
      int passed = 0;  // ends at or before this position
      for (int step = teams.lanes / 2; step > 0; step /= 2) {
        const uint32_t other = __shfl_sync(kFullWarp, end, passed + step - 1, teams.lanes);
        if (other <= at) passed += step;
      }
      const uint32_t here = __shfl_sync(kFullWarp, end, passed, teams.lanes);
      const uint32_t before = __shfl_sync(kFullWarp, end, max(0, passed - 1), teams.lanes);
      if (!found && here > at) {
        segment.unique = from + static_cast<uint32_t>(passed);
        segment.begin = passed == 0 ? runs.scratch.offsets[from] : before;
        segment.end = here;
        found = true;
      }
      from += static_cast<uint32_t>(teams.lanes);
    } while (__any_sync(kFullWarp, !found));  // only where rows without gradients lie between
    return segment;
  }

  // The next gradients of every team, one a lane.
  __device__ void Fetch(uint32_t base, Place* place) const {
    const uint32_t at = base + static_cast<uint32_t>(teams.member);
    Item item{nullptr, nullptr, 0.0f, 0, false};
    const Segment segment = SegmentOf(min(at, end - 1), place->unique);
    place->unique = __shfl_sync(kFullWarp, segment.unique, teams.lanes - 1, teams.lanes);
    if (at < end) {
      const uint32_t id = runs.scratch.sorted[at];
      const GradientParam& feature = FeatureOfId(list, id);
      const auto from = ContributionOf<typename Elements::Grad>(feature, id - feature.first_id);
      item = {from.grad, nullptr, from.scale, segment.unique, at + 1 == segment.end};
    }
    const bool first = at < end && at == segment.begin;
    const unsigned firsts = __ballot_sync(kFullWarp, first) >> teams.first_lane();
    const unsigned to_here = (2u << teams.member) - 1;
    if (item.ends && !(place->carried && (firsts & to_here) == 0)) {
      item.row = view.Row(runs.Row(item.unique));
    }
    const unsigned of_team = teams.lanes == 32 ? kFullWarp : (1u << teams.lanes) - 1;
    place->carried = place->carried && (firsts & of_team) == 0;
    __syncwarp();
    items[Lane()] = item;
    __syncwarp();
  }

  __device__ bool CopiesTail() const { return Rule::kScalars > 0 || elements.KeepsKey(); }

  __device__ void Copy(int turn, const Item& item, int column, bool active) const {
    if (item.grad == nullptr) return;
    if (active) ring.template Copy<VEC>(turn, 0, item.grad + column);
    if (item.row == nullptr) return;
    if (active) {
      if constexpr (kReadsRow<Rule>) {
        ring.template Copy<VEC>(turn, Parts::kRow, Elements::Columns(item.row) + column);
      }
      for (int v = 0; v < Rule::kVectors; ++v) {
        ring.template Copy<VEC>(turn, Parts::kState + v * Elements::kStateParts,
                                item.row + view.layout.VectorOffset(v) + column);
      }
    }
    if (Parts::kHasTail && CopiesTail()) {  // by every lane for itself
      ring.template Copy<4>(turn, Parts::kTail, item.row + view.layout.ScalarOffset());
    }
  }

  __device__ RowColumns<Rule, VEC> Read(int turn) const {
    RowColumns<Rule, VEC> columns;
    columns.w = columns.s0 = columns.s1 = Piece<VEC>::Filled(0.0f);
    if constexpr (kReadsRow<Rule>) {
      columns.w = elements.template ReadRow<VEC>(ring, turn, Parts::kRow);
    }
    if constexpr (Rule::kVectors > 0) columns.s0 = ring.template Read<VEC>(turn, Parts::kState);
    if constexpr (Rule::kVectors > 1) {
      columns.s1 = ring.template Read<VEC>(turn, Parts::kState + Elements::kStateParts);
    }
    return columns;
  }

  // The rule's sums over columns [start, start + team's columns) of the rows that end.
  __device__ void Sum(int turn, const Item& item, const Piece<VEC>& grad, bool active,
                      float* sums) const {
    sums[0] = sums[1] = 0.0f;
    if constexpr (Rule::kSums > 0) {
      if (item.row != nullptr && active) Read(turn).Sum(rule, grad, sums);
      for (int s = 0; s < Rule::kSums; ++s) {
        for (int mask = 1; mask < teams.lanes; mask *= 2) {
          sums[s] += __shfl_xor_sync(kFullWarp, sums[s], mask);
        }
      }
    }
  }

  // What clipping makes of the gradient of the row that ends with `item`. Of wide rows a
  // pass before has added up the squares, columns [start, ...) last.
  template <RunPass kPass>
  __device__ void Clip(const Item& item, int start, bool active, bool wide,
                       Piece<VEC>* grad) const {
    double* kept = runs.scratch.row_squares + item.unique;
    double squares = 0.0;
    if (kPass == RunPass::kSquares || !wide) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const double g = static_cast<double>(grad->value[v]);
        if (active && item.row != nullptr) squares += g * g;
      }
      for (int mask = 1; mask < teams.lanes; mask *= 2) {
        squares += __shfl_xor_sync(kFullWarp, squares, mask);
      }
    }
    if (item.row == nullptr) return;
    if constexpr (kPass == RunPass::kSquares) {
      if (teams.member == 0) *kept = start == 0 ? squares : *kept + squares;
    } else {
      const float scale = rule.ClipScaleOf(wide ? *kept : squares);
#pragma unroll
      for (int v = 0; v < VEC; ++v) grad->value[v] *= scale;
    }
  }

  // The step of the row that ends with `item`, on the team's columns.
  __device__ void Step(int turn, const Item& item, const Piece<VEC>& grad, int column,
                       const float* sums) const {
    const RowLayout& layout = view.layout;
    float scalars[Rule::kScalars > 0 ? Rule::kScalars : 1] = {};
    Key key = 0;
    if constexpr (Parts::kHasTail) {
      const Piece<4> tail = ring.template Read<4>(turn, Parts::kTail);
      for (int i = 0; i < Rule::kScalars; ++i) scalars[i] = tail.value[i];
      if (elements.KeepsKey()) memcpy(&key, tail.value + Rule::kScalars, sizeof key);
    }
    const auto terms = rule.Row(scalars, sums, layout.dim);
    if (column < layout.dim) {
      RowColumns<Rule, VEC> columns = Read(turn);
      columns.Step(rule, terms, grad);
      columns.Store(elements, layout, key, item.row, column);
    }
    // With the last columns, since every pass over columns starts from them.
    const bool is_last = column - teams.column() + teams.columns() >= layout.dim;
    if (Rule::kScalars > 0 && is_last && teams.member == 0) {
      for (int i = 0; i < Rule::kScalars; ++i) item.row[layout.ScalarOffset() + i] = scalars[i];
    }
  }

  // One pass over the run. Rows wider than a warp need another one before it where the rule
  // sums over columns, and one before that where the norm of their gradient counts.
  template <RunPass kPass>
  __device__ void Pass(int start, uint32_t length, bool wide) const {
    const int column = start + teams.column();
    const bool active = column < view.layout.dim;
    constexpr bool kOnlySums = kPass != RunPass::kSteps;
    // Teams beyond the end of the table keep to its last gradient, and do nothing.
    Place place{UniqueOfId(list, runs.scratch.sorted[min(begin, end - 1)]), false};
    place.carried = begin < end && runs.scratch.offsets[place.unique] < begin;
    bool head = place.carried, open = false;
    Piece<VEC> grad = Piece<VEC>::Filled(0.0f);
    for (uint32_t base = 0; base < length; base += static_cast<uint32_t>(teams.lanes)) {
      Fetch(begin + base, &place);
      const Item* mine = items + teams.first_lane();
      for (int turn = 0; turn < teams.lanes + ring.kAhead; ++turn) {
        if (turn < teams.lanes) Copy(turn, mine[turn], column, active);
        ring.Turn();
        const int done = turn - ring.kAhead;
        if (done < 0) continue;
        const Item item = mine[done];
        if (item.grad != nullptr && active) {
          grad.AddScaled(item.scale, elements.template ReadGrad<VEC>(ring, done));
        }
        if constexpr (kClips<Rule>) {
          if (rule.Clips() && __any_sync(kFullWarp, item.row != nullptr)) {
            Clip<kPass>(item, start, active, wide, &grad);
          }
        }
        float sums[2] = {};
        if constexpr (Rule::kSums > 0 && kPass != RunPass::kSquares) {
          if (__any_sync(kFullWarp, item.row != nullptr)) Sum(done, item, grad, active, sums);
          float* kept = runs.scratch.row_sums + int64_t{item.unique} * Rule::kSums;
          for (int s = 0; s < Rule::kSums && wide && item.row != nullptr; ++s) {
            if (!kOnlySums) sums[s] = kept[s];
            if (kOnlySums && teams.member == 0) kept[s] = start == 0 ? sums[s] : kept[s] + sums[s];
          }
        }
        if (item.grad != nullptr) open = !item.ends;
        if (!item.ends) continue;
        if (!kOnlySums && item.row != nullptr) Step(done, item, grad, column, sums);
        if (!kOnlySums && item.row == nullptr && active) grad.Store(runs.Head(run) + column);
        grad = Piece<VEC>::Filled(0.0f);
        head = false;
      }
    }
    if (!kOnlySums && open && active) {
      grad.Store((head ? runs.Head(run) : runs.Tail(run)) + column);
    }
  }

  __device__ void Work() const {
    // All teams make as many turns as the first one, whose run is the longest.
    const uint32_t length = __shfl_sync(kFullWarp, end - begin, 0);
    const int dim = view.layout.dim;
    const bool wide = dim > teams.columns();
    const auto pass = [&]<RunPass kPass>() {
      for (int start = 0; start < dim; start += teams.columns()) {
        Pass<kPass>(start, length, wide);
      }
      __syncwarp();
    };
    if constexpr (kClips<Rule>) {
      if (wide && rule.Clips()) pass.template operator()<RunPass::kSquares>();
    }
    if constexpr (Rule::kSums > 0) {
      if (wide) pass.template operator()<RunPass::kSums>();
    }
    pass.template operator()<RunPass::kSteps>();
  }
};

template <class Rule, class Elements, class List, class Tables>
__global__ void __launch_bounds__(kRunThreads)
    StepRunsKernel(const __grid_constant__ List list, const __grid_constant__ Tables parts,
                   UpdateScratch scratch) {
  if (scratch.group->run == 0) return;
  using Parts = RunParts<Rule, Elements>;
  __shared__ RingMemory<kRunThreads, Parts::kStages, Parts::kCount> memory;
  __shared__ RunItem<typename Elements::Grad> items[kRunThreads];
  const uint32_t warp = (blockIdx.x * kRunThreads + threadIdx.x) / 32;
  if (warp >= parts.warps) return;
  const UpdateTable& part = TableAt(parts, &UpdateTable::first_warp, warp);
  const TableView& view = scratch.tables[part.table];
  const TableRuns runs(part, scratch);
  const int lanes = LanesOfRow(view.layout.dim, Elements::kColumns, kRunLanes);
  const uint32_t first = (warp - part.first_warp) * static_cast<uint32_t>(32 / lanes);
  if (runs.RunBegin(first) >= runs.end) return;
  const uint32_t run = first + static_cast<uint32_t>(Lane() / lanes);
  const uint32_t begin = min(runs.end, runs.RunBegin(run)), end = runs.RunEnd(run);
  const StepOperands operands = OperandsOf(scratch, part.table);
  const Rule rule(scratch.optimizers[part.table], operands);
  const Elements elements(view, operands.step);
  WithColumns<Elements>(view.layout.dim, [&]<int VEC>() {
    RunWarp<Rule, Elements, VEC, List>{rule,
                                       elements,
                                       list,
                                       runs,
                                       view,
                                       Teams<VEC>(lanes),
                                       memory.Mine(),
                                       items + threadIdx.x / 32 * 32,
                                       run,
                                       begin,
                                       end}
        .Work();
  });
}

}  // namespace dynemb
