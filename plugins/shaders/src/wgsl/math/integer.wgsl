// The prelude's functions of integers, for each type of them.
//
// $letter: i, $type: i32

fn pick_$letter(c: bool, yes: $type, no: $type) -> $type { return select(no, yes, c); }

fn smaller_$letter(a: $type, b: $type) -> $type { return min(a, b); }

fn at_least_$letter(a: $type, least: $type) -> $type { return max(a, least); }

fn at_most_$letter(a: $type, most: $type) -> $type { return min(a, most); }

fn larger_$letter(a: $type, b: $type) -> $type { return max(a, b); }

// Division by 0 gives 0, and leaves 0.
fn div_$letter(a: $type, b: $type) -> $type {
  let zero = $type(0);
  if (b == zero) { return zero; }
  return a / b;
}

fn rem_$letter(a: $type, b: $type) -> $type {
  let zero = $type(0);
  if (b == zero) { return zero; }
  return a - (a / b) * b;
}

// The remainder has the divisor's sign.
fn mod_$letter(a: $type, b: $type) -> $type {
  let zero = $type(0);
  let r = rem_$letter(a, b);
  if (r != zero && ((r < zero) != (b < zero))) { return r + b; }
  return r;
}

fn neg_$letter(a: $type) -> $type { return $type(0) - a; }

fn abs_$letter(a: $type) -> $type { return select(a, $type(0) - a, a < $type(0)); }

fn sign_$letter(a: $type) -> $type {
  let zero = $type(0);
  if (a < zero) { return zero - $type(1); }
  return select(zero, $type(1), a > zero);
}
