//! Loops and branches, made of steps themselves.

use super::{Choices, DEPTH_MAX, ELEMENTS_MAX, KINDS, Made, Maker, Step};
use devbay_host::internals::core::program::{Node, Region, ValueId};

impl Maker {
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
    pub(super) fn looped(&mut self, choices: &mut Choices<'_>) -> Option<()> {
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
    pub(super) fn branches(&mut self, choices: &mut Choices<'_>) -> Option<()> {
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
}
