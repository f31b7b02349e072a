// The table of kernels that a Simd gives. Included by one unit per ISA, compiled with that ISA's flags.
#pragma once

#include "attention.h"
#include "draw.h"
#include "matmul.h"
#include "rows.h"

namespace decodeloop {

// Products with weights in groups: for instruction sets that have none of their own.
template <class S>
static Kernels with_group_products(Kernels k) {
    k.matmul[static_cast<int>(Format::Int8)] = matmul<S, Format::Int8>;
    k.matmul[static_cast<int>(Format::Int4)] = matmul<S, Format::Int4>;
    k.matmul[static_cast<int>(Format::Int4Symmetric)] = matmul<S, Format::Int4Symmetric>;
    return k;
}

// All but products with weights in groups.
template <class S>
static Kernels table(const char* name) {
    Kernels k{};
    k.name = name;
    k.row_kind[static_cast<int>(Format::F32)] = RowKind::F32;
    k.row_kind[static_cast<int>(Format::BF16)] = S::kPairRows;
    k.row_kind[static_cast<int>(Format::Int8)] = S::kWideInputs ? RowKind::Int16 : RowKind::Int8;
    k.row_kind[static_cast<int>(Format::Int4)] = RowKind::Int8;
    k.row_kind[static_cast<int>(Format::Int4Symmetric)] = RowKind::Int8;
    k.matmul[static_cast<int>(Format::F32)] = matmul<S, Format::F32>;
    k.matmul[static_cast<int>(Format::BF16)] = matmul<S, Format::BF16>;
    k.to_bf16 = to_bf16;
    k.to_int8 = to_int8<S>;
    k.to_int16 = to_int16<S>;
    k.rms_norm = rms_norm<S>;
    k.add = add<S>;
    k.gate = gate<S>;
    k.softcap = softcap<S>;
    k.rotate = rotate;
    k.store_kv[static_cast<int>(KvFormat::BF16)] = store_kv_bf16;
    k.store_kv[static_cast<int>(KvFormat::F32)] = store_kv_f32;
    k.attend[static_cast<int>(KvFormat::BF16)] = attend<S, Bf16Weights<S>>;
    k.attend[static_cast<int>(KvFormat::F32)] = attend<S, F32Weights<S>>;
    k.fold = fold<S>;
    k.normalise = normalise;
    k.likeliest = likeliest<S>;
    k.entropy = entropy<S>;
    k.screen = screen<S>;
    k.above = above<S>;
    k.weight = weight<S>;
    return k;
}

}  // namespace decodeloop
