//! Placement by cost: nodes run on the devices whose launches and copies together cost least.
//!
//! Kernels are asked for their cost, not prepared. So a kernel may still refuse later, and then the nodes are placed
//! again without it (`choose.rs`). Pinned nodes stay where they are pinned. Control flow is placed as a whole; its
//! regions' nodes are counted as often as they should run. Nodes that are unknown before they run are not placed: their
//! operands are counted as read by the host, and their results as the host's.
//!
//! Counted are launches by the device's rates, those of the processor divided among its threads as far as that is
//! worth it; and a copy for each value that is read in another memory than it is made in. Inputs come from the host and
//! results go to it; constants are in every memory. Not counted: that copies and devices work side by side.

use super::assign::{self, Carried, HOST, Problem};
use super::kernel::{self, NodeTypes};
use crate::device::rates::Link;
use crate::plan::compiled::claims::Claims;
use crate::plan::control::nested::trips;
use crate::plan::cost::feedback;
use crate::plan::cost::work::WorkKind;
use crate::plan::memory::views;
use crate::plan::steps::CopyKind;
use crate::plan::{Env, is_static};
use crate::program::{Node, Program, Region, ValueId};
use crate::tensor::{bytes_of, n_elements};
use std::collections::{BTreeSet, HashMap};

/// Nodes of a program's main region, by position, and devices that turned out not to take them.
pub type Refused = BTreeSet<(usize, usize)>;

/// The cost of each node of a program on each device, and the values between them.
pub struct Table<'a> {
    env: &'a Env,
    /// Labels of nodes, for reasons.
    labels: Vec<String>,
    /// The part of the problem that each node is, if it is one.
    part_of: Vec<Option<usize>>,
    /// For each part, nanoseconds on each device; None where no kernel may take it.
    times: Vec<Vec<Option<f64>>>,
    /// The node of each part, and whether it is pinned.
    node_of: Vec<(usize, bool)>,
    /// The place of each device.
    place_of: Vec<usize>,
    problem: Problem,
}

/// Devices for nodes.
#[derive(Clone, PartialEq, Debug)]
pub struct Assigned {
    /// The device of each node, by position; None for those that are not placed.
    pub sites: Vec<Option<usize>>,
    /// Nanoseconds of all launches and copies.
    pub ns: f64,
}

impl<'a> Table<'a> {
    /// Asks every device of an environment for the costs of a program's nodes.
    pub fn new(program: &Program, env: &'a Env, refused: &Refused, claims: &Claims) -> Self {
        let (place_of, paths) = places(env);
        let n_places = paths.len();
        let mut table = Self {
            env,
            labels: program.main.nodes.iter().map(Node::label).collect(),
            part_of: Vec::new(),
            times: Vec::new(),
            node_of: Vec::new(),
            place_of,
            problem: Problem { n_places, ..Problem::default() },
        };
        let mut values = Values { program, env, paths: &paths, of: HashMap::new(), all: Vec::new() };
        for (at, node) in program.main.nodes.iter().enumerate() {
            table.node(program, (at, node), refused, claims, &mut values);
        }
        for &id in &program.main.outputs {
            values.read(id, None);
        }
        table.problem.values = values.all;
        table
    }

    fn node(
        &mut self,
        program: &Program,
        (at, node): (usize, &Node),
        refused: &Refused,
        claims: &Claims,
        values: &mut Values<'_>,
    ) {
        self.part_of.push(None);
        if is_static(program, node, self.env)
            && let Some(offsets) = views::offsets(program, node, self.env)
        {
            if let Some(input) = node.input(0) {
                node.outputs
                    .iter()
                    .take(offsets.len())
                    .flatten()
                    .for_each(|&output| values.alias(output, input));
            }
            return;
        }
        let times = times_of(program, node, self.env);
        let part = times.map(|mut times| {
            for site in self.env.sites_of(node) {
                if let Some(claim) = claims.get(site, at) {
                    times[site] = Some(self.env.rates_of(site).compiled(claim));
                }
            }
            for (site, time) in times.iter_mut().enumerate() {
                if refused.contains(&(at, site)) {
                    *time = None;
                }
            }
            let cheapest = |place: usize| {
                let here = times.iter().zip(&self.place_of).filter(|(_, of)| **of == place);
                here.filter_map(|(time, _)| *time).map(assign::cost).min()
            };
            self.problem.costs.push((0..self.problem.n_places).map(cheapest).collect());
            self.times.push(times);
            self.node_of.push((at, self.env.is_pinned(node)));
            self.times.len() - 1
        });
        self.part_of[at] = part;
        let captures = node.regions.iter().flat_map(|(_, region)| region.captures());
        for id in node.inputs.iter().copied().flatten().chain(captures) {
            values.read(id, part);
        }
        for id in node.outputs.iter().copied().flatten() {
            values.make(id, part);
        }
    }

    /// Returns the cheapest devices; None if a node has none.
    pub fn cheapest(&self) -> Option<Assigned> {
        let n_sites = self.env.n_sites();
        let first_to_last = (0..n_sites).filter_map(|first| {
            let order: Vec<usize> =
                std::iter::once(first).chain((0..n_sites).filter(|&site| site != first)).collect();
            let sites = self.first_of(&order).ok()?;
            Some(sites.into_iter().map(|site| self.place_of[site]).collect())
        });
        let starts: Vec<Vec<usize>> = first_to_last.collect();
        let places = self.problem.solve(&starts)?;
        let sites = places.iter().enumerate().map(|(part, &place)| self.cheapest_at(part, place));
        self.assigned(sites.collect::<Option<_>>()?)
    }

    /// Returns the first of some devices that may take each node.
    ///
    /// # Errors
    /// The label of a node that none of them may take.
    pub fn in_order(&self, order: &[usize]) -> Result<Assigned, String> {
        let sites = self.first_of(order)?;
        self.assigned(sites).ok_or_else(String::new)
    }

    fn first_of(&self, order: &[usize]) -> Result<Vec<usize>, String> {
        let first = |(part, times): (usize, &Vec<Option<f64>>)| {
            let (node, is_pinned) = self.node_of[part];
            let listed = order.iter().copied().find(|&site| times[site].is_some());
            // A pinned node has a time there alone.
            let found = listed.or_else(|| times.iter().position(|time| is_pinned && time.is_some()));
            found.ok_or_else(|| self.labels[node].clone())
        };
        self.times.iter().enumerate().map(first).collect()
    }

    /// Returns the device of a place on which a part takes least, the first of several.
    fn cheapest_at(&self, part: usize, place: usize) -> Option<usize> {
        let here = (0..self.place_of.len()).filter(|&site| self.place_of[site] == place);
        here.filter_map(|site| Some((assign::cost(self.times[part][site]?), site)))
            .min()
            .map(|(_, site)| site)
    }

    /// Returns the assignment of parts to these devices, with the time that they take together.
    fn assigned(&self, sites: Vec<usize>) -> Option<Assigned> {
        let places: Vec<usize> = sites.iter().map(|&site| self.place_of[site]).collect();
        let cheapest = self.problem.price(&places)?;
        // A device of a place may take longer than the place's fastest.
        let own = |(part, &site): (usize, &usize)| {
            let least = self.problem.costs[part][places[part]]?;
            Some(assign::cost(self.times[part][site]?) - least)
        };
        let more = sites.iter().enumerate().map(own).sum::<Option<u64>>()?;
        let sites = self.part_of.iter().map(|part| part.map(|part| sites[part])).collect();
        Some(Assigned { sites, ns: assign::ns(cheapest + more) })
    }

    /// Number of nodes without an estimate, because their types are unknown before they run.
    pub fn n_unknown(&self, program: &Program) -> usize {
        let is_view = |node: &Node| views::offsets(program, node, self.env).is_some();
        let nodes = program.main.nodes.iter().zip(&self.part_of);
        nodes.filter(|(node, part)| part.is_none() && !is_view(node)).count()
    }
}

/// The path of values to a place and from it.
struct Path {
    to: Link,
    from: Link,
    /// The device that copies; None where nothing is copied.
    site: Option<usize>,
}

impl Path {
    /// Returns the cost of a copy in one direction: the measured one, else the link's estimate.
    fn cost(&self, env: &Env, kind: CopyKind, size: usize) -> u64 {
        let measured = self.site.and_then(|site| env.measured_copy(site, kind, size));
        let link = if kind == CopyKind::ToDevice { self.to } else { self.from };
        assign::cost(measured.unwrap_or_else(|| link.copy(size)))
    }
}

/// Returns the place of each device, and how values come to each place. All devices that call kernels in the host's
/// memory are at one place, the host's.
fn places(env: &Env) -> (Vec<usize>, Vec<Path>) {
    let mut paths = vec![Path { to: Link::NONE, from: Link::NONE, site: None }];
    let place = |site: usize| {
        if env.works_in_host_memory(site) {
            return HOST;
        }
        let rates = env.rates_of(site);
        let (to, from) = (rates.to_device, rates.from_device);
        paths.push(match env.reads_host_memory(site) {
            // Nothing is copied, but one waits for the other.
            true => Path { to: to.without_bytes(), from: from.without_bytes(), site: None },
            false => Path { to, from, site: Some(site) },
        });
        paths.len() - 1
    };
    ((0..env.n_sites()).map(place).collect(), paths)
}

/// Nanoseconds of a node on each device; None if it is not placed.
fn times_of(program: &Program, node: &Node, env: &Env) -> Option<Vec<Option<f64>>> {
    let mut times = vec![None; env.n_sites()];
    if node.regions.is_empty() {
        if !is_static(program, node, env) {
            return None;
        }
        let types = NodeTypes::of(program, node)?;
        for site in env.sites_of(node) {
            times[site] = time_on((program, node), &types, env, site);
        }
        return Some(times);
    }
    let regions = node.regions.iter().map(|(_, region)| times_of_region(program, region, env));
    let regions: Vec<_> = regions.collect::<Option<_>>()?;
    let is_if = &*node.op.name == "If";
    for site in env.sites_of(node) {
        let own: Option<Vec<f64>> = regions.iter().map(|times| times[site]).collect();
        times[site] = own.map(|own| match is_if {
            // The dearer branch.
            true => own.into_iter().fold(0.0, f64::max),
            false => own.into_iter().sum::<f64>() * trips(program, node),
        });
    }
    // Regions that no device takes alone are placed as the session's order says.
    times.iter().any(Option::is_some).then_some(times)
}

/// Nanoseconds of all nodes of a region, once.
fn times_of_region(program: &Program, region: &Region, env: &Env) -> Option<Vec<Option<f64>>> {
    let mut all = vec![Some(0.0); env.n_sites()];
    for node in &region.nodes {
        if is_static(program, node, env) && views::offsets(program, node, env).is_some() {
            continue;
        }
        for (all, own) in all.iter_mut().zip(times_of(program, node, env)?) {
            *all = all.zip(own).map(|(all, own)| all + own);
        }
    }
    Some(all)
}

/// Nanoseconds of a node on a device; None if it has no kernel that may take it.
fn time_on((program, node): (&Program, &Node), types: &NodeTypes, env: &Env, site: usize) -> Option<f64> {
    let device = env.site(site).0;
    let (kernel, cost) = kernel::first(node, types, device)?;
    let signature =
        env.asks_signatures().then(|| feedback::signature(&kernel, node, types, env.options.numerics));
    let types = types.inputs.iter().flatten().map(|(ty, _)| ty).chain(types.outputs.iter().flatten());
    let sizes = types.map(|ty| n_elements(&ty.known_shape()?).and_then(|n| bytes_of(ty.dtype, n)));
    let operand_bytes = sizes.map(|size| size.unwrap_or(0)).fold(0, usize::saturating_add);
    let n_threads = match env.reads_host_memory(site) {
        true => device.plugin().services().queue().n_threads(),
        false => 1,
    };
    let kind = WorkKind::of(program, node);
    let cost = env.launch_cost((site, kind), signature.as_deref(), cost.as_ref(), operand_bytes);
    Some(env.rates_of(site).divided(cost.ns, n_threads))
}

/// The values between parts, as they are met.
struct Values<'a> {
    program: &'a Program,
    env: &'a Env,
    paths: &'a [Path],
    /// The value that each id is; none for constants.
    of: HashMap<ValueId, Option<usize>>,
    all: Vec<Carried>,
}

impl Values<'_> {
    fn make(&mut self, id: ValueId, maker: Option<usize>) {
        let ty = self.program.value(id).ty.as_ref();
        let size = ty.and_then(|ty| bytes_of(ty.dtype, n_elements(&ty.known_shape()?)?)).unwrap_or(0);
        // A value without elements is not copied.
        let copy = |path: &Path, kind| match size {
            0 if ty.is_some() => 0,
            size => path.cost(self.env, kind, size),
        };
        self.of.insert(id, Some(self.all.len()));
        self.all.push(Carried {
            maker,
            to: self.paths.iter().map(|path| copy(path, CopyKind::ToDevice)).collect(),
            from: self.paths.iter().map(|path| copy(path, CopyKind::FromDevice)).collect(),
            ..Carried::default()
        });
    }

    /// A value is another, with another shape.
    fn alias(&mut self, id: ValueId, of: ValueId) {
        let value = self.find(of);
        self.of.insert(id, value);
    }

    fn find(&mut self, id: ValueId) -> Option<usize> {
        if let Some(&known) = self.of.get(&id) {
            return known;
        }
        if self.program.constant(id).is_some() {
            self.of.insert(id, None);
            return None;
        }
        // No node made it: it is an input.
        self.make(id, None);
        self.of[&id]
    }

    /// A part reads a value, or the host does.
    fn read(&mut self, id: ValueId, reader: Option<usize>) {
        let Some(at) = self.find(id) else { return };
        let value = &mut self.all[at];
        match reader {
            Some(reader) if value.readers.last() != Some(&reader) => value.readers.push(reader),
            Some(_) => {}
            None => value.is_result = true,
        }
    }
}
