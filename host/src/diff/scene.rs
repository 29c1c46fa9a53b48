//! Two sides of one region: compares their common borders one by one, in the order of the model.
//!
//! Every node of a side runs once to make the values, in as many parts as memory requires. A differing border is judged at
//! once, while the values that it was computed from are still kept.

use super::alone::Alone;
use super::measure::{self, Measured, converted};
use super::planned::{Cone, Planned};
use super::source::Source;
use super::{Difference, Options, Report, descend, of_side};
use crate::compare::Tolerance;
use devbay_core::Tensor;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::program::ValueId;
use devbay_core::tensor::{DType, bytes_of, n_elements};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

/// State shared by all scenes of one comparison.
pub(super) struct Shared<'a> {
    pub source: &'a Source,
    pub tolerance: Tolerance,
    pub options: &'a Options,
    pub report: RefCell<Report>,
    pub budget: [Budget; 2],
}

impl Shared<'_> {
    pub fn note(&self, text: String) {
        let notes = &mut self.report.borrow_mut().notes;
        if !notes.contains(&text) {
            notes.push(text);
        }
    }
}

/// Budget of nodes that a side may run again on their own: as many as a run has.
pub(super) struct Budget {
    n_nodes: usize,
    n_again: Cell<usize>,
}

impl Budget {
    pub fn of(party: &Party) -> Self {
        let n_nodes = party.planned().map_or(0, |planned| planned.program.n_nodes());
        Self { n_nodes, n_again: Cell::new(0) }
    }

    /// Takes nodes from the budget; returns false if too few are left.
    pub fn take(&self, n: usize) -> bool {
        self.n_again.set(self.n_again.get() + n);
        self.n_again.get() <= self.n_nodes.max(1)
    }

    pub fn share(&self) -> f64 {
        self.n_again.get() as f64 / self.n_nodes.max(1) as f64
    }
}

/// One side of a scene.
pub(super) enum Party {
    Device(Box<Running>),
    /// Values of a file, by the model's values.
    Values(HashMap<ValueId, Tensor>),
}

/// A program that runs in parts.
pub(super) struct Running {
    planned: Planned,
    /// Its inputs.
    given: HashMap<ValueId, Tensor>,
    /// Nodes that have run.
    done: Vec<bool>,
    /// Values that pending nodes need.
    kept: HashMap<ValueId, Tensor>,
}

impl Party {
    pub fn device(planned: Planned, given: HashMap<ValueId, Tensor>) -> Self {
        let done = vec![false; planned.program.main.nodes.len()];
        Self::Device(Box::new(Running { planned, kept: given.clone(), given, done }))
    }

    pub fn values(values: HashMap<ValueId, Tensor>) -> Self {
        Self::Values(values)
    }

    pub fn planned(&self) -> Option<&Planned> {
        match self {
            Self::Device(running) => Some(&running.planned),
            Self::Values(_) => None,
        }
    }

    /// Returns a value of a file.
    pub fn value(&self, tag: ValueId) -> Option<&Tensor> {
        match self {
            Self::Device(_) => None,
            Self::Values(values) => values.get(&tag),
        }
    }

    /// Returns whether it is a file without values.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Values(values) if values.is_empty())
    }

    fn knows(&self, tag: ValueId) -> bool {
        match self {
            Self::Device(running) => running.planned.known(tag).is_some(),
            Self::Values(values) => values.contains_key(&tag),
        }
    }

    /// Counts the model's values that it has, except constants and given ones.
    fn n_values(&self, source: &Source) -> usize {
        let is_made = |tag: &ValueId| source.program.constant(*tag).is_none() && self.given(*tag).is_none();
        self.tags().iter().filter(|tag| is_made(tag)).count()
    }

    fn tags(&self) -> Vec<ValueId> {
        match self {
            Self::Device(running) => running.planned.tags().collect(),
            Self::Values(values) => values.keys().copied().collect(),
        }
    }

    /// Returns the size of a value in bytes, if known.
    fn size_of(&self, tag: ValueId) -> usize {
        let of = |running: &Running| {
            let ty = running.planned.program.value(running.planned.known(tag)?).ty.clone()?;
            bytes_of(ty.dtype, n_elements(&ty.known_shape()?)?)
        };
        match self {
            Self::Device(running) => of(running).unwrap_or(0),
            Self::Values(_) => 0,
        }
    }

    /// Returns an input of a model or a region.
    fn given(&self, tag: ValueId) -> Option<&Tensor> {
        match self {
            Self::Device(running) => running.given.get(&running.planned.known(tag)?),
            Self::Values(_) => None,
        }
    }

    /// Returns the values of a part, and keeps values of later parts that would otherwise be computed twice.
    fn advance(&mut self, tags: &[ValueId], later: &[ValueId], options: &Options) -> Result<Vec<Tensor>> {
        match self {
            Self::Device(running) => running.advance(tags, later, options),
            Self::Values(values) => Ok(tags.iter().map(|tag| values[tag].clone()).collect()),
        }
    }
}

impl Running {
    /// Runs the pending nodes that these values need. Values in `later` that this computes are kept.
    fn advance(&mut self, tags: &[ValueId], later: &[ValueId], options: &Options) -> Result<Vec<Tensor>> {
        let planned = &self.planned;
        let wanted: Vec<ValueId> = tags.iter().filter_map(|tag| planned.known(*tag)).collect();
        let missing: Vec<ValueId> = wanted.iter().copied().filter(|id| !self.kept.contains_key(id)).collect();
        let cone = planned.cone(&missing, |id| self.kept.contains_key(&id));
        cone.nodes.iter().for_each(|&at| self.done[at] = true);
        let nodes = &planned.program.main.nodes;
        let rest = nodes.iter().zip(&self.done).filter(|(_, done)| !**done).map(|(node, _)| node);
        let mut needed: HashSet<ValueId> = rest.flat_map(super::planned::reads).collect();
        needed.extend(later.iter().filter_map(|tag| planned.known(*tag)));
        let made = cone.nodes.iter().flat_map(|&at| nodes[at].outputs.iter().flatten().copied());
        let mut outputs: Vec<ValueId> = made.filter(|id| needed.contains(id)).collect();
        outputs.extend(&wanted);
        outputs.sort_unstable();
        outputs.dedup();
        let values =
            planned.run_part(&cone, &outputs, &|id| self.kept.get(&id).cloned(), options.cancel.as_ref())?;
        let values: HashMap<ValueId, Tensor> = outputs.into_iter().zip(values).collect();
        let results = wanted.iter().map(|id| values[id].clone()).collect();
        self.kept.extend(values);
        self.kept.retain(|id, _| needed.contains(id));
        Ok(results)
    }
}

/// Two sides of one region.
pub(super) struct Scene<'a> {
    shared: &'a Shared<'a>,
    parties: [Party; 2],
    /// The enclosing control flow.
    within: Vec<String>,
    /// The side whose values feed nodes that run on their own.
    reference: usize,
    /// Values of that side: inputs, and the borders that later nodes need.
    values: HashMap<ValueId, Tensor>,
    /// Borders, and common inputs.
    stops: HashSet<ValueId>,
}

/// Basis for judging a value: the nodes of each side that compute it from borders.
pub(super) struct Judged {
    pub cones: [Cone; 2],
    /// Difference of the sides.
    pub measured: Option<Measured>,
    /// True if the nodes ran at all.
    ran: bool,
}

impl<'a> Scene<'a> {
    pub fn new(shared: &'a Shared<'a>, parties: [Party; 2], within: Vec<String>) -> Self {
        let reference = usize::from(matches!(parties[1], Party::Values(_)));
        Self { shared, parties, within, reference, values: HashMap::new(), stops: HashSet::new() }
    }

    /// Finds nodes that differ on their own, in the order of the model.
    ///
    /// # Errors
    /// Errors of planning and running.
    pub fn run(mut self) -> Result<Vec<Difference>> {
        let source = self.shared.source;
        let borders = self.borders();
        let is_outermost = self.within.is_empty();
        if is_outermost {
            let mut report = self.shared.report.borrow_mut();
            let n_values = self.parties.iter().map(|party| party.n_values(source)).max().unwrap_or(0);
            report.n_compared = borders.len();
            report.n_within = n_values.saturating_sub(borders.len());
        }
        // The reference's values that judge each border, and the last border that needs them.
        let mut last_use: HashMap<ValueId, usize> = HashMap::new();
        for (i, &tag) in borders.iter().enumerate() {
            for (party, cone) in self.parties.iter().zip(self.cones(tag)) {
                let begins = cone.begins.iter().filter_map(|&id| party.planned()?.tag(id));
                last_use.extend(begins.map(|tag| (tag, i)));
            }
            // A model of the node alone starts from these.
            last_use.extend(source.group(tag, &self.stops).1.into_iter().map(|tag| (tag, i)));
        }
        let mut found: Vec<Difference> = Vec::new();
        let mut named: HashSet<usize> = HashSet::new();
        let mut at = 0;
        let options = self.shared.options;
        let size = |tag| self.parties.iter().map(|party| party.size_of(tag)).max().unwrap_or(0);
        for part in parts(&borders, size, options.kept_bytes) {
            let later = &borders[at + part.len()..];
            let a = self.parties[0].advance(part, later, options).map_err(|e| of_side(e, 0))?;
            let b = self.parties[1].advance(part, later, options).map_err(|e| of_side(e, 1))?;
            let reference = if self.reference == 0 { &a } else { &b };
            self.values.extend(part.iter().copied().zip(reference.iter().cloned()));
            for ((&tag, a), b) in part.iter().zip(&a).zip(&b) {
                let i = at;
                at += 1;
                let differs = measure::differ(a, b, self.shared.tolerance);
                if let Some(in_run) = differs {
                    if is_outermost {
                        self.shared.report.borrow_mut().n_differ += 1;
                    }
                    let maker = source.maker(tag);
                    if found.len() < options.nodes_max && !maker.is_some_and(|at| named.contains(&at)) {
                        let judged = self.judge(tag)?;
                        match judged.measured.clone() {
                            Some(alone) => {
                                named.extend(maker);
                                found.extend(self.differences(tag, &judged, in_run, alone)?);
                            }
                            None if is_outermost && judged.ran => {
                                self.shared.report.borrow_mut().n_explained += 1
                            }
                            None => {}
                        }
                    }
                }
                self.values.retain(|tag, _| last_use.get(tag).is_some_and(|last| *last > i));
            }
            if found.len() >= options.nodes_max && !is_outermost {
                break;
            }
        }
        for (party, side) in self.parties.iter().zip(["a", "b"]).filter(|_| is_outermost) {
            let changed = party.planned().map(Planned::changed).unwrap_or_default();
            if !changed.is_empty() {
                let text = format!(
                    "side {side} launches others when values are brought out: {}",
                    changed.join(", ")
                );
                self.shared.note(text);
            }
        }
        found.truncate(self.shared.options.nodes_max);
        Ok(found)
    }

    /// Finds values that both sides compute, in the order of the model.
    fn borders(&mut self) -> Vec<ValueId> {
        let source = self.shared.source;
        let [a, b] = &self.parties;
        let is_value = |tag: &ValueId| source.program.constant(*tag).is_none() && b.knows(*tag);
        let mut both: Vec<ValueId> = a.tags().into_iter().filter(is_value).collect();
        both.sort_unstable_by_key(|tag| (source.order(*tag), *tag));
        self.stops = both.iter().copied().collect();
        let inputs: HashMap<ValueId, Tensor> = both
            .iter()
            .filter_map(|&tag| {
                Some((
                    tag,
                    self.parties[self.reference].given(tag).or(a.given(tag)).or(b.given(tag))?.clone(),
                ))
            })
            .collect();
        // Every side knows the model's inputs, also a file.
        for party in &self.parties {
            let inputs =
                party.planned().map(|planned| planned.program.main.inputs.clone()).unwrap_or_default();
            for id in inputs {
                let tag = party.planned().and_then(|planned| planned.tag(id));
                if let Some((tag, tensor)) = tag.and_then(|tag| Some((tag, party.given(tag)?.clone()))) {
                    self.values.entry(tag).or_insert(tensor);
                }
            }
        }
        both.retain(|tag| !inputs.contains_key(tag));
        self.values.extend(inputs);
        both
    }

    /// Finds the nodes of each side that compute a border from the preceding ones; none for a file.
    fn cones(&self, tag: ValueId) -> [Cone; 2] {
        [0, 1].map(|side| {
            let Some(planned) = self.parties[side].planned() else { return Cone::default() };
            let stops = |id: ValueId| planned.tag(id).is_some_and(|tag| self.stops.contains(&tag));
            planned.known(tag).map(|id| planned.cone(&[id], stops)).unwrap_or_default()
        })
    }

    /// Runs a border's nodes alone on both sides, for equal inputs.
    fn judge(&self, tag: ValueId) -> Result<Judged> {
        let cones = self.cones(tag);
        if self.parties.iter().all(|party| party.planned().is_none()) {
            self.shared.note("both sides are files, so differences cannot be traced to inputs".to_owned());
            let (a, b) = (self.parties[0].value(tag), self.parties[1].value(tag));
            let measured = a.zip(b).and_then(|(a, b)| measure::differ(a, b, self.shared.tolerance));
            return Ok(Judged { cones, measured, ran: true });
        }
        let mut results = Vec::with_capacity(2);
        for (side, cone) in cones.iter().enumerate() {
            results.push(match &self.parties[side] {
                Party::Values(values) => values[&tag].clone(),
                Party::Device(running) => {
                    if !self.shared.budget[side].take(cone.nodes.len()) {
                        let text = "as many nodes as a run has were run again: later ones are not told apart";
                        self.shared.note(text.to_owned());
                        return Ok(Judged { cones, measured: None, ran: false });
                    }
                    let id = running.planned.known(tag).into_iter().collect::<Vec<_>>();
                    self.alone(side, cone, &id)?.remove(0)
                }
            });
        }
        let measured = measure::differ(&results[0], &results[1], self.shared.tolerance);
        Ok(Judged { cones, measured, ran: true })
    }

    /// Computes values of a side with its nodes from the reference's values.
    pub fn alone(&self, side: usize, cone: &Cone, wanted: &[ValueId]) -> Result<Vec<Tensor>> {
        let Party::Device(running) = &self.parties[side] else {
            return Err(Error::new(ErrorKind::Internal, "a file does not run"));
        };
        let given = |id: ValueId| self.given(side, id);
        let result = running.planned.run_part(cone, wanted, &given, self.shared.options.cancel.as_ref());
        result.map_err(|e| of_side(e, side))
    }

    /// Returns a value that a side's part starts from: the reference's, converted to the side's type; its own if the
    /// reference has none.
    pub fn given(&self, side: usize, id: ValueId) -> Option<Tensor> {
        let Party::Device(running) = &self.parties[side] else { return None };
        let dtype: Option<DType> = running.planned.program.value(id).ty.as_ref().map(|ty| ty.dtype);
        let tensor = running.planned.tag(id).and_then(|tag| self.values.get(&tag));
        match (tensor, dtype) {
            (Some(tensor), Some(dtype)) => converted(tensor, dtype),
            (Some(tensor), None) => Some(tensor.clone()),
            (None, _) => running.given.get(&id).cloned(),
        }
    }

    /// Returns the planned program of a side that runs.
    pub fn planned(&self, side: usize) -> Option<&Planned> {
        self.parties[side].planned()
    }

    /// Returns the state that all scenes share.
    pub fn shared(&self) -> &'a Shared<'a> {
        self.shared
    }

    /// Returns the enclosing control flow.
    pub fn within(&self) -> &[String] {
        &self.within
    }

    /// Returns the reference's value of a border.
    pub fn value(&self, tag: ValueId) -> Option<&Tensor> {
        self.values.get(&tag)
    }

    /// Finds the nodes to report for a border that differs on its own: those inside its control flow, else the node itself.
    fn differences(
        &self,
        tag: ValueId,
        judged: &Judged,
        in_run: Measured,
        alone: Measured,
    ) -> Result<Vec<Difference>> {
        let inner = descend::descend(self, tag)?;
        if !inner.is_empty() {
            return Ok(inner);
        }
        let source = self.shared.source;
        let (nodes, begins) = source.group(tag, &self.stops);
        let node = match source.maker(tag) {
            Some(at) => source.label(at),
            None => "an input".to_owned(),
        };
        let ran = [0, 1].map(|side| match self.parties[side].planned() {
            Some(planned) => planned.labels(&judged.cones[side]),
            None => Vec::new(),
        });
        let model = Alone::of(source, tag, (&nodes, &begins), &self.stops, |tag| self.value(tag).cloned());
        Ok(vec![Difference {
            within: self.within.clone(),
            node,
            nodes: nodes.iter().map(|&at| source.label(at)).collect(),
            value: source.name(tag),
            alone,
            in_run,
            ran,
            model,
        }])
    }
}

/// Splits values into parts of at most `limit` bytes, each with at least one value.
fn parts(tags: &[ValueId], size: impl Fn(ValueId) -> usize, limit: usize) -> Vec<&[ValueId]> {
    let mut parts = Vec::new();
    let (mut begin, mut sum) = (0, 0usize);
    for (i, &tag) in tags.iter().enumerate() {
        let next = size(tag);
        if i > begin && sum.saturating_add(next) > limit {
            parts.push(&tags[begin..i]);
            (begin, sum) = (i, 0);
        }
        sum = sum.saturating_add(next);
    }
    if begin < tags.len() {
        parts.push(&tags[begin..]);
    }
    parts
}
