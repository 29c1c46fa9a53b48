// Sinks the top of a heap to its place.
//
// buffers: list: u32
fn sink(begin: u32, top: u32, n: u32) {
  var at = top;
  let own = list[begin + at];
  for (var child = 2u * at + 1u; child < n; child = 2u * at + 1u) {
    if (child + 1u < n && list[begin + child + 1u] > list[begin + child]) { child += 1u; }
    if (list[begin + child] <= own) { break; }
    list[begin + at] = list[begin + child];
    at = child;
  }
  list[begin + at] = own;
}
