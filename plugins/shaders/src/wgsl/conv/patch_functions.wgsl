// What the patches of an image call. With less than 2^21 terms the product is off by less than the half that is added.
//
// buffers: x
// $number: f32, $element: f32(x[at])
fn divide(n: u32, per: f32) -> u32 { return u32((f32(n) + 0.5) * per); }
fn pixel(at: u32) -> $number { return $number($element); }
