// Makes a score of a product, and shows it as it is asked for: as the product, behind the cap, or with what is added.
//
// buffers: scores, shown
// params: n_rows, n_cols, softcap: f32
// with: fn sight(batch: u32, head: u32, row: u32, col: u32) -> f32 { return 0.0; } var<private> sum: f32;
// over: id: vec3<u32>, batch, head, row, col
// $shows_product: flag, $is_capped: flag, $shows_capped: flag, $shows_biased: flag, $hides: flag
let at = (id.z * p.n_rows + row) * p.n_cols + col;
#if shows_product
shown[at] = sum;
#end
#if is_capped
sum = tanh_f(sum / p.softcap) * p.softcap;
#end
#if shows_capped
shown[at] = sum;
#end
let bias = sight(batch, head, row, col);
let is_hidden = bias == -inf_f();
// What is not seen may hold anything, also what is no number.
if (is_hidden) { sum = bias; } else { sum += bias; }
#if shows_biased
shown[at] = sum;
#end
#if hides
// Where keys may be hidden, their scores are infinite. One that is seen and infinite leaves no weight of its row a number,
// as one that is no number does.
sum = select(select(sum, nan_f(), sum == inf_f()), inf_f(), is_hidden);
#end
scores[at] = sum;
