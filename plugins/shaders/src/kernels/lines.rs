//! Kernels over lines: elements along some axes that are folded together, beside lines along the others.
//!
//! A workgroup has some lines beside each other and some threads for each, which take turns along it; what they found is
//! folded in a tree. The order of a fold depends on the shape alone, so that results have the same bits in every run.

use super::walk::dense_strides;
use super::{math, subgroups};
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::target::{Abilities, Target};
use crate::template::wgsl;
pub use devbay_ops::read::{axis, expect_output};
use devbay_plugin_api::sdk::*;

/// Nested loops over dimensions of a dense tensor, outermost first; neighbours that are walked as one are one.
pub struct Nest {
    extents: Vec<i64>,
    strides: Vec<i64>,
}

impl Nest {
    /// Of extents with their strides, outermost first.
    pub fn new(dims: impl Iterator<Item = (i64, i64)>) -> Self {
        let mut nest = Self { extents: Vec::new(), strides: Vec::new() };
        for (extent, stride) in dims.filter(|&(extent, _)| extent != 1) {
            match (nest.extents.last_mut(), nest.strides.last_mut()) {
                (Some(last), Some(outer)) if *outer == stride * extent => {
                    *last *= extent;
                    *outer = stride;
                }
                _ => {
                    nest.extents.push(extent);
                    nest.strides.push(stride);
                }
            }
        }
        nest
    }

    /// Iterations.
    pub fn len(&self) -> i64 {
        self.extents.iter().product()
    }

    /// Parameters: extents and strides, their names behind a prefix.
    ///
    /// # Errors
    /// Unsupported for what 32 bits do not count.
    pub fn params(&self, prefix: &str) -> Result<Vec<(String, Param)>> {
        let mut params = Vec::new();
        for (axis, (&extent, &stride)) in self.extents.iter().zip(&self.strides).enumerate() {
            if axis > 0 {
                params.push((format!("{prefix}d{axis}"), count(extent)?));
            }
            if ![0, 1].contains(&stride) {
                params.push((format!("{prefix}s{axis}"), count(stride)?));
            }
        }
        Ok(params)
    }

    /// WGSL statements that declare `to`, the offset of the iteration `from`.
    pub fn code(&self, prefix: &str, from: &str, to: &str) -> String {
        let term = |axis: usize, at: &str| match self.strides[axis] {
            0 => "0u".to_owned(),
            1 => at.to_owned(),
            _ => format!("{at} * p.{prefix}s{axis}"),
        };
        match self.extents.len() {
            0 => format!("let {to} = 0u;\n"),
            1 => format!("let {to} = {};\n", term(0, from)),
            rank => {
                let mut text = format!("var {to}: u32;\n{{\nvar rest = {from};\nvar sum = 0u;\n");
                for axis in (1..rank).rev() {
                    let part = term(axis, &format!("(rest % p.{prefix}d{axis})"));
                    text.push_str(&format!("sum += {part};\nrest = rest / p.{prefix}d{axis};\n"));
                }
                text.push_str(&format!("{to} = sum + {};\n}}\n", term(0, "rest")));
                text
            }
        }
    }
}

/// A product of extents that need not be one tensor's; what is too large for the type is for [`count`] too.
pub fn product(extents: &[i64]) -> i64 {
    extents.iter().fold(1, |product, &extent| product.saturating_mul(extent))
}

/// A number of elements, as shaders count them.
///
/// # Errors
/// Unsupported beyond 31 bits.
pub fn count(n: i64) -> Result<Param> {
    let n = i32::try_from(n).ok().and_then(|n| u32::try_from(n).ok());
    n.map(Param::U32).ok_or_else(|| Error::unsupported("a tensor of more elements than 31 bits count"))
}

/// A quotient rounded up.
pub fn div_up(n: i64, by: i64) -> i64 {
    (n + by - 1) / by
}

/// Elements along a line for which threads that share it are worth a tree.
const SHARED_MIN: i64 = 16;
/// For contiguous lines of fewer elements: how many a workgroup has, and the threads of each.
const ROWS: &[(i64, (u32, u32))] = &[(512, (8, 8)), (2048, (2, 32))];
/// Elements of lines that more threads share where lines are few.
const LONG_MIN: i64 = 4096;
const FEW: i64 = 64;
/// Lines beside each other that fill a device with one thread each.
const MANY: i64 = 4096;
/// Workgroups below which lines are cut into pieces.
const GROUPS_MIN: i64 = 64;
/// Elements of a thread along a line at the least where lines are cut into pieces.
const PIECE_MIN: i64 = 32;

/// Types of 32-bit numbers, which every device with subgroups shuffles.
const SHUFFLED: &[&str] = &["f32", "i32", "u32"];

/// The lines of a tensor, and which threads take them.
pub struct Lines {
    /// Beginnings of lines.
    pub kept: Nest,
    /// Places of their elements from there.
    pub along: Nest,
    /// Lines of a workgroup.
    width: u32,
    /// Threads of each line.
    height: u32,
    /// True if threads beside each other take elements of one line, and not those of lines beside each other.
    is_contiguous: bool,
    n_pieces: i64,
}

impl Lines {
    /// Of a dense tensor along the marked axes.
    pub fn new(shape: &[i64], is_along: &[bool]) -> Self {
        let strides = dense_strides(shape);
        let dims = |along: bool| {
            let axes = (0..shape.len()).filter(move |&axis| is_along[axis] == along);
            Nest::new(axes.map(|axis| (shape[axis], strides[axis])).collect::<Vec<_>>().into_iter())
        };
        Self::of(dims(false), dims(true))
    }

    /// Rows of `n` elements behind each other.
    pub fn rows(n_rows: i64, n: i64) -> Self {
        Self::of(Nest::new([(n_rows, n)].into_iter()), Nest::new([(n, 1)].into_iter()))
    }

    /// Of where lines begin, and where their elements are from there.
    pub fn of(kept: Nest, along: Nest) -> Self {
        let (n_lines, n) = (kept.len(), along.len());
        let is_contiguous = n_lines == 1 || along.strides.last() == Some(&1);
        let (width, height) = match is_contiguous {
            _ if n < SHARED_MIN => (64, 1),
            true if n >= LONG_MIN && n_lines < FEW => (1, 256),
            true => ROWS.iter().find(|(most, _)| n < *most).map_or((1, 64), |(_, tile)| *tile),
            false if n_lines >= MANY => (64, 1),
            false => (16, 4),
        };
        Self { kept, along, width, height, is_contiguous, n_pieces: 1 }
    }

    /// The same with long lines cut into pieces, if there are few of them: [`Lines::piece`] says how many.
    pub fn in_pieces(mut self) -> Self {
        let n_groups = div_up(self.n_lines(), i64::from(self.width));
        let pieces = self.n() / (i64::from(self.height) * PIECE_MIN);
        if n_groups < GROUPS_MIN && pieces > 1 {
            self.n_pieces = pieces.min(GROUPS_MIN * 4 / n_groups.max(1));
        }
        self
    }

    /// Pieces of a line.
    pub fn n_pieces(&self) -> i64 {
        self.n_pieces
    }

    /// Elements of a line.
    pub fn n(&self) -> i64 {
        self.along.len()
    }

    /// Lines.
    pub fn n_lines(&self) -> i64 {
        self.kept.len()
    }

    /// For a template's loop `for (var k = begin; k < end; k += ${step}u)` over the elements of a thread: the step, and
    /// statements that declare `at: u32`, the position of the line's element `k`.
    pub fn walk(&self) -> (u32, String) {
        (self.height, self.along.code("a", "k", "offset") + "let at = base + offset;")
    }

    /// A WGSL function `name` that folds what each thread of a line has to what all of them get: `fold` is an
    /// expression over `a` and `b`. All threads of a workgroup have to call it.
    pub fn fold(&self, abilities: &Abilities, name: &str, dtype: &str, fold: &str) -> String {
        let (width, height) = (self.width, self.height);
        if height == 1 {
            return format!("fn {name}(v: {dtype}, thread: u32) -> {dtype} {{ return v; }}\n");
        }
        let subgroup = abilities.subgroup.min(height);
        if self.is_contiguous && subgroup > 1 && SHUFFLED.contains(&dtype) {
            return self.fold_by_subgroups(subgroup, name, dtype, fold);
        }
        let first = 1u32 << (height.ilog2().div_ceil(2));
        let second = height / first;
        wgsl!(
            "lines/fold.wgsl",
            name,
            type = dtype,
            fold,
            is_contiguous = self.is_contiguous,
            width,
            height,
            n_parts = width * height,
            n_sums = width * second,
            first,
            second,
        )
    }

    /// [`Lines::fold`] where neighbours, of which `subgroup` share a subgroup at least, share a line.
    fn fold_by_subgroups(&self, subgroup: u32, name: &str, dtype: &str, fold: &str) -> String {
        let n_parts = self.height / subgroup;
        wgsl!(
            "lines/fold_subgroups.wgsl",
            name,
            type = dtype,
            fold,
            n_sums = self.width * n_parts,
            n_parts,
            has_parts = n_parts > 1,
            shuffled = subgroups::shuffled(subgroup, "v", fold),
            subgroup,
            height = self.height,
        )
    }

    /// Adds a step. `code` is run by all threads of all workgroups, over `line: u32`, `piece: u32` and `thread: u32`;
    /// what is to be written once for a line stands under `if (is_first)`. Threads beyond the last line run without
    /// elements, and loops along a line ([`Lines::walk`]) do nothing for them.
    ///
    /// # Errors
    /// As [`Build::add`]; unsupported for what 32 bits do not count.
    pub fn add(&self, build: &mut Build, step: LineStep<'_>) -> Result<()> {
        let (width, height) = (self.width, self.height);
        let n_groups = div_up(self.n_lines(), i64::from(width));
        let groups_max = i64::from(build.groups_max());
        let along_x = n_groups.clamp(1, groups_max);
        let groups = [along_x, div_up(n_groups, along_x), self.n_pieces];
        let groups = groups.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let n_passes = step.code.matches("for (var k = begin").count() as u64;
        if step.code.matches("for (").count() as u64 != n_passes || step.functions.contains("loop {") {
            return Err(Error::internal(format!("{}: loops that are not along lines", step.name)));
        }
        let of_pass = turns(div_up(div_up(self.n(), self.n_pieces), i64::from(height)).max(0) as u64, 0);
        // The threads' results are folded behind a pass, if at all, in two loops.
        let of_fold = if height == 1 { 0 } else { 2 * turns(u64::from(height.isqrt() * 2), 0) };
        let turns = n_passes.saturating_mul(of_pass.saturating_add(of_fold));
        let mut params = vec![
            ("n_lines".to_owned(), count(self.n_lines())?),
            ("n".to_owned(), count(self.n())?),
            ("piece".to_owned(), count(div_up(self.n(), self.n_pieces))?),
        ];
        params.extend(self.kept.params("k")?);
        params.extend(self.along.params("a")?);
        params.extend(step.params);
        let LineStep { name, buffers, functions, code, .. } = step;
        let prelude = math::called_by(&[functions, code].concat());
        let inputs = subgroups::inputs("thread", functions.contains("subgroupShuffle"));
        let module = wgsl!(
            "lines/main.wgsl",
            functions = prelude + "\n" + functions,
            n_threads = width * height,
            arguments = inputs.arguments,
            begin = inputs.begin,
            is_contiguous = self.is_contiguous,
            width,
            height,
            base = self.kept.code("k", "line", "base"),
            code,
        );
        build.add(ShaderStep { name, buffers, params, turns, body: Body::Groups { groups, module: &module } })
    }
}

/// A step over lines.
pub struct LineStep<'a> {
    /// A name for errors and debuggers.
    pub name: &'a str,
    /// As [`ShaderStep::buffers`].
    pub buffers: Vec<(&'a str, &'a str, Slot)>,
    /// Parameters besides those of the lines.
    pub params: Vec<(String, Param)>,
    /// WGSL at module scope; what is called of [`math`] is brought along.
    pub functions: &'a str,
    /// WGSL statements.
    pub code: &'a str,
}

/// The input, or output `i` in its place where it has no elements: memory of no bytes cannot be bound.
pub fn bound_input(request: &PrepareRequest<'_, Target>, input: usize, output: usize) -> Result<Slot> {
    let is_empty = request.required_input(input)?.n_elements() == 0;
    Ok(if is_empty { Slot::Output(output) } else { Slot::Input(input) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_are_walked_as_one_are_one() {
        let nest = Nest::new([(2, 60), (3, 20), (1, 7), (5, 1)].into_iter());
        assert_eq!((nest.extents.as_slice(), nest.strides.as_slice()), (&[6, 5][..], &[20, 1][..]));
        assert_eq!(nest.len(), 30);
        let params = nest.params("k").unwrap();
        assert_eq!(params, [("ks0".into(), Param::U32(20)), ("kd1".into(), Param::U32(5))]);
        assert_eq!(Nest::new([(4, 1)].into_iter()).code("a", "k", "to"), "let to = k;\n");
        assert_eq!(Nest::new([(1, 9)].into_iter()).code("a", "k", "to"), "let to = 0u;\n");
    }

    #[test]
    fn few_long_lines_are_cut_into_pieces() {
        let whole = Lines::new(&[300_000], &[true]).in_pieces();
        assert!(whole.n_pieces() > 1 && whole.n_pieces() <= GROUPS_MIN * 4);
        assert_eq!(Lines::new(&[4096, 300], &[false, true]).in_pieces().n_pieces(), 1);
        assert_eq!(Lines::new(&[0, 3], &[true, false]).in_pieces().n_pieces(), 1);
    }

    #[test]
    fn axes_count_from_both_ends() {
        assert_eq!((axis(-1, 3).unwrap(), axis(0, 1).unwrap()), (2, 0));
        assert!(axis(3, 3).is_err() && axis(-4, 3).is_err() && axis(i64::MIN, 3).is_err());
    }
}
