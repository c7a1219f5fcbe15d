// From row numbers to the rows that a call returns: what copies and pools share.
#pragma once

#include "cuda/call_state.cuh"
#include "cuda/elements.cuh"

namespace dynemb {

// Columns [column, column + VEC) of what a key without a row looks like.
// Rare, so not a part of every loop that may meet one.
template <class Elements, int VEC>
__device__ __noinline__ Piece<VEC> MissingPiece(const TableView& table, Key key, int column) {
  Piece<VEC> piece = Piece<VEC>::Filled(table.missing_value);
  const RowInitializer& init = table.initializer;
  for (int v = 0; table.missing_is_initial && v < VEC; v += 4) {
    const PhiloxBlock random =
        Philox4x32({{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                     static_cast<uint32_t>((column + v) / 4), 0u}},
                   static_cast<uint32_t>(init.stream), static_cast<uint32_t>(init.stream >> 32));
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      if (VEC >= 4) piece.value[(v + word) % VEC] = InitialValue(init, random.word[word]);
      if (VEC == 1 && column % 4 == word) piece.value[0] = InitialValue(init, random.word[word]);
    }
  }
  return Elements::Rounded(table.layout, piece);
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
template <class Elements, int VEC>
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
          padded ? Piece<VEC>::Filled(0.0f) : MissingPiece<Elements, VEC>(table, key, column);
      typename Elements::Output(feature, i * dim + column).template Store<VEC>(piece);
    }
  }
}

// Copies the rows of 32 ids from `first`, one row number a lane; negative: none. dim: columns
// of a row, or words where several are one.
template <class Elements, int VEC>
__device__ void CopyRows(const GatherRing& ring, const TableView& table,
                         const FeatureParam& feature, int dim, int64_t first, int64_t row) {
  const Teams<VEC> teams(LanesOfRow(dim, VEC, 1));
  for (int start = 0; start < dim; start += teams.columns()) {
    const int column = start + teams.column();
    const bool active = column < dim;
    typename Elements::Output out(feature, (first + teams.team) * dim + column);
    for (int turn = 0; turn < teams.lanes + ring.kAhead; ++turn) {
      const int64_t from = __shfl_sync(kFullWarp, row, turn * teams.count() + teams.team);
      if (turn < teams.lanes && active && from >= 0) {
        Elements::template CopyRow<VEC>(ring, turn, table.Row(from), column);
      }
      ring.Turn();
      const int done = turn - ring.kAhead;
      if (done < 0) continue;
      const int64_t of = __shfl_sync(kFullWarp, row, done * teams.count() + teams.team);
      if (active && of >= 0) {
        out.template Store<VEC>(Elements::template ReadRow<VEC>(ring, table.layout, done));
      }
      out.Advance(teams.count() * dim);
    }
  }
}

// CopyRows of `row`, then WriteAbsent of `code`.
template <class Elements>
__device__ void WriteRows(const GatherRing& ring, const TableView& table,
                          const FeatureParam& feature, int64_t first, int64_t row, unsigned absent,
                          int64_t code) {
  const int dim = table.layout.dim;
  WithColumns<Elements>(dim, [&]<int VEC>() {
    if constexpr (VEC == 8) {
      // As they are, two columns a word.
      if (feature.output_type != RowType::kFloat32) {
        CopyRows<FloatElements, 4>(ring, table, feature, dim / 2, first, row);
        WriteAbsent<Elements, VEC>(table, feature, first, absent, code);
        return;
      }
    }
    CopyRows<Elements, VEC>(ring, table, feature, dim, first, row);
    WriteAbsent<Elements, VEC>(table, feature, first, absent, code);
  });
}

template <class Elements>
__device__ void FillRows(const TableView& table, const FeatureParam& feature, int64_t first,
                         int64_t count, float value) {
  const int64_t dim = table.layout.dim;
  for (int64_t j = Lane(); j < count * dim; j += 32) {
    typename Elements::Output(feature, first * dim + j).template Store<1>(Piece<1>{{value}});
  }
}

// Outputs of a call that does not run.
template <class Elements>
__device__ void PoisonRows(const TableView& table, const FeatureParam& feature, int64_t first,
                           int64_t count) {
  FillRows<Elements>(table, feature, first, count, __int_as_float(0x7FC00000));
}

// Who brings a feature's rows to the output.
enum class GatherKind { kCopied, kPooled, kPooledBySplits };

inline GatherKind GatherKindOf(const FeatureParam& feature) {
  if (feature.combiner == Combiner::kNone) return GatherKind::kCopied;
  return feature.padding == Padding::kSplits ? GatherKind::kPooledBySplits : GatherKind::kPooled;
}

// The features of one kind of gathering and of elements, if there are any, as below. Of 16 bits
// there are kernels for small lists only, so many features take several launches.
template <class Elements, class Work, class Launch>
void WithFeaturesOf(const FeatureList& all, GatherKind kind, int64_t per_block, const Work& work,
                    const Launch& launch) {
  FeatureList list;
  uint32_t blocks = 0;
  list.count = 0;
  const auto flush = [&]() {
    if (blocks > 0) {
      if constexpr (Elements::kAre16) {
        launch.template operator()<Elements>(blocks, Few<kFewFeatures>(list));
      } else {
        WithFewFeatures(
            list, [&](const auto& some) { launch.template operator()<Elements>(blocks, some); });
      }
    }
    list.count = 0;
    blocks = 0;
  };
  for (int f = 0; f < all.count; ++f) {
    if (GatherKindOf(all.features[f]) != kind) continue;
    if (all.features[f].are_16 != Elements::kAre16) continue;
    FeatureParam& feature = list.features[list.count++];
    feature = all.features[f];
    feature.first_block = blocks;
    blocks += static_cast<uint32_t>((work(feature) + per_block - 1) / per_block);
    if (Elements::kAre16 && list.count == kFewFeatures) flush();
  }
  flush();
}

// Calls launch<Elements>(blocks, list) with the features of one kind, if there are any.
// work(feature): what is to be done, of which a block does `per_block`.
template <class Work, class Launch>
void WithFeatures(const FeatureList& all, GatherKind kind, int64_t per_block, const Work& work,
                  const Launch& launch) {
  WithFeaturesOf<FloatElements>(all, kind, per_block, work, launch);
  WithFeaturesOf<Elements16>(all, kind, per_block, work, launch);
}

// Those that are copied: a thread an id.
template <class Launch>
void WithCopied(const FeatureList& all, const Launch& launch) {
  WithFeatures(
      all, GatherKind::kCopied, kThreads,
      [](const FeatureParam& feature) { return feature.num_outputs; }, launch);
}

}  // namespace dynemb
