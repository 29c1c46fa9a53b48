//! Products of rows with the rows of a weight matrix: `y[r, c]` is the sum over k of `x[r, k] * w[c, k]`.
//!
//! Both sides are read along k, so that weights are used as they are: recurrent layers may not keep a
//! packed copy of them. Eight rows of the weights at once keep the processor busy for one row of x; for
//! more rows of x a square of sums saves reading the weights again.

use crate::dispatch;
use crate::isa::Arith;
use crate::lanes::Lanes;

/// One product.
pub(crate) struct RowProduct {
    /// `rows` rows of `depth` elements, `x_stride` apart.
    pub(crate) x: *const f32,
    pub(crate) x_stride: usize,
    pub(crate) rows: usize,
    /// `cols` rows of `depth` elements, one after the other.
    pub(crate) w: *const f32,
    pub(crate) cols: usize,
    pub(crate) depth: usize,
    /// `rows` rows of `cols` sums, `y_stride` apart.
    pub(crate) y: *mut f32,
    pub(crate) y_stride: usize,
}

dispatch! {
    /// Multiplies.
    pub(crate) fn multiply(product: &RowProduct) = multiply_body
}

/// # Safety
/// Everything that the product names lies within its operands, y overlaps nothing else, and the
/// processor has the instructions.
#[inline(always)]
unsafe fn multiply_body<A: Arith>(product: &RowProduct) {
    let mut row = 0;
    macro_rules! bands {
        ($rows:literal by $cols:literal) => {
            while row + $rows <= product.rows {
                // SAFETY: the product's operands are the caller's (# Safety), and `row` and the rows from it on are at
                // most `rows`.
                unsafe { band::<A, $rows, $cols>(product, row) };
                row += $rows;
            }
        };
    }
    // As many sums as there are registers for, together with their operands.
    if A::REGISTERS == 32 {
        bands!(6 by 4);
        bands!(4 by 4);
    } else {
        bands!(3 by 4);
    }
    bands!(2 by 4);
    if row < product.rows {
        // SAFETY: the product's operands are the caller's (# Safety), and `row` is below `rows`.
        unsafe { band::<A, 1, 8>(product, row) };
    }
}

/// `R` rows of x with all rows of w, `C` at a time.
///
/// # Safety
/// As [`multiply_body`], and `row + R` is at most `rows`.
#[inline(always)]
unsafe fn band<A: Arith, const R: usize, const C: usize>(product: &RowProduct, row: usize) {
    let mut col = 0;
    while col + C <= product.cols {
        // SAFETY: the product's operands are the caller's (# Safety), and `R` rows and `C` columns from here lie within
        // y.
        unsafe { sums::<A, R, C>(product, row, col) };
        col += C;
    }
    while col < product.cols {
        // SAFETY: the product's operands are the caller's (# Safety), and `R` rows and one column from here lie within
        // y.
        unsafe { sums::<A, R, 1>(product, row, col) };
        col += 1;
    }
}

/// `R` by `C` sums.
///
/// # Safety
/// As [`multiply_body`], and the sums lie within y.
#[inline(always)]
unsafe fn sums<A: Arith, const R: usize, const C: usize>(product: &RowProduct, row: usize, col: usize) {
    let (width, depth) = (A::Lanes::N, product.depth);
    // SAFETY: the processor has the instructions (# Safety).
    let zero = unsafe { A::Lanes::splat(0.0) };
    // Column by column.
    let mut sums = [[zero; R]; C];
    let x = |i: usize, k: usize| product.x.wrapping_add((row + i) * product.x_stride + k);
    let w = |i: usize, k: usize| product.w.wrapping_add((col + i) * depth + k);
    let whole = depth / width * width;
    for k in (0..whole).step_by(width) {
        let mut xs = [zero; R];
        for (i, vector) in xs.iter_mut().enumerate() {
            // SAFETY: a whole vector from `k` lies within each row.
            *vector = unsafe { A::Lanes::load(x(i, k)) };
        }
        for (c, sums) in sums.iter_mut().enumerate() {
            // SAFETY: a whole vector from `k` lies within each row of w.
            let w = unsafe { A::Lanes::load(w(c, k)) };
            for (sum, x) in sums.iter_mut().zip(&xs) {
                *sum = x.fma(w, *sum);
            }
        }
    }
    if whole < depth {
        let rest = depth - whole;
        let mut xs = [zero; R];
        for (i, vector) in xs.iter_mut().enumerate() {
            // SAFETY: `rest` elements are left of each row.
            *vector = unsafe { A::Lanes::load_first(x(i, whole), rest) };
        }
        for (c, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `rest` elements are left of each row of w.
            let w = unsafe { A::Lanes::load_first(w(c, whole), rest) };
            for (sum, x) in sums.iter_mut().zip(&xs) {
                *sum = x.fma(w, *sum);
            }
        }
    }
    for c in (0..C).step_by(4) {
        for r in 0..R {
            let mut four = [zero; 4];
            for (column, slot) in sums[c..].iter().zip(&mut four) {
                *slot = column[r];
            }
            let four = A::Lanes::sums(four);
            let y = product.y.wrapping_add((row + r) * product.y_stride + col + c);
            for (i, &sum) in four.iter().enumerate().take(C - c) {
                // SAFETY: the row of y has room for `C` sums from `col`.
                unsafe { y.add(i).write(sum) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn products_of_all_sizes_agree_with_a_naive_loop() {
        for isa in [Isa::Baseline, Isa::Avx2, Isa::Avx512] {
            if isa > Isa::best() {
                continue;
            }
            for (rows, cols, depth) in [
                (1, 1, 1),
                (1, 8, 16),
                (1, 13, 67),
                (2, 7, 5),
                (3, 4, 32),
                (5, 9, 33),
                (9, 24, 128),
                (4, 3, 0),
            ] {
                let value = |i: usize| ((i * 37 + i / 7) % 101) as f32 / 50.0 - 1.0;
                let x: Vec<f32> = (0..rows * depth).map(value).collect();
                let w: Vec<f32> = (0..cols * depth).map(|i| value(i + 3)).collect();
                let mut y = vec![f32::NAN; rows * cols];
                let product = RowProduct {
                    x: x.as_ptr(),
                    x_stride: depth,
                    rows,
                    w: w.as_ptr(),
                    cols,
                    depth,
                    y: y.as_mut_ptr(),
                    y_stride: cols,
                };
                // SAFETY: the operands have these sizes, and `best` says that the instructions are there.
                unsafe { multiply(isa)(&product) };
                for r in 0..rows {
                    for c in 0..cols {
                        let of = |k: usize| f64::from(x[r * depth + k]) * f64::from(w[c * depth + k]);
                        let expected: f64 = (0..depth).map(of).sum();
                        let found = f64::from(y[r * cols + c]);
                        assert!(
                            (found - expected).abs() < 1e-4,
                            "{isa:?} {rows} {cols} {depth}: {found} at {r}, {c}, expected {expected}"
                        );
                    }
                }
            }
        }
    }
}
