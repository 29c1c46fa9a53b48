// Folds what each thread of a line has where neighbours share a subgroup: without memory and barriers, and what is left of
// long lines is few.
//
// $name: total, $type: f32, $fold: a + b, $n_sums: 8, $n_parts: 4, $has_parts: flag
// $shuffled: { let a = v; let b = subgroupShuffleXor(a, 1u); v = a + b; }
// $subgroup: 32, $height: 128
#if has_parts
var<workgroup> ${name}_parts: array<$type, $n_sums>;
#end
fn $name(own: $type, thread: u32) -> $type {
  var v = own;
  $shuffled
  #if has_parts
  if (thread % ${subgroup}u == 0u) { ${name}_parts[thread / ${subgroup}u] = v; }
  workgroupBarrier();
  let begin = thread / ${height}u * ${n_parts}u;
  v = ${name}_parts[begin];
  for (var j = 1u; j < ${n_parts}u; j++) {
    let a = v;
    let b = ${name}_parts[begin + j];
    v = $fold;
  }
  // The next fold of this name writes where others still read.
  workgroupBarrier();
  #end
  return v;
}
