// How packed weights lie in memory.
#pragma once

namespace decodeloop {

// F32:  [unit][k][32] float                    BF16: [unit][k / 2][32][2] bfloat16
// Int8: [unit][group]{ [2][8][16][4] int8, [32] half d }                            w = d q
// Int4: [unit][group]{ [2][4][16][4] nibble pairs, [32] half d, [32] half min }     w = d q + min
// Int4Symmetric: as Int4 without min                                                w = d (q - 8)
// A unit is 32 outputs, a group 32 inputs. In the last three the outer [2] is 16 outputs each, [8] four inputs each;
// a byte of nibble pair j holds input 8 j + i (low) and 8 j + 4 + i (high).
enum class Format { F32, BF16, Int8, Int4, Int4Symmetric };

constexpr int kFormats = 5;
constexpr int kUnit = 32;
constexpr int kGroup = 32;

}  // namespace decodeloop
