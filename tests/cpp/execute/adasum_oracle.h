#pragma once
// Adasum's formula on vectors that are really combined, in float64.
#include <vector>

namespace horoacc::oracle {

using Vector = std::vector<double>;

inline double Dot(const Vector& a, const Vector& b) {
  long double sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += static_cast<long double>(a[k]) * b[k];
  return static_cast<double>(sum);
}

/// Of vectors [first, last), along the balanced tree.
inline Vector Combined(const std::vector<Vector>& vectors, size_t first, size_t last) {
  if (last - first == 1) return vectors[first];
  size_t left = 1;
  while (left * 2 < last - first) left *= 2;
  const Vector a = Combined(vectors, first, first + left);
  const Vector b = Combined(vectors, first + left, last);
  const double dot = Dot(a, b);
  const double aa = Dot(a, a);
  const double bb = Dot(b, b);
  Vector out(a.size());
  for (size_t k = 0; k < out.size(); ++k) {
    out[k] = (aa > 0 ? 1 - dot / (2 * aa) : 1) * a[k] + (bb > 0 ? 1 - dot / (2 * bb) : 1) * b[k];
  }
  return out;
}

}  // namespace horoacc::oracle
