// Sorts the list of a place: by a heap, so that one long list does not take its square.
//
// buffers: counts: u32, ends: u32, list: u32
// with: fn sink(begin: u32, top: u32, n: u32) {}
// over: i
let n = counts[i];
let begin = ends[i] - n;
for (var k = n / 2u; k > 0u; k--) { sink(begin, k - 1u, n); }
for (var k = n; k > 1u; k--) {
  let last = list[begin + k - 1u];
  list[begin + k - 1u] = list[begin];
  list[begin] = last;
  sink(begin, 0u, k - 1u);
}
