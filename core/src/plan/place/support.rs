//! Support of a program by devices: what would run each node, and each device's answer with its reason.
//!
//! Nothing is planned, so a node that no device takes is an answer and no error. The rules are those of planning: views,
//! claims of compilers, and kernels by [`kernel::ask`]. On request kernels are prepared too, since a kernel may refuse
//! only then.

use super::by_cost::{Refused, Table};
use super::kernel::{self, Known, NodeTypes};
use crate::cancel::look;
use crate::error::{ErrorKind, Result};
use crate::kernel::Counts;
use crate::plan::compiled::claims::Claims;
use crate::plan::memory::views;
use crate::plan::{Env, PlaceBy, is_static};
use crate::program::catalogue::{self, OpKind};
use crate::program::{Node, Op, Program, Region, ValueId};
use crate::tensor::TensorType;

/// How certain the answers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asking {
    /// By the kernels' descriptors: quick, and a kernel may still refuse when it is prepared.
    Descriptors,
    /// By preparing each kernel, as planning does.
    Prepared,
}

/// The part of the system that would run a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Runs {
    /// A kernel or a compiler of this device.
    Device(String),
    /// Nothing: its results are parts of its operand, or its operand with another shape.
    View,
    /// The host: control flow, and questions about shapes.
    Host,
    /// No device: the model cannot run.
    Nowhere,
}

/// A device's answer for a node.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The device.
    pub device: String,
    /// The kernel, as op and version, or `compiler`; else the reason why there is none.
    pub kernel: std::result::Result<String, String>,
    /// The counts that the kernel states for one launch.
    pub counts: Option<Counts>,
}

/// Support of one node.
#[derive(Clone, Debug)]
pub struct NodeSupport {
    /// The node, with its op.
    pub node: String,
    /// Its op.
    pub op: Op,
    /// Regions that it is in, outermost first, each with its node.
    pub within: Vec<String>,
    /// Type of its first operand, or else of its first result; None if neither is known.
    pub ty: Option<TensorType>,
    /// Type of its first result, if known.
    pub result: Option<TensorType>,
    /// What would run it.
    pub runs: Runs,
    /// True if it is planned only when its operands are there.
    pub is_late: bool,
    /// The answer of each device; none for views and nodes of the host.
    pub answers: Vec<Answer>,
}

/// Returns the support of each node of a program, those of regions included, in their order. `env` has the placement, `asked`
/// every device whose answer is wanted, which include those of `env`.
///
/// # Errors
/// Errors of plugins other than refusals of a node.
pub fn support(program: &Program, env: &Env, asked: &Env, asking: Asking) -> Result<Vec<NodeSupport>> {
    let claims = Claims::of(program, asked)?;
    let sites = match env.placement.by {
        PlaceBy::Cost if env.n_sites() > 1 => {
            let found = Table::new(program, env, &Refused::new(), &Claims::of(program, env)?).cheapest();
            found.map(|found| found.sites).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let mut walk = Walk { program, env, asked, asking, claims, sites, found: Vec::new() };
    walk.region(&program.main, &[])?;
    Ok(walk.found)
}

struct Walk<'a> {
    program: &'a Program,
    env: &'a Env,
    asked: &'a Env,
    asking: Asking,
    /// Claims of the asked devices' compilers.
    claims: Claims,
    /// The device of each node of the main region, where estimates decide.
    sites: Vec<Option<usize>>,
    found: Vec<NodeSupport>,
}

impl Walk<'_> {
    fn region(&mut self, region: &Region, within: &[String]) -> Result<()> {
        for (at, node) in region.nodes.iter().enumerate() {
            look()?;
            let support = self.node(node, within.is_empty().then_some(at), within)?;
            self.found.push(support);
            for (name, inner) in &node.regions {
                let mut path = within.to_vec();
                path.push(format!("{} {name}", node.label()));
                self.region(inner, &path)?;
            }
        }
        Ok(())
    }

    /// Returns the support of a node; `at` is its position in the main region.
    fn node(&self, node: &Node, at: Option<usize>, within: &[String]) -> Result<NodeSupport> {
        // The type of a later operand, such as axes, would say nothing about the node.
        let type_of = |ids: &[Option<ValueId>]| self.program.value(*ids.iter().flatten().next()?).ty.clone();
        let result = type_of(&node.outputs);
        let mut support = NodeSupport {
            node: node.label(),
            op: node.op.clone(),
            within: within.to_vec(),
            ty: type_of(&node.inputs).or_else(|| result.clone()),
            result,
            runs: Runs::Nowhere,
            is_late: false,
            answers: Vec::new(),
        };
        let kind = catalogue::find(&node.op.domain, &node.op.name).map(|row| row.kind);
        if !node.regions.is_empty() || matches!(kind, Some(OpKind::Control | OpKind::Query)) {
            support.runs = Runs::Host;
            return Ok(support);
        }
        let is_known = is_static(self.program, node, self.env);
        if kind == Some(OpKind::View) || (is_known && views::offsets(self.program, node, self.env).is_some())
        {
            support.runs = Runs::View;
            return Ok(support);
        }
        support.is_late = !is_known;
        let types = NodeTypes::of(self.program, node);
        for site in 0..self.asked.n_sites() {
            support.answers.push(self.answer(node, at, types.as_ref(), site, is_known)?);
        }
        if let Some(device) = self.device_of(node, at, &support.answers) {
            support.runs = Runs::Device(device);
        }
        Ok(support)
    }

    /// Returns the device that would run a node: the one that estimates chose, else the first of the node's that takes it.
    fn device_of(&self, node: &Node, at: Option<usize>, answers: &[Answer]) -> Option<String> {
        let chosen = at.and_then(|at| self.sites.get(at).copied().flatten());
        let sites = chosen.into_iter().chain(self.env.sites_of(node));
        let mut names = sites.map(|site| self.env.site(site).0.name());
        let takes =
            |name: &&str| answers.iter().any(|answer| answer.device == **name && answer.kernel.is_ok());
        names.find(takes).map(str::to_owned)
    }

    fn answer(
        &self,
        node: &Node,
        at: Option<usize>,
        types: Option<&NodeTypes>,
        site: usize,
        is_known: bool,
    ) -> Result<Answer> {
        let device = self.asked.site(site).0;
        let name = device.name().to_owned();
        if at.is_some_and(|at| self.claims.get(site, at).is_some()) {
            return Ok(Answer { device: name, kernel: Ok("compiler".to_owned()), counts: None });
        }
        let found = match types {
            Some(_) if is_known && self.asking == Asking::Prepared => {
                let numerics = self.env.options.numerics;
                kernel::choose(self.program, node, device, numerics).map(|chosen| (chosen.name, chosen.cost))
            }
            Some(types) => {
                kernel::ask(node, types, device, if is_known { Known::Planned } else { Known::Running })
            }
            None => kernel::listed(node, device).map(|kernel| (kernel, None)),
        };
        match found {
            Ok((kernel, cost)) => {
                Ok(Answer { device: name, kernel: Ok(kernel), counts: cost.map(Counts::from) })
            }
            Err(error) if matches!(error.kind(), ErrorKind::UnsupportedOp | ErrorKind::OutOfMemory) => {
                Ok(Answer { device: name, kernel: Err(error.text().to_owned()), counts: None })
            }
            Err(error) => Err(error.at_node(node.label())),
        }
    }
}
