//! Ops whose elements stand by themselves, generated from their formulas ([`devbay_ops::formula`]).
//!
//! One step serves them all: it walks the output, finds each operand's element (broadcast as NumPy does), reads it as
//! the type in which the op is calculated, and writes what the formula gives. 8- and 16-bit integers are calculated in
//! 32 bits, of which the low ones stay; 16-bit floats in f32, rounded once.

use super::cost;
use super::element::Width;
use super::math;
use super::walk::Walk;
use crate::formulas::{Class, Written, write};
use crate::step::{Body, Build, Param, ShaderStep, Slot};
use crate::target::Target;
use devbay_ops::descriptor;
use devbay_ops::node::{Choice, choose};
use devbay_ops::{Form, Formula, OpRow, ROWS, Takes};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const SINGLES: &[DType] = &[F32, F16, BF16];
const NUMBERS: &[DType] = &[F32, I64, I32, F16, BF16, I8, I16, U8, U16, U32, U64];
const SIGNED: &[DType] = &[F32, I64, I32, F16, BF16, I8, I16];
const INTEGERS: &[DType] = &[I64, I32, I8, I16, U8, U16, U32, U64];
const ANYTHING: &[DType] = &[F32, I64, I32, BOOL, F16, BF16, I8, I16, U8, U16, U32, U64];

const FLOAT: &[TypeVar] = &[TypeVar::of(SINGLES)];
const NUMBER: &[TypeVar] = &[TypeVar::of(NUMBERS)];
const SIGN: &[TypeVar] = &[TypeVar::of(SIGNED)];
const INTEGER: &[TypeVar] = &[TypeVar::of(INTEGERS)];
const TRUTH: &[TypeVar] = &[TypeVar::of(&[BOOL])];
const NUMBER_TO_TRUTH: &[TypeVar] = &[TypeVar::of(NUMBERS), TypeVar::of(&[BOOL])];
const ANY_TO_TRUTH: &[TypeVar] = &[TypeVar::of(ANYTHING), TypeVar::of(&[BOOL])];
const TRUTHS: &[TypeVar] = &[TypeVar::of(&[BOOL]), TypeVar::of(&[BOOL])];
const FLOAT_TO_TRUTH: &[TypeVar] = &[TypeVar::of(SINGLES), TypeVar::of(&[BOOL])];

/// The types of a formula's operands, and of what it gives.
const fn types(row: &'static OpRow, form: &Form) -> &'static [TypeVar] {
    match (form.takes, form.gives_truth) {
        (Takes::Floats, false) => FLOAT,
        (Takes::Integers, _) => INTEGER,
        // And and its like have a type of its own for their results.
        (Takes::Truths, _) if row.outputs.types()[0] == 1 => TRUTHS,
        (Takes::Truths, _) => TRUTH,
        (Takes::Signed, _) => SIGN,
        (Takes::Numbers | Takes::Anything, false) => NUMBER,
        (Takes::Floats, true) => FLOAT_TO_TRUTH,
        (Takes::Numbers, true) => NUMBER_TO_TRUTH,
        (Takes::Anything, true) => ANY_TO_TRUTH,
    }
}

/// Ops with a formula whose operands are of several types, or may be absent.
const OWN: &[Kernel<Target>] = &[
    descriptor("Clip", 13, prepare_clip).types(NUMBER).in_place(&[0]).cost(formula_cost),
    descriptor("Mean", 13, prepare_mean)
        .types(FLOAT)
        .cost(|request| cost::per_output(request, request.inputs.len() as u64)),
    descriptor("Pow", 15, prepare_pow)
        .types(&[TypeVar::of(SINGLES), TypeVar::of(NUMBERS)])
        .cost(formula_cost),
    descriptor("Where", 16, prepare_where)
        .types(&[TypeVar::of(&[BOOL]), TypeVar::of(ANYTHING)])
        .cost(|request| cost::per_output(request, 1)),
    descriptor("Cast", 25, prepare_cast)
        .types(&[TypeVar::of(ANYTHING), TypeVar::of(ANYTHING)])
        .cost(|request| cost::per_output(request, 1)),
];

/// The kernel of a row with a formula.
const fn of_row(row: &'static OpRow, form: &Form) -> Kernel<Target> {
    let prepare = if form.is_fold { prepare_variadic } else { prepare };
    let kernel = row.descriptor(row.version, prepare).types(types(row, form)).cost(formula_cost);
    match form.is_fold || form.gives_truth {
        true => kernel,
        false => kernel.in_place(&[0]),
    }
}

/// The row at a place among all, if its kernel is made from the formula.
const fn generated(i: usize) -> Option<Kernel<Target>> {
    let row = &ROWS[i];
    match &row.forms[0] {
        // Those of `OWN`.
        Some(form) if form.absent.is_empty() && !row.has_mixed_types() => Some(of_row(row, form)),
        _ => None,
    }
}

const N_KERNELS: usize = {
    let (mut n, mut i) = (OWN.len(), 0);
    while i < ROWS.len() {
        n += generated(i).is_some() as usize;
        i += 1;
    }
    n
};

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &{
    let mut all = [OWN[0]; N_KERNELS];
    let (mut at, mut i) = (0, 0);
    while i < OWN.len() + ROWS.len() {
        let kernel = if i < OWN.len() { Some(OWN[i]) } else { generated(i - OWN.len()) };
        if let Some(kernel) = kernel {
            all[at] = kernel;
            at += 1;
        }
        i += 1;
    }
    all
};

/// Returns the cost of a formula, once for each operand after the first of those that are put together.
fn formula_cost(request: &Request<'_>) -> Result<Cost> {
    let Choice { formula, .. } = choose(request.domain, request.op, &request.attrs)?;
    let times = if formula.form.is_fold { request.inputs.len().saturating_sub(1) as u64 } else { 1 };
    cost::per_output(request, formula.form.flops * times)
}

/// Way to read, calculate and write elements of a dtype.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Number {
    dtype: DType,
    width: Width,
}

impl Number {
    /// Of a dtype on a device.
    ///
    /// # Errors
    /// Unsupported for dtypes that are no numbers here, and for 64-bit integers where the device has none.
    pub fn of(dtype: DType, device: &Target) -> Result<Self> {
        let unsupported = || Error::unsupported(format!("elements of {dtype:?}"));
        let width = Width::of(dtype).ok_or_else(unsupported)?;
        if !ANYTHING.contains(&dtype) {
            return Err(unsupported());
        }
        if width == Width::B8 && !device.abilities.i64 {
            return Err(Error::unsupported("64-bit integers, which the device does not have in shaders"));
        }
        Ok(Self { dtype, width })
    }

    /// The type in which it is calculated.
    pub fn class(self) -> Class {
        match self.dtype {
            F32 | F16 | BF16 => Class::Float,
            I8 | I16 | I32 => Class::Int,
            U8 | U16 | U32 => Class::Uint,
            I64 => Class::Long,
            U64 => Class::Ulong,
            _ => Class::Truth,
        }
    }

    /// Returns its layout in memory.
    pub fn width(self) -> Width {
        self.width
    }

    /// The WGSL type of a buffer of such elements.
    pub fn storage(self) -> &'static str {
        match self.width {
            Width::B1 | Width::B2 => "u32",
            Width::B4 | Width::B8 => self.class().name(),
        }
    }

    /// WGSL expression for the element at `at` of a buffer, as the type in which it is calculated.
    pub fn load(self, buffer: &str, at: &str) -> String {
        let bits = self.width.load(buffer, at);
        match self.dtype {
            F16 => format!("unpack2x16float({bits}).x"),
            BF16 => format!("bitcast<f32>({bits} << 16u)"),
            BOOL => format!("({bits} != 0u)"),
            // The sign is that of the narrow element.
            I8 => format!("((i32({bits}) << 24u) >> 24u)"),
            I16 => format!("((i32({bits}) << 16u) >> 16u)"),
            _ => bits,
        }
    }

    /// WGSL for [`Body::Items`] that writes elements to a buffer: `code` declares `r` as the type in which they are
    /// calculated, from the element's position `e`.
    pub fn each(self, buffer: &str, code: &str) -> String {
        let bits = match self.dtype {
            F16 => "pack2x16float(vec2<f32>(r, 0.0))",
            BF16 => "bfloat_(r)",
            BOOL => "select(0u, 1u, r)",
            I8 | I16 => "bitcast<u32>(r)",
            U8 | U16 => "r",
            _ => return format!("let e = i;\n{code}\n{buffer}[i] = r;\n"),
        };
        self.width.each(buffer, &format!("{code}\nv = {bits};"))
    }

    /// Functions that [`Number::each`] calls.
    pub fn functions(self) -> &'static str {
        // The nearest, ties to even; NaN stays NaN.
        const BFLOAT: &str = r"
fn bfloat_(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return (bits >> 16u) | 0x40u; }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
";
        if self.dtype == BF16 { BFLOAT } else { "" }
    }
}

/// Calculation for each element of the output.
pub struct Map<'a> {
    /// A name for errors and debuggers.
    pub name: &'a str,
    /// Inputs by position; their elements are `x0`, `x1`.. in this order.
    pub inputs: &'a [usize],
    /// Functions of the prelude.
    pub functions: Vec<String>,
    /// Parameters.
    pub params: Vec<(String, Param)>,
    /// WGSL statements that declare `r` from `x0`, `x1`.., in the output's class.
    pub code: String,
}

/// Prepares a step that calculates output 0 from inputs that are broadcast to it.
///
/// # Errors
/// Invalid for shapes that cannot be broadcast; unsupported for dtypes, and for more operands than can be bound.
pub fn prepare_map(request: &Request<'_>, map: Map<'_>) -> Result<Prepared> {
    let y = request.required_output(0)?;
    let to = Number::of(y.dtype(), request.device)?;
    let mut walk = Walk::over(y.shape());
    for &input in map.inputs {
        walk = walk.broadcast(request.required_input(input)?.shape())?;
    }
    check_broadcast(request, map.inputs, y)?;
    let walk = walk.merged();
    let names: Vec<String> = (0..map.inputs.len()).map(|k| format!("in{k}")).collect();
    let mut buffers: Vec<(&str, &str, Slot)> = Vec::new();
    let mut code = walk.code();
    for (k, &input) in map.inputs.iter().enumerate() {
        let from = Number::of(request.required_input(input)?.dtype(), request.device)?;
        buffers.push((&names[k], from.storage(), Slot::Input(input)));
        code.push_str(&format!("let x{k} = {};\n", from.load(&names[k], &format!("at{k}"))));
    }
    buffers.push(("out", to.storage(), Slot::Output(0)));
    code.push_str(&map.code);
    let n = y.n_elements() as u64;
    let mut params = walk.params()?;
    params.extend(map.params);
    if to.width().per_word() > 1 {
        params.push(("n".to_owned(), Param::U32(y.n_elements() as u32)));
    }
    let functions = math::functions(&map.functions);
    let mut build = Build::new(request);
    build.add(ShaderStep {
        name: map.name,
        buffers,
        params,
        turns: to.width().turns(math::turns(&functions)),
        body: Body::Items {
            n: to.width().items(n),
            functions: &format!("{functions}{}", to.functions()),
            each: &to.each("out", &code),
        },
    })?;
    build.finish()
}

/// Refuses an output that is larger than what its inputs are broadcast to.
fn check_broadcast(request: &Request<'_>, inputs: &[usize], y: &TensorView<'_>) -> Result<()> {
    let rank = y.shape().len();
    for axis in 0..rank {
        let mut widest = None;
        for &input in inputs {
            let shape = request.required_input(input)?.shape();
            let own = (axis + shape.len()).checked_sub(rank).map(|axis| shape[axis]);
            widest = widest.max(own.filter(|&own| own != 1).or(Some(1)));
            if own == Some(0) {
                widest = Some(0);
                break;
            }
        }
        if widest.is_some_and(|widest| widest != y.shape()[axis]) {
            let text = format!("an output of shape {:?}, which its inputs do not give", y.shape());
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}

/// Prepares the op of a formula.
fn prepare(request: &Request<'_>) -> Result<Prepared> {
    let Choice { formula, params } = choose(request.domain, request.op, &request.attrs)?;
    let class = Number::of(request.required_input(0)?.dtype(), request.device)?.class();
    check_class(formula, class)?;
    let inputs: Vec<usize> = (0..formula.n_operands).collect();
    let Written { text, functions } = write(formula, class, &["x0", "x1"], &["p.k0", "p.k1"]);
    let gives = if formula.gives_truth() { Class::Truth } else { class };
    let code = format!("let r: {} = {text};", gives.name());
    let params = (0..formula.params.len()).map(|k| (format!("k{k}"), Param::F32(params[k]))).collect();
    prepare_map(request, Map { name: request.op, inputs: &inputs, functions, params, code })
}

/// Refuses elements that the op takes, but not in this form.
fn check_class(formula: &Formula, class: Class) -> Result<()> {
    match (formula.form.takes, class) {
        (Takes::Integers, Class::Float) => {
            Err(Error::unsupported(format!("{} of floats in this form", formula.row.name)))
        }
        _ => Ok(()),
    }
}

/// Limits are scalars, of which each may be absent; the upper one is applied last.
fn prepare_clip(request: &Request<'_>) -> Result<Prepared> {
    let class = Number::of(request.required_input(0)?.dtype(), request.device)?.class();
    let (letter, ty) = (class.letter(), class.name());
    let mut inputs = vec![0];
    let mut code = format!("var r: {ty} = x0;\n");
    let mut functions = Vec::new();
    for (input, limited) in [(1, "at_least"), (2, "at_most")] {
        let Some(limit) = request.input(input) else { continue };
        if limit.n_elements() != 1 {
            return Err(Error::invalid(format!("a limit of shape {:?}", limit.shape())));
        }
        let k = inputs.len();
        inputs.push(input);
        code.push_str(&format!("r = {limited}_{letter}(r, x{k});\n"));
        functions.push(format!("{limited}_{letter}"));
    }
    super::same_shape(request.required_input(0)?, request.required_output(0)?)?;
    prepare_map(request, Map { name: "Clip", inputs: &inputs, functions, params: vec![], code })
}

/// An exponent of any type becomes a float.
fn prepare_pow(request: &Request<'_>) -> Result<Prepared> {
    let exponent = Number::of(request.required_input(1)?.dtype(), request.device)?;
    let code = match exponent.class() {
        Class::Float => "let r = pow_f(x0, x1);",
        _ => "let r = pow_f(x0, f32(x1));",
    };
    let functions = vec!["pow_f".to_owned()];
    let map = Map { name: "Pow", inputs: &[0, 1], functions, params: vec![], code: code.to_owned() };
    prepare_map(request, map)
}

/// Puts any number of operands together, one after the other.
fn prepare_variadic(request: &Request<'_>) -> Result<Prepared> {
    prepare_fold(request, choose(request.domain, request.op, &request.attrs)?.formula, false)
}

/// A sum that is divided.
fn prepare_mean(request: &Request<'_>) -> Result<Prepared> {
    prepare_fold(request, choose("", "Sum", &request.attrs)?.formula, true)
}

fn prepare_fold(request: &Request<'_>, formula: &Formula, is_mean: bool) -> Result<Prepared> {
    let class = Number::of(request.required_input(0)?.dtype(), request.device)?.class();
    let n = request.inputs.len();
    let most = request.device.abilities.storage_buffers_max as usize;
    if n + 1 > most {
        return Err(Error::unsupported(format!("{n} operands, the device binds {most} buffers")));
    }
    let inputs: Vec<usize> = (0..n).collect();
    let mut code = format!("var r: {} = x0;\n", class.name());
    let mut functions = Vec::new();
    for k in 1..n {
        let written = write(formula, class, &["r", &format!("x{k}")], &[""; 0]);
        code.push_str(&format!("r = {};\n", written.text));
        functions = written.functions;
    }
    let mut params = Vec::new();
    if is_mean {
        code.push_str("r = r / p.count;\n");
        params.push(("count".to_owned(), Param::F32(n as f32)));
    }
    prepare_map(request, Map { name: request.op, inputs: &inputs, functions, params, code })
}

fn prepare_where(request: &Request<'_>) -> Result<Prepared> {
    let code = "let r = select(x2, x1, x0);".to_owned();
    prepare_map(request, Map { name: "Where", inputs: &[0, 1, 2], functions: vec![], params: vec![], code })
}

/// Floats are truncated and NaN becomes 0; between integers the low bits stay.
fn prepare_cast(request: &Request<'_>) -> Result<Prepared> {
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    super::same_shape(x, y)?;
    let (from, to) = (Number::of(x.dtype(), request.device)?, Number::of(y.dtype(), request.device)?);
    let code = match (from.class(), to.class()) {
        (from, to) if from == to => "let r = x0;".to_owned(),
        (Class::Truth, Class::Float) => "let r = select(0.0, 1.0, x0);".to_owned(),
        (Class::Truth, to) => format!("let r = {0}(select(0u, 1u, x0));", to.name()),
        (Class::Float, Class::Truth) => "let r = x0 != 0.0 || isnan_f(x0);".to_owned(),
        (Class::Float, to) => narrow_float(to, y.dtype()),
        (from, Class::Truth) => format!("let r = x0 != {}(0);", from.name()),
        (_, Class::Float) => "let r = f32(x0);".to_owned(),
        // naga widens by the sign of the result's type.
        (Class::Int, Class::Ulong) => "let r = u64(i64(x0));".to_owned(),
        (Class::Uint, Class::Long) => "let r = i64(u64(x0));".to_owned(),
        // The store leaves the low bits.
        (_, to) => format!("let r = {}(x0);", to.name()),
    };
    let functions = vec!["isnan_f".to_owned()];
    prepare_map(request, Map { name: "Cast", inputs: &[0], functions, params: vec![], code })
}

/// A float as an integer: truncated, limited to the element's range, NaN as 0.
fn narrow_float(class: Class, dtype: DType) -> String {
    let (low, high) = match dtype {
        I8 => ("-128.0", "127.0"),
        U8 => ("0.0", "255.0"),
        I16 => ("-32768.0", "32767.0"),
        U16 => ("0.0", "65535.0"),
        // The largest floats below the limits.
        I32 => ("-2147483648.0", "2147483520.0"),
        U32 => ("0.0", "4294967040.0"),
        I64 => ("-9223372036854775808.0", "9223371487098961920.0"),
        _ => ("0.0", "18446742974197923840.0"),
    };
    let ty = class.name();
    format!("let r = {ty}(select(clamp(trunc(x0), {low}, {high}), 0.0, isnan_f(x0)));")
}
