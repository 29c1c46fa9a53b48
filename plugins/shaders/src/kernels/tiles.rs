//! Matrix products inside other kernels: tiles of 32 x 32 numbers, of which each of 64 threads has 4 x 4, from pieces of
//! 16 numbers' depth in the workgroup's memory.

use super::lines::div_up;
use crate::step;

/// Rows and columns of a tile.
const TILE: i64 = 32;

/// A product of `p.n_rows` x `depth` with `depth` x `p.n_cols`, in WGSL.
pub struct Product<'a> {
    /// Statements that the others are behind, over the workgroup's `id`.
    pub begin: &'a str,
    /// An element of the first operand, over `row` and `k`.
    pub a: &'a str,
    /// An element of the second operand, over `k` and `col`.
    pub b: &'a str,
    /// Whether that operand's columns lie beside each other, and not its rows' elements.
    pub b_by_columns: bool,
    /// The number of terms.
    pub depth: &'a str,
    /// Whether what is multiplied with a number below 0 of the first operand counts for nothing, even if it is no number.
    pub skips_negative: bool,
    /// Statements that write `sum` for `row` and `col`.
    pub write: &'a str,
}

/// Workgroups along rows or columns.
pub fn along(n: i64) -> u32 {
    u32::try_from(div_up(n, TILE)).unwrap_or(u32::MAX)
}

/// Turns of a thread's loops for a product of that depth.
pub fn turns(depth: i64) -> u64 {
    let of_piece = step::turns(8, 0) + step::turns(16, 0);
    step::turns(div_up(depth, 16) as u64, of_piece).saturating_add(4 * step::turns(4, 0))
}

/// A module for workgroups of 64: columns along x, rows along y.
pub fn module(product: &Product<'_>) -> String {
    let Product { begin, a, b, b_by_columns, depth, skips_negative, write } = product;
    let (k_of_b, col_of_b) = if *b_by_columns { ("i / 32u", "i % 32u") } else { ("i % 16u", "i / 16u") };
    // Sums are variables of their own: what is indexed by a loop may not stay in registers.
    let each = |code: &str| (0..4).map(|j| code.replace('#', &j.to_string())).collect::<String>();
    let declare = each("var sums# = vec4<f32>();\n");
    let add = match skips_negative {
        true => each(
            "let v# = xs[at + down + #u * 8u];\nsums# = select(fma(vec4<f32>(v#), b, sums#), sums#, v# < 0.0);\n",
        ),
        false => each("sums# = fma(vec4<f32>(xs[at + down + #u * 8u]), b, sums#);\n"),
    };
    let write = each(&format!(
        "for (var i = 0u; i < 4u; i++) {{\nlet row = row0 + down + #u * 8u;\nlet col = col0 + across + i * 8u;\n\
         if (row < p.n_rows && col < p.n_cols) {{\nvar sum = sums#[i];\n{write}\n}}\n}}\n"
    ));
    format!(
        "var<workgroup> xs: array<f32, 528>;\nvar<workgroup> ws: array<f32, 528>;\n\
         @compute @workgroup_size(64)\n\
         fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{\n\
         let row0 = id.y * 32u;\nlet col0 = id.x * 32u;\nlet down = thread / 8u;\nlet across = thread % 8u;\n\
         {begin}{declare}\
         for (var k0 = 0u; k0 < {depth}; k0 += 16u) {{\n\
         for (var i = thread; i < 512u; i += 64u) {{\n\
         var v = 0.0;\n\
         {{\nlet k = k0 + i % 16u;\nlet row = row0 + i / 16u;\n\
         if (k < {depth} && row < p.n_rows) {{ v = {a}; }}\nxs[(i % 16u) * 33u + i / 16u] = v;\n}}\n\
         v = 0.0;\n\
         {{\nlet k = k0 + {k_of_b};\nlet col = col0 + {col_of_b};\n\
         if (k < {depth} && col < p.n_cols) {{ v = {b}; }}\nws[({k_of_b}) * 33u + {col_of_b}] = v;\n}}\n}}\n\
         workgroupBarrier();\n\
         for (var k = 0u; k < 16u; k++) {{\nlet at = k * 33u;\n\
         let b = vec4<f32>(ws[at + across], ws[at + across + 8u], ws[at + across + 16u], ws[at + across + 24u]);\n\
         {add}}}\nworkgroupBarrier();\n}}\n{write}}}\n"
    )
}
