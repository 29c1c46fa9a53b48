// A workgroup finds the last key of a line that has a place, bit by bit. Those above it are listed, to be compared with
// each other; those equal to it follow as they come.
//
// buffers: order: u32, list: u32, counts: u32
// params: extent, inner, k, n_lines
// $functions: fn key(at: u32) -> u32 { return at; } fn above(a: u32, b: u32) -> bool { return a > b; }
// $key: u32, $threads: 256, $bits: 32, $is_pair: false
$functions
var<workgroup> counter: atomic<u32>;
var<workgroup> ties: array<u32, $threads>;
var<workgroup> firsts: array<u32, $threads>;

@compute @workgroup_size($threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_id) id: vec3<u32>) {
  for (var line = group.x; line < p.n_lines; line += groups.x) {
    let base = line / p.inner * p.extent * p.inner + line % p.inner;
    let first_out = line / p.inner * p.k * p.inner + line % p.inner;
    var bound = $key();
    for (var bit = 0u; bit < ${bits}u; bit++) {
      #if is_pair
      let guess = bound | vec2<u32>(select(0u, 0x80000000u >> (bit & 31u), bit > 31u), select(0u, 0x80000000u >> (bit & 31u), bit < 32u));
      #else
      let guess = bound | (0x80000000u >> bit);
      #end
      if (id.x == 0u) { atomicStore(&counter, 0u); }
      workgroupBarrier();
      var own = 0u;
      for (var j = id.x; j < p.extent; j += ${threads}u) {
        if (!above(guess, key(base + j * p.inner))) { own += 1u; }
      }
      atomicAdd(&counter, own);
      workgroupBarrier();
      if (atomicLoad(&counter) >= p.k) { bound = guess; }
      workgroupBarrier();
    }
    let stretch = (p.extent + ${threads}u - 1u) / ${threads}u;
    let begin = min(id.x * stretch, p.extent);
    let end = min(begin + stretch, p.extent);
    var n_ties = 0u;
    var n_firsts = 0u;
    for (var j = begin; j < end; j++) {
      let found = key(base + j * p.inner);
      if (above(found, bound)) { n_firsts += 1u; }
      else if (!above(bound, found)) { n_ties += 1u; }
    }
    ties[id.x] = n_ties;
    firsts[id.x] = n_firsts;
    workgroupBarrier();
    var tie = 0u;
    var slot = line * p.k;
    var all = 0u;
    for (var t = 0u; t < ${threads}u; t++) {
      if (t < id.x) {
        tie += ties[t];
        slot += firsts[t];
      }
      all += firsts[t];
    }
    tie += all;
    if (id.x == 0u) { counts[line] = all; }
    for (var j = begin; j < end; j++) {
      let found = key(base + j * p.inner);
      if (above(found, bound)) {
        list[slot] = j;
        slot += 1u;
      } else if (!above(bound, found)) {
        if (tie < p.k) { order[first_out + tie * p.inner] = j; }
        tie += 1u;
      }
    }
    workgroupBarrier();
  }
}
