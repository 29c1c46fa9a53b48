//! Ops whose elements stand by themselves, generated from their formulas ([`crate::formulas`]).
//!
//! One step serves them all: it walks the output, finds each operand's element (broadcast as NumPy does), reads it as
//! the type in which the op is calculated, and writes what the formula gives. 8- and 16-bit integers are calculated in
//! 32 bits, of which the low ones stay; 16-bit floats in f32, rounded once.

use super::cost;
use super::element::Width;
use super::math;
use super::walk::Walk;
use crate::formulas::{Class, Formula, Gives, find};
use crate::step::{Body, Build, Param, Slot, Step};
use crate::target::Target;
use devbay_plugin_api::abi::DEVBAY_VARIADIC;
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
const FLOAT_TO_TRUTH: &[TypeVar] = &[TypeVar::of(SINGLES), TypeVar::of(&[BOOL])];

/// A kernel whose formula is its op's.
macro_rules! kernel {
    ($op:literal, $since_version:literal, $types:ident, $inputs:expr, $outputs:expr) => {
        Kernel::new($op, $since_version, |request| prepare(request, $op))
            .types($types)
            .operands($inputs, $outputs)
            .cost(|request| cost::per_output(request, find($op).map_or(1, |formula| formula.flops)))
    };
}

/// One operand, and a result of its type.
macro_rules! unary {
    ($op:literal, $since_version:literal, $types:ident) => {
        kernel!($op, $since_version, $types, &[0], &[0]).in_place(&[0])
    };
}

/// Two operands and a result of one type.
macro_rules! binary {
    ($op:literal, $since_version:literal, $types:ident) => {
        kernel!($op, $since_version, $types, &[0, 0], &[0]).in_place(&[0])
    };
}

/// Two operands of one type and a truth.
macro_rules! relation {
    ($op:literal, $since_version:literal, $types:ident) => {
        kernel!($op, $since_version, $types, &[0, 0], &[1])
    };
}

/// Any number of operands of one type, one after the other.
macro_rules! variadic {
    ($op:literal, $since_version:literal, $types:ident, $formula:literal) => {
        Kernel::new($op, $since_version, |request| prepare_variadic(request, $formula, $op == "Mean"))
            .types($types)
            .operands(&[0], &[0])
            .inputs(1, DEVBAY_VARIADIC)
            .cost(|request| cost::per_output(request, request.inputs.len().saturating_sub(1) as u64))
    };
}

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    unary!("Relu", 14, SIGN),
    unary!("LeakyRelu", 16, FLOAT),
    Kernel::new("Clip", 13, prepare_clip)
        .types(NUMBER)
        .operands(&[0, 0, 0], &[0])
        .inputs(1, 3)
        .in_place(&[0])
        .cost(|request| cost::per_output(request, 2)),
    unary!("Sigmoid", 13, FLOAT),
    unary!("HardSigmoid", 6, FLOAT),
    unary!("HardSwish", 14, FLOAT),
    Kernel::new("Gelu", 20, prepare_gelu)
        .types(FLOAT)
        .operands(&[0], &[0])
        .in_place(&[0])
        .cost(|request| cost::per_output(request, 45)),
    unary!("Tanh", 13, FLOAT),
    unary!("Exp", 13, FLOAT),
    unary!("Log", 13, FLOAT),
    unary!("Sqrt", 13, FLOAT),
    unary!("Erf", 13, FLOAT),
    unary!("Reciprocal", 13, FLOAT),
    unary!("Neg", 13, SIGN),
    unary!("Abs", 13, NUMBER),
    unary!("Sign", 13, NUMBER),
    unary!("Floor", 13, FLOAT),
    unary!("Ceil", 13, FLOAT),
    unary!("Round", 11, FLOAT),
    unary!("Not", 1, TRUTH),
    unary!("BitwiseNot", 18, INTEGER),
    unary!("Celu", 28, FLOAT),
    unary!("Elu", 22, FLOAT),
    unary!("Mish", 22, FLOAT),
    unary!("Selu", 22, FLOAT),
    unary!("Shrink", 9, FLOAT),
    unary!("Softplus", 22, FLOAT),
    unary!("Softsign", 22, FLOAT),
    unary!("Swish", 24, FLOAT),
    unary!("ThresholdedRelu", 22, FLOAT),
    unary!("Sin", 22, FLOAT),
    unary!("Cos", 22, FLOAT),
    unary!("Tan", 22, FLOAT),
    unary!("Asin", 22, FLOAT),
    unary!("Acos", 22, FLOAT),
    unary!("Atan", 22, FLOAT),
    unary!("Sinh", 22, FLOAT),
    unary!("Cosh", 22, FLOAT),
    unary!("Asinh", 22, FLOAT),
    unary!("Acosh", 22, FLOAT),
    unary!("Atanh", 22, FLOAT),
    kernel!("IsNaN", 20, FLOAT_TO_TRUTH, &[0], &[1]),
    Kernel::new("IsInf", 20, prepare_is_inf)
        .types(FLOAT_TO_TRUTH)
        .operands(&[0], &[1])
        .cost(|request| cost::per_output(request, 1)),
    binary!("Add", 14, NUMBER),
    binary!("Sub", 14, NUMBER),
    binary!("Mul", 14, NUMBER),
    binary!("Div", 14, NUMBER),
    Kernel::new("Mod", 13, prepare_mod)
        .types(NUMBER)
        .operands(&[0, 0], &[0])
        .cost(|request| cost::per_output(request, 1)),
    binary!("PRelu", 16, NUMBER),
    binary!("And", 7, TRUTH),
    binary!("Or", 7, TRUTH),
    binary!("Xor", 7, TRUTH),
    binary!("BitwiseAnd", 18, INTEGER),
    binary!("BitwiseOr", 18, INTEGER),
    binary!("BitwiseXor", 18, INTEGER),
    Kernel::new("Pow", 15, prepare_pow)
        .types(&[TypeVar::of(SINGLES), TypeVar::of(NUMBERS)])
        .operands(&[0, 1], &[0])
        .cost(|request| cost::per_output(request, 50)),
    relation!("Equal", 19, ANY_TO_TRUTH),
    relation!("Less", 13, NUMBER_TO_TRUTH),
    relation!("LessOrEqual", 16, NUMBER_TO_TRUTH),
    relation!("Greater", 13, NUMBER_TO_TRUTH),
    relation!("GreaterOrEqual", 16, NUMBER_TO_TRUTH),
    variadic!("Max", 13, NUMBER, "Max"),
    variadic!("Min", 13, NUMBER, "Min"),
    variadic!("Sum", 13, FLOAT, "Add"),
    variadic!("Mean", 13, FLOAT, "Add"),
    Kernel::new("Where", 16, prepare_where)
        .types(&[TypeVar::of(&[BOOL]), TypeVar::of(ANYTHING)])
        .operands(&[0, 1, 1], &[1])
        .cost(|request| cost::per_output(request, 1)),
    Kernel::new("Cast", 25, prepare_cast)
        .types(&[TypeVar::of(ANYTHING), TypeVar::of(ANYTHING)])
        .operands(&[0], &[1])
        .cost(|request| cost::per_output(request, 1)),
];

/// How elements of a dtype are read, calculated and written.
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

    /// How it lies in memory.
    pub fn width(self) -> Width {
        self.width
    }

    /// The WGSL type of a buffer of such elements.
    pub fn storage(self) -> &'static str {
        match self.width {
            Width::B1 | Width::B2 => "u32",
            Width::B4 | Width::B8 => class_type(self.class()),
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
        // The nearest, ties to even; NaN stays one.
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

/// The WGSL type of a class.
pub fn class_type(class: Class) -> &'static str {
    match class {
        Class::Float => "f32",
        Class::Int => "i32",
        Class::Uint => "u32",
        Class::Long => "i64",
        Class::Ulong => "u64",
        Class::Truth => "bool",
    }
}

/// What is calculated for each element of the output.
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
    build.add(Step {
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
fn prepare(request: &Request<'_>, op: &'static str) -> Result<Prepared> {
    prepare_formula(request, op, op, &[])
}

/// Prepares a formula, with values for its attributes or those of the node.
fn prepare_formula(
    request: &Request<'_>,
    name: &str,
    formula: &'static str,
    attrs: &[f32],
) -> Result<Prepared> {
    let formula = find(formula).ok_or_else(|| Error::internal(format!("no formula {formula}")))?;
    let class = Number::of(request.required_input(0)?.dtype(), request.device)?.class();
    let mut params = Vec::new();
    for (k, (attr, default)) in formula.attrs.iter().enumerate() {
        params.push((format!("k{k}"), Param::F32(request.attrs.float(attr, *default)?)));
    }
    for (k, &value) in attrs.iter().enumerate() {
        params.push((format!("k{k}"), Param::F32(value)));
    }
    let inputs: Vec<usize> = (0..formula.n_operands).collect();
    let code =
        format!("let r: {} = {};", result_type(formula, class), written(formula, class, &["x0", "x1"]));
    prepare_map(request, Map { name, inputs: &inputs, functions: formula.functions(class), params, code })
}

fn result_type(formula: &Formula, class: Class) -> &'static str {
    class_type(if formula.gives == Gives::Truth { Class::Truth } else { class })
}

fn written(formula: &Formula, class: Class, operands: &[&str]) -> String {
    let operands: Vec<String> = operands.iter().map(|&operand| operand.to_owned()).collect();
    formula.write(class, class_type(class), &operands, &["p.k0".to_owned(), "p.k1".to_owned()])
}

fn prepare_gelu(request: &Request<'_>) -> Result<Prepared> {
    match request.attrs.string("approximate", "none")? {
        "none" => prepare_formula(request, "Gelu", "Gelu", &[]),
        "tanh" => prepare_formula(request, "Gelu", "GeluTanh", &[]),
        other => Err(Error::invalid(format!("approximate is none or tanh, found {other}"))),
    }
}

fn prepare_is_inf(request: &Request<'_>) -> Result<Prepared> {
    let wanted = |name: &str| request.attrs.int(name, 1).map(|wanted| if wanted != 0 { 1.0 } else { 0.0 });
    let attrs = [wanted("detect_negative")?, wanted("detect_positive")?];
    prepare_formula(request, "IsInf", "IsInf", &attrs)
}

fn prepare_mod(request: &Request<'_>) -> Result<Prepared> {
    let class = Number::of(request.required_input(0)?.dtype(), request.device)?.class();
    match (request.attrs.int("fmod", 0)? != 0, class) {
        (true, _) => prepare_formula(request, "Mod", "Fmod", &[]),
        (false, Class::Float) => Err(Error::unsupported("Mod of floats needs fmod=1")),
        (false, _) => prepare_formula(request, "Mod", "Mod", &[]),
    }
}

/// Limits are scalars, of which each may be absent; the upper one is applied last.
fn prepare_clip(request: &Request<'_>) -> Result<Prepared> {
    let class = Number::of(request.required_input(0)?.dtype(), request.device)?.class();
    let (letter, ty) = (class.letter(), class_type(class));
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

fn prepare_variadic(request: &Request<'_>, formula: &'static str, is_mean: bool) -> Result<Prepared> {
    let formula = find(formula).ok_or_else(|| Error::internal(format!("no formula {formula}")))?;
    let class = Number::of(request.required_input(0)?.dtype(), request.device)?.class();
    let n = request.inputs.len();
    let most = request.device.abilities.storage_buffers_max as usize;
    if n + 1 > most {
        return Err(Error::unsupported(format!("{n} operands, the device binds {most} buffers")));
    }
    let inputs: Vec<usize> = (0..n).collect();
    let mut code = format!("var r: {} = x0;\n", class_type(class));
    for k in 1..n {
        code.push_str(&format!("r = {};\n", written(formula, class, &["r", &format!("x{k}")])));
    }
    let mut params = Vec::new();
    if is_mean {
        code.push_str("r = r / p.count;\n");
        params.push(("count".to_owned(), Param::F32(n as f32)));
    }
    let functions = formula.functions(class);
    prepare_map(request, Map { name: formula.op, inputs: &inputs, functions, params, code })
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
        (Class::Truth, to) => format!("let r = {0}(select(0u, 1u, x0));", class_type(to)),
        (Class::Float, Class::Truth) => "let r = x0 != 0.0 || isnan_f(x0);".to_owned(),
        (Class::Float, to) => narrow_float(to, y.dtype()),
        (from, Class::Truth) => format!("let r = x0 != {}(0);", class_type(from)),
        (_, Class::Float) => "let r = f32(x0);".to_owned(),
        // naga widens by the sign of the result's type.
        (Class::Int, Class::Ulong) => "let r = u64(i64(x0));".to_owned(),
        (Class::Uint, Class::Long) => "let r = i64(u64(x0));".to_owned(),
        // The store leaves the low bits.
        (_, to) => format!("let r = {}(x0);", class_type(to)),
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
    let ty = class_type(class);
    format!("let r = {ty}(select(clamp(trunc(x0), {low}, {high}), 0.0, isnan_f(x0)));")
}
