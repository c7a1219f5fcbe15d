// Bags of any lengths, one behind the other, pooled: a warp takes a chunk of ids, whatever
// their bags, so that all warps are equal however bags differ. Bags that lie in several
// chunks are joined by a second kernel, which also writes the empty ones.
#pragma once

#include "cuda/pool_kernels.cuh"
#include "cuda/ragged_call.h"

namespace dynemb {

inline constexpr int kChunkTurns = kChunkIds / 32;

// The bags of a group in their order, by all lanes of a warp.
class BagWalk {
 public:
  __device__ BagWalk(const int32_t* splits, int64_t num_bags)
      : splits_(splits), num_bags_(num_bags), window_(0), split_(0) {}

  int64_t bag;
  int64_t begin, end;

  // The bag that holds a position, which is before the last split.
  __device__ void Start(int64_t position) {
    Load(LastBagFrom(position) + 1);
    Find(position);
    begin = splits_[bag];
  }
  // The next one that is not empty.
  __device__ void Next() {
    begin = end;
    if (__ballot_sync(kFullWarp, split_ > begin) == 0) Load(LastBagFrom(begin) + 1);
    Find(begin);
  }

 private:
  // Splits from `window` on, one a lane; a million empty bags are no reason to read them all.
  __device__ void Load(int64_t window) {
    window_ = window;
    const int64_t at = window + Lane();
    split_ = at <= num_bags_ ? splits_[at] : INT32_MAX;
  }
  __device__ void Find(int64_t position) {
    const int first = __ffs(static_cast<int>(__ballot_sync(kFullWarp, split_ > position))) - 1;
    bag = window_ + first - 1;
    end = __shfl_sync(kFullWarp, split_, first);
  }
  // The last bag that begins at or before a position: 32 splits at a time.
  __device__ int64_t LastBagFrom(int64_t position) const {
    int64_t low = 0, high = num_bags_;
    while (high - low > 1) {
      const int64_t step = (high - low + 31) / 32;
      const int64_t at = low + step * Lane();
      const bool before = at < high && splits_[at] <= position;
      low += step * (__popc(__ballot_sync(kFullWarp, before)) - 1);
      high = min(high, low + step);
    }
    return low;
  }

  const int32_t* splits_;
  int64_t num_bags_, window_;
  int32_t split_;  // of this lane
};

// The rows and weights of a chunk's ids, of one warp.
struct ChunkIds {
  int64_t rows[kChunkIds];
  float weights[kChunkIds];
};

// One warp's chunk: ids [begin, end) of a group, of which those before `used` are in bags.
template <class Elements, int VEC, class Rows>
struct ChunkPool {
  const GatherRing& ring;
  const Rows& rows;
  const RaggedScratch& scratch;
  const TableView& table;
  const FeatureParam& feature;
  ChunkIds& ids;
  int64_t group, chunk;  // chunk: among all that the call pools
  int64_t begin, end, used;

  __device__ const int32_t* Splits() const {
    return feature.row_splits + group * (feature.group_bags + 1);
  }
  __device__ int64_t FirstId() const { return group * feature.bag_length + begin; }

  // Looks all ids up at once. Returns whether some of them have no row.
  __device__ bool Resolve(IdCounts* counts) const {
    unsigned missing = 0;
    int64_t row[kChunkTurns];
#pragma unroll
    for (int k = 0; k < kChunkTurns; ++k) {
      const int j = k * 32 + Lane();
      row[k] = kRowPadded;
      if (begin + j < end) row[k] = rows.Resolve(table, feature, FirstId() + j);
    }
#pragma unroll
    for (int k = 0; k < kChunkTurns; ++k) {
      const int j = k * 32 + Lane();
      const bool is_id = begin + j < end;
      if (is_id) rows.Number(table, feature, FirstId() + j, row[k]);
      counts->Add(row[k], is_id);
      missing |= __ballot_sync(kFullWarp, row[k] == kRowRefused);
      float weight = 1.0f;
      if (feature.weights != nullptr && row[k] != kRowPadded) {
        weight = feature.weights[FirstId() + j];
      }
      ids.rows[j] = row[k];
      ids.weights[j] = weight;
    }
    __syncwarp();
    return missing != 0;
  }

  // Of the ids [from, to) of the chunk.
  __device__ BagSums WeightsOf(int from, int to) const {
    if (!NeedsSums(feature)) return SumsOfEqual(to - from);
    BagSums sums;
    for (int j = from + Lane(); j < to; j += 32) sums.Add(ids.weights[j]);
    SumOverWarp(&sums);
    return sums;
  }

  // What the ids [from, to) of the chunk give to a bag, on this team's columns.
  __device__ void Write(const BagWalk& walk, int from, int to, const double* total, int column,
                        const Teams<VEC>& teams, bool has_missing) const {
    const bool active = column < table.layout.dim;
    Piece<VEC> missing = Piece<VEC>::Filled(0.0f);
    for (int j = from; has_missing && j < to; ++j) {
      if (ids.rows[j] != kRowRefused || !active) continue;
      const Key key = LoadKeyOnDevice(feature, FirstId() + j);
      missing.AddScaled(ids.weights[j], MissingPiece<Elements, VEC>(table, key, column));
    }
    const BagSums sums = WeightsOf(from, to);
    const bool is_whole = walk.begin >= begin && walk.end == begin + to;
    const bool begins = walk.begin >= begin;
    double scale = 1.0;
    if (is_whole) scale = static_cast<double>(BagScale(feature.combiner, sums));
    Piece<VEC> result;
    for (int v = 0; v < VEC; ++v) {
      result.value[v] =
          static_cast<float>((total[v] + static_cast<double>(missing.value[v])) * scale);
    }
    if (!is_whole && column == 0 && Lane() == 0) scratch.Sums(chunk, begins) = sums;
    if (!active || teams.team != 0) return;
    if (is_whole) {
      const int64_t bag = group * feature.group_bags + walk.bag;
      typename Elements::Output(feature, bag * table.layout.dim + column)
          .template Store<VEC>(result);
    } else {
      result.Store(scratch.Share(chunk, begins) + column);
    }
  }

  // One pass over the chunk, on the columns of the warp's teams from `start` on.
  __device__ void Pass(int start, const Teams<VEC>& teams, bool has_missing) const {
    const int column = start + teams.column();
    const bool active = column < table.layout.dim;
    const int count = static_cast<int>(used - begin);
    const int turns = (count + teams.count() - 1) / teams.count();
    BagWalk walk(Splits(), feature.group_bags);
    walk.Start(begin);
    int from = 0, to = static_cast<int>(min(walk.end, used) - begin);
    // A float sum of 32 rows a team at a time, those in double: a bag may hold a million ids.
    Piece<VEC> part = Piece<VEC>::Filled(0.0f);
    double total[VEC] = {};
    const auto fold = [&]() {
      teams.Combine(&part);
#pragma unroll
      for (int v = 0; v < VEC; ++v) total[v] += static_cast<double>(part.value[v]);
      part = Piece<VEC>::Filled(0.0f);
    };
    for (int turn = 0; turn < turns + ring.kAhead; ++turn) {
      const int copied = turn * teams.count() + teams.team;
      if (active && copied < count && ids.rows[copied] >= 0) {
        Elements::template CopyRow<VEC>(ring, turn, table.Row(ids.rows[copied]), column);
      }
      ring.Turn();
      const int done = turn - ring.kAhead;
      if (done < 0) continue;
      const int mine = done * teams.count() + teams.team;
      const int last = min((done + 1) * teams.count(), count);
      const bool has_row = active && mine < count && ids.rows[mine] >= 0;
      Piece<VEC> row = Piece<VEC>::Filled(0.0f);
      if (has_row) row = Elements::template ReadRow<VEC>(ring, table.layout, done);
      const float weight = has_row ? ids.weights[mine] : 0.0f;
      while (to <= last) {  // bags that end in this turn
        if (has_row && mine >= from && mine < to) part.AddScaled(weight, row);
        fold();
        Write(walk, from, to, total, column, teams, has_missing);
#pragma unroll
        for (int v = 0; v < VEC; ++v) total[v] = 0.0;
        from = to;
        if (from == count) break;
        walk.Next();
        to = static_cast<int>(min(walk.end, used) - begin);
      }
      if (has_row && mine >= from) part.AddScaled(weight, row);
      if (done % 32 == 31) fold();
    }
  }

  __device__ void Work(IdCounts* counts) const {
    const bool has_missing = Resolve(counts);
    if (used <= begin) return;
    const Teams<VEC> teams(LanesOfRow(table.layout.dim, VEC, 1));
    for (int start = 0; start < table.layout.dim; start += teams.columns()) {
      Pass(start, teams, has_missing);
    }
  }
};

// A chunk a warp.
template <class Elements, class List, class Rows>
__global__ void __launch_bounds__(kThreads, Elements::kChunkBlocks)
    PoolChunksKernel(const __grid_constant__ List list, const TableView* views,
                     const __grid_constant__ Rows rows, RaggedScratch scratch) {
  __shared__ RingMemory<kThreads, kGatherStages, 1> memory;
  __shared__ ChunkIds ids[kPoolWarps];
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = views[feature.table];
  const int64_t of_group = ChunksOfGroup(feature.bag_length);
  const int64_t chunk = int64_t{blockIdx.x - feature.first_block} * kPoolWarps + threadIdx.x / 32;
  const int64_t group = chunk / of_group;
  const int64_t begin = chunk % of_group * kChunkIds;
  const int64_t end = min(begin + kChunkIds, feature.bag_length);
  const bool in_range = group * feature.bag_length + begin < feature.num_ids;
  if (rows.Poisoned()) {
    for (int64_t j = begin + Lane(); in_range && j < end; j += 32) {
      rows.Poison(feature, group * feature.bag_length + j);
    }
    return;
  }
  IdCounts counts;
  if (in_range) {
    const int64_t used = feature.row_splits[(group + 1) * (feature.group_bags + 1) - 1];
    WithColumns<Elements>(table.layout.dim, [&]<int VEC>() {
      ChunkPool<Elements, VEC, Rows>{memory.Mine(), rows,
                                     scratch,       table,
                                     feature,       ids[threadIdx.x / 32],
                                     group,         feature.first_chunk + chunk,
                                     begin,         end,
                                     min(end, used)}
          .Work(&counts);
    });
  }
  rows.Count(feature, counts);
}

// A bag that lies in the chunks [first, last], from the first one to behind the last one
// of its group counted through the call.
struct LongBag {
  int64_t bag, first, last, num_ids;
};

// Joins what the chunks have of a bag: `warps` warps, of which this is number `warp`.
// exchange: [warps, 32 VEC] if there are several.
template <class Elements, int VEC>
__device__ void JoinBag(const RaggedScratch& scratch, const TableView& table,
                        const FeatureParam& feature, const LongBag& one, int warp, int warps,
                        double* exchange) {
  BagSums sums = SumsOfEqual(one.num_ids);
  if (NeedsSums(feature)) {
    sums = BagSums{};
    for (int64_t c = one.first + Lane(); c <= one.last; c += 32) {
      const BagSums& share = scratch.Sums(c, c == one.first);
      sums.weight += share.weight;
      sums.absolute_weight += share.absolute_weight;
      sums.squared_weight += share.squared_weight;
    }
    SumOverWarp(&sums);
  }
  const double scale = static_cast<double>(BagScale(feature.combiner, sums));
  const int dim = table.layout.dim;
  for (int start = 0; start < dim; start += 32 * VEC) {
    const int column = start + Lane() * VEC;
    double total[VEC] = {};
    if (column < dim) {
#pragma unroll 4
      for (int64_t c = one.first + warp; c <= one.last; c += warps) {
        const Piece<VEC> share = Piece<VEC>::Load(scratch.Share(c, c == one.first) + column);
        for (int v = 0; v < VEC; ++v) total[v] += static_cast<double>(share.value[v]);
      }
    }
    if (warps > 1) {
      __syncthreads();
      for (int v = 0; v < VEC; ++v) exchange[(warp * 32 + Lane()) * VEC + v] = total[v];
      __syncthreads();
      for (int w = 1; w < warps && warp == 0; ++w) {
        for (int v = 0; v < VEC; ++v) total[v] += exchange[(w * 32 + Lane()) * VEC + v];
      }
    }
    if (warp != 0 || column >= dim) continue;
    Piece<VEC> pooled;
    for (int v = 0; v < VEC; ++v) pooled.value[v] = static_cast<float>(total[v] * scale);
    typename Elements::Output(feature, one.bag * dim + column).template Store<VEC>(pooled);
  }
}

// A bag of so many chunks is worth a block.
inline constexpr int64_t kWarpChunks = 32;

// A bag a warp: of one that lies in one chunk nothing is left to do.
template <class Elements, class List, class Rows>
__global__ void __launch_bounds__(kThreads)
    JoinChunksKernel(const __grid_constant__ List list, const TableView* views,
                     const __grid_constant__ Rows rows, RaggedScratch scratch) {
  __shared__ double exchange[kPoolWarps * 32 * Elements::kColumns];
  __shared__ LongBag longest[kPoolWarps];
  __shared__ int num_longest;
  if (threadIdx.x == 0) num_longest = 0;
  __syncthreads();
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = views[feature.table];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t bag = int64_t{blockIdx.x - feature.first_block} * kPoolWarps + warp;
  const bool poisoned = rows.Poisoned();
  const auto join = [&](const LongBag& one, int part, int parts) {
    WithColumns<Elements>(table.layout.dim, [&]<int VEC>() {
      JoinBag<Elements, VEC>(scratch, table, feature, one, part, parts, exchange);
    });
  };
  if (bag < feature.num_outputs && poisoned) {
    PoisonRows<Elements>(table, feature, bag, 1);
  } else if (bag < feature.num_outputs) {
    const int64_t group = bag / feature.group_bags;
    const int32_t* split =
        feature.row_splits + group * (feature.group_bags + 1) + bag % feature.group_bags;
    const int64_t begin = split[0], end = split[1];
    const int64_t first = feature.first_chunk + group * ChunksOfGroup(feature.bag_length);
    const LongBag one{bag, first + begin / kChunkIds, first + max(int64_t{0}, end - 1) / kChunkIds,
                      end - begin};
    if (begin == end) {
      FillRows<Elements>(table, feature, bag, 1, 0.0f);
    } else if (one.last - one.first >= kWarpChunks) {
      if (Lane() == 0) longest[atomicAdd(&num_longest, 1)] = one;
    } else if (one.first < one.last) {
      join(one, 0, 1);
    }
  }
  __syncthreads();
  for (int b = 0; b < num_longest; ++b) join(longest[b], warp, kPoolWarps);
}

template <class Rows>
void LaunchRaggedPool(const FeatureList& all, const TableView* views, const Rows& rows,
                      const RaggedScratch& scratch, cudaStream_t stream) {
  const auto chunks = [](const FeatureParam& feature) {
    return feature.num_ids == 0
               ? 0
               : feature.num_ids / feature.bag_length * ChunksOfGroup(feature.bag_length);
  };
  const auto bags = [](const FeatureParam& feature) { return feature.num_outputs; };
  WithFeatures(all, GatherKind::kPooledBySplits, kPoolWarps, chunks,
               [&]<class Elements>(uint32_t blocks, const auto& some) {
                 PoolChunksKernel<Elements>
                     <<<blocks, kThreads, 0, stream>>>(some, views, rows, scratch);
               });
  WithFeatures(all, GatherKind::kPooledBySplits, kPoolWarps, bags,
               [&]<class Elements>(uint32_t blocks, const auto& some) {
                 JoinChunksKernel<Elements>
                     <<<blocks, kThreads, 0, stream>>>(some, views, rows, scratch);
               });
}

}  // namespace dynemb
