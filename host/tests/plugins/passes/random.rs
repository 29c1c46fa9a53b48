//! Random programs give the same with all passes off, with each one alone, with all, and with passes in random orders.
//!
//! Every other one has NaN, infinities and the like among its numbers, which come out where they came out before.
//!
//! 128 programs by default, always the same; `PROPTEST_CASES=10000` runs more, `PROPTEST_RNG_SEED=7` others.

use super::generate::{Case, PINNED, Step, case};
use crate::library::library;
use devbay_host::internals::core::device::rates::Rates;
use devbay_host::internals::core::passes::{FOLD_CONSTANTS, Moment, PASSES, Switches};
use devbay_host::internals::core::plan::{Env, Placement};
use devbay_host::internals::core::program::Program;
use devbay_host::internals::core::program::text::{print, print_elided};
use devbay_host::internals::core::program::verify::verify;
use devbay_host::{
    Device, Error, Model, PlanOptions, Policy, Requirements, Runtime, Session, Tensor, TensorType,
};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Programs, unless `PROPTEST_CASES` says how many.
const CASES: u32 = 128;
/// The pass that removes pinned nodes too if their results are unused.
const DEAD_CODE: &str = "dead-code";
/// Random orders of passes for each of them.
const ORDERS: usize = 3;

/// A device, and for each pass what plans with it alone.
struct Bench {
    // The device is part of it.
    _runtime: Runtime,
    device: Arc<Device>,
    alone: HashMap<&'static str, Arc<Env>>,
    none: Arc<Env>,
    /// Changes by each pass alone.
    changes: RefCell<HashMap<&'static str, usize>>,
}

impl Bench {
    fn new() -> Self {
        let options = Runtime::builder().threads(1).plugin(library("cpu"));
        let runtime = options.build().expect("a runtime");
        let device = runtime.choose(&Policy::Auto, &Requirements::default()).expect("a device").device;
        let pins = vec![(PINNED.to_owned(), Arc::clone(&device))];
        let placement = Placement { pins, ..Placement::on(&device) };
        let env = |passes| Env::placed(&placement, plans(passes));
        let alone = Switches::names().map(|name| (name, env(alone(name)))).collect();
        let none = env(Switches::none());
        Self { alone, none, changes: RefCell::default(), _runtime: runtime, device }
    }

    /// Runs a program in a session with these passes.
    fn run(
        &self,
        program: &Program,
        inputs: &[(&str, Tensor)],
        passes: Switches,
    ) -> Result<Vec<Tensor>, Error> {
        let model = Model::from_program(program.clone());
        let session = Session::with_options(&model, &self.device, plans(passes))?;
        let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
        session.run(&inputs)
    }

    /// The program after the passes of each moment in these orders, verified after each one; what they changed is
    /// added to `changes`.
    fn passed(
        &self,
        case: &Case,
        orders: &Orders,
        changes: &mut HashMap<&'static str, usize>,
    ) -> Result<Program, Error> {
        let mut program = case.program.clone();
        let mut pass = |program: &mut Program, moment: Moment, names: &[&'static str]| -> Result<(), Error> {
            for name in names {
                let (before, n_pinned) = (print(program), n_pinned(program));
                let made: usize =
                    self.alone[name].run_passes(program, moment)?.iter().map(|applied| applied.changes).sum();
                *changes.entry(name).or_default() += made;
                verify(program)?;
                assert!(
                    made > 0 || before == print(program),
                    "{name} does not count what it changes in\n{before}"
                );
                let has_pinned = *name == DEAD_CODE || n_pinned == self::n_pinned(program);
                assert!(has_pinned, "{name} does not leave pinned nodes alone in\n{before}");
            }
            Ok(())
        };
        pass(&mut program, Moment::Model, &orders.model)?;
        let types: Vec<TensorType> = case.inputs.iter().map(|(_, tensor)| tensor.tensor_type()).collect();
        let env = if orders.folds { &self.alone[FOLD_CONSTANTS] } else { &self.none };
        let (mut program, folded) = env.specialised(&program, &types)?;
        verify(&program)?;
        pass(&mut program, Moment::Shapes, &orders.shapes)?;
        pass(&mut program, Moment::Device, &orders.device)?;
        if orders.folds {
            let n: usize = folded.iter().map(|applied| applied.changes).sum();
            *changes.entry(FOLD_CONSTANTS).or_default() += n;
        }
        Ok(program)
    }

    /// Compares what a program gives without passes with what it gives after passes.
    fn check(&self, case: &Case, orders: &[Orders]) -> Result<(), String> {
        let said = |error: Error| error.to_string();
        verify(&case.program).map_err(|error| format!("the program itself: {error}"))?;
        let expected = self
            .run(&case.program, &case.inputs, Switches::none())
            .map_err(|error| format!("with no passes: {error}"))?;
        for name in Switches::names() {
            let mut changes = HashMap::new();
            self.passed(case, &Orders::alone(name), &mut changes).map_err(said)?;
            let n: usize = changes.values().sum();
            *self.changes.borrow_mut().entry(name).or_default() += n;
            if n > 0 {
                let found = self.run(&case.program, &case.inputs, alone(name)).map_err(said)?;
                same(&found, &expected).map_err(|text| format!("with {name} alone, {text}"))?;
            }
        }
        let found = self.run(&case.program, &case.inputs, Switches::default()).map_err(said)?;
        same(&found, &expected).map_err(|text| format!("with all passes, {text}"))?;
        for order in orders {
            let program = self.passed(case, order, &mut HashMap::new());
            let program = program.map_err(|error| format!("with {order:?}, {error}"))?;
            let found = self.run(&program, &case.inputs, Switches::none()).map_err(said)?;
            same(&found, &expected)
                .map_err(|text| format!("with {order:?}, {text}; it became\n{}", print_elided(&program)))?;
        }
        Ok(())
    }
}

/// With these passes, of which one is to make f64 narrower, for a device on which images of a few pixels are worth another order
/// of their axes.
fn plans(passes: Switches) -> PlanOptions {
    let rates = Some(Rates { flops_per_ns: 1.0, ..Rates::default() });
    PlanOptions { passes, narrow: "f64=f32".parse().ok(), rates, ..PlanOptions::default() }
}

/// Nodes that stay.
fn n_pinned(program: &Program) -> usize {
    let mut n = 0;
    program.main.visit(&mut |node| n += usize::from(&*node.name == PINNED));
    n
}

/// All passes off but one.
fn alone(name: &str) -> Switches {
    Switches::without(Switches::names().filter(|other| *other != name)).expect("names of passes")
}

/// Passes by the moment at which they run, in the order in which they do.
#[derive(Debug)]
struct Orders {
    model: Vec<&'static str>,
    folds: bool,
    shapes: Vec<&'static str>,
    device: Vec<&'static str>,
}

impl Orders {
    fn of(moment: Moment) -> Vec<&'static str> {
        PASSES.iter().filter(|pass| pass.moments.contains(&moment)).map(|pass| pass.name).collect()
    }

    fn alone(name: &'static str) -> Self {
        let of = |moment| Self::of(moment).into_iter().filter(|known| *known == name).collect();
        let folds = name == FOLD_CONSTANTS;
        Self { model: of(Moment::Model), folds, shapes: of(Moment::Shapes), device: of(Moment::Device) }
    }

    /// Passes of each moment, chosen by bytes: some twice, some not at all.
    fn chosen(bytes: &[u8; 20]) -> Self {
        let of = |moment, bytes: &[u8]| {
            let names = Self::of(moment);
            bytes.iter().map(|&byte| names[usize::from(byte) % names.len()]).collect()
        };
        Self {
            model: of(Moment::Model, &bytes[..5]),
            folds: bytes[5] % 2 == 1,
            shapes: of(Moment::Shapes, &bytes[6..16]),
            device: of(Moment::Device, &bytes[16..]),
        }
    }
}

/// The elements of a tensor of floats.
fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    let single = || Some(tensor.elements::<f32>()?.iter().map(|&value| value.into()).collect());
    tensor.elements::<f64>().map(<[f64]>::to_vec).or_else(single)
}

/// Fails unless results agree: integers exactly; floats in their class and, if finite, within 1e-4 times the largest
/// value or 1, whichever is more.
fn same(found: &[Tensor], expected: &[Tensor]) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("there are {} results, expected {}", found.len(), expected.len()));
    }
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        if found.tensor_type() != expected.tensor_type() {
            return Err(format!("y{i} is {}, expected {}", found.tensor_type(), expected.tensor_type()));
        }
        let (found_floats, expected_floats) = (floats(found), floats(expected));
        let is_same = match (&found_floats, &expected_floats) {
            (Some(found), Some(expected)) => {
                let finite = expected.iter().filter(|value| value.is_finite());
                let largest = finite.fold(1.0, |most: f64, value| most.max(value.abs()));
                let close = |(a, b): (&f64, &f64)| match b.is_finite() {
                    true => (a - b).abs() <= 1e-4 * largest,
                    false => a == b || a.is_nan() && b.is_nan(),
                };
                found.iter().zip(expected).all(close)
            }
            _ => found.bytes() == expected.bytes(),
        };
        if !is_same {
            let (found, expected) = (found_floats, expected_floats);
            return Err(format!("y{i} is {found:?}, expected {expected:?}"));
        }
    }
    Ok(())
}

#[test]
fn passes_in_any_order_leave_what_a_program_gives() {
    let mut config = Config { failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let is_default = std::env::var_os("PROPTEST_CASES").is_none();
    if is_default {
        config.cases = CASES;
    }
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(7);
    }
    let bench = Bench::new();
    let strategy =
        (any::<bool>(), any::<(bool, u8)>(), vec(any::<Step>(), 4..28), vec(any::<[u8; 20]>(), ORDERS));
    let outcome = TestRunner::new(config).run(&strategy, |(is_open, (is_plain, dose), steps, orders)| {
        let case = case(is_open, if is_plain { 0 } else { dose }, &steps);
        let orders: Vec<Orders> = orders.iter().map(Orders::chosen).collect();
        let text = |reason| TestCaseError::fail(format!("{reason}\n{}", print_elided(&case.program)));
        bench.check(&case, &orders).map_err(text)
    });
    match outcome {
        Ok(()) => {}
        // The program is in the reason; the bytes that it was made of tell nothing.
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
    // Programs in which no pass finds anything would show nothing.
    let changes = bench.changes.borrow();
    let counts: Vec<_> =
        Switches::names().map(|name| (name, changes.get(name).copied().unwrap_or(0))).collect();
    eprintln!("changes by each pass alone: {counts:?}");
    let idle: Vec<_> = counts.iter().filter(|(_, n)| *n == 0).collect();
    assert!(idle.is_empty() || !is_default, "{idle:?} of {counts:?}");
}
