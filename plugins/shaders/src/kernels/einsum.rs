//! Einsum: sums of products over the axes that an equation names.
//!
//! An equation of two operands whose names fall into rows, columns, a batch and what is summed is a product of matrices
//! ([`super::product`]). Of others a thread makes an element, term by term.

use super::cost;
use super::elementwise::Number;
use super::epilogue::Epilogue;
use super::product::{BASE, FIRST, L, Product, Side, Types, u32_param};
use super::walk::Walk;
use crate::step::{Build, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use devbay_ops::descriptor;
use devbay_ops::read::{Equation, Name};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[descriptor("Einsum", 12, prepare)
    .types(&[TypeVar::of(&[F32, F16, BF16, I64, I32, I8, I16, U8, U16, U32, U64])])
    .cost(einsum_cost)];

/// Operands that are bound besides the result.
const OPERANDS_MAX: usize = 7;

fn einsum_cost(request: &Request<'_>) -> Result<Cost> {
    let equation = Equation::of(request)?;
    let terms: Vec<i64> = equation.summed.iter().map(|name| name.extent).collect();
    cost::per_output(request, cost::volume(&terms).saturating_mul(2))
}

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    let equation = Equation::of(request)?;
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    if y.shape() != equation.extents() {
        let text = format!("an output of {:?} for {:?}", y.shape(), equation.extents());
        return Err(Error::invalid(text));
    }
    let n_operands = request.inputs.len();
    if n_operands > OPERANDS_MAX {
        return Err(Error::unsupported(format!("{n_operands} operands, at most {OPERANDS_MAX}")));
    }
    for input in &request.inputs {
        u32_param("elements", input.n_elements() as u64)?;
    }
    let mut build = Build::new(request);
    let n = y.n_elements() as u64;
    if n == 0 {
        return build.finish();
    }
    let is_empty = request.inputs.iter().any(|input| input.n_elements() == 0);
    let is_half = x.dtype() == F16 && request.device.abilities.f16;
    if n_operands == 2
        && !is_empty
        && (x.dtype() == F32 || is_half)
        && let Some(matrices) = Matrices::of(&equation)
    {
        matrices.product(if is_half { "f16" } else { "f32" })?.add(&mut build, request)?;
        return build.finish();
    }
    let number = Number::of(x.dtype(), request.device)?;
    let class = number.class().name();
    let mut params = vec![u32_param("n", n)?];
    let mut buffers = vec![("y", number.storage(), Slot::Output(0))];
    let (mut code, mut of_element) = (String::new(), 0);
    if is_empty {
        code.push_str(&format!("let r = {class}();"));
    } else {
        let mut walk = Walk::over(&equation.extents());
        for (operand, name) in INPUTS.into_iter().enumerate().take(n_operands) {
            buffers.push((name, number.storage(), Slot::Input(operand)));
            let strides: Vec<i64> = equation.kept.iter().map(|name| name.strides[operand]).collect();
            walk = walk.operand(0, &strides);
        }
        let walk = walk.merged();
        params.extend(walk.params()?);
        code = walk.code();
        code.push_str(&format!("var sum = {class}();\n"));
        let mut places: Vec<String> = (0..n_operands).map(|operand| format!("at{operand}")).collect();
        for (i, name) in equation.summed.iter().enumerate() {
            params.push(u32_param(&format!("terms{i}"), name.extent as u64)?);
            code.push_str(&format!("for (var k{i} = 0u; k{i} < p.terms{i}; k{i}++) {{\n"));
            for (operand, &stride) in name.strides.iter().enumerate().filter(|(_, stride)| **stride != 0) {
                params.push(u32_param(&format!("term{i}_{operand}"), stride as u64)?);
                places[operand].push_str(&format!(" + k{i} * p.term{i}_{operand}"));
            }
        }
        let factors: Vec<_> =
            (0..n_operands).map(|i| number.load(INPUTS[i], &format!("({})", places[i]))).collect();
        code.push_str(&format!("sum += {};\n", factors.join(" * ")));
        equation.summed.iter().for_each(|_| code.push_str("}\n"));
        of_element = equation.summed.iter().rev().fold(0, |inner, name| turns(name.extent as u64, inner));
        code.push_str("let r = sum;");
    }
    build.add(ShaderStep {
        name: "Einsum",
        buffers,
        params,
        turns: number.width().turns(of_element),
        body: number.width().body(n, number.functions(), &number.each("y", &code)),
    })?;
    build.finish()
}

const INPUTS: [&str; OPERANDS_MAX] = ["x0", "x1", "x2", "x3", "x4", "x5", "x6"];

/// An equation of two operands as a product of matrices, one or a batch.
struct Matrices {
    batch: Vec<Name>,
    /// Extents of rows, columns, and sums; distances of the left operand between rows and terms, of the right one
    /// between columns and terms.
    extents: [i64; 3],
    left: [i64; 2],
    right: [i64; 2],
    /// Inputs: rows are of the first one.
    order: [usize; 2],
}

/// Columns and terms below which tiles would be mostly empty.
const EXTENT_MIN: i64 = 8;
const TERMS_MIN: i64 = 8192;

impl Matrices {
    /// None where the equation is no product, or a small one.
    fn of(equation: &Equation) -> Option<Self> {
        // The result's names: those of both operands, then those of one, then those of the other one.
        let is_of = |name: &Name, operand: usize| name.strides[operand] != 0;
        let kept: Vec<&Name> = equation.kept.iter().filter(|name| name.extent != 1).collect();
        let n_batch = kept.iter().take_while(|name| is_of(name, 0) && is_of(name, 1)).count();
        let (batch, rest) = kept.split_at(n_batch);
        let first = rest.first()?;
        let order = if is_of(first, 0) { [0, 1] } else { [1, 0] };
        let only = |name: &Name, i: usize| is_of(name, order[i]) && !is_of(name, order[1 - i]);
        let n_rows = rest.iter().take_while(|name| only(name, 0)).count();
        let (rows, cols) = rest.split_at(n_rows);
        let summed: Vec<&Name> = equation.summed.iter().filter(|name| name.extent != 1).collect();
        if cols.is_empty()
            || summed.is_empty()
            || !cols.iter().all(|name| only(name, 1))
            || !summed.iter().all(|name| is_of(name, 0) && is_of(name, 1))
        {
            return None;
        }
        let (n_rows, row) = line(rows, order[0])?;
        let (n_cols, col) = line(cols, order[1])?;
        let ((k, left_term), (_, right_term)) = (line(&summed, order[0])?, line(&summed, order[1])?);
        // Long sums are worth it even so: they are cut into parts.
        if k < EXTENT_MIN || (n_rows.min(n_cols) < EXTENT_MIN && k < TERMS_MIN) {
            return None;
        }
        Some(Self {
            batch: batch.iter().map(|&name| name.clone()).collect(),
            extents: [n_rows, n_cols, k],
            left: [row, left_term],
            right: [col, right_term],
            order,
        })
    }

    fn product(&self, element: &'static str) -> Result<Product> {
        let extents: Vec<i64> = self.batch.iter().map(|name| name.extent).collect();
        let strides =
            |operand: usize| -> Vec<i64> { self.batch.iter().map(|name| name.strides[operand]).collect() };
        let [a, b] = self.order;
        let walk = Walk::over(&extents).operand(0, &strides(a)).operand(0, &strides(b));
        let batch = walk.operand(0, &vec![0; extents.len()]).merged();
        let [rows, cols, k] = self.extents.map(|extent| extent as u64);
        let mut params: Vec<(String, Param)> = Vec::new();
        for (name, distance) in [
            ("a_line", self.left[0]),
            ("a_term", self.left[1]),
            ("b_line", self.right[0]),
            ("b_term", self.right[1]),
        ] {
            params.push(u32_param(name, distance as u64)?);
        }
        Ok(Product {
            name: "Einsum",
            types: Types { sum: "f32", element },
            batch,
            n_batch: extents.iter().product::<i64>() as u64,
            rows,
            cols,
            k,
            buffers: vec![("a", element, Slot::Input(a)), ("b", element, Slot::Input(b))],
            params,
            functions: String::new(),
            left: side("a", "rows", self.left[1] < self.left[0]),
            right: side("b", "cols", self.right[1] < self.right[0]),
            vectors: cols.is_multiple_of(4),
            turned: None,
            convolution: None,
            epilogue: Epilogue::NONE,
            output: Slot::Output(0),
        })
    }
}

/// Names of an operand as one axis: its extent and distance. None where they are not next to each other.
fn line(names: &[&Name], operand: usize) -> Option<(i64, i64)> {
    let follow = |pair: &[&Name]| pair[0].strides[operand] == pair[1].strides[operand] * pair[1].extent;
    if !names.windows(2).all(follow) {
        return None;
    }
    Some((names.iter().map(|name| name.extent).product(), names.last()?.strides[operand]))
}

/// A matrix by its distances as a side of a product.
fn side(buffer: &str, extent: &str, k_fast: bool) -> Side {
    let load = |lane: &str| format!("f32({buffer}[at.{lane}])");
    Side {
        k_fast,
        hoisted: format!(
            "let {buffer}_at{L} = min(vec4<u32>({FIRST}, {FIRST} + 1u, {FIRST} + 2u, {FIRST} + 3u), \
             vec4<u32>(p.{extent} - 1u)) * p.{buffer}_line + {BASE};\n"
        ),
        load: format!(
            "let at = {buffer}_at{L} + k * p.{buffer}_term;\nv = vec4<f32>({}, {}, {}, {});\n",
            load("x"),
            load("y"),
            load("z"),
            load("w")
        ),
    }
}
