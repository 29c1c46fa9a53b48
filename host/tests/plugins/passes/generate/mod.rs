//! Random programs of what passes look for: products with scales behind them, lines of elementwise ops, ops that change
//! nothing or the shape alone, what is done to every operand of a Concat, networks of images, and everything twice.
//!
//! A program is made of steps, a few bytes each. Every list of steps gives a program that verifies and runs; one that is
//! shorter, or has smaller bytes, gives a smaller one. Values are kept small and divisors away from zero, so that another
//! order of the same calculation gives nearly the same. Results of nodes have no types: passes over the model must do
//! without.
//!
//! With a dose of them, NaN, infinities, zeros with a sign and subnormal numbers are among the inputs and constants, in
//! places where small differences do not decide what becomes of them: a number near zero that is rounded otherwise, times
//! an infinity, would have another sign. So two values are not multiplied then, and infinities are added, not factors.

mod images;
mod patterns;
mod products;
mod quantised;
mod regions;
mod shapes;

use devbay_host::internals::core::program::{AttrValue, Node, Op, Program, Value, ValueId, catalogue};
use devbay_host::internals::core::tensor::{BOOL, F32, I32, I64};
use devbay_host::{DType, Dim, Tensor, TensorType};

/// One step: what is added, and the choices that it leaves open.
pub type Step = [u8; 12];

/// A program, and what goes in.
pub struct Case {
    pub program: Program,
    pub inputs: Vec<(&'static str, Tensor)>,
}

/// The name of nodes that passes leave as they are.
pub const PINNED: &str = "pinned";

/// No value is larger than this.
const MOST: f32 = 30.0;
/// Maximum nesting of regions.
const DEPTH_MAX: usize = 2;
/// Elements of a value, at most.
const ELEMENTS_MAX: usize = 2048;
/// ONNX's number of the element type f32, and of the integers.
const ONNX_F32: i64 = 1;
const ONNX_I32: i64 = 6;
const ONNX_I8: i64 = 3;
const ONNX_I64: i64 = 7;

/// Special numbers.
const SPECIALS: &[f32] = &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-40, -1e-40];
/// Of these, what may be a factor.
const FACTORS: &[f32] = &[-0.0, 1e-40, f32::NAN, 0.0];

/// The program of some steps. Extents of inputs are known, or those of the first axis are not. A dose of 0 has ordinary
/// numbers alone.
pub fn case(is_open: bool, dose: u8, steps: &[Step]) -> Case {
    let mut maker = Maker { dose: dose.into(), ..Maker::default() };
    let inputs = maker.inputs(is_open);
    for step in steps {
        let mut choices = Choices { bytes: step, at: 0 };
        let kind = KINDS[choices.of(KINDS.len())];
        kind(&mut maker, &mut choices);
    }
    maker.outputs(steps.last().map_or(0, |step| step[1]));
    Case { program: maker.program, inputs }
}

/// Bytes that decide, in order; zero when none are left.
struct Choices<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        self.at += 1;
        self.bytes.get(self.at - 1).copied().unwrap_or(0).into()
    }

    /// One of `n`.
    fn of(&mut self, n: usize) -> usize {
        self.byte() % n
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.of(list.len())]
    }
}

/// A value, and what is known of it.
#[derive(Clone)]
struct Made {
    id: ValueId,
    dtype: DType,
    shape: Vec<usize>,
    /// No element is larger.
    most: f32,
}

impl Made {
    fn n(&self) -> usize {
        self.shape.iter().product()
    }
}

type Kind = fn(&mut Maker, &mut Choices<'_>) -> Option<()>;

/// Kinds of additions in a step. Kinds that passes need together come more than once.
const KINDS: &[Kind] = &[
    Maker::unary,
    Maker::with_constant,
    Maker::product,
    Maker::with_constant,
    Maker::product,
    Maker::two,
    Maker::rivals,
    Maker::normalisation,
    Maker::view,
    Maker::neutral,
    Maker::transposition,
    Maker::again,
    Maker::concat,
    Maker::piece,
    Maker::reduction,
    Maker::twins,
    Maker::integers,
    Maker::constants,
    Maker::looped,
    Maker::branches,
    Maker::softmax,
    Maker::layer_norm,
    Maker::gelu,
    Maker::hard_swish,
    Maker::attention,
    Maker::padded,
    Maker::einsum,
    Maker::int_product,
    Maker::int_product,
    Maker::quantised,
    Maker::quantised,
    Maker::quantised_weights,
    Maker::conv_transpose,
    Maker::conv_transpose,
    Maker::reordered,
    Maker::widened,
    Maker::network,
    Maker::network,
    Maker::network,
];

#[derive(Default)]
struct Maker {
    program: Program,
    /// Values that steps may use.
    pool: Vec<Made>,
    n_inputs: usize,
    /// Nodes that may be made again, with what they make.
    repeatable: Vec<(Node, Vec<Made>)>,
    /// The number of iterations, and a condition.
    trips: Option<ValueId>,
    is_on: Option<ValueId>,
    /// Number of regions in progress.
    depth: usize,
    /// Number and place of special numbers; 0 is none.
    dose: usize,
    /// Constants that might have had one so far.
    n_chances: usize,
}

impl Maker {
    fn inputs(&mut self, is_open: bool) -> Vec<(&'static str, Tensor)> {
        let mut inputs = Vec::new();
        let shapes: [(&str, &[usize]); 6] = [
            ("a", &[2, 4]),
            ("b", &[2, 4]),
            ("c", &[2, 4, 3]),
            ("d", &[1, 4, 3, 3]),
            ("e", &[2, 4, 1]),
            ("f", &[4, 1, 1]),
        ];
        for (i, (name, shape)) in shapes.into_iter().enumerate() {
            let n: usize = shape.iter().product();
            let mut values: Vec<f32> =
                (0..n).map(|at| ((at * 37 + i * 11) % 41) as f32 / 10.0 - 2.0).collect();
            if self.dose >> (i % 4) & 1 == 1 {
                for (at, value) in values.iter_mut().enumerate().skip(self.dose % 5).step_by(7 + i) {
                    *value = SPECIALS[(at + i + self.dose) % SPECIALS.len()];
                }
            }
            let mut ty = TensorType::new(F32, shape);
            if let Some(dims) = ty.shape.as_mut().filter(|_| is_open && name != "f") {
                dims[0] = Dim::Unknown("batch".into());
            }
            let id = self.program.add_typed(name, ty);
            self.pool.push(Made { id, dtype: F32, shape: shape.to_vec(), most: 2.0 });
            inputs.push((name, Tensor::from_elements(shape, &values).expect("a tensor")));
        }
        let id = self.program.add_typed("k", TensorType::new(I64, &[4]));
        self.pool.push(Made { id, dtype: I64, shape: vec![4], most: 7.0 });
        inputs.push(("k", Tensor::from_elements(&[4], &[3i64, -7, 0, 5]).expect("a tensor")));
        let trips = self.program.add_typed("n", TensorType::new(I64, &[]));
        inputs.push(("n", Tensor::from_elements(&[], &[2i64]).expect("a tensor")));
        let is_on = self.program.add_typed("on", TensorType::new(BOOL, &[]));
        inputs.push(("on", Tensor::from_bytes(BOOL, &[], &[1]).expect("a tensor")));
        self.program.main.inputs = self.pool.iter().map(|made| made.id).chain([trips, is_on]).collect();
        (self.trips, self.is_on) = (Some(trips), Some(is_on));
        self.n_inputs = self.pool.len();
        inputs
    }

    /// The last values go out, and some of those before; what none of them needs is dead.
    fn outputs(&mut self, choice: u8) {
        if self.pool.len() == self.n_inputs {
            let last = self.pool[0].clone();
            self.add("Identity", &[last.id], &[], last);
        }
        let made = &self.pool[self.n_inputs..];
        let n_last = 1 + usize::from(choice) % 3;
        let every = 3 + usize::from(choice) / 16;
        let goes_out = |(i, _): &(usize, &Made)| made.len() - i <= n_last || i % every == every - 1;
        let ids: Vec<ValueId> = made.iter().enumerate().filter(goes_out).map(|(_, made)| made.id).collect();
        for (i, id) in ids.iter().enumerate() {
            self.program.value_mut(*id).name = format!("y{i}").into();
        }
        self.program.main.outputs = ids;
    }

    fn value(&mut self) -> ValueId {
        self.program.add_value(Value::default())
    }

    fn node(&self, op: &str, inputs: &[ValueId], outputs: &[ValueId], attrs: &[(&str, AttrValue)]) -> Node {
        let some = |ids: &[ValueId]| ids.iter().copied().map(Some).collect();
        let op = Op::of(catalogue::find("", op).unwrap_or_else(|| panic!("no op {op}")));
        let mut node = Node::new(op, some(inputs), some(outputs));
        attrs.iter().for_each(|(name, value)| node.set_attr(name, value.clone()));
        node
    }

    /// Adds a node of one result, which is like `made` but for its number; None if that would be too large.
    fn add(&mut self, op: &str, inputs: &[ValueId], attrs: &[(&str, AttrValue)], made: Made) -> Option<Made> {
        if made.n() > ELEMENTS_MAX || made.most > MOST && made.dtype == F32 || made.shape.len() > 5 {
            return None;
        }
        let id = self.value();
        let made = Made { id, ..made };
        let mut node = self.node(op, inputs, &[id], attrs);
        if id.0.is_multiple_of(23) {
            node.name = PINNED.into();
        }
        self.repeatable.push((node.clone(), vec![made.clone()]));
        self.program.main.nodes.push(node);
        self.pool.push(made.clone());
        Some(made)
    }

    /// A value of f32, the last one more often than not.
    fn pick(&self, choices: &mut Choices<'_>) -> Made {
        let floats: Vec<&Made> = self.pool.iter().filter(|made| made.dtype == F32).collect();
        let choice = choices.byte();
        let at = if choice < 144 { floats.len() - 1 } else { choice % floats.len() };
        floats[at].clone()
    }

    /// A value of the same type.
    fn pick_like(&self, like: &Made, choices: &mut Choices<'_>) -> Made {
        let alike = |made: &&Made| made.dtype == like.dtype && made.shape == like.shape;
        let alike: Vec<&Made> = self.pool.iter().filter(alike).collect();
        alike[choices.of(alike.len())].clone()
    }

    /// A value of f32 that is broadcast to the shape of another one, and not constant.
    fn pick_fitting(&self, like: &Made, choices: &mut Choices<'_>) -> Made {
        let fits = |made: &&Made| {
            let mut extents = made.shape.iter().rev().zip(like.shape.iter().rev());
            made.dtype == like.dtype
                && made.shape.len() <= like.shape.len()
                && extents.all(|(a, b)| a == b || *a == 1)
        };
        let fitting: Vec<&Made> = self.pool.iter().filter(fits).collect();
        fitting[choices.of(fitting.len())].clone()
    }

    /// Numbers of 0.5 to 2 by amount, `scale` times; the same for the same choice.
    fn numbers(&mut self, shape: &[usize], choice: usize, scale: f32) -> ValueId {
        let n: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..n).map(|i| amount(i, choice) * scale).collect();
        self.program.add_constant("", Tensor::from_elements(shape, &numbers).expect("a tensor"))
    }

    /// As [`Maker::numbers`], now and then with one of some special numbers.
    fn numbers_and(&mut self, specials: &[f32], shape: &[usize], choice: usize, scale: f32) -> ValueId {
        let id = self.numbers(shape, choice, scale);
        self.n_chances += 1;
        let n: usize = shape.iter().product();
        let turn = self.n_chances * self.dose;
        if turn == 0 || n == 0 || !turn.is_multiple_of(3) {
            return id;
        }
        let numbers = self.program.constant(id).and_then(|tensor| tensor.elements::<f32>());
        let mut numbers = numbers.expect("numbers of f32").to_vec();
        numbers[turn / 3 % n] = specials[turn / 3 % specials.len()];
        self.program.add_constant("", Tensor::from_elements(shape, &numbers).expect("a tensor"))
    }

    fn ints(&mut self, shape: &[usize], values: &[i64]) -> ValueId {
        self.program.add_constant("", Tensor::from_elements(shape, values).expect("a tensor"))
    }

    fn list(&mut self, values: &[i64]) -> ValueId {
        self.ints(&[values.len()], values)
    }

    fn number(&mut self, value: f32) -> ValueId {
        self.program.add_constant("", Tensor::from_elements(&[], &[value]).expect("a tensor"))
    }

    fn unary(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let op = choices.one_of(UNARY);
        self.apply(op, &x).map(drop)
    }

    fn apply(&mut self, op: &str, x: &Made) -> Option<Made> {
        let most = most_of(op, x.most);
        let mut inputs = vec![x.id];
        match op {
            "Clip" => inputs.extend([self.number(-0.75), self.number(1.5)]),
            "Pow" => inputs.push(self.number(2.0)),
            _ => {}
        }
        self.add(op, &inputs, &[], Made { most, ..x.clone() })
    }

    fn with_constant(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let (op, form, number) = (choices.one_of(BINARY), choices.of(7), choices.of(4));
        let shape = match form {
            0 => vec![],
            1 => vec![1],
            2 => x.shape.last().copied().into_iter().collect(),
            3 => x.shape.clone(),
            4 if x.shape.len() < 4 => vec![1; x.shape.len() + 1],
            _ if x.shape.len() >= 2 => {
                std::iter::once(x.shape[1]).chain(vec![1; x.shape.len() - 2]).collect()
            }
            _ => vec![1],
        };
        let is_left = choices.of(3) == 2 && op != "Div";
        self.apply_with(op, &x, &shape, number, is_left).map(drop)
    }

    /// An op of a value and a constant of some shape that gives the value's shape, or has one axis more.
    fn apply_with(
        &mut self,
        op: &str,
        x: &Made,
        shape: &[usize],
        number: usize,
        is_left: bool,
    ) -> Option<Made> {
        let specials = match op {
            "Mul" => FACTORS,
            // A quotient by next to nothing makes small differences large.
            "Div" => &[f32::NAN],
            _ => SPECIALS,
        };
        let constant = self.numbers_and(specials, shape, number, 1.0);
        let amounts = (0..shape.iter().product()).map(|i| amount(i, number).abs());
        let (least, largest) =
            amounts.fold((2.0f32, 0.5f32), |(least, largest), value| (least.min(value), largest.max(value)));
        let most = match op {
            "Mul" => x.most * largest,
            "Div" => x.most / least,
            "Max" | "Min" => x.most.max(largest),
            _ => x.most + largest,
        };
        let inputs = if is_left { [constant, x.id] } else { [x.id, constant] };
        let mut made = Made { most, ..x.clone() };
        if shape.len() > x.shape.len() {
            made.shape.insert(0, 1);
        }
        self.add(op, &inputs, &[], made)
    }

    fn two(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let y = self.pick_fitting(&x, choices);
        let op = choices.one_of(&["Add", "Mul", "Sub", "Max", "Min"]);
        let op = if op == "Mul" && self.dose > 0 { "Max" } else { op };
        self.of_two(op, &x, &y).map(drop)
    }

    fn of_two(&mut self, op: &str, x: &Made, y: &Made) -> Option<Made> {
        let most = match op {
            "Mul" => x.most * y.most,
            "Max" | "Min" => x.most.max(y.most),
            _ => x.most + y.most,
        };
        self.add(op, &[x.id, y.id], &[], Made { most, ..x.clone() })
    }

    /// Two ops of the same operand that differ in an attribute alone, and their difference.
    fn rivals(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let (op, name) = choices.one_of(&[("LeakyRelu", "alpha"), ("Elu", "alpha"), ("HardSigmoid", "beta")]);
        let made = Made { most: x.most.max(1.0), ..x.clone() };
        let one = self.add(op, &[x.id], &[(name, AttrValue::Float(0.5))], made.clone())?;
        let other = self.add(op, &[x.id], &[(name, AttrValue::Float(0.25))], made)?;
        self.of_two("Sub", &one, &other).map(drop)
    }

    /// A node that is there already, with the same constants or equal ones.
    fn again(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let choice = choices.byte();
        let (mut node, mut made) = self.repeatable.get(choice % self.repeatable.len().max(1))?.clone();
        if choices.of(2) == 1 {
            for id in node.inputs.iter_mut().flatten() {
                if let Some(tensor) = self.program.constant(*id) {
                    let copy = Tensor::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes());
                    *id = self.program.add_constant("", copy.expect("a tensor"));
                }
            }
        }
        made.iter_mut().for_each(|made| made.id = self.value());
        node.outputs = made.iter().map(|made| Some(made.id)).collect();
        self.program.main.nodes.push(node);
        self.pool.extend(made);
        Some(())
    }

    /// Integers: arithmetic with constants, and what they are as numbers of another type.
    fn integers(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let ints: Vec<&Made> = self.pool.iter().filter(|made| made.dtype == I64).collect();
        let x = ints[choices.of(ints.len())].clone();
        let op = choices.one_of(&["Add", "Mul", "Sub", "Div", "Neg", "Cast", "Max"]);
        let number = choices.one_of(&[1, 3, -2, 0]);
        match op {
            "Neg" => self.add(op, &[x.id], &[], x),
            "Cast" if number == 1 || x.most > MOST => {
                let narrow = Made { dtype: I32, ..x.clone() };
                let narrow = self.add(op, &[x.id], &[("to", AttrValue::Int(ONNX_I32))], narrow)?;
                self.add(op, &[narrow.id], &[("to", AttrValue::Int(ONNX_I64))], x)
            }
            "Cast" => self.add(op, &[x.id], &[("to", AttrValue::Int(ONNX_F32))], Made { dtype: F32, ..x }),
            _ => {
                let number = if op == "Div" && number == 0 { 3 } else { number };
                let constant = self.ints(&[1], &[number]);
                let most = if op == "Mul" { x.most * 3.0 } else { x.most + 3.0 };
                if most > 1e6 {
                    return None;
                }
                self.add(op, &[x.id, constant], &[], Made { most, ..x })
            }
        }
        .map(drop)
    }

    /// Adds a computation on constants only.
    fn constants(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let number = choices.of(3);
        let constant = self.numbers(&x.shape, number, 0.5);
        let made = Made { id: constant, most: 1.0, ..x.clone() };
        let sum = self.apply_with("Add", &made, &[], number, false)?;
        let sum = self.apply("Tanh", &sum)?;
        let most = x.most * sum.most;
        self.add("Mul", &[x.id, sum.id], &[], Made { most, ..x }).map(drop)
    }

    fn softmax(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let axis = choices.of(x.shape.len().max(1));
        x.shape.get(axis)?;
        self.add("Softmax", &[x.id], &[("axis", AttrValue::Int(axis as i64))], Made { most: 1.0, ..x })
            .map(drop)
    }
}

/// Ops of one operand that passes know, none of which makes small differences large.
const UNARY: &[&str] = &[
    "Neg",
    "Tanh",
    "Relu",
    "Sigmoid",
    "Abs",
    "LeakyRelu",
    "Erf",
    "HardSwish",
    "Softplus",
    "Sin",
    "Elu",
    "Clip",
    "HardSigmoid",
    "Exp",
    "Pow",
    "Gelu",
];

/// Ops of two operands, of which one is constant.
const BINARY: &[&str] = &["Mul", "Add", "Sub", "Div", "Max", "Min"];

/// One of some numbers, by position and choice.
fn amount(i: usize, choice: usize) -> f32 {
    let values = [0.5, -1.5, 2.0, 0.75, -0.5, 1.25, 1.0, -2.0];
    values[(i * 3 + choice) % values.len()]
}

/// The largest result of an op for operands up to `most`.
fn most_of(op: &str, most: f32) -> f32 {
    match op {
        "Tanh" | "Sigmoid" | "Erf" | "Sin" | "HardSigmoid" => 1.0,
        "Clip" => 1.5,
        "Exp" => most.exp(),
        "Pow" => most * most,
        "Sqrt" => most.sqrt(),
        "Softplus" => most + 1.0,
        _ => most.max(1.0),
    }
}
