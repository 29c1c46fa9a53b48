//! Elementwise ops of floats by their formulas ([`devbay_ops::formula`]).
//!
//! Those that models run over and over have a vector body for f32 ([`crate::kernels::elementwise::unary`], [`crate::kernels::elementwise::activations`]). All others, and all in
//! f64, are interpreted: each function of the formula runs over a strip of elements, in f64, and the result is rounded once.

use crate::device::CpuDevice;
use crate::isa::Isa;
use crate::kernels::cost;
use crate::kernels::elementwise::activations::{
    Celu, Elu, Mish, Selu, Softplus, Softsign, Swish, ThresholdedRelu,
};
use crate::kernels::elementwise::unary::{
    self, Abs, Acos, Acosh, Asin, Asinh, Atan, Atanh, Ceil, Clip, Cos, Cosh, Erf, Exp, Floor, Gelu, GeluTanh,
    HardSigmoid, HardSwish, LeakyRelu, Log, Neg, Reciprocal, Relu, Round, Sigmoid, Sin, Sinh, Sqrt, Tan,
    Tanh,
};
use crate::kernels::numbers::widen;
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::formula::{Emit, Function};
use devbay_ops::node::{Choice, choose};
use devbay_ops::{Formula, OpRow, ROWS, Takes};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const FLOAT: &[TypeVar] = &[TypeVar::of(FLOATS)];

/// Calls a macro with the formulas that have a vector body, and its type.
macro_rules! vector_bodies {
    ($use:ident) => {
        $use! {
            "Abs" Abs<f32>, "Acos" Acos, "Acosh" Acosh, "Asin" Asin, "Asinh" Asinh, "Atan" Atan, "Atanh" Atanh, "Ceil" Ceil,
            "Celu" Celu, "Clip" Clip<f32>, "Cos" Cos, "Cosh" Cosh, "Elu" Elu, "Erf" Erf, "Exp" Exp,
            "Floor" Floor, "Gelu" Gelu, "GeluTanh" GeluTanh, "HardSigmoid" HardSigmoid, "HardSwish" HardSwish,
            "LeakyRelu" LeakyRelu, "Log" Log, "Mish" Mish, "Neg" Neg<f32>, "Reciprocal" Reciprocal, "Relu" Relu,
            "Round" Round, "Selu" Selu, "Sigmoid" Sigmoid, "Sin" Sin, "Sinh" Sinh, "Softplus" Softplus, "Softsign" Softsign, "Sqrt" Sqrt,
            "Swish" Swish, "Tan" Tan, "Tanh" Tanh, "ThresholdedRelu" ThresholdedRelu
        }
    };
}

/// The vector body of a formula of one operand, if it has one.
pub(crate) fn body(name: &str, isa: Isa) -> Option<unary::Body> {
    macro_rules! of {
        ($($name:literal $op:ty),*) => {
            match name {
                $($name => Some(unary::body::<$op>(isa)),)*
                _ => None,
            }
        };
    }
    vector_bodies!(of)
}

/// The kernel of a row whose formula is one of a float: those of other elements too have their own.
const fn of_row(row: &'static OpRow) -> Option<Kernel<CpuDevice>> {
    let is_here = match &row.forms[0] {
        Some(form) => matches!(form.takes, Takes::Floats) && !form.gives_truth && row.inputs.n_single() == 1,
        None => false,
    };
    if !is_here {
        return None;
    }
    let kernel =
        row.descriptor(row.version, prepare).types(FLOAT).in_place(&[0]).adapted(widen::floats).cost(
            |request| {
                let Choice { formula, .. } = choose(request.domain, request.op, &request.attrs)?;
                cost::per_output(request, formula.form.flops)
            },
        );
    Some(kernel)
}

const N_KERNELS: usize = {
    let (mut n, mut i) = (0, 0);
    while i < ROWS.len() {
        n += of_row(&ROWS[i]).is_some() as usize;
        i += 1;
    }
    n
};

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &{
    let mut all = [Kernel::new("", 0, prepare); N_KERNELS];
    let (mut at, mut i) = (0, 0);
    while i < ROWS.len() {
        if let Some(kernel) = of_row(&ROWS[i]) {
            all[at] = kernel;
            at += 1;
        }
        i += 1;
    }
    all
};

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    let Choice { formula, params } = choose(request.domain, request.op, &request.attrs)?;
    let dtype = request.required_input(0)?.dtype();
    match body(formula.name(), request.device.isa) {
        Some(body) if dtype == F32 => unary::prepare_body(request, body, formula.form.flops, params),
        _ => Interpreted::prepare(request, formula, params),
    }
}

/// Elements that a function runs over at a time.
const STRIP: usize = 256;
/// Parts of a formula that are kept at one time, at most. A test holds every formula against it.
const SLOTS_MAX: usize = 6;

type Lane = [f64; STRIP];

/// Place of an argument.
#[derive(Clone, Copy, PartialEq, Debug)]
enum From {
    Operand,
    /// A number of [`Interpreter::numbers`].
    Number(usize),
    Slot(usize),
}

/// One function of a formula.
#[derive(Debug)]
struct FormulaStep {
    function: Function,
    args: [From; 3],
    to: usize,
}

/// A formula of one operand as steps, with its parameters built in.
#[derive(Debug)]
pub(crate) struct Interpreter {
    steps: Vec<FormulaStep>,
    /// Parameters and numbers, each as long as a strip.
    numbers: Vec<Lane>,
    result: From,
}

impl Interpreter {
    /// The steps of a formula.
    ///
    /// # Errors
    /// Unsupported for one of several operands, or with too many parts.
    pub(crate) fn new(formula: &Formula, params: [f32; 2]) -> Result<Self> {
        let mut builder =
            Builder { steps: Vec::new(), numbers: Vec::new(), held: [false; SLOTS_MAX], params };
        let result = formula.expr.emit(&mut builder)?;
        Ok(Self { steps: builder.steps, numbers: builder.numbers, result })
    }

    /// Runs over a strip of `n` elements; the result takes the operand's place.
    fn run(&self, x: &mut Lane, slots: &mut [Lane; SLOTS_MAX], n: usize) {
        let mut y = [0.0; STRIP];
        for FormulaStep { function, args, to } in &self.steps {
            let lane = |from: &From| match from {
                From::Operand => &x[..n],
                From::Number(number) => &self.numbers[*number][..n],
                From::Slot(slot) => &slots[*slot][..n],
            };
            let [a, b, c] = args;
            apply(*function, [lane(a), lane(b), lane(c)], &mut y[..n]);
            slots[*to][..n].copy_from_slice(&y[..n]);
        }
        match self.result {
            From::Operand => {}
            From::Number(number) => *x = self.numbers[number],
            From::Slot(slot) => *x = slots[slot],
        }
    }

    /// Runs over `n` elements of f32.
    ///
    /// # Safety
    /// Both have `n` elements; they may be the same memory.
    pub(crate) unsafe fn run_singles(&self, x: *const f32, y: *mut f32, n: usize) {
        // SAFETY: both have `n` elements (# Safety).
        unsafe { self.run_over(x, y, n, f64::from, |value| value as f32) };
    }

    /// Runs over numbers where they stand.
    #[cfg(test)]
    pub(crate) fn run_doubles(&self, values: &mut [f64]) {
        let at = values.as_mut_ptr();
        // SAFETY: one slice is both.
        unsafe { self.run_over::<f64>(at, at, values.len(), |x| x, |y| y) };
    }

    /// # Safety
    /// As [`Interpreter::run_singles`].
    unsafe fn run_over<T: Copy>(
        &self,
        x: *const T,
        y: *mut T,
        n: usize,
        load: impl Fn(T) -> f64,
        store: impl Fn(f64) -> T,
    ) {
        let mut slots = [[0.0; STRIP]; SLOTS_MAX];
        let mut strip = [0.0; STRIP];
        for begin in (0..n).step_by(STRIP) {
            let n = STRIP.min(n - begin);
            for (i, value) in strip[..n].iter_mut().enumerate() {
                // SAFETY: `begin + i` is below the number of elements, which `x` has (# Safety).
                *value = load(unsafe { x.add(begin + i).read() });
            }
            self.run(&mut strip, &mut slots, n);
            for (i, value) in strip[..n].iter().enumerate() {
                // SAFETY: `begin + i` is below the number of elements, which `y` has (# Safety); the elements were read
                // before.
                unsafe { y.add(begin + i).write(store(*value)) };
            }
        }
    }
}

struct Builder {
    steps: Vec<FormulaStep>,
    numbers: Vec<Lane>,
    held: [bool; SLOTS_MAX],
    params: [f32; 2],
}

impl Emit for Builder {
    type Value = From;
    type Error = Error;

    fn operand(&mut self, idx: usize) -> Result<From> {
        if idx == 0 { Ok(From::Operand) } else { Err(Error::unsupported("a formula of several operands")) }
    }

    fn param(&mut self, idx: usize) -> Result<From> {
        self.number(self.params[idx].into())
    }

    fn number(&mut self, number: f64) -> Result<From> {
        self.numbers.push([number; STRIP]);
        Ok(From::Number(self.numbers.len() - 1))
    }

    fn call(&mut self, function: Function, args: Vec<From>) -> Result<From> {
        for arg in &args {
            if let From::Slot(slot) = arg {
                self.held[*slot] = false;
            }
        }
        let free = self.held.iter().position(|held| !held);
        let to = free.ok_or_else(|| Error::unsupported("a formula of too many parts"))?;
        self.held[to] = true;
        // A place beyond the last argument is not read.
        let at = |i: usize| args.get(i).copied().unwrap_or(From::Operand);
        self.steps.push(FormulaStep { function, args: [at(0), at(1), at(2)], to });
        Ok(From::Slot(to))
    }
}

/// One function over a strip. Truths are 0 and 1.
fn apply(function: Function, [a, b, c]: [&[f64]; 3], y: &mut [f64]) {
    let mut one = |f: fn(f64) -> f64| y.iter_mut().zip(a).for_each(|(y, a)| *y = f(*a));
    match function {
        Function::Neg => one(|a| -a),
        Function::Not => one(|a| truth(a == 0.0)),
        Function::Abs => one(f64::abs),
        Function::Sign => one(|a| {
            if a > 0.0 {
                1.0
            } else if a < 0.0 {
                -1.0
            } else {
                a
            }
        }),
        Function::Sqrt => one(f64::sqrt),
        Function::Floor => one(f64::floor),
        Function::Ceil => one(f64::ceil),
        Function::Round => one(f64::round_ties_even),
        Function::Exp => one(f64::exp),
        Function::ExpM1 => one(f64::exp_m1),
        Function::Log => one(f64::ln),
        Function::Sigmoid => one(sigmoid),
        Function::Softplus => one(|a| at_least(a, 0.0) + (-a.abs()).exp().ln_1p()),
        Function::Erf => one(libm::erf),
        Function::Sin => one(f64::sin),
        Function::Cos => one(f64::cos),
        Function::Tan => one(f64::tan),
        Function::Asin => one(f64::asin),
        Function::Acos => one(f64::acos),
        Function::Atan => one(f64::atan),
        Function::Sinh => one(f64::sinh),
        Function::Cosh => one(f64::cosh),
        Function::Tanh => one(f64::tanh),
        Function::Asinh => one(libm::asinh),
        Function::Acosh => one(f64::acosh),
        Function::Atanh => one(f64::atanh),
        Function::IsNan => one(|a| truth(a.is_nan())),
        Function::IsInf => one(|a| truth(a.is_infinite())),
        Function::Select => {
            let of = y.iter_mut().zip(a).zip(b).zip(c);
            of.for_each(|(((y, a), b), c)| *y = if *a != 0.0 { *b } else { *c });
        }
        Function::Clip => {
            let of = y.iter_mut().zip(a).zip(b).zip(c);
            of.for_each(|(((y, a), b), c)| *y = at_most(at_least(*a, *b), *c));
        }
        _ => pair(function, a, b, y),
    }
}

fn truth(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// As [`apply`], of two arguments.
fn pair(function: Function, a: &[f64], b: &[f64], y: &mut [f64]) {
    let mut two = |f: fn(f64, f64) -> f64| y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = f(*a, *b));
    match function {
        Function::Add => two(|a, b| a + b),
        Function::Sub => two(|a, b| a - b),
        Function::Mul => two(|a, b| a * b),
        Function::Div => two(|a, b| a / b),
        Function::Equal => two(|a, b| truth(a == b)),
        Function::NotEqual => two(|a, b| truth(a != b)),
        Function::Less => two(|a, b| truth(a < b)),
        Function::LessOrEqual => two(|a, b| truth(a <= b)),
        Function::Greater => two(|a, b| truth(a > b)),
        Function::GreaterOrEqual => two(|a, b| truth(a >= b)),
        Function::And => two(|a, b| a * b),
        Function::Or => two(f64::max),
        Function::Larger => two(|a, b| if a.is_nan() || a > b { a } else { b }),
        Function::Smaller => two(|a, b| if a.is_nan() || a < b { a } else { b }),
        Function::AtLeast => two(at_least),
        Function::AtMost => two(at_most),
        Function::Rem => two(|a, b| a % b),
        Function::Pow => two(f64::powf),
        // Of integers alone.
        _ => two(|_, _| f64::NAN),
    }
}

fn at_least(a: f64, least: f64) -> f64 {
    if a < least { least } else { a }
}

fn at_most(a: f64, most: f64) -> f64 {
    if a > most { most } else { a }
}

/// 1 / (1 + e^-x), without an exponential that overflows.
fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 2 * 1024;

/// A prepared formula that is interpreted.
struct Interpreted {
    host: Host,
    n: usize,
    is_double: bool,
    interpreter: Interpreter,
}

impl Interpreted {
    fn prepare(request: &Request<'_>, formula: &Formula, params: [f32; 2]) -> Result<Prepared> {
        let (x, y) = (request.required_input(0)?, request.required_output(0)?);
        let n = x.n_elements();
        if y.n_elements() != n {
            let text = format!("an output of {} elements for {n} of the input", y.n_elements());
            return Err(Error::invalid(text));
        }
        let interpreter = Interpreter::new(formula, params)?;
        Ok(Prepared::new(Self { host: request.host, n, is_double: x.dtype() == F64, interpreter }))
    }
}

impl Launch<CpuDevice> for Interpreted {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            let begin = range.start * if self.is_double { size_of::<f64>() } else { size_of::<f32>() };
            let (x, y, n) = (x.at(begin), y.at(begin), range.len());
            if self.is_double {
                // SAFETY: the range lies within both operands, whose sizes `prepare` was told; chunks are apart.
                unsafe { self.interpreter.run_over::<f64>(x.cast(), y.cast(), n, |x| x, |y| y) };
            } else {
                // SAFETY: the range lies within both operands, whose sizes `prepare` was told; chunks are apart.
                unsafe { self.interpreter.run_singles(x.cast(), y.cast(), n) };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::test_host::{Array, run};
    use crate::kernels::testing::isas;
    use devbay_ops::formula;

    #[test]
    fn every_formula_of_one_float_can_be_interpreted() {
        let mut n_formulas = 0;
        for formula in formula::all() {
            if formula.n_operands == 1 && formula.form.takes != Takes::Integers {
                Interpreter::new(formula, [0.0; 2]).unwrap_or_else(|e| panic!("{}: {e}", formula.name()));
                n_formulas += 1;
            }
            // A fused step of two operands has a loop of its own.
            assert!(
                !formula.row.is_fused
                    || formula.n_operands == 1
                    || crate::kernels::elementwise::fused::has_pair(formula.name())
            );
        }
        assert!(n_formulas > 40, "{n_formulas}");
    }

    /// Over ordinary numbers; what is none is `specials_tests`'.
    #[test]
    fn vector_bodies_are_their_formulas() {
        let mut n_bodies = 0;
        let x: Vec<f32> = (-300..=300)
            .map(|i| i as f32 / 20.0)
            .chain([1e-6, -1e-6, 80.0, -80.0, -0.0, 1e30, -3e7, 9e5])
            .collect();
        for isa in isas() {
            for formula in formula::all() {
                let Some(body) = body(formula.name(), isa) else { continue };
                let params = [2.0, 3.0];
                let mut expected: Vec<f64> = x.iter().map(|&x| x.into()).collect();
                Interpreter::new(formula, params).expect("one operand").run_doubles(&mut expected);
                let mut found = vec![0.0f32; x.len()];
                // SAFETY: both have as many elements; the instructions are this machine's.
                unsafe {
                    body(x.as_ptr().cast(), found.as_mut_ptr().cast(), x.len(), &unary::Params::of(params))
                };
                // It is a difference of numbers that nearly cancel.
                let least = if formula.name().starts_with("Gelu") { 1.0 } else { 1e-30 };
                for ((&found, &expected), x) in found.iter().zip(&expected).zip(&x) {
                    let off = (f64::from(found) - expected).abs();
                    let is_near = off <= 3e-6 * (expected.abs() + least) || f64::from(found) == expected;
                    let is_none = found.is_nan() && expected.is_nan();
                    assert!(
                        is_near || is_none,
                        "{} of {x} on {isa:?}: {found}, not {expected}",
                        formula.name()
                    );
                }
                n_bodies += 1;
            }
        }
        assert!(n_bodies >= 38, "{n_bodies}");
    }

    fn check<T: Element + PartialEq + std::fmt::Debug>(op: &str, x: &[T], expected: &[T]) {
        let inputs = [Some(Array::of(&[x.len()], x))];
        let found = run(Isa::Baseline, op, &[], &inputs, &[Some(Array::empty::<T>(&[x.len()]))]).expect(op);
        assert_eq!(found[0].as_ref().expect("a result").elements::<T>(), expected, "{op}");
    }

    /// Large angles anywhere in a block, and in place.
    #[test]
    fn large_angles_are_reduced_with_all_digits_of_pi() {
        type Named = (&'static str, fn(f64) -> f64);
        let functions: [Named; 3] = [("Sin", f64::sin), ("Cos", f64::cos), ("Tan", f64::tan)];
        for (name, f) in functions {
            for isa in isas() {
                for n in [1, 5, 64, 65, 200] {
                    let x: Vec<f32> = (0..n)
                        .map(|i| if i % 7 == 3 || i + 1 == n { 1e30 * i as f32 } else { i as f32 })
                        .collect();
                    let mut found = x.clone();
                    let at = found.as_mut_ptr();
                    let body = body(name, isa).expect("a body");
                    // SAFETY: there are `n` elements; the instructions are this machine's.
                    unsafe { body(at.cast_const().cast(), at.cast(), n, &unary::Params::of([0.0f32; 2])) };
                    for (x, found) in x.iter().zip(found) {
                        let expected = f(f64::from(*x)) as f32;
                        assert!(
                            (found - expected).abs() <= f32::EPSILON * expected.abs(),
                            "{name} of {x}: {found}, not {expected}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn values_that_are_known() {
        use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, LN_2, PI};
        check("Acos", &[1.0, 0.0, -1.0], &[0.0, FRAC_PI_2, PI]);
        check("Asin", &[1.0f32, -0.0], &[FRAC_PI_2 as f32, -0.0]);
        check("Atan", &[1.0, f64::INFINITY], &[FRAC_PI_4, FRAC_PI_2]);
        check("Sin", &[0.0, FRAC_PI_2], &[0.0, 1.0]);
        check("Cos", &[0.0f32, PI as f32], &[1.0, -1.0]);
        check("Tan", &[0.0f32], &[0.0]);
        check("Cosh", &[0.0f32, LN_2 as f32], &[1.0, 1.25]);
        check("Sinh", &[LN_2 as f32], &[0.75]);
        check("Acosh", &[1.0f32, 1.25], &[0.0, LN_2 as f32]);
        check("Asinh", &[0.75f32], &[LN_2 as f32]);
        check("Atanh", &[-0.0f32, 1.0], &[-0.0, f32::INFINITY]);
        // Formulas that are vectorised for f32, in f64.
        check("Exp", &[0.0, f64::NEG_INFINITY], &[1.0, 0.0]);
        check("Sqrt", &[2.0f64], &[std::f64::consts::SQRT_2]);
        check("Round", &[2.5f64, -0.5], &[2.0, -0.0]);
        check("Sigmoid", &[0.0f64, -1000.0, 1000.0], &[0.5, 0.0, 1.0]);
    }
}
