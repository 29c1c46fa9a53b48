// Keys of one word: unsigned numbers in the order of the elements, turned round where the smallest is wanted. What is no
// number is above all others, or where it is looked for, the first.
//
// buffers: x: u32
// $load: x[at], $is_float: flag, $is_signed: flag, $top: 2147483648, $rest: 2147483647, $all: 4294967295
// $infinity: 2139095040
// $nan_turned:
// $turned: ~
fn key(at: u32) -> u32 {
  var w = $load;
  #if is_float
  if ((w & ${rest}u) > ${infinity}u) { return ${nan_turned}0xffffffffu; }
  if (w == ${top}u) { w = 0u; }
  if ((w & ${top}u) != 0u) { w = w ^ ${all}u; } else { w = w | ${top}u; }
  #else
  #if is_signed
  w = w ^ ${top}u;
  #end
  #end
  return ${turned}w;
}
fn above(a: u32, b: u32) -> bool {
  return a > b;
}
