// From row numbers to the rows that a call returns: what copies and pools share.
#pragma once

#include "cuda/call_state.cuh"
#include "cuda/pieces.cuh"

namespace dynemb {

// Columns [column, column + VEC) of what a key without a row looks like.
template <int VEC>
__device__ Piece<VEC> MissingPiece(const TableView& table, Key key, int column) {
  Piece<VEC> piece = Piece<VEC>::Filled(table.missing_value);
  if (!table.missing_is_initial) return piece;
  const RowInitializer& init = table.initializer;
  const PhiloxBlock random =
      Philox4x32({{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                   static_cast<uint32_t>(column / 4), 0u}},
                 static_cast<uint32_t>(init.stream), static_cast<uint32_t>(init.stream >> 32));
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if (VEC == 4) piece.value[word % VEC] = InitialValue(init, random.word[word]);
    if (VEC == 1 && column % 4 == word) piece.value[0] = InitialValue(init, random.word[word]);
  }
  return piece;
}

// Ids of a warp by what became of them.
struct IdCounts {
  unsigned found = 0, padded = 0, missing = 0;

  // One id a lane; all lanes call it.
  __device__ void Add(int64_t row, bool is_id) {
    const auto count = [](bool one) {
      return static_cast<unsigned>(__popc(__ballot_sync(kFullWarp, one)));
    };
    found += count(is_id && row >= 0);
    padded += count(is_id && row == kRowPadded);
    missing += count(is_id && row == kRowRefused);
  }
};

// Rows in flight of a warp.
inline constexpr int kGatherStages = 8;
using GatherRing = Ring<kGatherStages, 1>;

// Writes what ids without a row look like: of the 32 from `first` those of the lanes in
// `absent`, one code a lane.
template <int VEC>
__device__ void WriteAbsent(const TableView& table, const FeatureParam& feature, int64_t first,
                            unsigned absent, int64_t row) {
  const int dim = table.layout.dim;
  while (absent != 0) {
    const int source = __ffs(static_cast<int>(absent)) - 1;
    absent &= absent - 1;
    const bool padded = __shfl_sync(kFullWarp, row, source) == kRowPadded;
    const int64_t i = first + source;
    const Key key = LoadKeyOnDevice(feature, i);
    for (int column = Lane() * VEC; column < dim; column += 32 * VEC) {
      const Piece<VEC> piece =
          padded ? Piece<VEC>::Filled(0.0f) : MissingPiece<VEC>(table, key, column);
      piece.StoreStreaming(feature.rows_out + i * dim + column);
    }
  }
}

// Copies the rows of 32 ids from `first`, one row number a lane; negative: none.
template <int VEC>
__device__ void CopyRows(const GatherRing& ring, const TableView& table,
                         const FeatureParam& feature, int64_t first, int64_t row) {
  const int dim = table.layout.dim;
  const Teams<VEC> teams(LanesOfRow(dim, 1));
  for (int start = 0; start < dim; start += teams.columns()) {
    const int column = start + teams.column();
    const bool active = column < dim;
    float* out = feature.rows_out + (first + teams.team) * dim + column;
    for (int turn = 0; turn < teams.lanes + ring.kAhead; ++turn) {
      const int64_t from = __shfl_sync(kFullWarp, row, turn * teams.count() + teams.team);
      if (turn < teams.lanes && active && from >= 0) {
        ring.Copy<VEC>(turn, 0, table.Row(from) + column);
      }
      ring.Turn();
      const int done = turn - ring.kAhead;
      if (done < 0) continue;
      const int64_t of = __shfl_sync(kFullWarp, row, done * teams.count() + teams.team);
      if (active && of >= 0) ring.Read<VEC>(done, 0).StoreStreaming(out);
      out += teams.count() * dim;
    }
  }
}

// CopyRows of `row`, then WriteAbsent of `code`.
__device__ inline void WriteRows(const GatherRing& ring, const TableView& table,
                                 const FeatureParam& feature, int64_t first, int64_t row,
                                 unsigned absent, int64_t code) {
  if (table.layout.dim % 4 == 0) {
    CopyRows<4>(ring, table, feature, first, row);
    WriteAbsent<4>(table, feature, first, absent, code);
  } else {
    CopyRows<1>(ring, table, feature, first, row);
    WriteAbsent<1>(table, feature, first, absent, code);
  }
}

// Outputs of a call that does not run.
__device__ inline void PoisonRows(const TableView& table, const FeatureParam& feature,
                                  int64_t first, int64_t count) {
  const int64_t dim = table.layout.dim;
  for (int64_t j = Lane(); j < count * dim; j += 32) {
    feature.rows_out[first * dim + j] = __int_as_float(0x7FC00000);
  }
}

// Who brings a feature's rows to the output.
enum class GatherKind { kCopied, kPooled, kPooledBySplits };

inline GatherKind GatherKindOf(const FeatureParam& feature) {
  if (feature.combiner == Combiner::kNone) return GatherKind::kCopied;
  return feature.padding == Padding::kSplits ? GatherKind::kPooledBySplits : GatherKind::kPooled;
}

// Calls launch(blocks, list) with the features of one kind, if there are any. work(feature):
// what is to be done, of which a block does `per_block`.
template <class Work, class Launch>
void WithFeatures(const FeatureList& all, GatherKind kind, int64_t per_block, const Work& work,
                  const Launch& launch) {
  FeatureList list;
  uint32_t blocks = 0;
  list.count = 0;
  for (int f = 0; f < all.count; ++f) {
    if (GatherKindOf(all.features[f]) != kind) continue;
    FeatureParam& feature = list.features[list.count++];
    feature = all.features[f];
    feature.first_block = blocks;
    blocks += static_cast<uint32_t>((work(feature) + per_block - 1) / per_block);
  }
  if (blocks == 0) return;
  WithFewFeatures(list, [&](const auto& some) { launch(blocks, some); });
}

// A thread an id that is copied, or a warp a bag.
template <class Launch>
void WithFeatures(const FeatureList& all, GatherKind kind, const Launch& launch) {
  const int64_t per_block = kind == GatherKind::kCopied ? kThreads : kThreads / 32;
  WithFeatures(
      all, kind, per_block, [](const FeatureParam& feature) { return feature.num_outputs; },
      launch);
}

}  // namespace dynemb
