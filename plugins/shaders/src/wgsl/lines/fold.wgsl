// Folds what each thread of a line has to what all of them get, in two stages with the square root of the threads in each:
// barriers cost more than additions.
//
// $name: total, $type: f32, $fold: a + b, $is_contiguous: flag, $width: 16, $height: 16, $n_parts: 256, $n_sums: 64
// $first: 4, $second: 4
var<workgroup> ${name}_parts: array<$type, $n_parts>;
var<workgroup> ${name}_sums: array<$type, $n_sums>;
fn $name(v: $type, thread: u32) -> $type {
  ${name}_parts[thread] = v;
  workgroupBarrier();
  #if is_contiguous
  let rank = thread % ${height}u;
  if (rank < ${second}u) {
    let begin = rank * ${first}u;
    var a = ${name}_parts[thread / ${height}u * ${height}u + begin];
    for (var j = 1u; j < ${first}u; j++) {
      let b = ${name}_parts[thread / ${height}u * ${height}u + begin + j];
      a = $fold;
    }
    ${name}_sums[thread / ${height}u * ${second}u + rank] = a;
  }
  workgroupBarrier();
  var a = ${name}_sums[thread / ${height}u * ${second}u + 0u];
  for (var j = 1u; j < ${second}u; j++) {
    let b = ${name}_sums[thread / ${height}u * ${second}u + 0u + j];
    a = $fold;
  }
  #else
  let rank = thread / ${width}u;
  if (rank < ${second}u) {
    let begin = rank * ${first}u;
    var a = ${name}_parts[(begin) * ${width}u + thread % ${width}u];
    for (var j = 1u; j < ${first}u; j++) {
      let b = ${name}_parts[(begin + j) * ${width}u + thread % ${width}u];
      a = $fold;
    }
    ${name}_sums[(rank) * ${width}u + thread % ${width}u] = a;
  }
  workgroupBarrier();
  var a = ${name}_sums[(0u) * ${width}u + thread % ${width}u];
  for (var j = 1u; j < ${second}u; j++) {
    let b = ${name}_sums[(0u + j) * ${width}u + thread % ${width}u];
    a = $fold;
  }
  #end
  return a;
}
