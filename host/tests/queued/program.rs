//! Programs of the tests' kernels, as data: made by hand or at random, written as text, and interpreted.

use super::{add_up, is_odd, trips};
use devbay_host::Model;
use devbay_host::internals::core::program::text;
use devbay_host::internals::random::Random;
use std::collections::HashMap;
use std::fmt::Write;

/// Computation of a node.
#[derive(Clone, Debug)]
pub enum Op {
    /// A sum of its inputs.
    Node { n: usize, plus: i64, spins: usize, flops: usize, fails: bool },
    /// True if a value is odd.
    Odd,
    /// Trip count of a loop that depends on a value.
    Trips,
}

/// One entry of a block. Values are numbers, each made once.
#[derive(Clone, Debug)]
pub enum Item {
    Node { result: usize, op: Op, inputs: Vec<usize>, device: Option<usize> },
    If { results: Vec<usize>, condition: usize, branches: [Block; 2] },
    Loop { results: Vec<usize>, trips: usize, condition: Option<usize>, inputs: Vec<usize>, body: Block },
}

/// Entries in order; a block may use what the blocks around it have made.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Those that it is given; of a loop's body the iteration number and the condition come first.
    pub params: Vec<usize>,
    pub items: Vec<Item>,
    /// Of a loop's body the condition comes first.
    pub outputs: Vec<usize>,
}

/// A program: value 0 is its input, of three numbers.
#[derive(Clone, Debug)]
pub struct Graph {
    pub main: Block,
    /// For each value its extent; None for one number, or one truth value.
    extents: Vec<Option<usize>>,
}

/// The input.
pub const INPUT: [i64; 3] = [1, 20, 300];

/// A value of a run: numbers, truth values as 0 and 1.
type Value = Vec<i64>;

impl Graph {
    /// A program that gives nothing yet.
    pub fn new() -> Self {
        Self { main: Block { params: vec![0], ..Block::default() }, extents: vec![Some(3)] }
    }

    fn value(&mut self, extent: Option<usize>) -> usize {
        self.extents.push(extent);
        self.extents.len() - 1
    }

    /// Adds a node of so many numbers on a device, and gives its result.
    pub fn node(&mut self, inputs: &[usize], n: usize, device: usize) -> usize {
        let result = self.value(Some(n));
        let op = Op::Node { n, plus: result as i64, spins: 0, flops: 1, fails: false };
        self.main.items.push(Item::Node { result, op, inputs: inputs.to_vec(), device: Some(device) });
        result
    }

    /// Adds a node that asks a value.
    pub fn ask(&mut self, op: Op, input: usize, device: usize) -> usize {
        let result = self.value(None);
        self.main.items.push(Item::Node { result, op, inputs: vec![input], device: Some(device) });
        result
    }

    /// Adds an If of one result of so many numbers; `fill` adds the nodes of a branch, and gives what it gives.
    pub fn conditional(
        &mut self,
        condition: usize,
        n: usize,
        mut fill: impl FnMut(&mut Self, bool) -> usize,
    ) -> usize {
        let branches = [true, false].map(|then| self.block(Vec::new(), |graph| vec![fill(graph, then)]));
        let result = self.value(Some(n));
        self.main.items.push(Item::If { results: vec![result], condition, branches });
        result
    }

    /// Adds a Loop that carries values of so many numbers; `fill` is given the condition and the carried values, and
    /// gives them for the next iteration.
    pub fn looped(
        &mut self,
        trips: usize,
        condition: Option<usize>,
        inputs: &[(usize, usize)],
        fill: impl FnOnce(&mut Self, &[usize]) -> Vec<usize>,
    ) -> Vec<usize> {
        let extents = inputs.iter().map(|&(_, n)| Some(n));
        let params: Vec<usize> =
            [None, None].into_iter().chain(extents.clone()).map(|n| self.value(n)).collect();
        let body = self.block(params.clone(), |graph| fill(graph, &params[1..]));
        let results: Vec<usize> = extents.map(|n| self.value(n)).collect();
        let inputs = inputs.iter().map(|&(value, _)| value).collect();
        self.main.items.push(Item::Loop { results: results.clone(), trips, condition, inputs, body });
        results
    }

    fn block(&mut self, params: Vec<usize>, fill: impl FnOnce(&mut Self) -> Vec<usize>) -> Block {
        let around = std::mem::replace(&mut self.main, Block { params, ..Block::default() });
        self.main.outputs = fill(self);
        std::mem::replace(&mut self.main, around)
    }

    /// Gives these values.
    pub fn returns(mut self, outputs: &[usize]) -> Self {
        self.main.outputs = outputs.to_vec();
        self
    }

    /// A random program for devices of these positions.
    pub fn random(random: &mut Random, devices: &[usize], may_fail: bool) -> Self {
        let mut graph = Self::new();
        let mut maker = Maker { random, devices, may_fail, sizes: &[], n_left: 0 };
        maker.sizes = [&[4][..], &[1, 4, 50], &[0, 4, 7]][maker.random.below(3)];
        maker.n_left = 1 + maker.random.below(30);
        let mut main = Block { params: vec![0], ..Block::default() };
        maker.fill(&mut graph, &mut main, &mut vec![0], 2);
        let made = main.made();
        let mut outputs: Vec<usize> =
            made.iter().copied().filter(|&value| graph.extents[value].is_some()).collect();
        outputs.retain(|_| maker.random.chance(5));
        outputs.push(maker.sum(&mut graph, &mut main, &made, 4));
        if maker.random.chance(10) {
            outputs.push(0);
        }
        main.outputs = outputs;
        graph.main = main;
        graph
    }

    /// The model.
    pub fn model(&self) -> Model {
        let source = self.source();
        Model::from_program(text::parse(&source).unwrap_or_else(|error| panic!("{error}\n{source}")))
    }

    /// The model's text.
    pub fn source(&self) -> String {
        let mut source = String::from("devbay-program 1\n\nprogram \"p\"(%v0: i64[3]) {\n");
        self.write(&self.main, &mut source);
        source.push_str("}\n");
        source
    }

    fn write(&self, block: &Block, source: &mut String) {
        let list =
            |values: &[usize]| values.iter().map(|value| format!("%v{value}")).collect::<Vec<_>>().join(", ");
        let typed = |values: &[usize]| {
            let one = |&value: &usize| match self.extents[value] {
                Some(n) => format!("%v{value}: i64[{n}]"),
                None => format!("%v{value}: i64[]"),
            };
            values.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        for item in &block.items {
            match item {
                Item::Node { result, op, inputs, .. } => {
                    let (op, attrs) = match op {
                        Op::Node { n, plus, spins, flops, fails } => (
                            "Node",
                            format!(
                                " {{fails = {}, flops = {flops}, n = {n}, plus = {plus}, spins = {spins}}}",
                                u8::from(*fails)
                            ),
                        ),
                        Op::Odd => ("Odd", String::new()),
                        Op::Trips => ("Trips", String::new()),
                    };
                    let inputs = list(inputs);
                    writeln!(source, "%v{result} = test.{op}@1({inputs}) as \"node {result}\"{attrs}")
                        .unwrap();
                }
                Item::If { results, condition, branches: [then, other] } => {
                    writeln!(source, "{} = If@25(%v{condition}) then_branch() {{", typed(results)).unwrap();
                    self.write(then, source);
                    source.push_str("} else_branch() {\n");
                    self.write(other, source);
                    source.push_str("}\n");
                }
                Item::Loop { results, trips, condition, inputs, body } => {
                    let condition = condition.map_or("_".to_owned(), |condition| format!("%v{condition}"));
                    let [iteration, go_on, ..] = body.params[..] else {
                        panic!("a loop's body takes two values of its own");
                    };
                    writeln!(
                        source,
                        "{} = Loop@25(%v{trips}, {condition}, {}) body(%v{iteration}: i64[], %v{go_on}: bool[], {}) {{",
                        typed(results),
                        list(inputs),
                        typed(&body.params[2..])
                    )
                    .unwrap();
                    self.write(body, source);
                    source.push_str("}\n");
                }
            }
        }
        writeln!(source, "return {}", list(&block.outputs)).unwrap();
    }

    /// Nodes by name, and the devices that they are for.
    pub fn pins(&self) -> Vec<(String, usize)> {
        let mut pins = Vec::new();
        self.main.visit(&mut |item| {
            if let Item::Node { result, device: Some(device), .. } = item {
                pins.push((format!("node {result}"), *device));
            }
        });
        pins
    }

    /// Returns the graph's results; None if a node that runs fails.
    pub fn interpret(&self) -> Option<Vec<Value>> {
        let mut values = HashMap::from([(0, INPUT.to_vec())]);
        self.run(&self.main, &mut values)
    }

    fn run(&self, block: &Block, values: &mut HashMap<usize, Value>) -> Option<Vec<Value>> {
        for item in &block.items {
            match item {
                Item::Node { result, op, inputs, .. } => {
                    let inputs: Vec<&[i64]> = inputs.iter().map(|input| &*values[input]).collect();
                    let value = match op {
                        // A node without elements is not launched.
                        Op::Node { fails: true, n: 1.., .. } => return None,
                        Op::Node { n, plus, .. } => {
                            (0..*n).map(|i| add_up(*plus, inputs.iter().copied(), i)).collect()
                        }
                        Op::Odd => vec![i64::from(is_odd(inputs[0]))],
                        Op::Trips => vec![trips(inputs[0])],
                    };
                    values.insert(*result, value);
                }
                Item::If { results, condition, branches } => {
                    let taken = &branches[usize::from(values[condition][0] == 0)];
                    let given = self.run(taken, values)?;
                    values.extend(results.iter().copied().zip(given));
                }
                Item::Loop { results, trips, condition, inputs, body } => {
                    let n = values[trips][0];
                    let mut go_on = condition.is_none_or(|condition| values[&condition][0] != 0);
                    let mut carried: Vec<Value> = inputs.iter().map(|input| values[input].clone()).collect();
                    let mut iteration = 0;
                    while go_on && iteration < n {
                        let own = [vec![iteration], vec![1]].into_iter().chain(carried);
                        values.extend(body.params.iter().copied().zip(own));
                        let mut given = self.run(body, values)?;
                        carried = given.split_off(1);
                        go_on = given[0][0] != 0;
                        iteration += 1;
                    }
                    values.extend(results.iter().copied().zip(carried));
                }
            }
        }
        Some(block.outputs.iter().map(|output| values[output].clone()).collect())
    }

    /// Nodes that fail when they run, by name.
    pub fn failing(&self) -> Vec<String> {
        let mut failing = Vec::new();
        self.main.visit(&mut |item| {
            if let Item::Node { result, op: Op::Node { fails: true, .. }, .. } = item {
                failing.push(format!("node {result} (test.Node@1)"));
            }
        });
        failing
    }
}

impl Block {
    fn visit(&self, look: &mut dyn FnMut(&Item)) {
        for item in &self.items {
            look(item);
            match item {
                Item::Node { .. } => {}
                Item::If { branches, .. } => branches.iter().for_each(|branch| branch.visit(look)),
                Item::Loop { body, .. } => body.visit(look),
            }
        }
    }

    /// Values that its own entries make.
    fn made(&self) -> Vec<usize> {
        let results = self.items.iter().flat_map(|item| match item {
            Item::Node { result, .. } => vec![*result],
            Item::If { results, .. } | Item::Loop { results, .. } => results.clone(),
        });
        results.collect()
    }
}

/// Makes random blocks.
struct Maker<'a> {
    random: &'a mut Random,
    devices: &'a [usize],
    may_fail: bool,
    /// Sizes that are alike let values share memory in place.
    sizes: &'a [usize],
    /// Nodes to be made.
    n_left: usize,
}

impl Maker<'_> {
    /// Adds entries to a block that sees `scope`, all of it numbers; `scope` is left with what the block made.
    fn fill(&mut self, graph: &mut Graph, block: &mut Block, scope: &mut Vec<usize>, depth: usize) {
        let n = 1 + self.random.below(if depth == 2 { 16 } else { 5 });
        for _ in 0..n {
            if self.n_left == 0 {
                return;
            }
            self.n_left -= 1;
            if depth > 0 && self.random.chance(8) {
                self.control(graph, block, scope, depth);
            } else {
                let size = self.size();
                let inputs = self.some(scope, 4);
                scope.push(self.node(graph, block, &inputs, size));
            }
        }
    }

    fn size(&mut self) -> usize {
        self.sizes[self.random.below(self.sizes.len())]
    }

    /// Up to `most` values; the later ones are more likely.
    fn some(&mut self, scope: &[usize], most: usize) -> Vec<usize> {
        let nearest = if self.random.chance(2) { scope.len().saturating_sub(3) } else { 0 };
        let n = 1 + self.random.below(most);
        (0..n).map(|_| scope[nearest + self.random.below(scope.len() - nearest)]).collect()
    }

    fn device(&mut self) -> Option<usize> {
        match self.random.chance(4) {
            true => None,
            false => Some(self.devices[self.random.below(self.devices.len())]),
        }
    }

    fn node(&mut self, graph: &mut Graph, block: &mut Block, inputs: &[usize], n: usize) -> usize {
        let op = Op::Node {
            n,
            plus: self.random.below(100) as i64,
            spins: if self.random.chance(4) { self.random.below(2000) } else { 0 },
            flops: if self.random.chance(2) { self.random.below(2_000_000) } else { 1 },
            fails: self.may_fail && self.random.chance(20),
        };
        let result = graph.value(Some(n));
        block.items.push(Item::Node { result, op, inputs: inputs.to_vec(), device: self.device() });
        result
    }

    /// A node that asks a value.
    fn ask(&mut self, graph: &mut Graph, block: &mut Block, scope: &[usize], op: Op) -> usize {
        let inputs = self.some(scope, 1);
        let result = graph.value(None);
        block.items.push(Item::Node { result, op, inputs, device: self.device() });
        result
    }

    /// Adds a node that takes all unused values, so that none of a block's entries is idle.
    fn sum(&mut self, graph: &mut Graph, block: &mut Block, made: &[usize], n: usize) -> usize {
        let mut inputs: Vec<usize> =
            made.iter().copied().filter(|&value| graph.extents[value].is_some()).collect();
        if inputs.is_empty() {
            inputs.push(0);
        }
        self.node(graph, block, &inputs, n)
    }

    fn control(&mut self, graph: &mut Graph, block: &mut Block, scope: &mut Vec<usize>, depth: usize) {
        let n_results = 1 + self.random.below(2);
        // A node that gives only empty values need not run, so that it would be open whether a node in it fails.
        let extents: Vec<usize> = (0..n_results).map(|_| self.size().max(1)).collect();
        if self.random.chance(2) {
            let condition = self.ask(graph, block, scope, Op::Odd);
            let branches = [(); 2].map(|()| {
                let mut branch = Block::default();
                self.fill(graph, &mut branch, &mut scope.clone(), depth - 1);
                let made = branch.made();
                branch.outputs = extents.iter().map(|&n| self.sum(graph, &mut branch, &made, n)).collect();
                branch
            });
            let results: Vec<usize> = extents.iter().map(|&n| graph.value(Some(n))).collect();
            scope.extend(&results);
            block.items.push(Item::If { results, condition, branches });
            return;
        }
        let trips = self.ask(graph, block, scope, Op::Trips);
        let condition =
            if self.random.chance(2) { Some(self.ask(graph, block, scope, Op::Odd)) } else { None };
        let inputs: Vec<usize> = extents
            .iter()
            .map(|&n| {
                let from = self.some(scope, 2);
                self.node(graph, block, &from, n)
            })
            .collect();
        let mut body = Block { params: vec![graph.value(None), graph.value(None)], ..Block::default() };
        body.params.extend(extents.iter().map(|&n| graph.value(Some(n))));
        let mut inner = scope.clone();
        inner.extend(&body.params[2..]);
        self.fill(graph, &mut body, &mut inner, depth - 1);
        let go_on = match self.random.chance(2) {
            true => self.ask(graph, &mut body, &inner, Op::Odd),
            false => body.params[1],
        };
        let mut made = body.made();
        made.extend(&body.params[2..]);
        let outputs = extents.iter().map(|&n| self.sum(graph, &mut body, &made, n));
        body.outputs = [go_on].into_iter().chain(outputs.collect::<Vec<_>>()).collect();
        let results: Vec<usize> = extents.iter().map(|&n| graph.value(Some(n))).collect();
        scope.extend(&results);
        block.items.push(Item::Loop { results, trips, condition, inputs, body });
    }
}
