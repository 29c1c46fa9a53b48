// Keys or values of before and now, one after the other for each head.
//
// buffers: x, y, before
// params: size, total, heads, past, x_batch, x_head, x_row
// over: i
// $has_before: flag
let at = i % p.size;
let row = i / p.size % p.total;
let head = i / (p.size * p.total);
#if has_before
if (row < p.past) {
  y[i] = before[(head * p.past + row) * p.size + at];
  return;
}
#end
y[i] = x[head / p.heads * p.x_batch + head % p.heads * p.x_head + (row - p.past) * p.x_row + at];
