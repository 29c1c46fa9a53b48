//! Random programs of what passes look for: products with scales behind them, lines of elementwise ops, ops that change
//! nothing or the shape alone, what is done to every operand of a Concat, and everything twice.
//!
//! A program is made of steps, a few bytes each. Every list of steps gives a program that verifies and runs; one that is
//! shorter, or has smaller bytes, gives a smaller one. Values are kept small and divisors away from zero, so that another
//! order of the same calculation gives nearly the same. Results of nodes have no types: passes over the model must do
//! without.

use devbay_host::core::Tensor;
use devbay_host::core::program::{AttrValue, Node, Program, Region, Value, ValueId, catalogue};
use devbay_host::core::tensor::{BOOL, DType, Dim, F32, I32, I64, TensorType};

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
/// How deep regions are nested.
const DEPTH_MAX: usize = 2;
/// Elements of a value, at most.
const ELEMENTS_MAX: usize = 2048;
/// ONNX's number of the element type f32, and of the integers.
const ONNX_F32: i64 = 1;
const ONNX_I32: i64 = 6;
const ONNX_I64: i64 = 7;

/// The program of some steps. Extents of inputs are known, or those of the first axis are not.
pub fn case(is_open: bool, steps: &[Step]) -> Case {
    let mut maker = Maker::default();
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

/// What a step adds; those that passes need together come more than once.
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
    /// How many regions are being made.
    depth: usize,
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
            let values: Vec<f32> = (0..n).map(|at| ((at * 37 + i * 11) % 41) as f32 / 10.0 - 2.0).collect();
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
        let op = catalogue::find("", op).unwrap_or_else(|| panic!("no op {op}")).op();
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
        let constant = self.numbers(shape, number, 1.0);
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

    /// A convolution or a product with constant weights, whose sum is at most 1, with scales behind it or without.
    fn product(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let mut last = self.plain_product(&x, choices)?;
        if choices.of(4) == 3 {
            let other = self.pick_fitting(&last, choices);
            last = self.of_two("Add", &last, &other)?;
            self.pool.remove(self.pool.len() - 2);
        }
        for _ in 0..choices.of(3) {
            let number = choices.of(4);
            let op = BINARY[number];
            let channels: Vec<usize> = match last.shape.as_slice() {
                [_, c, taps @ ..] if !taps.is_empty() => [&[*c][..], &vec![1; taps.len()]].concat(),
                shape => shape.last().copied().into_iter().collect(),
            };
            let shape = if choices.of(3) == 0 { vec![] } else { channels };
            last = self.apply_with(op, &last, &shape, number, number == 2 && shape.is_empty())?;
            // What has no further use inside is not seen outside.
            self.pool.remove(self.pool.len() - 2);
        }
        Some(())
    }

    fn plain_product(&mut self, x: &Made, choices: &mut Choices<'_>) -> Option<Made> {
        let (form, number, n_out, has_bias) =
            (choices.of(4), choices.of(3), 2 + choices.of(3), choices.of(2));
        let int = AttrValue::Int;
        let mut shape = x.shape.clone();
        let (op, weights, fan_in, attrs) = match (x.shape.as_slice(), form) {
            ([] | [0, ..], _) => return None,
            ([_, c, taps @ ..], 0 | 1) if !taps.is_empty() && taps.iter().all(|&extent| extent >= 1) => {
                let mut pads = vec![0; 2 * taps.len()];
                pads[0] = form as i64;
                let taps = vec![1 + form; taps.len()];
                if x.shape[2..].iter().skip(1).any(|&extent| extent < taps[0]) {
                    return None;
                }
                for (i, extent) in shape[2..].iter_mut().enumerate() {
                    *extent = *extent + usize::from(i == 0) * form + 1 - taps[0];
                }
                let depthwise = number == 2;
                shape[1] = if depthwise { *c } else { n_out };
                let per_group = if depthwise { 1 } else { *c };
                let weights = [&[shape[1], per_group][..], &taps].concat();
                let fan_in = per_group * taps.iter().product::<usize>();
                let groups = if depthwise { *c as i64 } else { 1 };
                ("Conv", weights, fan_in, vec![("pads", AttrValue::Ints(pads)), ("group", int(groups))])
            }
            ([_, c, taps @ ..], 2) if !taps.is_empty() => {
                shape[1] = n_out;
                let weights = [&[*c, n_out][..], &vec![1; taps.len()]].concat();
                ("ConvTranspose", weights, *c, vec![])
            }
            ([_, c], 0 | 1) => {
                shape[1] = n_out;
                let weights = if form == 0 { vec![*c, n_out] } else { vec![n_out, *c] };
                let alpha = ("alpha", AttrValue::Float(0.5));
                let beta = ("beta", AttrValue::Float(if number == 1 { 2.0 } else { 1.0 }));
                ("Gemm", weights, *c, vec![("transB", int(form as i64)), alpha, beta])
            }
            ([.., c], _) => {
                *shape.last_mut()? = n_out;
                ("MatMul", vec![*c, n_out], *c, vec![])
            }
        };
        let mut inputs = vec![x.id, self.numbers(&weights, number, 0.5 / fan_in as f32)];
        if has_bias == 1 && op != "MatMul" {
            inputs.push(self.numbers(&[shape[1]], number + 1, 0.5));
        }
        let most = x.most + 2.0;
        self.add(op, &inputs, &attrs, Made { shape, most, ..x.clone() })
    }

    /// A BatchNormalization, of the result of a product or of another value.
    fn normalisation(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let mut x = self.pick(choices);
        if choices.of(4) > 0 {
            x = self.plain_product(&x, choices)?;
            self.pool.pop();
        }
        let channels = *x.shape.get(1)?;
        let lists: Vec<ValueId> = (0..3).map(|i| self.numbers(&[channels], i + choices.of(2), 0.5)).collect();
        let variance: Vec<f32> = (0..channels).map(|c| 1.0 + c as f32 / 4.0).collect();
        let variance = Tensor::from_elements(&[channels], &variance).expect("a tensor");
        let variance = self.program.add_constant("", variance);
        let most = x.most + 3.0;
        let inputs = [x.id, lists[0], lists[1], lists[2], variance];
        self.add("BatchNormalization", &inputs, &[], Made { most, ..x }).map(drop)
    }

    /// The same elements in another shape.
    fn view(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let axis = choices.of(x.shape.len() + 1);
        let mut made = x.clone();
        match choices.of(5) {
            0 => {
                made.shape = vec![x.n()];
                let extents = self.list(&[-1]);
                self.add("Reshape", &[x.id, extents], &[], made)
            }
            1 => {
                let leading: usize = x.shape[..axis].iter().product();
                made.shape = vec![leading, x.n() / leading.max(1)];
                self.add("Flatten", &[x.id], &[("axis", AttrValue::Int(axis as i64))], made)
            }
            2 => {
                made.shape.insert(axis, 1);
                let axes = self.list(&[axis as i64]);
                self.add("Unsqueeze", &[x.id, axes], &[], made)
            }
            3 => {
                let axis = x.shape.iter().position(|&extent| extent == 1)?;
                made.shape.remove(axis);
                let axes = self.list(&[axis as i64]);
                self.add("Squeeze", &[x.id, axes], &[], made)
            }
            _ => self.add("Identity", &[x.id], &[], made),
        }
        .map(drop)
    }

    fn transposition(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let rank = x.shape.len();
        let (i, j) = (choices.of(rank.max(1)), choices.of(rank.max(1)));
        let mut perm: Vec<i64> = (0..rank as i64).collect();
        if rank > 1 {
            perm.swap(i, j);
        }
        let shape = perm.iter().map(|&axis| x.shape[axis as usize]).collect();
        self.add("Transpose", &[x.id], &[("perm", AttrValue::Ints(perm))], Made { shape, ..x }).map(drop)
    }

    /// Ops that give what they get.
    fn neutral(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let rank = x.shape.len();
        let mut made = x.clone();
        match choices.of(10) {
            0 => {
                let zero = self.number(0.0);
                self.add("Add", &[zero, x.id], &[], made)
            }
            1 => {
                let one = self.number(1.0);
                self.add("Mul", &[x.id, one], &[], made)
            }
            2 => self.add("Cast", &[x.id], &[("to", AttrValue::Int(ONNX_F32))], made),
            3 => {
                let (starts, ends) = (self.list(&vec![0; rank]), self.list(&vec![i64::MAX; rank]));
                self.add("Slice", &[x.id, starts, ends], &[], made)
            }
            4 => self.add("Concat", &[x.id], &[("axis", AttrValue::Int(0))], made),
            5 => {
                let pads = self.list(&vec![0; 2 * rank]);
                self.add("Pad", &[x.id, pads], &[], made)
            }
            6 => {
                let times = self.list(&vec![1; rank]);
                self.add("Tile", &[x.id, times], &[], made)
            }
            7 => {
                let extents: Vec<i64> = x.shape.iter().map(|&extent| extent as i64).collect();
                let extents = self.list(&extents);
                self.add("Expand", &[x.id, extents], &[], made)
            }
            8 => {
                let once = self.apply("Neg", &x)?;
                self.apply("Neg", &once)
            }
            _ => {
                let axis = x.shape.iter().position(|&extent| extent == 1)?;
                let axes = self.list(&[axis as i64]);
                made.shape[axis] = 1;
                self.add("ReduceSum", &[x.id, axes], &[], made)
            }
        }
        .map(drop)
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

    /// The same done to values of one shape, which are then put together.
    fn concat(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let first = self.pick(choices);
        let axis = choices.of(first.shape.len().max(1));
        let extent = *first.shape.get(axis)?;
        let (form, op) = (choices.of(6), choices.byte());
        let mut parts = Vec::new();
        let n_pool = self.pool.len();
        for i in 0..2 + choices.of(3) {
            let mut part = if i == 0 { first.clone() } else { self.pick_like(&first, choices) };
            let mut along = vec![1; first.shape.len()];
            along[axis] = extent;
            let binary = BINARY[op % BINARY.len()];
            part = match form {
                0 | 1 => self.apply_with(binary, &part, &[], i, form == 1 && binary != "Div")?,
                2 => self.apply_with(binary, &part, &along, i, false)?,
                3 => part,
                _ => self.apply(UNARY[op % UNARY.len()], &part)?,
            };
            if form == 5 {
                part = self.apply_with("Sub", &part, &[1], i, false)?;
            }
            parts.push(part);
        }
        let mut shape = first.shape.clone();
        shape[axis] *= parts.len();
        let most = parts.iter().fold(0.0, |most: f32, part| most.max(part.most));
        let ids: Vec<ValueId> = parts.iter().map(|part| part.id).collect();
        if op % 8 != 7 {
            // Otherwise others may use the parts too.
            self.pool.truncate(n_pool);
        }
        // The axis is also counted from the back.
        let axis = axis as i64 - (op % 2 * first.shape.len()) as i64;
        self.add("Concat", &ids, &[("axis", AttrValue::Int(axis))], Made { shape, most, ..first }).map(drop)
    }

    /// A part of a value, or two of them.
    fn piece(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let axis = x.shape.iter().position(|&extent| extent >= 2)?;
        let extent = x.shape[axis];
        let mut made = x.clone();
        if choices.of(2) == 0 {
            made.shape[axis] = extent - 1;
            let start = choices.of(2) as i64;
            let (starts, ends) = (self.list(&[start]), self.list(&[start + extent as i64 - 1]));
            let axes = self.list(&[axis as i64]);
            return self.add("Slice", &[x.id, starts, ends, axes], &[], made).map(drop);
        }
        let sizes = [1, extent - 1];
        let list = self.list(&sizes.map(|size| size as i64));
        let parts: Vec<Made> = sizes
            .iter()
            .map(|&size| {
                let mut part = Made { id: self.value(), ..x.clone() };
                part.shape[axis] = size;
                part
            })
            .collect();
        let ids: Vec<ValueId> = parts.iter().map(|part| part.id).collect();
        let node = self.node("Split", &[x.id, list], &ids, &[("axis", AttrValue::Int(axis as i64))]);
        self.repeatable.push((node.clone(), parts.clone()));
        self.program.main.nodes.push(node);
        self.pool.extend(parts);
        Some(())
    }

    fn reduction(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let axis = choices.of(x.shape.len().max(1));
        let op = choices.one_of(&["ReduceMean", "ReduceMax", "ReduceMin"]);
        let keeps = choices.of(2);
        let mut made = x.clone();
        match keeps {
            0 => drop((x.shape.len() > axis).then(|| made.shape.remove(axis))?),
            _ => *made.shape.get_mut(axis)? = 1,
        }
        let axes = self.list(&[axis as i64]);
        self.add(op, &[x.id, axes], &[("keepdims", AttrValue::Int(keeps as i64))], made).map(drop)
    }

    /// Two products with weights of the same bytes, or of nearly the same, which are large enough to be shared.
    fn twins(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let c = *x.shape.last()?;
        let n_out = 256usize.div_ceil(c.max(1));
        let mut made = Made { most: x.most * 2.0, ..x.clone() };
        *made.shape.last_mut()? = n_out;
        let mut sides = Vec::new();
        for n_off in [0, choices.of(2)] {
            let mut numbers: Vec<f32> = (0..c * n_out).map(|i| amount(i, 1) / c.max(1) as f32).collect();
            numbers.iter_mut().take(n_off).for_each(|number| *number = -*number);
            let weights = Tensor::from_elements(&[c, n_out], &numbers).expect("a tensor");
            let weights = self.program.add_constant("", weights);
            sides.push(self.add("MatMul", &[x.id, weights], &[], made.clone())?);
        }
        let other = self.apply("Tanh", &sides[1])?;
        let most = sides[0].most + 1.0;
        let sum = self.add("Add", &[sides[0].id, other.id], &[], Made { most, ..made })?;
        let axes = self.list(&[-1]);
        let mut made = sum.clone();
        *made.shape.last_mut()? = 1;
        self.add("ReduceMean", &[sum.id, axes], &[], made).map(drop)
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

    /// What is calculated of constants alone.
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

    /// Some steps into a region: its nodes, and the last value of a shape that they make, or `first`, which comes in.
    fn nested(&mut self, choices: &mut Choices<'_>, first: &Made) -> (Vec<Node>, Made) {
        let outer = std::mem::take(&mut self.program.main.nodes);
        let (pool, repeatable) = (self.pool.clone(), self.repeatable.len());
        self.pool.push(first.clone());
        self.depth += 1;
        for _ in 0..1 + choices.of(4) {
            // Few bytes are left: these depend on one of them and the position.
            let seed = choices.byte();
            let step: Step = std::array::from_fn(|i| (seed * (i + 1) * 37 + i * seed / 3) as u8);
            let mut choices = Choices { bytes: &step, at: 0 };
            KINDS[choices.of(KINDS.len())](self, &mut choices);
        }
        self.depth -= 1;
        let made = std::mem::replace(&mut self.pool, pool).split_off(self.pool.len());
        let last = made.into_iter().rev().find(|made| made.dtype == first.dtype && made.shape == first.shape);
        self.repeatable.truncate(repeatable);
        (std::mem::replace(&mut self.program.main.nodes, outer), last.unwrap_or(first.clone()))
    }

    /// A loop of no iterations, or some, in whose body some results are the same in each.
    fn looped(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        if self.depth >= DEPTH_MAX {
            return None;
        }
        let same = self.pick_like(&x, choices);
        let n_trips = choices.of(5);
        let trips = if n_trips == 4 { self.trips? } else { self.ints(&[], &[n_trips as i64]) };
        let op = choices.one_of(&["Sin", "Tanh", "Sigmoid", "Neg"]);
        let ids: Vec<ValueId> = (0..8).map(|_| self.value()).collect();
        let [round, go, carried, first, sum, next, after, seen] = ids.try_into().ok()?;
        let most = x.most.max(1.0);
        let (mut nodes, last) = self.nested(choices, &Made { id: carried, most, ..x.clone() });
        nodes.extend([
            self.node(op, &[same.id], &[first], &[]),
            self.node("Add", &[last.id, first], &[sum], &[]),
            self.node("Tanh", &[sum], &[next], &[]),
        ]);
        let mut body = Region { inputs: vec![round, go, carried], nodes, outputs: vec![go, next] };
        let mut node = self.node("Loop", &[trips, x.id, x.id], &[after], &[]);
        node.inputs[1] = None;
        self.pool.push(Made { id: after, most, ..x.clone() });
        if choices.of(2) == 1 && (1..4).contains(&n_trips) {
            body.outputs.push(first);
            node.outputs.push(Some(seen));
            let shape = [&[n_trips][..], &x.shape].concat();
            let made = Made { id: seen, shape, most: same.most.max(1.0), ..x };
            self.pool.extend((made.n() <= ELEMENTS_MAX && made.shape.len() <= 5).then_some(made));
        }
        node.regions.push(("body".into(), body));
        self.program.main.nodes.push(node);
        Some(())
    }

    /// Branches that calculate something, or give what there is.
    fn branches(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        if self.depth >= DEPTH_MAX {
            return None;
        }
        let after = self.value();
        let mut node = self.node("If", &[self.is_on?], &[after], &[]);
        let mut most = x.most;
        for name in ["then_branch", "else_branch"] {
            let (nodes, last) = self.nested(choices, &x);
            most = most.max(last.most);
            node.regions.push((name.into(), Region { inputs: vec![], nodes, outputs: vec![last.id] }));
        }
        self.program.main.nodes.push(node);
        self.pool.push(Made { id: after, most, ..x });
        Some(())
    }

    /// A normalisation over the last axis as exporters write it, with a scale and a bias or without.
    fn layer_norm(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let n = *x.shape.last()?;
        let mut row = x.clone();
        *row.shape.last_mut()? = 1;
        let (is_product, has_scale, has_bias, is_dirty) =
            (choices.of(2) == 1, choices.of(3) > 0, choices.of(3) > 0, choices.of(6) == 5);
        let mean = |maker: &mut Self, of: ValueId, most: f32| {
            let axes = maker.list(&[-1]);
            maker.add("ReduceMean", &[of, axes], &[], Made { most, ..row.clone() })
        };
        let average = mean(self, x.id, x.most)?;
        let centred = self.add("Sub", &[x.id, average.id], &[], Made { most: x.most * 2.0, ..x.clone() })?;
        let second = if is_product { centred.id } else { self.number(2.0) };
        let op = if is_product { "Mul" } else { "Pow" };
        // Squares may be large: nobody else uses them.
        let squares = self.add(op, &[centred.id, second], &[], Made { most: MOST, ..x.clone() })?;
        let variance = mean(self, squares.id, MOST - 1.0)?;
        let epsilon = self.number(0.01);
        let shifted = self.add("Add", &[variance.id, epsilon], &[], Made { most: MOST, ..row.clone() })?;
        let deviation = self.apply("Sqrt", &shifted)?;
        let unit = Made { most: (n as f32).sqrt(), ..x };
        let mut last = self.add("Div", &[centred.id, deviation.id], &[], unit.clone())?;
        if has_scale {
            last = self.apply_with("Mul", &last, &[n], 1, is_product)?;
        }
        if has_bias {
            last = self.apply_with("Add", &last, &[n], 2, false)?;
        }
        if !is_dirty {
            // Values inside are not seen by others, or there would be nothing to fuse.
            self.pool.retain(|made| ![average.id, centred.id, squares.id, variance.id].contains(&made.id));
            self.pool.retain(|made| ![shifted.id, deviation.id].contains(&made.id));
            self.pool
                .retain(|made| made.id == last.id || made.shape != last.shape || made.id.0 < average.id.0);
        }
        Some(())
    }

    /// The Gaussian error linear unit as exporters write it: exact, or by tanh.
    fn gelu(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        if x.most > 4.0 {
            return None;
        }
        let n_pool = self.pool.len();
        let (form, half, one) = (choices.of(4), self.number(0.5), self.number(1.0));
        let of = |most: f32| Made { most, ..x.clone() };
        let inner = if form < 3 {
            let root = self.number(std::f32::consts::SQRT_2);
            let scaled = self.add("Div", &[x.id, root], &[], of(3.0))?;
            self.add("Erf", &[scaled.id], &[], of(1.0))?
        } else {
            let three = self.number(3.0);
            let cube = self.add("Pow", &[x.id, three], &[], of(MOST))?;
            let (small, root) = (self.number(0.044_715), self.number(0.797_884_6));
            let term = self.add("Mul", &[cube.id, small], &[], of(4.0))?;
            let sum = self.add("Add", &[x.id, term.id], &[], of(8.0))?;
            let scaled = self.add("Mul", &[root, sum.id], &[], of(7.0))?;
            self.add("Tanh", &[scaled.id], &[], of(1.0))?
        };
        let sum = self.add("Add", &[inner.id, one], &[], of(2.0))?;
        let last = if form == 1 {
            let scaled = self.add("Mul", &[sum.id, half], &[], of(1.0))?;
            self.add("Mul", &[x.id, scaled.id], &[], of(4.0))?
        } else {
            let (a, b) = if form == 2 { (sum.id, x.id) } else { (x.id, sum.id) };
            let product = self.add("Mul", &[a, b], &[], of(8.0))?;
            self.add("Mul", &[product.id, half], &[], of(4.0))?
        };
        self.pool.truncate(n_pool);
        self.pool.push(last);
        Some(())
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
